"""Somebody rolls a lake table back, restores it or moves it, beside a living process: nothing is lost in silence."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.lake.iceberg_reader import read_iceberg, static_table
from tests.lake.on_delta import read_delta
from tests.lake.test_delta import copy_of

from lakefeed.errors import LakeError
from lakefeed.lake.base import TableFormat
from lakefeed.lake.delta import Delta
from lakefeed.lake.engine import Engine, Enrolled
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.iceberg.store import IcebergStore
from lakefeed.testing.builders import batch, table
from lakefeed.testing.format_contract import one
from lakefeed.testing.scripted_log import ScriptedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Life:
    """A table with a row for each change set 1, 2, 3, and an engine that keeps it up."""

    def __init__(self, tables: TableFormat, directory: Path) -> None:
        (directory / "segments").mkdir()
        self.log = ScriptedLog(directory / "segments")
        self.schema = self.log.schema_of(table("main.t", {"id": pa.int64()}, key=("id",)))
        self.tables = tables
        one(tables, self.schema).load(copy_of(self.schema, [{"id": 0}], directory), lambda _: None)
        self.engine = self.started(tables)
        for number in (1, 2, 3):
            self.write(number)
            assert self.error() is None
        self.location = one(tables, self.schema).location

    def started(self, tables: TableFormat) -> Engine:
        (route,) = tables.routes(self.schema.table)
        return Engine(tables, self.log, lambda: {self.schema.table: Enrolled(route, 1)})

    def write(self, number: int) -> None:
        self.log.add(batch(self.schema, [("insert", {"id": number})]))

    def error(self) -> Any:
        """What one sync says of the table."""
        found = self.engine.sync_once().tables.get(self.schema.table)
        return found if found is not None and found.error is not None else None


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["id"] for row in rows)


def roll_back(spark: SparkSession, root: Path, location: str) -> None:
    """To the second snapshot: the copy and change set 1. By Iceberg's own procedure."""
    session = spark.newSession()
    session.conf.set("spark.sql.catalog.other", "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set("spark.sql.catalog.other.type", "hadoop")
    session.conf.set("spark.sql.catalog.other.warehouse", f"file://{root}")
    shown = [entry.snapshot_id for entry in static_table(location).history()]
    session.sql(f"CALL other.system.rollback_to_snapshot('main.t', {shown[1]})")
    assert ids(read_iceberg(location)) == [0, 1]


@pytest.mark.parametrize("has_applied", [True, False])
def test_an_iceberg_table_that_is_rolled_back_gets_the_lost_changes_again(
    spark: SparkSession, tmp_path: Path, has_applied: bool
) -> None:
    root = tmp_path / "lake"
    life = Life(Iceberg(spark, root).bind("shop"), tmp_path)
    if not has_applied:  # a process that has found the table as it is, and has not written to it yet
        life.engine = life.started(Iceberg(spark, root).bind("shop"))
        assert life.error() is None
    roll_back(spark, root, life.location)
    life.write(4)
    said = life.error()
    assert said is not None
    assert "was at change set 3 and is at 1" in said.error
    assert life.error() is None, "as the remedy says"
    assert ids(read_iceberg(life.location)) == [0, 1, 2, 3, 4]


def test_a_rollback_between_the_plan_and_the_commit_is_seen(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, write = tmp_path / "lake", IcebergStore.write
    life = Life(Iceberg(spark, root).bind("shop"), tmp_path)

    def late(self: IcebergStore, session: SparkSession, step: Any) -> None:
        monkeypatch.setattr(IcebergStore, "write", write)
        roll_back(spark, root, life.location)
        write(self, session, step)

    monkeypatch.setattr(IcebergStore, "write", late)
    life.write(4)
    life.error()  # an error, or a conflict that was planned again
    assert life.error() is None
    assert ids(read_iceberg(life.location)) == [0, 1, 2, 3, 4]


def test_a_delta_table_that_is_restored_stops_until_that_is_undone(spark: SparkSession, tmp_path: Path) -> None:
    life = Life(Delta(spark, tmp_path / "lake").bind("shop"), tmp_path)
    DeltaTable(life.location).restore(1)
    assert ids(read_delta(life.location)) == [0, 1]
    for engine in (life.engine, life.started(Delta(spark, tmp_path / "lake").bind("shop"))):
        life.engine = engine
        life.write(life.log.head + 1)
        said = life.error() and life.error()
        assert said is not None
        assert "restored older rows" in said.error
        assert ids(read_delta(life.location)) == [0, 1], "nothing is written on top"
    statement = re.search(r"RESTORE TABLE .*? TO VERSION AS OF \d+", said.remedy)
    assert statement is not None
    spark.sql(statement[0])
    assert life.error() is None
    assert ids(read_delta(life.location)) == [0, 1, 2, 3, 4, 5]
    spark.sql(f"RESTORE TABLE delta.`{life.location}` TO VERSION AS OF 0")
    life.write(6)
    assert "restored older rows" in (life.error() or life.error()).error


def test_a_moved_iceberg_lake_is_refused_with_a_remedy_that_works(spark: SparkSession, tmp_path: Path) -> None:
    life = Life(Iceberg(spark, tmp_path / "old" / "lake").bind("shop"), tmp_path)
    (tmp_path / "new").mkdir()
    shutil.move(tmp_path / "old" / "lake", tmp_path / "new" / "lake")
    (tmp_path / "old").rmdir()
    moved = Iceberg(spark, tmp_path / "new" / "lake").bind("shop")
    with pytest.raises(LakeError, match="somebody moved the Iceberg table") as refused:
        one(moved, life.schema).applied(1)
    life.engine = life.started(moved)
    life.write(4)
    assert life.error() is not None
    assert not (tmp_path / "old").exists(), "nothing is written to where it was"
    command = re.search(r"mkdir .*? && ln -s \S+ \S+(?=\. )", refused.value.remedy)
    assert command is not None
    subprocess.run(command[0], shell=True, check=True)
    assert life.error() is None
    assert ids(read_iceberg(one(moved, life.schema).location)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("kind", "how"), [(Delta, "missing"), (Iceberg, "torn")])
def test_a_file_of_rows_that_is_gone_or_torn_is_named_and_the_table_goes_on_once_it_is_back(
    spark: SparkSession, tmp_path: Path, kind: type[Delta | Iceberg], how: str
) -> None:
    life = Life(kind(spark, tmp_path / "lake").bind("shop"), tmp_path)
    files = [file for file in Path(life.location).rglob("*.parquet") if "metadata" not in file.parts]
    whole = {file: file.read_bytes() for file in files}
    for file in files:
        file.unlink() if how == "missing" else file.write_bytes(whole[file][:20])
    life.log.add(batch(life.schema, [("delete", {"id": number}) for number in range(4)]))
    said = life.error()
    assert said is not None
    assert any(f"{file.name} of the lake table is missing or damaged" in said.remedy for file in files), said
    assert "lakefeed rebuild FILE main.t --from-source" in said.remedy
    for file, content in whole.items():
        file.write_bytes(content)
    assert life.error() is None, "as the remedy says"
    assert ids(read_delta(life.location) if kind is Delta else read_iceberg(life.location)) == []


@pytest.mark.parametrize(
    ("kind", "files"), [(Delta, "_delta_log/*.json"), (Iceberg, "metadata/v*.json")], ids=["delta", "iceberg"]
)
def test_a_table_whose_record_of_its_files_is_torn_has_a_remedy_and_goes_on_once_it_is_back(
    spark: SparkSession, tmp_path: Path, kind: type[Delta | Iceberg], files: str
) -> None:
    life = Life(kind(spark, tmp_path / "lake").bind("shop"), tmp_path)
    whole = {file: file.read_bytes() for file in Path(life.location).glob(files)}
    for file, content in whole.items():
        file.write_bytes(content[:50])
    life.engine = life.started(kind(spark, tmp_path / "lake").bind("shop"))  # a new process
    life.write(4)
    said = life.error()
    assert said is not None
    assert "<unknown>" not in said.error, "one sentence, and no stack of the library's"
    assert f"mv {life.location} {life.location}.damaged" in said.remedy
    for file, content in whole.items():
        file.write_bytes(content)
    assert life.error() is None, "as the remedy says"

"""Maintenance in every format: what packing takes and what it leaves alone, and what is done although it fails."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.lake.iceberg_reader import static_table

from lakefeed.change.table import Column, TableSchema
from lakefeed.lake.base import LakeTable, TableCopy
from lakefeed.lake.delta import Delta
from lakefeed.lake.delta import maintenance as delta_maintenance
from lakefeed.lake.delta.store import DeltaStore
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.iceberg import maintenance as iceberg_maintenance
from lakefeed.lake.maintenance import MaintenanceOptions
from lakefeed.testing.builders import at, batch, table
from lakefeed.testing.format_contract import one
from lakefeed.testing.scripted_log import ListChunk, ScriptedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS, SMALL_FILES = 200, 6
FILE_BYTES = 8 << 16
"""The whole maintenance's; in between it is an eighth, of which the large file has at least two."""

LAKES: dict[str, Callable[[SparkSession, Path], Delta | Iceberg]] = {
    "delta": Delta,
    "vectors": lambda spark, path: Delta(spark, path, deletion_vectors=True),
    "iceberg": Iceberg,
}


@dataclass
class World:
    kind: str
    table: LakeTable
    log: ScriptedLog
    schema: TableSchema

    def apply(self, *rows: tuple[str, dict[str, Any]], schema: TableSchema | None = None) -> None:
        number = self.log.add(batch(schema or self.schema, list(rows)))
        self.table.apply(self.log.window(self.schema.table, number - 1, number), 1)

    def files(self) -> dict[str, int]:
        """The size of each."""
        if self.kind == "iceberg":
            tasks = static_table(self.table.location).scan().plan_files()
            return {task.file.file_path: task.file.file_size_in_bytes for task in tasks}
        actions = pa.table(DeltaTable(self.table.location).get_add_actions()).to_pylist()
        return {action["path"]: action["size_bytes"] for action in actions}


@pytest.fixture(params=["delta", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("vectors", "iceberg"))])
def world(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> World:
    """A table of a large file with the first keys and some small ones."""
    (tmp_path / "segments").mkdir()
    log = ScriptedLog(tmp_path / "segments")
    columns = (Column("id", pa.int64(), nullable=False, id="1"), Column("v", pa.string(), id="2"))
    schema = log.schema_of(replace(table("main.t", {}), columns=columns, key=("id",)))
    found = one(LAKES[request.param](spark, tmp_path / "lake").bind("shop"), schema)
    dice = random.Random(1)  # what cannot be compressed is as large as it looks
    rows = [[{"id": n, "v": dice.randbytes(1000).hex()} for n in range(ROWS)]]
    rows += [[{"id": n, "v": "small"}] for n in range(ROWS, ROWS + SMALL_FILES)]
    chunks = [ListChunk.of(schema, part, read_at=1, marks=tmp_path) for part in rows]
    found.load(TableCopy(schema=schema, generation=1, base=0, position=at(1), chunks=chunks), lambda _: None)
    return World(request.param, found, log, schema)


def test_packing_in_between_leaves_large_files_as_they_are(world: World) -> None:
    often = MaintenanceOptions(file_bytes=FILE_BYTES, most_files=0, cluster=True).in_between()
    (large,) = [path for path, size in world.files().items() if size > 2 * often.file_bytes]
    if world.kind != "delta":  # there a deleted row is written anew, with all of its file
        world.apply(*(("delete", {"id": n}) for n in range(ROWS // 10)))  # not so many that it is folded
    assert world.table.maintain(often, ("id",)).packed
    assert large in world.files()
    assert len(world.files()) <= 3, "the small ones are as they were"


def test_the_whole_maintenance_splits_no_file_either(world: World) -> None:
    (large,) = [path for path, size in world.files().items() if size > FILE_BYTES // 4]
    assert world.table.maintain(MaintenanceOptions(file_bytes=FILE_BYTES // 8, most_files=0), ("id",)).packed
    assert large in world.files()


def test_a_key_that_got_another_name_does_not_end_maintenance(world: World) -> None:
    """The flow gives the key as it was copied."""
    columns = (replace(world.schema.columns[0], name="number"), world.schema.columns[1])
    renamed = world.log.schema_of(replace(world.schema, columns=columns, key=("number",)))
    world.apply(("insert", {"number": 1000, "v": "new"}), schema=renamed)
    whole = MaintenanceOptions(most_files=0, cluster=True)
    world.apply(("insert", {"number": 1001, "v": "new"}), schema=renamed)
    assert len(world.files()) > 1
    assert world.table.maintain(whole, ("id",)).files_after == 1


def test_a_process_that_has_seen_no_change_yet_packs_by_what_the_table_has(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    new = one(LAKES[world.kind](spark, tmp_path / "lake").bind("shop"), world.schema)
    assert new.maintain(MaintenanceOptions(most_files=0, cluster=True), ("was_a_key", "id")).files_after == 1


def test_what_nobody_needs_goes_although_packing_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper: Any = iceberg_maintenance if world.kind == "iceberg" else delta_maintenance
    cleaned: list[int] = []
    clean = keeper.clean

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no room to pack")

    def cleans(*arguments: Any) -> int:
        cleaned.append(clean(*arguments))
        return cleaned[-1]

    monkeypatch.setattr(iceberg_maintenance if world.kind == "iceberg" else DeltaStore, "pack", fails)
    monkeypatch.setattr(keeper, "clean", cleans)
    with pytest.raises(RuntimeError, match="no room to pack"):
        world.table.maintain(MaintenanceOptions(most_files=0), ("id",))
    assert len(cleaned) == 1

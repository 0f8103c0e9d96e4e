"""Delta tables through maintenance, ours and other people's: what is recorded stays, and syncs go on beside it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakefeed.change.table import TableSchema
from lakefeed.lake.base import Applied, LakeTable, TableCopy
from lakefeed.lake.delta import Delta, DeltaFormat
from lakefeed.lake.delta.maintenance import remove_old_entries
from lakefeed.lake.maintenance import MaintenanceOptions, MaintenanceResult, needs_packing
from lakefeed.lake.spark.error import is_conflict
from lakefeed.testing.builders import at, batch, table
from lakefeed.testing.format_contract import one
from lakefeed.testing.scripted_log import ListChunk, ScriptedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
KEY = ("id",)
EAGER = MaintenanceOptions(most_files=0)


@pytest.fixture
def log(tmp_path: Path) -> ScriptedLog:
    (tmp_path / "segments").mkdir()
    return ScriptedLog(tmp_path / "segments")


@pytest.fixture
def schema(log: ScriptedLog) -> TableSchema:
    return log.schema_of(table("main.t", {"id": pa.int64(), "v": pa.string()}, key=("id",)))


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> DeltaFormat:
    return Delta(spark, tmp_path / "lake").bind("shop")


@pytest.fixture
def lake_table(tables: DeltaFormat, schema: TableSchema, tmp_path: Path) -> LakeTable:
    """Copied in three files of one row."""
    chunks = [ListChunk.of(schema, [{"id": n, "v": "0"}], read_at=1, marks=tmp_path) for n in range(3)]
    found = one(tables, schema)
    found.load(TableCopy(schema=schema, generation=1, base=0, position=at(1), chunks=chunks), lambda _: None)
    return found


def change(log: ScriptedLog, schema: TableSchema, *rows: tuple[str, dict[str, Any]]) -> None:
    log.add(batch(schema, list(rows)))


def content(lake_table: LakeTable) -> dict[int, str]:
    rows = DeltaTable(lake_table.location).to_pyarrow_table().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["v"] for row in rows}


def test_small_files_are_packed_and_nothing_that_is_recorded_changes(
    lake_table: LakeTable, log: ScriptedLog, schema: TableSchema
) -> None:
    assert lake_table.maintain(EAGER, KEY) == MaintenanceResult(files_before=3, files_after=1)
    assert lake_table.applied(1) == Applied(number=0, schema_version=1, rows=3)
    change(log, schema, ("update", {"id": 1, "v": "1"}))
    lake_table.apply(log.window(schema.table, 0, 1), 1)
    assert content(lake_table) == {0: "0", 1: "1", 2: "0"}
    assert lake_table.applied(1) == Applied(number=1, schema_version=1, rows=3)


def test_packed_files_can_be_sorted_by_the_key(lake_table: LakeTable) -> None:
    assert lake_table.maintain(MaintenanceOptions(most_files=0, cluster=True), KEY).packed
    assert DeltaTable(lake_table.location).history(1)[0]["operationParameters"]["zOrderBy"] == '["id"]'


def test_a_table_with_few_files_is_left_alone(lake_table: LakeTable) -> None:
    before = DeltaTable(lake_table.location).version()
    assert lake_table.maintain(MaintenanceOptions(), KEY) == MaintenanceResult(files_before=3, files_after=3)
    assert DeltaTable(lake_table.location).version() == before
    assert needs_packing(20, 1 << 20, MaintenanceOptions())
    assert not needs_packing(20, 20 * (128 << 20), MaintenanceOptions())


def test_what_is_recorded_survives_vacuum_and_the_cleaning_of_the_log(
    lake_table: LakeTable, log: ScriptedLog, schema: TableSchema, spark: SparkSession, tmp_path: Path
) -> None:
    change(log, schema, ("update", {"id": 1, "v": "1"}))
    lake_table.apply(log.window(schema.table, 0, 1), 1)
    delta = DeltaTable(lake_table.location)
    delta.optimize.compact()
    assert delta.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    delta.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    delta.create_checkpoint()
    delta.cleanup_metadata()
    assert not (Path(lake_table.location) / "_delta_log" / f"{0:020d}.json").exists(), "the log was not cleaned"
    again = one(Delta(spark, tmp_path / "lake").bind("shop"), schema)
    assert again.applied(1) == Applied(number=1, schema_version=1, rows=3)
    change(log, schema, ("delete", {"id": 2}))
    again.apply(log.window(schema.table, 1, 2), 1)
    assert content(again) == {0: "0", 1: "1"}


def test_syncs_go_on_beside_maintenance(lake_table: LakeTable, log: ScriptedLog, schema: TableSchema) -> None:
    over = threading.Event()
    problems: list[BaseException] = []

    def maintain_tables() -> None:
        while not over.is_set():
            try:
                lake_table.maintain(EAGER, KEY)
            except Exception as error:  # noqa: BLE001  # a maintenance run that loses against a sync is tried again
                if not is_conflict(error):
                    problems.append(error)
            over.wait(0.05)

    thread = threading.Thread(target=maintain_tables)
    thread.start()
    try:
        for number in range(1, 6):
            change(
                log, schema, ("update", {"id": number % 3, "v": str(number)}), ("insert", {"id": 10 + number, "v": "n"})
            )
            lake_table.apply(log.window(schema.table, number - 1, number), 1)
    finally:
        over.set()
        thread.join()
    assert problems == []
    assert lake_table.applied(1) == Applied(number=5, schema_version=1, rows=8)
    assert content(lake_table) == {0: "3", 1: "4", 2: "5", **{10 + number: "n" for number in range(1, 6)}}


def test_old_log_entries_go_up_to_a_checkpoint_and_the_table_stays_as_it_is(
    tables: DeltaFormat, lake_table: LakeTable, log: ScriptedLog, schema: TableSchema
) -> None:
    for number in range(1, 5):
        change(log, schema, ("update", {"id": 1, "v": str(number)}))
        lake_table.apply(log.window(schema.table, number - 1, number), 1)
    there = DeltaTable(lake_table.location)
    entries = Path(lake_table.location, "_delta_log")
    newest = there.version()
    assert remove_old_entries(lake_table.location, newest, 0) == 0, "there is no checkpoint that stands for them"
    there.create_checkpoint()
    assert remove_old_entries(lake_table.location, newest, 1) == 0, "the checkpoint is one of the versions to keep"
    change(log, schema, ("insert", {"id": 9, "v": "9"}))
    lake_table.apply(log.window(schema.table, 4, 5), 1)
    assert remove_old_entries(lake_table.location, newest + 1, 1) == newest
    assert min(int(path.name[:20]) for path in entries.glob("0*")) == newest
    assert content(lake_table) == {0: "0", 1: "4", 2: "0", 9: "9"}
    assert one(tables, schema).applied(1) == Applied(number=5, schema_version=1, rows=4)
    with pytest.raises(Exception, match=r"(?i)version|log"):
        DeltaTable(lake_table.location, version=newest - 1)
    change(log, schema, ("delete", {"id": 0}))
    lake_table.apply(log.window(schema.table, 5, 6), 1)
    assert content(lake_table) == {1: "4", 2: "0", 9: "9"}


def test_commits_leave_checkpoints_so_that_old_entries_can_go(
    lake_table: LakeTable, log: ScriptedLog, schema: TableSchema
) -> None:
    there = DeltaTable(lake_table.location)
    there.alter.set_table_properties({"delta.checkpointInterval": "3"})
    for number in range(1, 6):
        change(log, schema, ("update", {"id": 1, "v": str(number)}))
        lake_table.apply(log.window(schema.table, number - 1, number), 1)
    assert list(Path(lake_table.location, "_delta_log").glob("*.checkpoint.parquet"))
    assert lake_table.maintain(MaintenanceOptions(keep_versions=0), KEY).removed > 0
    assert content(lake_table) == {0: "0", 1: "5", 2: "0"}

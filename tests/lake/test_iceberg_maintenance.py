"""Iceberg tables through maintenance, ours and other people's: what is recorded stays, and syncs go on beside it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest
from tests.lake.iceberg_reader import read_iceberg, static_table

from lakefeed.change.table import TableSchema
from lakefeed.errors import SparkSetupError, TableStoppedError
from lakefeed.lake.base import Applied, LakeTable, TableCopy
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.maintenance import MaintenanceOptions
from lakefeed.lake.spark.error import is_conflict
from lakefeed.lake.spark.session import checked_session
from lakefeed.testing.builders import at, batch, table
from lakefeed.testing.format_contract import one
from lakefeed.testing.scripted_log import ListChunk, ScriptedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
KEY = ("id",)
NOW = "timestamp '2999-01-01 00:00:00'"


@pytest.fixture
def log(tmp_path: Path) -> ScriptedLog:
    (tmp_path / "segments").mkdir()
    return ScriptedLog(tmp_path / "segments")


@pytest.fixture
def schema(log: ScriptedLog) -> TableSchema:
    return log.schema_of(table("main.t", {"id": pa.int64(), "v": pa.string()}, key=KEY))


@pytest.fixture
def lake_table(spark: SparkSession, schema: TableSchema, log: ScriptedLog, tmp_path: Path) -> LakeTable:
    """Copied in three files of one row, then one row updated: change set 1."""
    chunks = [ListChunk.of(schema, [{"id": n, "v": "0"}], read_at=1, marks=tmp_path) for n in range(3)]
    found = one(Iceberg(spark, tmp_path / "lake").bind("shop"), schema)
    found.load(TableCopy(schema=schema, generation=1, base=0, position=at(1), chunks=chunks), lambda _: None)
    log.add(batch(schema, [("update", {"id": 1, "v": "1"})]))
    found.apply(log.window(schema.table, 0, 1), 1)
    return found


@pytest.fixture
def somebody(spark: SparkSession, tmp_path: Path) -> SparkSession:
    """A session of somebody who knows the tables as catalog ``theirs``, and nothing of Lakefeed."""
    session = spark.newSession()
    session.conf.set("spark.sql.catalog.theirs", "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set("spark.sql.catalog.theirs.type", "hadoop")
    session.conf.set("spark.sql.catalog.theirs.cache-enabled", "false")
    session.conf.set("spark.sql.catalog.theirs.warehouse", f"file://{tmp_path / 'lake'}")
    return session


def call(session: SparkSession, procedure: str, *arguments: str) -> None:
    session.sql(f"CALL theirs.system.{procedure}({', '.join(['table => ' + repr('main.t'), *arguments])})").collect()


def content(lake_table: LakeTable) -> dict[int, str]:
    rows = read_iceberg(lake_table.location)
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["v"] for row in rows}


def files(lake_table: LakeTable) -> set[str]:
    return {task.file.file_path for task in static_table(lake_table.location).scan().plan_files()}


def test_what_is_recorded_survives_compaction_expiry_and_new_manifests(
    lake_table: LakeTable, somebody: SparkSession, schema: TableSchema, log: ScriptedLog
) -> None:
    call(somebody, "rewrite_data_files", "options => map('rewrite-all', 'true')")
    call(somebody, "rewrite_manifests")
    call(somebody, "expire_snapshots", f"older_than => {NOW}", "retain_last => 3")
    assert lake_table.applied(1) == Applied(number=1, schema_version=1, rows=3)
    log.add(batch(schema, [("delete", {"id": 0}), ("insert", {"id": 5, "v": "5"})]))
    lake_table.apply(log.window(schema.table, 1, 2), 1)
    assert content(lake_table) == {1: "1", 2: "0", 5: "5"}
    assert lake_table.applied(1) == Applied(number=2, schema_version=1, rows=3)


def test_b03_expiry_of_every_snapshot_that_records_is_an_error_with_the_remedy(
    lake_table: LakeTable, somebody: SparkSession
) -> None:
    call(somebody, "rewrite_data_files", "options => map('rewrite-all', 'true')")
    call(somebody, "expire_snapshots", f"older_than => {NOW}", "retain_last => 1")
    with pytest.raises(TableStoppedError, match="expired") as stopped:
        lake_table.applied(1)
    assert "copied again" in stopped.value.remedy


def test_our_own_maintenance_packs_and_expires_and_goes_on_recording(
    lake_table: Any, schema: TableSchema, log: ScriptedLog
) -> None:
    for number in range(2, 13):
        log.add(batch(schema, [("update", {"id": 1, "v": str(number)})]))
        lake_table.apply(log.window(schema.table, number - 1, number), 1)
    eager = MaintenanceOptions(most_files=0, keep_hours=0.0, cluster=True)
    result = lake_table.maintain(eager, KEY)
    assert result.packed
    assert result.files_after == 1
    assert result.removed > 0
    assert lake_table.applied(1) == Applied(number=12, schema_version=1, rows=3)
    assert "lakefeed.applied" in static_table(lake_table.location).current_snapshot().summary.additional_properties
    assert content(lake_table) == {0: "0", 1: "12", 2: "0"}
    again = lake_table.maintain(eager, KEY)
    assert (again.files_before, again.files_after) == (1, 1)


def test_no_more_snapshots_are_kept_than_asked_for_however_young_they_are(
    lake_table: Any, schema: TableSchema, log: ScriptedLog
) -> None:
    for number in range(2, 17):
        log.add(batch(schema, [("update", {"id": 1, "v": str(number)})]))
        lake_table.apply(log.window(schema.table, number - 1, number), 1)
    before = len(static_table(lake_table.location).metadata.snapshots)
    often = MaintenanceOptions(most_files=1000, keep_versions=12).in_between()
    assert lake_table.maintain(MaintenanceOptions(keep_versions=before), KEY).removed == 0
    assert lake_table.maintain(often, KEY).removed > 0
    assert len(static_table(lake_table.location).metadata.snapshots) == 12 < before
    assert content(lake_table) == {0: "0", 1: "16", 2: "0"}
    assert lake_table.maintain(often, KEY).removed == 0


def test_a_merge_into_a_small_table_adds_one_file_and_leaves_the_session_as_it_was(
    lake_table: Any, schema: TableSchema, log: ScriptedLog, spark: SparkSession
) -> None:
    before = files(lake_table)
    log.add(batch(schema, [("update", {"id": number, "v": "new"}) for number in range(3)]))
    lake_table.apply(log.window(schema.table, 1, 2), 1)
    assert len(files(lake_table) - before) == 1
    partitions = "spark.sql.shuffle.partitions"
    assert lake_table._session.conf.get(partitions) == spark.conf.get(partitions) != "200"


def test_changes_are_applied_while_somebody_compacts(
    lake_table: LakeTable, somebody: SparkSession, schema: TableSchema, log: ScriptedLog
) -> None:
    errors: list[Exception] = []

    def compact() -> None:
        for _ in range(3):
            try:
                call(somebody, "rewrite_data_files", "options => map('rewrite-all', 'true')")
            except Exception as error:  # noqa: BLE001  # whoever compacts may lose; the sync must not
                errors.append(error)

    other = threading.Thread(target=compact)
    other.start()
    try:
        for number in range(2, 5):
            log.add(batch(schema, [("update", {"id": 1, "v": str(number)}), ("insert", {"id": 10 + number, "v": "n"})]))
            lake_table.apply(log.window(schema.table, number - 1, number), 1)
    finally:
        other.join()
    assert [error for error in errors if not is_conflict(error)] == []
    assert content(lake_table) == {0: "0", 1: "4", 2: "0", 12: "n", 13: "n", 14: "n"}
    found = lake_table.applied(1)
    assert found is not None
    assert found.number == 4


@pytest.mark.timeout(480)
def test_packing_gets_its_turn_where_every_sync_touches_every_file(
    lake_table: Any, schema: TableSchema, log: ScriptedLog
) -> None:
    often = MaintenanceOptions(most_files=0).in_between()
    over = threading.Event()
    problems: list[BaseException] = []

    def sync() -> None:
        number = 1
        try:
            while not over.is_set():
                number += 1
                log.add(batch(schema, [("update", {"id": key, "v": str(number)}) for key in range(3)]))
                lake_table.apply(log.window(schema.table, number - 1, number), 1)
        except BaseException as error:  # noqa: BLE001  # it is looked at below
            problems.append(error)

    syncs = threading.Thread(target=sync)
    syncs.start()
    deadline = time.monotonic() + 240
    packed = False
    try:
        while not packed and time.monotonic() < deadline:
            packed = lake_table.maintain(often, KEY).packed
    finally:
        over.set()
        syncs.join()
    assert problems == []
    assert packed
    assert content(lake_table) == dict.fromkeys(range(3), str(log.head))


def test_a_session_without_iceberg_is_refused_with_the_settings_to_add(spark: SparkSession) -> None:
    class Plain:
        """A session whose extensions are Delta's only; those of a running one cannot be changed."""

        version = "4.1.4"
        conf: ClassVar = {"spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension"}

    plain: Any = Plain()
    with pytest.raises(SparkSetupError, match="without Iceberg") as refused:
        checked_session(plain, ("iceberg",))
    extension = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    assert f"spark.sql.extensions={extension}" in refused.value.remedy
    assert "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13" in refused.value.remedy
    assert checked_session(spark, ("delta", "iceberg")) is spark

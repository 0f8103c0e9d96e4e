"""What a table's owner set stays: through a new copy, a sync and maintenance. And what is refused in whose name."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.lake.on_delta import read_delta
from tests.lake.test_delta import copy_of

from lakefeed.errors import ConfigError, TableStoppedError
from lakefeed.lake.delta import Delta, maintenance
from lakefeed.lake.delta.maintenance import clean, interval_hours, remove_old_entries
from lakefeed.lake.delta.store import DeltaOptions, DeltaStore
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.iceberg import maintenance as iceberg_maintenance
from lakefeed.lake.iceberg.store import IcebergStore
from lakefeed.lake.location import lake_root
from lakefeed.lake.maintenance import MaintenanceOptions
from lakefeed.lake.route import Route
from lakefeed.testing.builders import batch, table
from lakefeed.testing.format_contract import one
from lakefeed.testing.scripted_log import ScriptedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = table("main.t", {"id": pa.int64(), "v": pa.string()}, key=("id",)).at_version(1)
SETTINGS = {
    "delta.enableChangeDataFeed": "true",
    "delta.logRetentionDuration": "interval 60 days",
    "delta.deletedFileRetentionDuration": "interval 60 days",
    "owner": "finance",
}


def _nothing() -> SparkSession:
    raise AssertionError("this needs no Spark")


def owned(root: Path, settings: dict[str, str] = SETTINGS) -> DeltaTable:
    """A copied table that its owner has set up in his way."""
    lake_table = one(Delta(_nothing, root / "lake").bind("shop"), SCHEMA)
    lake_table.load(copy_of(SCHEMA, [{"id": 1, "v": "old"}], root), lambda _: None)
    found = DeltaTable(lake_table.location)
    found.alter.set_table_properties(settings, raise_if_not_exists=False)
    found.alter.set_table_description("of the finance department")
    found.alter.set_column_metadata("v", {"comment": "what it is worth"})
    return DeltaTable(lake_table.location)


def test_a_new_copy_keeps_id_properties_protocol_and_comments(tmp_path: Path) -> None:
    before = owned(tmp_path)
    wider = table("main.t", {"id": pa.int64(), "v": pa.string(), "w": pa.int32()}, key=("id",)).at_version(2)
    lake_table = one(Delta(_nothing, tmp_path / "lake").bind("shop"), wider)
    (tmp_path / "again").mkdir()
    again = copy_of(wider, [{"id": 2, "v": "new", "w": 5}], tmp_path / "again", generation=2)
    lake_table.load(again, lambda _: None)
    after = DeltaTable(lake_table.location)
    assert read_delta(lake_table.location) == [{"id": 2, "v": "new", "w": 5}], "and nothing of the old rows"
    assert after.metadata().id == before.metadata().id, "streaming readers go by it"
    assert after.metadata().configuration == before.metadata().configuration
    assert SETTINGS.items() <= after.metadata().configuration.items()
    assert after.metadata().description == "of the finance department"
    assert after.protocol() == before.protocol()
    assert {field.name: field.metadata.get("comment") for field in after.schema().fields} == {
        "id": None, "v": "what it is worth", "w": None,
    }  # fmt: skip
    applied = lake_table.applied(2)
    assert applied is not None
    assert (applied.number, applied.schema_version, applied.rows) == (0, 2, 1)


@pytest.mark.spark
def test_a_new_copy_with_a_local_time_keeps_the_change_data_feed(spark: SparkSession, tmp_path: Path) -> None:
    before = owned(tmp_path)
    timed = table("main.t", {"id": pa.int64(), "at": pa.timestamp("us")}, key=("id",)).at_version(2)
    lake_table = one(Delta(spark, tmp_path / "lake").bind("shop"), timed)
    (tmp_path / "again").mkdir()
    lake_table.load(copy_of(timed, [{"id": 2, "at": None}], tmp_path / "again", generation=2), lambda _: None)
    after = DeltaTable(lake_table.location)
    assert read_delta(lake_table.location) == [{"id": 2, "at": None}]
    assert after.metadata().id == before.metadata().id
    assert {"timestampNtz", "changeDataFeed"} <= set(after.protocol().writer_features or ())


@pytest.mark.spark
@pytest.mark.parametrize("setting", ["delta.enableChangeDataFeed", "delta.enableRowTracking"])
def test_a_mirror_whose_rows_are_followed_is_not_written_again_for_a_few_changes(
    spark: SparkSession, tmp_path: Path, setting: str
) -> None:
    (tmp_path / "segments").mkdir()
    log = ScriptedLog(tmp_path / "segments")
    schema = log.schema_of(SCHEMA)
    lake_table = one(Delta(spark, tmp_path / "lake").bind("shop"), schema)
    rows: list[dict[str, Any]] = [{"id": number, "v": "0"} for number in range(1000)]
    lake_table.load(copy_of(schema, rows, tmp_path), lambda _: None)
    spark.sql(f"ALTER TABLE delta.`{lake_table.location}` SET TBLPROPERTIES ('{setting}' = 'true')")
    assert lake_table.applied(1) is not None
    log.add(batch(schema, [("update", {"id": number, "v": "1"}) for number in range(4)]))
    lake_table.apply(log.window(schema.table, 0, 1), 1)
    history = spark.sql(f"DESCRIBE HISTORY delta.`{lake_table.location}` LIMIT 1").collect()[0]
    assert history["operation"] == "MERGE"
    if setting == "delta.enableChangeDataFeed":
        feed = spark.read.format("delta").option("readChangeFeed", "true")
        changed = feed.option("startingVersion", history["version"]).load(lake_table.location)
        assert changed.count() == 8, "four rows as they were and as they are"


@pytest.mark.spark
def test_deletion_vectors_ask_readers_for_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    lake_table = one(Delta(spark, tmp_path / "lake", deletion_vectors=True).bind("shop"), SCHEMA)
    lake_table.load(copy_of(SCHEMA, [{"id": 1, "v": "0"}], tmp_path), lambda _: None)
    made = DeltaTable(lake_table.location)
    assert made.protocol().reader_features == ["deletionVectors"]
    assert made.metadata().configuration["delta.enableDeletionVectors"] == "true"


def test_maintenance_keeps_what_the_table_wants_to_keep_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owned(tmp_path)
    kept, logged = list[float](), list[float]()

    def vacuum(_: DeltaTable, hours: float) -> int:
        kept.append(hours)
        return 0

    def remove_old_entries(_location: str, _version: int, _kept: int, keep_hours: float = 0.0) -> int:
        logged.append(keep_hours)
        return 0

    monkeypatch.setattr(maintenance, "vacuum", vacuum)
    monkeypatch.setattr(maintenance, "remove_old_entries", remove_old_entries)
    monkeypatch.setattr(maintenance, "sees_strays", lambda *_: False)
    store = DeltaStore(str(tmp_path / "lake" / "main" / "t"), "shop", Route.same(SCHEMA.table), DeltaOptions())
    clean(store, _nothing, MaintenanceOptions(keep_hours=100_000))
    clean(store, _nothing, MaintenanceOptions(keep_hours=24))
    assert kept == [100_000, 60 * 24]
    assert logged == [], "of a table with a feature that Lakefeed does not write itself no entry is removed"
    (tmp_path / "plain").mkdir()
    location = str(tmp_path / "plain" / "lake" / "main" / "t")
    owned(tmp_path / "plain", {name: value for name, value in SETTINGS.items() if "Feed" not in name})
    plain = DeltaStore(location, "shop", Route.same(SCHEMA.table), DeltaOptions())
    clean(plain, _nothing, MaintenanceOptions(keep_hours=24))
    assert logged == [60 * 24]
    assert interval_hours("interval 1 week 2 DAYS") == 9 * 24
    assert interval_hours("") == 0


def test_entries_of_the_log_that_are_young_stay(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    for number in range(30):
        entry = log / f"{number:020d}.json"
        entry.touch()
        age = time.time() - (30 - number) * 3600
        os.utime(entry, (age, age))
    for number in (10, 20):
        checkpoint = log / f"{number:020d}.checkpoint.parquet"
        checkpoint.touch()
        os.utime(checkpoint, (0, 0))
    assert remove_old_entries(str(tmp_path), 29, 5, keep_hours=15) == 10, "those before the checkpoint of 10"
    assert min(int(path.name[:20]) for path in log.glob("*.json")) == 10
    assert remove_old_entries(str(tmp_path), 29, 5) > 0


def test_names_that_iceberg_reserves_are_refused_before_the_copy_in_its_name(tmp_path: Path) -> None:
    schema = table("main.t", {"id": pa.int64(), "_Pos": pa.int64()}, key=("id",)).at_version(1)
    with pytest.raises(TableStoppedError, match="Iceberg keeps the column name '_Pos' for itself"):
        one(Iceberg(_nothing, tmp_path).bind("shop"), schema).load(copy_of(schema, [], tmp_path), lambda _: None)


@pytest.mark.parametrize("path", ["dbfs:/lake", "s3:/bucket/lake"])
def test_an_address_with_one_slash_is_no_local_directory(path: str) -> None:
    with pytest.raises(ConfigError, match="not a directory"):
        lake_root(path)
    assert lake_root("/a/bb:/c") == "/a/bb:/c"


class Answering:
    """A session that notes what it is asked to do."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def sql(self, statement: str) -> Answering:
        self.asked.append(statement)
        return self

    def collect(self) -> list[list[int]]:
        return [[0]]


def iceberg_store(metadata: dict[str, Any]) -> IcebergStore:
    class Known:
        def current(self) -> dict[str, Any]:
            return metadata

    unused: Any = None
    known: Any = Known()
    return IcebergStore(("c", "main", "t"), known, "shop/main.t", "lake/main/t", lambda: unused)


def test_maintenance_of_an_iceberg_table_keeps_snapshots_as_its_owner_wants() -> None:
    hour, now = 3600, time.time()
    snapshots = [{"snapshot-id": n, "timestamp-ms": (now - n * hour) * 1000, "summary": {}} for n in range(40)]
    options = MaintenanceOptions(keep_hours=5, keep_versions=12)

    def asked(**properties: str) -> list[str]:
        found = {name.replace("_", "-"): value for name, value in properties.items()}
        named = {f"history.expire.{name}": value for name, value in found.items()}
        session: Any = Answering()
        iceberg_maintenance.clean(
            iceberg_store({"snapshots": snapshots, "properties": named}), lambda: session, options
        )
        statements: list[str] = session.asked
        return statements

    assert "retain_last => 10)" in asked()[0]
    assert "retain_last => 25)" in asked(min_snapshots_to_keep="25")[0]
    day = datetime.fromtimestamp(now - 24 * hour, UTC).strftime("%Y-%m-%d %H:%M")
    assert f"TIMESTAMP '{day}" in asked(max_snapshot_age_ms=str(24 * hour * 1000))[0]
    assert asked(max_snapshot_age_ms=str(50 * hour * 1000)) == []
    assert asked(min_snapshots_to_keep="40") == []


def test_files_of_an_iceberg_table_are_packed_in_its_owners_order() -> None:
    for is_ordered, order in (
        (False, "strategy => 'sort', sort_order => '`id` ASC"),
        (True, "strategy => 'sort', opt"),
    ):
        session: Any = Answering()
        iceberg_maintenance.pack(session, ("c", "main", "t"), MaintenanceOptions(), ("id",), is_ordered=is_ordered)
        assert order in session.asked[0]
    assert iceberg_store({"default-sort-order-id": 1}).is_ordered
    assert not iceberg_store({"default-sort-order-id": 0}).is_ordered

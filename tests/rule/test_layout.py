"""How tables lie on disk: partitions, properties, names that Delta refuses; by readers that are not Spark."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.rule.test_rows import config_of, stored, verified

from lakefeed.app.build import build_pipeline
from lakefeed.capture.base import Level
from lakefeed.lake.iceberg.catalog import HadoopMetadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
DAYS = 100
NAMES = """
pipeline: p
source: {kind: sqlite, path: s.db}
lake:
  path: ./lake
  tables:
    - {match: snake, naming: snake_case, namespace: "{database}_{schema}"}
    - {match: only, name: "{table}_too", only: true}
"""
PARTITIONED = """
pipeline: p
source: {kind: sqlite, path: s.db}
lake:
  path: ./lake
  tables:
    - match: events
      transform: {at: "CAST(at AS TIMESTAMP)"}
      partition_by: [days(at)]
      properties: {delta.enableChangeDataFeed: "true"}
    - {match: events, name: history, mode: temporal}
"""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    yield connection
    connection.close()


def test_column_names_that_delta_refuses_are_there_for_every_reader_and_need_no_rename(
    spark: SparkSession, tmp_path: Path, database: sqlite3.Connection
) -> None:
    table = '(id INTEGER PRIMARY KEY, "Order ID" TEXT, "a,b" INTEGER, "UnitPrice" REAL)'
    database.executescript(
        f"CREATE TABLE odd {table}; CREATE TABLE snake {table}; CREATE TABLE only (id INTEGER PRIMARY KEY, n TEXT);"
        "INSERT INTO odd VALUES (1, 'x', 1, 0.5), (2, 'y', 2, 1.5); INSERT INTO snake SELECT * FROM odd;"
    )
    config = config_of(tmp_path, NAMES)
    with build_pipeline(config, spark=spark) as pipeline:
        assert not [one for one in pipeline.check() if one.level is Level.ERROR]
        assert not pipeline.sync_once().errors
        database.executescript(
            "UPDATE odd SET \"Order ID\" = 'z' WHERE id = 1; DELETE FROM odd WHERE id = 2;"
            "INSERT INTO odd VALUES (3, 'n', 3, 2);"
            'ALTER TABLE odd ADD COLUMN "a new {one}" TEXT; UPDATE odd SET "a new {one}" = \'v\' WHERE id = 3;'
            'UPDATE snake SET "Order ID" = \'z\' WHERE id = 1; ALTER TABLE snake ADD COLUMN "Last Name" TEXT;'
        )
        assert not pipeline.sync_once().errors
        pipeline.maintain()
    expected = [
        {"id": 1, "Order ID": "z", "a,b": 1, "UnitPrice": 0.5, "a new {one}": None},
        {"id": 3, "Order ID": "n", "a,b": 3, "UnitPrice": 2.0, "a new {one}": "v"},
    ]
    assert stored(tmp_path, "odd") == expected
    mapped = DeltaTable(tmp_path / "lake" / "main" / "odd").metadata().configuration
    assert mapped["delta.columnMapping.mode"] == "name"
    snake = DeltaTable(tmp_path / "lake" / "s_main" / "snake")
    assert [field.name for field in snake.schema().fields] == ["id", "order_id", "a_b", "unit_price", "last_name"]
    assert snake.to_pyarrow_table().to_pylist()[0]["order_id"] in ("z", "y")
    assert not (tmp_path / "lake" / "main" / "only").exists()
    assert stored(tmp_path, "only_too") == []
    found_by_verify = verified(config, spark)
    assert {name: one.differences for name, one in found_by_verify.items()} == dict.fromkeys(found_by_verify, ())


def partitions_of_delta(place: Path, after: int) -> tuple[int, set[str], set[str]]:
    """The version, the days of all files, and of the files that came or went since a version."""
    table, touched = DeltaTable(place), set[str]()
    for number in range(after + 1, table.version() + 1):
        for line in (place / "_delta_log" / f"{number:020d}.json").read_text().splitlines():
            action: dict[str, Any] = json.loads(line)
            touched |= {action[kind]["partitionValues"]["at_day"] for kind in ("add", "remove") if kind in action}
    files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return table.version(), {str(file["partition.at_day"]) for file in files}, touched


def partitions_of_iceberg(place: Path, after: int) -> tuple[int, set[str], set[str]]:
    metadata = HadoopMetadata(str(place))
    table = metadata.table()
    days: dict[int, set[str]] = {}
    known = [snapshot.snapshot_id for snapshot in table.snapshots()]
    for manifest in table.current_snapshot().manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
            day = date(1970, 1, 1) + timedelta(days=entry.data_file.partition[0])
            days.setdefault(entry.snapshot_id, set()).add(str(day))
    new = known[known.index(after) + 1 :] if after in known else []
    touched = set[str]().union(*(days.get(snapshot, set()) for snapshot in new))
    return known[-1], set[str]().union(*days.values()), touched


@pytest.mark.parametrize(
    ("kind", "partitions"),
    [("delta", partitions_of_delta), pytest.param("iceberg", partitions_of_iceberg, marks=pytest.mark.slow)],
)
def test_changes_of_recent_days_touch_the_files_of_those_days_alone_and_a_row_may_move(
    kind: str, partitions: Any, spark: SparkSession, tmp_path: Path, database: sqlite3.Connection
) -> None:
    database.executescript(
        "CREATE TABLE events (id TEXT PRIMARY KEY, at TEXT, n INTEGER);"
        "WITH RECURSIVE d(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM d WHERE i < 299)"
        " INSERT INTO events SELECT hex(randomblob(8)), datetime('2026-01-01', '+' || (i % 100) || ' days'), i FROM d;"
    )
    config = config_of(tmp_path, PARTITIONED.replace("./lake", f"./lake\n  format: {kind}"))
    place = tmp_path / "lake" / "main" / "events"
    with build_pipeline(config, spark=spark) as pipeline:
        assert not pipeline.sync_once().errors
        version, days, _ = partitions(place, -1)
        assert len(days) == DAYS
        database.executescript(
            "INSERT INTO events VALUES ('new', '2026-04-11 10:00:00', 1), ('newer', '2026-04-10 10:00:00', 1);"
            "UPDATE events SET at = '2026-04-11 00:00:00' WHERE n = 98;"
            "UPDATE events SET n = -1 WHERE at >= '2026-04-09';"
        )
        assert not pipeline.sync_once().errors
    _, days, touched = partitions(place, version)
    assert len(days) == DAYS + 1
    assert touched == {"2026-04-09", "2026-04-10", "2026-04-11"}
    found = verified(config, spark)
    assert {name: one.differences for name, one in found.items()} == dict.fromkeys(found, ())
    assert found["main.events"].lake_rows == DAYS * 3 + 2
    if kind == "delta":
        assert DeltaTable(place).metadata().configuration["delta.enableChangeDataFeed"] == "true"


REFUSED = [
    ("delta", "delta.logRetentionDuration", "interval 1 day", "mode: mirror", "greater than or equal to"),
    ("delta", "delta.nonsense", "x", "partition_by: [kind]", "Unknown configuration"),
    ("delta", "delta.appendOnly", "true", "mode: mirror", "only allow appends"),
    ("iceberg", "format-version", "9", "mode: mirror", "Unsupported format version"),
    ("iceberg", "write.target-file-size-bytes", "many", "mode: mirror", 'For input string: "many"'),
]


@pytest.mark.parametrize(("kind", "name", "value", "layout", "says"), REFUSED)
def test_a_property_that_the_format_refuses_stops_its_table_and_the_remedy_names_it(
    kind: str, name: str, value: str, layout: str, says: str, spark: SparkSession, tmp_path: Path,
    database: sqlite3.Connection,
) -> None:  # fmt: skip
    """Some are refused as soon as the table is made, some by the first change; without them the table goes on."""
    database.executescript(
        "CREATE TABLE events (id INTEGER PRIMARY KEY, kind TEXT); INSERT INTO events VALUES (1, 'a')"
    )
    said = f'{layout}, properties: {{"{name}": "{value}"}}'
    with build_pipeline(config_of(tmp_path, LATER.format(format=kind, layout=said)), spark=spark) as pipeline:
        pipeline.sync_once()
        database.execute("UPDATE events SET kind = 'b'")
        (failed,) = pipeline.sync_once().errors.values()
    assert says in str(failed.error)
    assert f"{name}: {value}" in str(failed.error)
    assert f"Correct or remove {name} under properties in the rule for main.events" in str(failed.remedy)
    # What the table has already is corrected, the rest can go.
    corrected = {"delta.appendOnly": "false", "format-version": "3", "write.target-file-size-bytes": "9000000"}
    said = f'{layout}, properties: {{"{name}": "{corrected[name]}"}}' if name in corrected else layout
    with build_pipeline(config_of(tmp_path, LATER.format(format=kind, layout=said)), spark=spark) as pipeline:
        assert not pipeline.sync_once().errors
    assert stored(tmp_path, "events")[0]["kind"] == "b"


LATER = """
pipeline: p
source: {{kind: sqlite, path: s.db}}
lake:
  path: ./lake
  format: {format}
  tables:
    - {{match: events, {layout}}}
"""


@pytest.mark.parametrize(("kind", "name"), [("delta", "delta.logRetentionDuration"), ("iceberg", "read.split.open")])
def test_a_layout_that_is_changed_later_is_changed_in_place_or_told_until_the_table_is_copied_again(
    kind: str, name: str, spark: SparkSession, tmp_path: Path, database: sqlite3.Connection
) -> None:
    value = "interval 9 days" if kind == "delta" else "9"

    def has() -> tuple[list[str], str | None]:
        if kind == "delta":
            found = DeltaTable(tmp_path / "lake" / "main" / "events")
            return list(found.metadata().partition_columns), found.metadata().configuration.get(name)
        table = HadoopMetadata(str(tmp_path / "lake" / "main" / "events")).table()
        return [one.name for one in table.spec().fields], table.properties.get(name)

    database.executescript(
        "CREATE TABLE events (id INTEGER PRIMARY KEY, kind TEXT); INSERT INTO events VALUES (1, 'a')"
    )
    with build_pipeline(config_of(tmp_path, LATER.format(format=kind, layout="mode: mirror")), spark=spark) as pipeline:
        assert not pipeline.sync_once().errors
        assert has() == ([], None)
    changed = f'partition_by: [kind], cluster_by: [id], properties: {{"{name}": "{value}"}}'
    config = config_of(tmp_path, LATER.format(format=kind, layout=changed))
    told = "partition_by is kind, and the table is partitioned by nothing"
    (planned,) = build_pipeline(config, spark=spark).plan().tables
    assert f"{told}: it changes with lakefeed rebuild FILE main.events --from-source" in planned.reason
    assert f"property {name} is {value}, and not set in the table" in planned.reason
    with build_pipeline(config, spark=spark) as pipeline:
        (finding,) = [one for one in pipeline.check() if "partition_by" in one.problem]
        assert finding.remedy == "lakefeed rebuild FILE main.events --from-source"
        database.execute("INSERT INTO events VALUES (2, 'b')")
        assert not pipeline.sync_once().errors
        assert has() == ([], value)  # in place
        (status,) = pipeline.status().tables.values()
        assert [told in text for text in status.layout] == [True]
    pipeline = build_pipeline(config, spark=spark)
    pipeline.rebuild("main.events", from_source=True)
    with pipeline:
        assert not pipeline.sync_once().errors
        assert has() == (["kind"], value)
        assert [one.layout for one in pipeline.status().tables.values()] == [()]
    assert [row["id"] for row in stored(tmp_path, "events")] == [1, 2]

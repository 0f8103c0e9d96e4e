"""The source changes under a rule: columns that it names are renamed, dropped, or come to be. No value comes as it is
that is to be masked, no value is lost, and one table's trouble is that table's."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.rule.test_rows import config_of, stored, verified

from lakefeed.app.build import build_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
CONFIG = """
pipeline: p
source: {{kind: sqlite, path: s.db}}
lake:
  path: ./lake
  format: {format}
  salt: "${{SALT}}"
  tables:
    - {{{rule}}}
"""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    connection.executescript(
        "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, email TEXT);"
        "INSERT INTO people VALUES (1, 'Ann', 'ann@secret'), (2, 'Bo', 'bo@secret');"
        "CREATE TABLE staff (id INTEGER PRIMARY KEY, email TEXT); INSERT INTO staff VALUES (1, 'cy@secret');"
    )
    yield connection
    connection.close()


RENAMED = "ALTER TABLE people RENAME COLUMN email TO mail"
SWAPPED = (
    "ALTER TABLE people RENAME COLUMN email TO x; ALTER TABLE people RENAME COLUMN name TO email;"
    "ALTER TABLE people RENAME COLUMN x TO name"
)


@pytest.mark.parametrize(
    ("rule", "change", "kind"),
    [
        ("match: '*', mask: {email: hash}", RENAMED, "delta"),
        ("match: '*', mask: {email: hash}", SWAPPED, "iceberg"),
        ("match: people, transform: {email: \"'x'\"}", RENAMED, "delta"),
    ],
)
def test_a_masked_column_that_is_renamed_stops_its_table_and_is_in_the_lake_nowhere(
    rule: str, change: str, kind: str, spark: SparkSession, tmp_path: Path, database: sqlite3.Connection
) -> None:
    config = config_of(tmp_path, CONFIG.format(format=kind, rule=rule))
    with build_pipeline(config, spark=spark) as pipeline:
        assert not pipeline.sync_once().errors
        database.executescript(f"{change}; INSERT INTO people VALUES (3, 'Cy', 'cy@secret')")
        database.execute("INSERT INTO staff VALUES (2, 'di@secret')")
        for _ in range(2):
            ((table, failed),) = pipeline.sync_once().errors.items()
            assert str(table) == "main.people"
            assert "masks or makes the column email, but the source has" in str(failed.error)
            assert "lakefeed rebuild FILE main.people --from-source" in str(failed.remedy)
    with build_pipeline(config, spark=spark) as pipeline:
        assert [str(table) for table in pipeline.sync_once().errors] == ["main.people"]
    assert "secret" not in str(stored(tmp_path, "people"))
    assert len(stored(tmp_path, "staff")) == 2
    if change != RENAMED or "mask" not in rule:
        return
    config = config_of(tmp_path, CONFIG.format(format=kind, rule="match: '*', mask: {email: hash, mail: hash}"))
    build_pipeline(config, spark=spark).rebuild("main.people", from_source=True)
    with build_pipeline(config, spark=spark) as pipeline:
        assert not pipeline.sync_once().errors
    assert "secret" not in str(stored(tmp_path, "people"))
    assert {len(row["mail"]) for row in stored(tmp_path, "people")} == {64}


def test_a_column_that_is_gone_keeps_one_table_waiting_and_no_start_is_refused(
    spark: SparkSession, tmp_path: Path, database: sqlite3.Connection
) -> None:
    """By a rule for one table: what it says must be true. By one for many, the column may go."""
    config = config_of(tmp_path, CONFIG.format(format="delta", rule="match: people, mask: {email: hash}"))
    for step in ("SELECT 1", "ALTER TABLE people DROP COLUMN email", "INSERT INTO staff VALUES (2, 'x')"):
        database.execute(step)
        with build_pipeline(config, spark=spark) as pipeline:
            errors = pipeline.sync_once().errors
    assert [str(table) for table in errors] == ["main.people"]
    assert len(stored(tmp_path, "staff")) == 2


def test_a_sensitive_column_that_is_renamed_keeps_its_table_alone_waiting_over_restarts(
    spark: SparkSession, tmp_path: Path, database: sqlite3.Connection
) -> None:
    rule = "match: '*', mask: {email: hash}, sensitive: true"
    config = config_of(tmp_path, CONFIG.format(format="delta", rule=rule))
    steps = ("SELECT 1", RENAMED, "UPDATE people SET mail = 'new@secret'", "INSERT INTO staff VALUES (2, 'x@secret')")
    for step in steps:
        database.execute(step)
        with build_pipeline(config, spark=spark) as pipeline:
            pipeline.sync_once()
            status = {str(table): one for table, one in pipeline.status().tables.items()}
    assert (status["main.people"].state, status["main.staff"].state) == ("blocked", "live")
    assert "names the column email, which the table does not have" in str(status["main.people"].error)
    assert len(stored(tmp_path, "staff")) == 2
    lake = tmp_path / "lake"
    assert not [file for file in lake.rglob("*") if file.is_file() and b"@secret" in file.read_bytes()]


def test_a_column_of_the_source_with_the_name_of_one_that_the_rule_makes_costs_no_value(
    spark: SparkSession, tmp_path: Path, database: sqlite3.Connection
) -> None:
    rule = "match: people, transform: {full: \"concat(name, '!')\"}"
    config = config_of(tmp_path, CONFIG.format(format="delta", rule=rule))
    with build_pipeline(config, spark=spark) as pipeline:
        assert not pipeline.sync_once().errors
        database.executescript("ALTER TABLE people ADD COLUMN full TEXT; UPDATE people SET full = 'F' WHERE id = 1")
        (failed,) = pipeline.sync_once().errors.values()
    assert "its rule makes a column full, and now the source has a column of that name" in str(failed.error)
    assert [row["full"] for row in stored(tmp_path, "people")] == ["Ann!", "Bo!"]
    config = config_of(tmp_path, CONFIG.format(format="delta", rule=rule.replace("full:", "whole:")))
    build_pipeline(config, spark=spark).rebuild("main.people", from_source=True)
    with build_pipeline(config, spark=spark) as pipeline:
        assert not pipeline.sync_once().errors
    assert [(row["full"], row["whole"]) for row in stored(tmp_path, "people")] == [("F", "Ann!"), (None, "Bo!")]
    assert {name: one.differences for name, one in verified(config, spark).items()} == {
        "main.people": (), "main.staff": ()
    }  # fmt: skip

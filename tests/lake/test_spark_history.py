"""Random histories of a real database through the real pipeline into real Delta tables: lake == source.

The breadth is in tests/flow/test_pipeline_history.py, with the lake in memory; this is the same idea end to end.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.compare import compare_sqlite_table
from tests.crash.shop import TABLES, change

from lakefeed import Delta, JournalOptions, Pipeline, PipelineOptions, Sqlite
from lakefeed.change.table import TableId
from lakefeed.failpoint import FailpointError, armed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

OPTIONS = PipelineOptions(journal=JournalOptions(keep_seconds=0, keep_change_sets=2))
CRASHES = [
    "lake.during_load=raise@2",
    "journal.after_segments=raise",
    "lake.before_commit=raise",
    "lake.after_marks=raise",
    "lake.after_commit=raise@2",
    "capture.before_confirm=raise",
]


def add(connection: sqlite3.Connection, chance: random.Random) -> None:
    name, default = f"extra{chance.randrange(10**6)}", chance.choice(["", " DEFAULT 7", " DEFAULT 'x''y'"])
    connection.execute(f"ALTER TABLE account ADD COLUMN {name} TEXT{default}")
    connection.execute(f"UPDATE account SET {name} = 'set' WHERE id % 3 = 0")


def rename(connection: sqlite3.Connection, chance: random.Random) -> None:
    extra = extras(connection)
    if extra:
        connection.execute(f"ALTER TABLE account RENAME COLUMN {extra[0]} TO extra{chance.randrange(10**6)}")


def drop(connection: sqlite3.Connection, chance: random.Random) -> None:
    extra = extras(connection)
    if extra:
        connection.execute(f"ALTER TABLE account DROP COLUMN {chance.choice(extra)}")


def empty(connection: sqlite3.Connection, _: random.Random) -> None:
    connection.execute("DELETE FROM entry")


def mix(connection: sqlite3.Connection, _: random.Random) -> None:
    connection.execute("UPDATE entry SET amount = 'not a number' WHERE account % 50 = 0")


def extras(connection: sqlite3.Connection) -> list[str]:
    names = [row[1] for row in connection.execute("PRAGMA table_info(account)")]
    return [name for name in names if name.startswith("extra")]


EVENTS: list[Callable[[sqlite3.Connection, random.Random], None]] = [add, add, rename, drop, empty, mix]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_any_history_of_data_and_schema_ends_with_lake_equal_to_source(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    connection = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.executescript(TABLES)
    change(connection, chance, 100)
    crashes = [*CRASHES, *CRASHES]
    chance.shuffle(crashes)
    for step in range(6):
        change(connection, chance, 60)
        if step:
            chance.choice(EVENTS)(connection, chance)
            change(connection, chance, 20)
        name, _, action = crashes[step].partition("=")
        with make(spark, tmp_path) as pipeline, armed(name, action), contextlib.suppress(FailpointError):
            pipeline.sync_once()
    with make(spark, tmp_path) as pipeline:
        for _ in range(3):  # a copy that a schema change asked for comes with the next one
            pipeline.sync_once()
        assert pipeline.sync_once().counts.total == 0
    connection.close()
    for table in ("account", "entry", "event"):
        found = compare_sqlite_table(tmp_path / "s.db", TableId("main", table), tmp_path / "lake" / "main" / table)
        assert found.equal, f"seed {seed}, table {table}: {found.differences}"


def make(spark: SparkSession, place: Path) -> Pipeline:
    return Pipeline(
        Sqlite(place / "s.db"),
        Delta(spark, place / "lake", deletion_vectors=["account", "entry"]),
        name="history",
        options=OPTIONS,
    )

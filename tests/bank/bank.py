"""A bank whose money moves between three tables and never gets more or less; every transfer names accounts that exist.

``python -m tests.bank.bank write DATABASE SEED PARENT`` is the writer, ``… follow DIRECTORY`` the pipeline: processes
of their own, so that they can be killed.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from lakefeed import Delta, Iceberg, Pipeline, PipelineOptions, Sqlite
from lakefeed.change.choice import Choices
from lakefeed.change.table import TableId, TableSchema
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.base import LakeTable, TableFormat
from lakefeed.lake.route import Route
from lakefeed.lake.schema.policy import Evolution

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ACCOUNTS, MONEY = 20, 1_000
TOTAL = 2 * ACCOUNTS * MONEY
TABLES = """
CREATE TABLE checking (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL);
CREATE TABLE savings (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL);
CREATE TABLE transfer (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL,
  checking INTEGER NOT NULL REFERENCES checking (id), savings INTEGER NOT NULL REFERENCES savings (id));
"""
OPTIONS = PipelineOptions(
    interval_seconds=5.0, journal=JournalOptions(fsync=False, keep_change_sets=16, keep_seconds=3600)
)


def create(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(TABLES)
        for table in ("checking", "savings"):
            rows = [(number, MONEY) for number in range(ACCOUNTS)]
            connection.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)


def transfer(connection: sqlite3.Connection, chance: random.Random) -> None:
    """One transaction: money moves, is written down; now and then an account is opened, or closed with its transfers.
    Some are rolled back."""
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("BEGIN IMMEDIATE")
    one, other = (
        chance.choice(connection.execute(f"SELECT id FROM {table}").fetchall())[0] for table in ("checking", "savings")
    )
    if chance.random() < 0.2:
        one = connection.execute("INSERT INTO checking (amount) VALUES (0) RETURNING id").fetchone()[0]
    amount = chance.randrange(-50, 50)
    connection.execute("UPDATE checking SET amount = amount - ? WHERE id = ?", (amount, one))
    connection.execute("UPDATE savings SET amount = amount + ? WHERE id = ?", (amount, other))
    connection.execute("INSERT INTO transfer (amount, checking, savings) VALUES (?, ?, ?)", (amount, one, other))
    if chance.random() < 0.15:
        gone, rest = connection.execute("SELECT id, amount FROM checking WHERE id <> ? LIMIT 1", (one,)).fetchone()
        connection.execute("UPDATE savings SET amount = amount + ? WHERE id = ?", (rest, other))
        connection.execute("DELETE FROM transfer WHERE checking = ?", (gone,))
        connection.execute("DELETE FROM checking WHERE id = ?", (gone,))
    connection.execute("ROLLBACK" if chance.random() < 0.1 else "COMMIT")


def write(database: str, seed: str, parent: str) -> None:
    chance, stopped = random.Random(int(seed)), list[bool]()
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as connection:
        while not stopped and os.getppid() == int(parent):
            transfer(connection, chance)
            time.sleep(0.03)


class MixedLake:
    """Delta tables and one Iceberg table side by side, as a lake has them that is moved from one to the other."""

    def __init__(self, spark: SparkSession | Callable[[], SparkSession], path: Path) -> None:
        self.path = str(path)
        self._delta, self._iceberg = Delta(spark, path), Iceberg(spark, path)

    def bind(self, pipeline: str) -> MixedFormat:
        return MixedFormat(self._delta.bind(pipeline), self._iceberg.bind(pipeline))


class MixedFormat:
    columns = None
    sensitive = None

    def __init__(self, delta: TableFormat, iceberg: TableFormat) -> None:
        self._delta, self._iceberg = delta, iceberg

    def routes(self, source: TableId) -> tuple[Route, ...]:
        return self._delta.routes(source)

    @property
    def choices(self) -> Choices:
        return self._delta.choices

    def matching(self, source: TableId) -> tuple[str, ...]:
        return self._delta.matching(source)

    def unused(self, schemas: Iterable[TableSchema]) -> tuple[str, ...]:
        return self._delta.unused(schemas)

    def scratch(self, path: str) -> TableFormat:
        return self._delta.scratch(path)

    def progress(self) -> object:
        return self._delta.progress()

    def newest_commit(self, route: Route) -> str | None:
        return self._delta.newest_commit(route) if route.source.name != "savings" else None

    def evolution(self, route: Route) -> Evolution:
        return self._delta.evolution(route)

    def table(self, route: Route) -> LakeTable:
        return (self._iceberg if route.source.name == "savings" else self._delta).table(route)


def follow(directory: str) -> None:
    from lakefeed.lake.spark.session import spark_session

    place = Path(directory)
    lake = MixedLake(spark_session("bank", formats=("delta", "iceberg")), place / "lake")
    with Pipeline(Sqlite(place / "bank.db"), lake, name="bank", options=OPTIONS) as pipeline:
        pipeline.run()


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of the two, until the block ends; what is left of it then is killed."""
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "tests.bank.bank", *arguments]
    started = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": root})
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def problems(tables: dict[str, DataFrame]) -> str:
    """What is wrong with one picture of the bank; nothing, ever. One action of Spark, counted without it."""
    from pyspark.sql import functions as F  # noqa: N812

    ways = {
        "checking": ("id", "NULL", "NULL"),
        "savings": ("id", "NULL", "NULL"),
        "transfer": ("id", "checking", "savings"),
    }
    rows = reduce(
        lambda one, other: one.union(other),
        (
            tables[f"main.{name}"].select(F.lit(name).alias("t"), *map(F.expr, columns), "amount")
            for name, columns in ways.items()
        ),
    ).toArrow()
    ids: dict[str, list[int]] = {name: [] for name in ways}
    named: dict[str, set[int]] = {"checking": set(), "savings": set()}
    money = 0
    for name, number, checking, savings, amount in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        ids[name].append(number)
        if name == "transfer":
            named["checking"].add(checking)
            named["savings"].add(savings)
        else:
            money += amount
    twice = [name for name, found in ids.items() if len(found) != len(set(found))]
    lost = {name: found - set(ids[name]) for name, found in named.items() if found - set(ids[name])}
    if money == TOTAL and not lost and not twice:
        return ""
    return f"money {money}, accounts of transfers that are not there {lost}, rows there twice in {twice}"


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(*sys.argv[2:])
    else:
        follow(*sys.argv[2:])

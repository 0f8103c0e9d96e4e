"""One workload, through polling and through the trigger or log capture: both mirrors equal the source. A2, A9, A24.

Transactions held open across polls, clocks that are wrong, mass updates with one time stamp, hard deletes (found by
comparing keys), soft deletes, un-deletes, keys that are used again, restarts.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.poll.actors import iso, now_us

from lakefeed.capture.base import ChangeCapture
from lakefeed.capture.poll.capture import Polling
from lakefeed.capture.poll.rule import Pace, SoftDelete, TableRule
from lakefeed.capture.postgres.dialect import PostgresDialect
from lakefeed.capture.postgres.source import Postgres
from lakefeed.capture.sqlite.dialect import SqliteDialect
from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.change.batch import DELETED, FOUND
from lakefeed.change.position import Position
from lakefeed.change.table import TableId
from lakefeed.testing.capture_subject import drain
from lakefeed.testing.replica import Replica

Execute = Callable[[str], Any]
RULE = TableRule(deletes=SoftDelete("deleted_at"), batch_rows=40, safety_lag_seconds=1.0)
PACE = Pace(poll_seconds=0, patience_seconds=60.0)
SKEW_US = 700_000


class Mirror:
    """A capture and the replica that it fills."""

    def __init__(self, make: Callable[[], ChangeCapture], table: TableId) -> None:
        self._make = make
        self._table = table
        self.replica = Replica()
        self.capture = make()
        self.capture.open()
        self.position: Position = self.capture.prepare([table])
        self.replica.copy(self.capture.snapshot(table, chunk_rows=20))

    def follow(self) -> None:
        for one in drain(self.capture, self.position):
            self.replica.apply(one)
            self.position = one.end
            self.capture.confirm(one.end)
        assert self.replica.stale == set()

    def restart(self) -> None:
        self.capture.close()
        self.capture = self._make()
        self.capture.open()
        self.capture.continuity(self.position, [self._table])
        self.capture.recall([self.replica.schemas[self._table]])

    def rows(self) -> dict[int, str]:
        return {row["id"]: row["v"] for row in self.replica.rows(self._table)}


class Application:
    """Writes with clocks that are up to ``SKEW_US`` apart."""

    def __init__(self, execute: Execute, seed: int) -> None:
        self._execute = execute
        self._dice = random.Random(seed)
        self.gone: set[int] = set()

    def stamp(self) -> str:
        return iso(now_us() - self._dice.randrange(SKEW_US))

    def step(self) -> None:
        choice, key, at = self._dice.random(), self._dice.randrange(60), self.stamp()
        value = f"v{self._dice.randrange(10**6)}"
        if choice < 0.45:
            self._execute(
                f"INSERT INTO t VALUES ({key}, '{value}', '{at}', '{at}', NULL) ON CONFLICT (id) DO UPDATE SET"
                f" v = excluded.v, updated_at = excluded.updated_at, deleted_at = NULL"  # also an un-delete
            )
            self.gone.discard(key)
        elif choice < 0.6:
            self._execute(f"UPDATE t SET deleted_at = '{at}' WHERE id = {key} AND deleted_at IS NULL")
        elif choice < 0.7:
            self._execute(f"UPDATE t SET deleted_at = '{at}', updated_at = '{at}' WHERE id = {key}")
        elif choice < 0.8:
            self._execute(f"UPDATE t SET deleted_at = NULL, updated_at = '{at}' WHERE id = {key}")
        elif choice < 0.9:
            self._execute(f"DELETE FROM t WHERE id = {key}")
            self.gone.add(key)
        else:  # a mass update with one time stamp
            self._execute(f"UPDATE t SET v = '{value}', updated_at = '{at}' WHERE deleted_at IS NULL")


def find_deleted(capture: ChangeCapture, table: TableId, mirror: Mirror, number: int) -> None:
    """The comparison of keys, without Spark: the lake's keys that the chunks do not have."""
    assert isinstance(capture, Polling)
    there = set()
    for chunk in capture.keys(table, chunk_rows=10).chunks:
        with chunk.open() as reader:
            there |= {row["id"] for batch in reader for row in batch.to_pylist()}
    missing = sorted(set(mirror.rows()) - there)
    place = capture.differences(table)
    assert place is not None
    (place / str(number)).mkdir(parents=True)
    kind = mirror.replica.schemas[table].column("id").type
    found = pa.table({"id": pa.array(missing, kind), FOUND: pa.array([DELETED] * len(missing), pa.string())})
    pq.write_table(found, place / str(number) / "part-0.parquet")


@contextmanager
def sqlite_place(tmp_path: Path) -> Iterator[tuple[Execute, Callable[[], Any], list[Mirror], TableId]]:
    table = TableId("main", "t")
    path = tmp_path / "s.db"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = wal")
    writer.execute(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, created_at TEXT, updated_at TEXT NOT NULL, deleted_at TEXT)"
    )
    connector = SqliteDialect(str(path))
    makes: list[Callable[[], ChangeCapture]] = [
        lambda: Polling(connector, tables=["t"], rules={"t": RULE}, differences=tmp_path / "f", pace=PACE),
        lambda: Sqlite(path, tables=["t"]).bind("shop"),
    ]
    with ExitStack() as stack:
        stack.callback(writer.close)
        mirrors = [Mirror(make, table) for make in makes]
        for mirror in mirrors:
            stack.callback(lambda one=mirror: one.capture.close())  # type: ignore[misc]
        yield writer.execute, lambda: writer.execute("SELECT id, v, deleted_at FROM t").fetchall(), mirrors, table


@contextmanager
def postgres_place(tmp_path: Path, dsn: str) -> Iterator[tuple[Execute, Callable[[], Any], list[Mirror], TableId]]:
    table = TableId("public", "t")
    writer = psycopg.connect(dsn, autocommit=True)
    writer.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, created_at timestamptz, updated_at timestamptz NOT NULL,"
        " deleted_at timestamptz); ALTER DATABASE " + dsn.rpartition("dbname=")[2] + " SET timezone = 'UTC'"
    )
    writer.execute("SET timezone = 'UTC'")
    connector = PostgresDialect(dsn)
    makes: list[Callable[[], ChangeCapture]] = [
        lambda: Polling(connector, tables=["t"], rules={"t": RULE}, differences=tmp_path / "f", pace=PACE),
        lambda: Postgres(dsn, tables=["t"]).bind("shop"),
    ]
    with ExitStack() as stack:
        stack.callback(writer.close)
        mirrors = [Mirror(make, table) for make in makes]
        for mirror in mirrors:
            stack.callback(lambda one=mirror: one.capture.close())  # type: ignore[misc]
        yield (
            lambda sql: writer.execute(sql.encode()),
            lambda: writer.execute("SELECT id, v, deleted_at FROM t").fetchall(),
            mirrors,
            table,
        )


def run(execute: Execute, mirrors: list[Mirror], table: TableId, seed: int, held: Callable[[int], None]) -> None:
    application = Application(execute, seed)
    polling, other = mirrors
    for turn in range(60):
        held(turn)
        for _ in range(3):
            application.step()
        if turn % 3 == 0:
            polling.follow()
        if turn % 17 == 16:
            polling.restart()
            find_deleted(polling.capture, table, polling, now_us() // 1000)
    held(-1)
    polling.follow()
    time.sleep(RULE.safety_lag_seconds + 0.1)  # more rows than one batch changed within the lag: the rest waits for it
    polling.follow()
    find_deleted(polling.capture, table, polling, now_us() // 1000)
    polling.follow()
    other.follow()


def assert_equal(rows: list[tuple[int, str, Any]], mirrors: list[Mirror]) -> None:
    polling, other = mirrors
    alive = {key: value for key, value, deleted in rows if deleted is None}
    assert len(alive) > 5
    assert polling.rows() == alive
    assert other.rows() == {key: value for key, value, _ in rows}  # it mirrors softly deleted rows as they are
    marked = {row["id"] for row in other.replica.rows(next(iter(other.replica.schemas))) if row["deleted_at"] is None}
    assert set(polling.rows()) == marked


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a02_polling_and_triggers_give_the_same_mirror_of_one_sqlite_workload(tmp_path: Path, seed: int) -> None:
    with sqlite_place(tmp_path) as (execute, rows, mirrors, table):

        def held(turn: int) -> None:
            """Every tenth turn a transaction begins, and is committed two polls later. There is one writer."""
            if turn % 10 == 3:
                execute("BEGIN")
            if turn > 0 and turn % 10 == 9:
                execute("COMMIT")

        run(execute, mirrors, table, seed, held)
        assert_equal(rows(), mirrors)


@pytest.mark.parametrize("seed", [1, 2])
def test_a02_a09_polling_and_the_log_give_the_same_mirror_of_one_postgres_workload(
    tmp_path: Path, dsn: str, seed: int
) -> None:
    """A second writer holds transactions open across polls; its rows are stamped when the transaction began."""
    with psycopg.connect(dsn) as slow, postgres_place(tmp_path, dsn) as (execute, rows, mirrors, table):

        def held(turn: int) -> None:
            if turn % 12 == 3:
                slow.execute(f"INSERT INTO t VALUES ({1000 + turn}, 'late', now(), now(), NULL)".encode())
            if turn % 12 == 11 or turn == -1:
                slow.commit()

        run(execute, mirrors, table, seed, held)
        assert_equal(rows(), mirrors)

"""A SQLite file with a writer and a clock of its own, and what polling makes of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.poll.actors import iso, now_us

from lakefeed.capture.dialect import Horizon
from lakefeed.capture.poll.capture import Polling
from lakefeed.capture.poll.rule import Pace, TableRule
from lakefeed.capture.poll.store import WatermarkStore
from lakefeed.capture.sqlite.dialect import SqliteDialect, SqliteSession
from lakefeed.change.batch import OP, SEQ, Operation
from lakefeed.change.change_set import ChangeSet, TableNotice
from lakefeed.change.position import Position
from lakefeed.change.table import TableId
from lakefeed.testing.replica import Replica

QUICK = Pace(poll_seconds=0, patience_seconds=60.0)
SECOND = 1_000_000
T = TableId("main", "t")
TABLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, created_at TEXT, updated_at TEXT NOT NULL, deleted_at TEXT)"


class Clock:
    """The time that the source shows. Begins a day ago, so that nothing is in the future by accident."""

    def __init__(self) -> None:
        self.us = now_us() // SECOND * SECOND - 86_400 * SECOND

    def tick(self, seconds: float) -> str:
        self.us += round(seconds * SECOND)
        return iso(self.us)

    @property
    def text(self) -> str:
        return iso(self.us)


def clocked(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that only the test moves."""
    clock = Clock()
    monkeypatch.setattr(SqliteSession, "horizon", lambda _: Horizon(clock.us, clock.us))
    return clock


class World:
    """``pull`` takes all that is there now and applies it to the replica."""

    def __init__(self, path: Path, rule: TableRule, store: WatermarkStore | None, differences: Path | None) -> None:
        self.path = path
        self.writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.writer.execute("PRAGMA synchronous = OFF")
        self.rule = rule
        self.store = store
        self.differences = differences
        self.replica = Replica()
        self.notices: list[TableNotice] = []
        self.position: Position | None = None
        self.capture = self.opened()
        self._stream: Iterator[ChangeSet] | None = None

    def opened(self) -> Polling:
        connector = SqliteDialect(str(self.path), 1.0)
        rules = {"*": self.rule}
        capture = Polling(connector, rules=rules, store=self.store, differences=self.differences, pace=QUICK)
        capture.open()
        return capture

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.writer.execute(statement)

    def seed(self) -> None:
        tables = [schema.table for schema in self.capture.discover()]
        self.position = self.capture.prepare(tables)
        for table in tables:
            self.replica.copy(self.capture.snapshot(table, chunk_rows=3))

    def sets(self) -> list[ChangeSet]:
        if self._stream is None:
            self._stream = self.capture.live(self.position, wait_seconds=0)
        found = []
        while not ((one := next(self._stream)).is_heartbeat and one.start == one.end):
            found.append(one)
            self.replica.apply(one)
            self.notices += one.notices
            self.position = one.end
        return found

    def pull(self) -> list[tuple[str, Any]]:
        """Operation and key of every event, in order."""
        return [(Operation(row[OP]).name.lower(), row["id"]) for row in self.rows()]

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for one in self.sets():
            rows = [row for batch in one.batches for row in batch.data.to_pylist()]
            found += sorted(rows, key=lambda row: int(row[SEQ]))
        return found

    def restart(self) -> None:
        """Another process: nothing is left but the position (or the store)."""
        self.capture.close()
        self.capture, self._stream = self.opened(), None

    def values(self, table: TableId = T, column: str = "v") -> dict[Any, Any]:
        return {row["id"]: row[column] for row in self.replica.rows(table)}

    def close(self) -> None:
        self.capture.close()
        self.writer.close()


@contextmanager
def made(
    path: Path,
    *statements: str,
    rule: TableRule | None = None,
    store: WatermarkStore | None = None,
    differences: Path | None = None,
) -> Iterator[World]:
    with sqlite3.connect(path) as setup:
        for statement in statements or (TABLE,):
            setup.execute(statement)
    setup.close()
    world = World(path, rule or TableRule(), store, differences)
    try:
        yield world
    finally:
        world.close()

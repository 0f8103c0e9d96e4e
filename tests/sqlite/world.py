"""A SQLite database with an application that writes to it, for tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from lakefeed.capture.base import ChangeCapture
from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.capture.sqlite.values import lenient_text
from lakefeed.change.batch import OP, Operation
from lakefeed.change.change_set import ChangeSet, TableNotice
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.testing.capture_subject import ordered_rows
from lakefeed.testing.replica import Replica


def table(name: str) -> TableId:
    return TableId("main", name)


class RememberingReplica(Replica):
    """Knows what each row was: a before image must be that very row, and come right before its change."""

    def __init__(self) -> None:
        super().__init__()
        self.before_images = 0

    def apply(self, change_set: ChangeSet) -> None:
        rows = ordered_rows(change_set)
        assert not rows or rows[-1][OP] != Operation.BEFORE
        for one, other in pairwise(rows):
            if one[OP] == Operation.BEFORE:
                assert other[OP] in (Operation.UPDATE, Operation.DELETE)
        super().apply(change_set)

    def _apply(self, schema: TableSchema, row: dict[str, Any]) -> None:
        if row[OP] == Operation.BEFORE and schema.table not in self.stale:
            self.before_images += 1
            known = {tuple(one[name] for name in schema.key): one for one in self.rows(schema.table)}
            key = tuple(row[name] for name in schema.key)
            assert repr(known[key]) == repr({name: row[name] for name in schema.names})
        super()._apply(schema, row)


class World:
    """One database file, one writer on a connection of its own, and a pipeline that replicates into a dictionary."""

    def __init__(self, path: Path, *, journal_mode: str = "wal", busy_timeout_seconds: float = 1.0) -> None:
        self.path = path
        self.before_images = False
        self._busy_timeout_seconds = busy_timeout_seconds
        self.writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.writer.text_factory = lenient_text
        self.writer.execute(f"PRAGMA journal_mode = {journal_mode}")
        self.writer.execute("PRAGMA synchronous = OFF")  # crashes of the machine are not tested here
        self.replica: Replica = Replica()
        self.notices: list[TableNotice] = []
        self.position: Position | None = None
        self._capture: ChangeCapture | None = None
        self._stream: Iterator[ChangeSet] | None = None

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.writer.execute(statement)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        return self.writer.execute(sql).fetchall()

    @property
    def capture(self) -> ChangeCapture:
        assert self._capture is not None, "seed or open the world first"
        return self._capture

    def open(self, *, pipeline: str = "shop", tables: Sequence[str] = ("*",)) -> ChangeCapture:
        source = Sqlite(
            self.path,
            tables=tables,
            busy_timeout_seconds=self._busy_timeout_seconds,
            before_images=self.before_images,
        )
        self._capture = source.bind(pipeline)
        self._capture.open()
        return self._capture

    def seed(self, *names: str, chunk_rows: int = 250_000) -> None:
        """Prepare and copy tables; all that there are if none is named."""
        capture = self._capture or self.open()
        tables = [table(name) for name in names] or [schema.table for schema in capture.discover()]
        position = capture.prepare(tables)
        self.position = self.position or position
        for one in tables:
            self.replica.copy(capture.snapshot(one, chunk_rows=chunk_rows))

    def pull(self) -> ChangeSet:
        """The next change set, applied to the replica."""
        if self._stream is None:
            self._stream = self.capture.live(self.position, wait_seconds=0)
        change_set = next(self._stream)
        self.replica.apply(change_set)
        self.notices += change_set.notices
        self.position = change_set.end
        return change_set

    def restart(self) -> None:
        """As after a crash: a new capture that goes on from the last position."""
        self.capture.close()
        self._capture, self._stream = None, None
        self.open()

    def recopy(self) -> None:
        """What the flow does about RecopyNeeded."""
        for one in sorted(self.replica.stale):
            self.seed(one.name)

    def assert_equal(self, name: str) -> None:
        """The replica has exactly what the table has, as SQLite itself says it."""
        schema = self.replica.schemas[table(name)]
        expected = sorted(self._expected(name, schema.names, [str(column.type) for column in schema.columns]), key=repr)
        have = [tuple(row[column] for column in schema.names) for row in self.replica.rows(table(name))]
        assert sorted(have, key=repr) == expected

    def _expected(self, name: str, columns: Sequence[str], types: Sequence[str]) -> list[tuple[Any, ...]]:
        listed = ", ".join("rowid" if column == "_rowid" else f'"{column}"' for column in columns)
        own = [row[1] for row in self.query(f"PRAGMA table_xinfo('{name}')")]
        assert [column for column in columns if column != "_rowid"] == own
        return [
            tuple(as_string(value) if kind == "string" else value for value, kind in zip(row, types, strict=True))
            for row in self.query(f'SELECT {listed} FROM "{name}"')
        ]

    def close(self) -> None:
        if self._capture is not None:
            self._capture.close()
        self.writer.close()


def as_string(value: Any) -> str | None:
    """The text form, written a second time, independently."""
    if isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value):
        return value
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes):
        return "X'" + "".join(f"{byte:02X}" for byte in value) + "'"
    return None if value is None else repr(value)


@contextmanager
def made(path: Path, *statements: str, journal_mode: str = "wal", busy_timeout_seconds: float = 1.0) -> Iterator[World]:
    world = World(path, journal_mode=journal_mode, busy_timeout_seconds=busy_timeout_seconds)
    try:
        world.sql(*statements)
        yield world
    finally:
        world.close()

# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""SqliteTriggers: the ChangeCapture of a SQLite database, by triggers that fill a change log beside the tables.

Guarantees and limits, beyond the contract of ChangeCapture:
- The log is written in the user's own transaction: what is committed is logged, what is rolled back is not.
- A change set ends at a commit, because SQLite shows only committed transactions. It has all that was committed when
  it was cut; it is read lazily, so its size does not matter.
- The time of a change is when its statement ran, by the clock of the writer's machine, in milliseconds.
- The source is written to by ``prepare``, ``confirm``, ``uninstall``, and by ``live`` only to follow a schema change
  or to announce that a column holds values of several types or a key is NULL.
- With ``before_images`` the triggers log rows as they were, too. There is none for a row that REPLACE replaces by one
  of the same key, which is an insert here, and none for changes between the addition of a column and its being noticed.
- Tables without a declared key get the rowid as key, in an extra first column ``_rowid``.
- Not seen: rows that REPLACE removes through a unique index on an expression (``check`` warns), or because an INSERT
  gives an explicit rowid to a row of a table whose key is another one; writers that switch triggers off.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lakefeed.capture.base import Capabilities, ChangeCapture, Continuity, Finding, Lag, SnapshotPlan
from lakefeed.capture.select import is_literal, is_wanted, match_tables
from lakefeed.capture.sqlite.catalog import SCHEMA, SourceTable, capturable, read_table, refusals
from lakefeed.capture.sqlite.confirmation import Confirmations
from lakefeed.capture.sqlite.continuity import own_position, require_position
from lakefeed.capture.sqlite.database import Database, transaction
from lakefeed.capture.sqlite.file import OpenedFile
from lakefeed.capture.sqlite.install import uninstall
from lakefeed.capture.sqlite.meta import load_meta, read_head
from lakefeed.capture.sqlite.names import OLD_ROW, Names
from lakefeed.capture.sqlite.preflight import check_source
from lakefeed.capture.sqlite.preparation import prepare_tables
from lakefeed.capture.sqlite.shape import table_schema
from lakefeed.capture.sqlite.snapshot import TableChunk, plan_chunks
from lakefeed.capture.sqlite.stream import LogStream
from lakefeed.change.batch import Operation
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position, SqliteSequence
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import ConfigError, SourceSetupError, StateError

_POLL_SECONDS = 0.05


class SqliteTriggers(ChangeCapture):
    """One database file, one pipeline. Made by ``Sqlite(...).bind(pipeline)``."""

    kind = SqliteSequence.kind

    def __init__(
        self, database: Database, pipeline: str, *, tables: Sequence[str] = ("*",), before_images: bool = False
    ) -> None:
        self.capabilities = Capabilities(
            deletes=True,
            before_images=before_images,
            transactions=True,
            schema_changes=True,
            exact_snapshot=True,
            snapshot_resume=True,
        )
        self._database = database
        self._names = Names(pipeline)
        self._patterns = tuple(tables)
        self._before_images = before_images
        self._file = OpenedFile.at(database.path)
        self._connection: sqlite3.Connection | None = None
        self._confirmations: Confirmations | None = None
        self._verified = 0
        self._closed = threading.Event()
        self._lock = threading.Lock()  # close may come from another thread while live waits

    def open(self) -> None:
        if self._connection is None:
            self._file = OpenedFile.at(self._database.path)
            self._connection = self._database.connect("rw")
            self._confirmations = Confirmations(self._database, self._file, self._names)
            self._closed.clear()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            confirmations, self._confirmations = self._confirmations, None
            connection, self._connection = self._connection, None
            try:
                if confirmations is not None:
                    confirmations.close()
            finally:
                if connection is not None:
                    connection.close()

    def identity(self) -> str | None:
        with self._working() as connection:
            meta = load_meta(connection, self._names)
        return None if meta is None else meta.identity

    def continuity(self, position: Position | None, tables: Sequence[TableId]) -> Continuity:  # noqa: ARG002
        with self._working() as connection, transaction(connection, "DEFERRED"):
            if load_meta(connection, self._names) is None:
                return Continuity.FRESH
            if position is not None:
                require_position(connection, self._names, own_position(position))
            return Continuity.RESUMED

    def recall(self, schemas: Sequence[TableSchema]) -> None:
        """Not needed: the change log in the source knows the schema of each of its rows."""

    def discover(self) -> tuple[TableSchema, ...]:
        with self._working() as connection, transaction(connection, "DEFERRED"):
            meta = load_meta(connection, self._names)
            found = {table: meta.captured(table) if meta else None for table in self._choose(connection)}
            return tuple(
                captured.schema if captured else table_schema(self._source(connection, table))
                for table, captured in found.items()
            )

    def wants(self, table: TableId) -> bool:
        return is_wanted(self._patterns, table, default_schema=SCHEMA, folds_case=True)

    def prepare(self, tables: Sequence[TableId]) -> SqliteSequence:
        with self._working() as connection:
            return prepare_tables(connection, self._names, tables, self._verified, before_images=self._before_images)

    def snapshot(self, table: TableId, *, chunk_rows: int = 250_000) -> SnapshotPlan:
        with self._working() as connection, transaction(connection, "DEFERRED"):
            source = self._source(connection, table)
            meta = load_meta(connection, self._names)
            captured = meta.captured(table) if meta else None
            if captured is None:
                raise StateError(f"{table} is copied before its changes are captured", remedy="Call prepare first.")
            rowid = source.rowid if captured.rowid_key else None
            whole = TableChunk(self._database, self._names, captured.schema, rowid)
            chunks, rows = plan_chunks(connection, whole, source, chunk_rows)
            return SnapshotPlan(captured.schema, chunks, rows)

    def copied(self, table: TableId) -> None:
        """Nothing to let go of: each chunk has a read transaction of its own."""

    def chunk(self, data: Mapping[str, Any]) -> TableChunk:
        return TableChunk.from_json(self._database, self._names, data)

    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        with self._working() as connection, transaction(connection, "DEFERRED"):
            stream = LogStream(self._database, self._file, self._names, connection, before_images=self._before_images)
            start = stream.confirmed if after is None else own_position(after)
            require_position(connection, self._names, start)
        return self._change_sets(stream, start, wait_seconds)

    def end(self) -> SqliteSequence | None:
        with self._database.connection() as connection, transaction(connection, "DEFERRED"):
            return None if load_meta(connection, self._names) is None else read_head(connection, self._names)

    def confirm(self, position: Position) -> None:
        if self._confirmations is None:
            raise _not_open()
        self._confirmations.confirm(own_position(position), self._verified)

    def lag(self) -> Lag:
        with self._database.connection() as connection, transaction(connection, "DEFERRED"):
            meta = load_meta(connection, self._names)
            if meta is None:
                return Lag()
            confirmed = meta.confirmed.sequence
            rows = max(0, read_head(connection, self._names).sequence - confirmed)
            if any(one.before_images for one in meta.tables):
                rows -= self._old_rows(connection, confirmed, confirmed + rows)
            oldest = connection.execute(
                f"SELECT ts FROM {self._names.log} WHERE seq > ? ORDER BY seq LIMIT 1", (confirmed,)
            ).fetchone()
        return Lag(rows=rows, seconds=max(0.0, time.time() - oldest[0] / 1000) if rows and oldest else 0.0)

    def check(self) -> tuple[Finding, ...]:
        return check_source(self._database, self._choose)

    def uninstall(self) -> tuple[str, ...]:
        with self._working() as connection:
            if self._confirmations is not None:
                self._confirmations.close()
            with transaction(connection, "IMMEDIATE"):
                return uninstall(connection, self._names)

    def _change_sets(self, stream: LogStream, start: SqliteSequence, wait_seconds: float) -> Iterator[ChangeSet]:
        position = start
        while (change_set := self._next(stream, position, wait_seconds)) is not None:
            yield change_set
            position = own_position(change_set.end)

    def _next(self, stream: LogStream, position: SqliteSequence, wait_seconds: float) -> ChangeSet | None:
        """What comes after ``position``, a heartbeat if nothing does in time, None once the capture is closed."""
        until = time.monotonic() + wait_seconds
        while not self._closed.is_set():
            with self._working():
                change_set = stream.cut(position)
                self._verified = stream.verified
            if change_set is not None:
                return change_set
            if self._confirmations is not None:
                self._confirmations.settle()
            left = until - time.monotonic()
            if left <= 0:
                return ChangeSet(position, position)
            self._closed.wait(min(_POLL_SECONDS, left))
        return None

    @contextmanager
    def _working(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._database.errors():
            if self._connection is None:
                raise _not_open()
            yield self._connection

    def _old_rows(self, connection: sqlite3.Connection, after: int, upto: int) -> int:
        """Rows of the log that are no changes: before images, and what never became one."""
        query = f"SELECT count(*) FROM {self._names.log} WHERE seq > ? AND seq <= ? AND op IN (?, ?)"
        return int(connection.execute(query, (after, upto, int(Operation.BEFORE), OLD_ROW)).fetchone()[0])

    def _choose(self, connection: sqlite3.Connection) -> tuple[TableId, ...]:
        """The tables that the patterns match. SQLite compares names without case, and so do patterns."""
        reasons = {name.lower(): reason for name, reason in refusals(connection).items()}
        for pattern in filter(is_literal, self._patterns):
            name = pattern.removeprefix(f"{SCHEMA}.").lower()
            if name in reasons:
                raise ConfigError(f"'{pattern}' cannot be captured: {reasons[name]}")
        there = [TableId(SCHEMA, name) for name in capturable(connection)]
        return match_tables(self._patterns, there, default_schema=SCHEMA, folds_case=True)

    def _source(self, connection: sqlite3.Connection, table: TableId) -> SourceTable:
        source = read_table(connection, table.name) if table.schema == SCHEMA else None
        if source is None:
            raise SourceSetupError(f"there is no table {table}", remedy="Correct source.tables, or create the table.")
        return source


def _not_open() -> StateError:
    return StateError("the capture is not open", remedy="Call open first.")

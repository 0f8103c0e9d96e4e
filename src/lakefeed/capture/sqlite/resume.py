# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""The ResumePoint of SQLite: triggers and a change log in the source, and how far the log is confirmed."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lakefeed.capture.base import Lag
from lakefeed.capture.dialect import DescribedTable, Session
from lakefeed.capture.log import Choose, ResumePoint, SchemaFacts
from lakefeed.capture.sqlite.database import Connections, Database, OpenedFile, quoted, transaction
from lakefeed.capture.sqlite.drift import capture_table, follow_schema
from lakefeed.capture.sqlite.log import Confirmations, LogPiece, SqliteLogReader
from lakefeed.capture.sqlite.meta import OLD_ROW, Meta, Names, OwnTables, State, schema_version
from lakefeed.capture.sqlite.table import SCHEMA, SourceTable, mixed_columns, read_table
from lakefeed.capture.sqlite.triggers import read_triggers, remove
from lakefeed.change.batch import Operation
from lakefeed.change.position import SqliteSequence
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import PositionLostError, SourceSetupError, StateError, TableStoppedError


class SqliteResumePoint(ResumePoint[SqliteSequence, LogPiece]):
    """See ``ResumePoint``. Short questions share a connection, ``confirm`` keeps one; other calls open their own."""

    def __init__(self, database: Database, names: Names, *, before_images: bool) -> None:
        self._database = database
        self._names = names
        self._before_images = before_images
        self._begin()

    def _begin(self) -> None:
        self._file = OpenedFile.at(self._database.path)
        self._confirmations = Confirmations(self._database, self._file, self._names)
        self._reading = Connections(self._database, self._file, "ro")
        self._writing = Connections(self._database, self._file, "rw")

    def open(self) -> None:
        self._begin()
        self._reading.keep()

    def close(self) -> None:
        try:
            self._confirmations.close()
        finally:
            self._reading.close()

    def meta(self) -> Meta | None:
        """What is captured now, None if nothing is. Any thread."""
        with self._reading.use() as connection:
            return OwnTables(connection, self._names).load()

    def find(self) -> SqliteSequence | None:
        meta = self.meta()
        return None if meta is None else meta.confirmed

    def identity(self) -> str:
        meta = self.meta()
        assert meta is not None  # noqa: S101  # ``find`` was asked first
        return meta.identity

    def create(self, tables: Sequence[TableId]) -> SqliteSequence:
        """Capture ``tables`` from here on, those that are captured already as before. Returns the log's head.

        A blocked table starts again. Writes nothing if there is nothing to do. The write lock is held while triggers
        are made, and not while tables are scanned.
        """
        before_images = self._before_images
        with self._writing.use() as connection:
            own = OwnTables(connection, self._names)
            while True:
                meta = follow_schema(own, self._confirmations.verified, before_images=before_images)
                if meta is not None and all(map(meta.is_live, tables)):
                    break
                with transaction(connection, "IMMEDIATE"):
                    meta = own.load()
                    if meta is None:
                        own.create()
                    elif not meta.is_right(schema_version(connection), before_images=before_images):
                        continue  # it changed in between
                    for table in tables:
                        if meta is None or not meta.is_live(table):
                            source = self._source(connection, table)
                            for old in meta.tables if meta else ():
                                if old.table == table:
                                    remove(own, old.number)
                                    own.forget_table(old.number)
                            capture_table(own, source, before_images=before_images)
                            own.mark()
                    own.put_verified()
                break
            head = own.head()  # before the scan: what is written meanwhile comes by the log
            self._scan(own, tables)
            return head

    def _scan(self, own: OwnTables, tables: Sequence[TableId]) -> None:
        """Find columns of new captures that hold values of several types, and make them text.

        From the triggers on every value is in the log, so that one pass is enough, and it needs no lock.
        """
        meta = own.load()
        mixed = {
            one.number: mixed_columns(own.connection, one.table.name)
            for one in (meta.tables if meta else ())
            if one.table in tables and not one.scanned and one.state is State.LIVE
        }
        if not mixed:
            return
        with transaction(own.connection, "IMMEDIATE"):
            meta = own.load()
            for captured in meta.tables if meta else ():
                if captured.number in mixed:
                    text = captured.with_text(mixed[captured.number])
                    own.put_table(replace(text, scanned=True))
                    if text != captured:
                        own.mark(schema=text.schema)

    def _source(self, connection: sqlite3.Connection, table: TableId) -> SourceTable:
        source = read_table(connection, table.name) if table.schema == SCHEMA else None
        if source is None:
            raise SourceSetupError(f"there is no table {table} that can be captured", remedy="Correct source.tables.")
        return source

    def origin(self, table: TableId, delivered: SqliteSequence | None) -> Mapping[str, Any]:  # noqa: ARG002
        """The name of the log, whose head is what a chunk's read transaction sees."""
        with self._reading.use() as connection, transaction(connection, "DEFERRED"):
            meta, source = OwnTables(connection, self._names).load(), self._source(connection, table)
            if meta is None or meta.captured(table) is None:
                raise StateError(f"{table} is copied before its changes are captured", remedy="Call prepare first.")
            if source.nullable_key:
                rows = f"FROM {quoted(source.name)} WHERE {source.null_key}"
                if connection.execute(f"SELECT 1 {rows} LIMIT 1").fetchone():
                    raise TableStoppedError(
                        f"{table} has rows with NULL in its key ({', '.join(source.key)})",
                        table=str(table),
                        remedy=f"DELETE {rows}; or give them a key; then sync again.",
                    )
        self.create([table])  # in line with the schema of now, and scanned
        return {"pipeline": self._names.pipeline}

    def require(self, position: SqliteSequence) -> None:
        """PositionLostError, with the reason, unless everything after ``position`` is in the log."""
        log = self._names.log
        with self._reading.use() as connection, transaction(connection, "DEFERRED"):
            own = OwnTables(connection, self._names)
            if own.load() is None:
                return  # the flow knows whether that is a fresh start
            head = own.head()
            row = connection.execute(f"SELECT ts FROM {log} WHERE seq = ?", (position.sequence,)).fetchone()
            (first,) = connection.execute(f"SELECT min(seq) FROM {log}").fetchone()
        if position > head:
            raise PositionLostError(
                f"the database is behind: its log ends at {head}, the pipeline has read up to {position}"
                " (was an older copy restored?)"
            )
        if row is not None and row[0] != position.stamp:
            raise PositionLostError(
                f"the log's entry {position.sequence} is not the one that was read (its time is {row[0]}, not"
                f" {position.stamp}): an older copy was restored and has been written to since"
            )
        if first > position.sequence + 1:
            raise PositionLostError(
                f"the log begins at {first}: entries after {position.sequence} were pruned, so some changes are gone"
            )
        if row is None and first <= position.sequence:
            raise PositionLostError(f"the log's entry {position.sequence} is missing: the log has been tampered with")

    def start(self, after: SqliteSequence) -> SqliteLogReader:
        return SqliteLogReader(
            self._database, self._file, self._names, after, self._confirmations, before_images=self._before_images
        )

    def confirm(self, position: SqliteSequence) -> None:
        self._confirmations.confirm(position)

    def ahead_bytes(self, low: SqliteSequence, high: SqliteSequence) -> int:
        """Every entry of the log is ours, and stays until it is confirmed: any is worth a heartbeat."""
        return sys.maxsize if high > low else 0

    def end(self) -> SqliteSequence | None:
        with self._reading.use() as connection, transaction(connection, "DEFERRED"):
            own_log = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (f"{self._names.prefix}log",))
            return None if own_log.fetchone() is None else OwnTables(connection, self._names).head()

    def lag(self, confirmed_at: float | None) -> Lag:  # noqa: ARG002  # the log itself has the times
        with self._database.connection() as connection, transaction(connection, "DEFERRED"):
            own, log = OwnTables(connection, self._names), self._names.log
            meta = own.load()
            if meta is None:
                return Lag()
            confirmed, head = meta.confirmed.sequence, own.head().sequence
            rows = max(0, head - confirmed)
            if any(one.before_images for one in meta.tables):
                # Before images, and old rows that never became one, are no changes.
                old = f"seq > ? AND seq <= ? AND op IN ({int(Operation.BEFORE)}, {OLD_ROW})"
                rows -= connection.execute(f"SELECT count(*) FROM {log} WHERE {old}", (confirmed, head)).fetchone()[0]
            query = f"SELECT ts FROM {log} WHERE seq > ? ORDER BY seq LIMIT 1"
            oldest = connection.execute(query, (confirmed,)).fetchone()
        return Lag(rows=rows, seconds=max(0.0, time.time() - oldest[0] / 1000) if rows and oldest else 0.0)

    def drop(self) -> tuple[str, ...]:
        """Remove all that this pipeline has in the source, and nothing else."""
        self._confirmations.close()
        with self._writing.use() as connection, transaction(connection, "IMMEDIATE"):
            found = read_triggers(OwnTables(connection, self._names)).values()
            triggers = sorted(trigger.name for one in found for trigger in one.values())
            own = [self._names.prefix + name for name in ("log", "meta", "vacuum")]
            query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN (?, ?, ?) ORDER BY name"
            tables = [name for (name,) in connection.execute(query, own)]
            for kind, names in (("TRIGGER", triggers), ("TABLE", tables)):
                for name in names:
                    connection.execute(f"DROP {kind} {quoted(name)}")
        return (*triggers, *tables)


class SqliteFacts(SchemaFacts[SqliteSequence]):
    """The change log knows the shape of each of its rows; what the catalog has counts only for tables not captured."""

    def __init__(self, resume: SqliteResumePoint) -> None:
        self._resume = resume

    def discover(self, session: Session, choose: Choose) -> tuple[TableSchema, ...]:
        return tuple(schema for _, schema in self._read(session, choose(self.tables(session))))

    def snapshot(self, session: Session, table: TableId) -> tuple[DescribedTable, TableSchema] | None:
        return next(iter(self._read(session, [table])), None)

    def _read(self, session: Session, tables: Sequence[TableId]) -> list[tuple[DescribedTable, TableSchema]]:
        described = session.describe(tables)
        meta = self._resume.meta()
        captured = {one.table: one.schema for one in meta.in_force} if meta else {}
        return [(one, captured.get(table, one.schema)) for table, one in described.items()]

# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""LogStream: cuts change sets from the log, following the schema and the values as they change.

Steps of one cut:
  1. the file is the one that was opened; one read transaction: schema version and head. Another schema version, or
     triggers that do not log what is asked for: follow it (drift), then again
  2. inspect (after, head]: values that do not fit their column, NULLs in keys. Any: announce, then again
  3. read the announcements in (after, head] and hand out the range, to be read lazily
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from lakefeed.capture.sqlite.captured import Captured, State
from lakefeed.capture.sqlite.catalog import read_table
from lakefeed.capture.sqlite.database import Database, quoted, transaction
from lakefeed.capture.sqlite.drift import follow_schema
from lakefeed.capture.sqlite.file import OpenedFile
from lakefeed.capture.sqlite.log import Inspection, LogRange, inspect
from lakefeed.capture.sqlite.meta import (
    Meta,
    add_mark,
    forget_table,
    load_meta,
    put_table,
    read_head,
    read_marks,
    schema_version,
)
from lakefeed.capture.sqlite.names import Names
from lakefeed.capture.sqlite.shape import as_text, mixed_columns
from lakefeed.change.change_set import ChangeSet, RecopyNeeded, TableBlocked
from lakefeed.change.position import SqliteSequence
from lakefeed.errors import SourceSetupError


class LogStream:
    """Reads on the capture's connection. ``verified``: see Meta."""

    def __init__(
        self,
        database: Database,
        file: OpenedFile,
        names: Names,
        connection: sqlite3.Connection,
        *,
        before_images: bool,
    ) -> None:
        self._database = database
        self._file = file
        self._names = names
        self._connection = connection
        self._before_images = before_images
        self._meta = self._load()
        self.verified = self._meta.verified

    @property
    def confirmed(self) -> SqliteSequence:
        """The source's own durable resume point, as it was when the stream was made."""
        return self._meta.confirmed

    def cut(self, after: SqliteSequence) -> ChangeSet | None:
        """All that was committed after ``after``, or None."""
        while True:
            head = self._verified_head()
            if head.sequence <= after.sequence:
                return None
            tables = tuple(one for one in self._meta.tables if one.state is not State.BLOCKED)
            found = inspect(self._connection, self._names, tables, after.sequence, head.sequence)
            troubled = [one for one in found if one.mixed or one.null_key]
            if not troubled:
                return self._change_set(after, head, found)
            self._announce(troubled)

    def _change_set(self, after: SqliteSequence, head: SqliteSequence, found: Sequence[Inspection]) -> ChangeSet:
        schemas, notices = read_marks(self._connection, self._names, after.sequence, head.sequence)
        tables = tuple(one.captured for one in found)
        batches = LogRange(self._database, self._file, self._names, after.sequence, head, tables)
        return ChangeSet(after, head, batches, sum(one.rows for one in found), schemas, notices)

    def _verified_head(self) -> SqliteSequence:
        self._file.require()
        while True:
            with transaction(self._connection, "DEFERRED"):
                version = schema_version(self._connection)
                head = read_head(self._connection, self._names)
            if self._meta.is_right(version, before_images=self._before_images):
                self.verified = max(self.verified, head.sequence)
                return head
            with transaction(self._connection, "IMMEDIATE"):
                self._meta = self._load()
                verified = max(self.verified, self._meta.verified)
                follow_schema(self._connection, self._names, self._meta, verified, before_images=self._before_images)
            self._meta = self._load()

    def _announce(self, troubled: Sequence[Inspection]) -> None:
        wrong = {one.captured.number: self._wrong(one) for one in troubled if one.mixed}  # a scan: before the lock
        with transaction(self._connection, "IMMEDIATE"):
            if schema_version(self._connection) != self._meta.schema_version:
                return  # columns may be called otherwise now: cut follows the schema first
            for one in troubled:
                if one.null_key or one.captured.state is State.DROPPED:
                    self._block(one.captured)
                else:
                    self._retype(one.captured, wrong[one.captured.number])
        self._meta = self._load()

    def _wrong(self, found: Inspection) -> frozenset[str]:
        with transaction(self._connection, "DEFERRED"):
            source = read_table(self._connection, found.captured.name)
            return found.mixed | (mixed_columns(self._connection, source) if source else frozenset())

    def _retype(self, captured: Captured, wrong: frozenset[str]) -> None:
        new = as_text(captured, wrong)
        listed = ", ".join(sorted(wrong))
        reason = f"values that the declared type does not fit make it text: {listed}"
        put_table(self._connection, self._names, new)
        notice = RecopyNeeded(captured.table, reason, tuple(sorted(wrong)))
        add_mark(self._connection, self._names, schema=new.schema, notice=notice)

    def _block(self, captured: Captured) -> None:
        if captured.state is State.DROPPED:
            forget_table(self._connection, self._names, captured.number)
        else:
            put_table(self._connection, self._names, captured.with_state(State.BLOCKED))
        key = captured.schema.key
        nulls = " OR ".join(f"{quoted(name)} IS NULL" for name in key)
        notice = TableBlocked(
            captured.table,
            f"a row has NULL in the key ({', '.join(key)}), or a value that its column cannot hold",
            f"DELETE FROM {quoted(captured.name)} WHERE {nulls}; or give these rows a key; then copy the table anew.",
        )
        add_mark(self._connection, self._names, notice=notice)

    def _load(self) -> Meta:
        meta = load_meta(self._connection, self._names)
        if meta is None:
            raise SourceSetupError(
                "nothing is prepared in this database for the pipeline",
                remedy="Run `lakefeed sync`, which prepares it; if it was, the database is another one.",
            )
        return meta

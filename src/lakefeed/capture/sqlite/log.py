# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""The change log as a LogReader and a Decoder: from rows of the log table to Arrow, column by column.

SQLite shows committed transactions only, but not where in the log one ends and the next begins. So everything between
the last position and the log's head is one transaction. The steps of one such range:
  1. the file is the one that was opened; one read transaction: schema version and head. Another schema version, or
     triggers that do not log what is asked for: bring the triggers in line (drift), then again
  2. inspect (after, head]: values that do not fit their column, NULLs in keys. Any: announce, then again
  3. read the range in pieces: short queries, so that writers without WAL never wait long, and a bounded piece in memory

Rows of the log up to a head that was once read never change, so a range needs no transaction around it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lakefeed.capture.fit import MisfitError
from lakefeed.capture.log import Announced, Decoded, LogReader, Rows, Transaction
from lakefeed.capture.sqlite.catalog import read_table
from lakefeed.capture.sqlite.confirmation import Confirmations
from lakefeed.capture.sqlite.database import Database, OpenedFile, quoted, transaction
from lakefeed.capture.sqlite.drift import follow_schema
from lakefeed.capture.sqlite.fetch import portions
from lakefeed.capture.sqlite.meta import (
    Captured,
    Meta,
    Names,
    State,
    add_mark,
    forget_table,
    load_meta,
    put_table,
    read_head,
    read_marks,
    schema_version,
)
from lakefeed.capture.sqlite.shape import as_text, mixed_columns
from lakefeed.capture.sqlite.values import misfit, to_arrow
from lakefeed.change.batch import Operation
from lakefeed.change.change_set import RecopyNeeded, TableBlocked
from lakefeed.change.position import SqliteSequence
from lakefeed.errors import DecodeError, SourceError, SourceSetupError

WINDOW_ROWS = 50_000
"""Rows of the log that are read at once at most, in a short read transaction: writers without WAL wait no longer."""
_POLL_SECONDS = 0.05
_CLOSE_SECONDS = 2.0
_FEW_TABLES = 2
_DELIVERED = (Operation.INSERT, Operation.UPDATE, Operation.DELETE, Operation.BEFORE)
_ROWS = f"op IN ({', '.join(str(int(operation)) for operation in _DELIVERED)})"
_READ_TYPES = (pa.int64(), pa.int8(), pa.int64())  # seq, op, ts


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Part of a range of the log that ends at ``head``.

    ``rows`` are values by column (seq, op, ts, then the table's) of ``captured``. Sequences count from ``base``; the
    last piece of a window has its ``width``. The last piece of a range has what is ``announced`` in it.
    """

    head: SqliteSequence
    base: int
    captured: Captured | None = None
    rows: Sequence[Sequence[Any]] = ()
    width: int = 0
    announced: Announced | None = None
    is_first: bool = False
    is_last: bool = False


class LogDecoder:
    """See ``Decoder``. The catalog's part, which column is in which slot, comes with the piece."""

    def decode(self, piece: LogPiece) -> Decoded[SqliteSequence]:
        decoded = Decoded[SqliteSequence](
            transactions=[Transaction(piece.head, piece.head.stamp * 1000)],
            width=piece.width,
            continues=not piece.is_first,
            open=not piece.is_last,
            reached=piece.head if piece.is_last else None,
        )
        if piece.captured is not None:
            schema = piece.captured.schema
            sequences, operations, stamps, *values = piece.rows
            columns = []
            for column, data in zip(schema.columns, values, strict=True):
                try:
                    columns.append(to_arrow(data, column.type))
                except MisfitError as error:
                    what = f"{schema.table}.{column.name} holds a value that is not {column.type}"
                    raise DecodeError(what) from error
            decoded.items.append(
                Rows(
                    schema,
                    columns,
                    pa.array(operations, pa.int8()),
                    np.array(sequences, np.int64) - (piece.base + 1),
                    np.zeros(len(sequences), np.int32),
                    times=np.array(stamps, np.int64) * 1000,
                )
            )
        if piece.announced is not None:
            decoded.items.append(piece.announced)
        return decoded


@dataclass(frozen=True, slots=True)
class _Troubled:
    """A table with values in a range of the log that do not fit, found before anything is delivered."""

    captured: Captured
    mixed: frozenset[str]
    null_key: bool


class SqliteLogReader(LogReader[SqliteSequence, LogPiece]):
    """See ``LogReader``: one connection, polled. ``read`` belongs to the stream's thread, ``close`` to any."""

    def __init__(
        self,
        database: Database,
        file: OpenedFile,
        names: Names,
        after: SqliteSequence,
        confirmations: Confirmations,
        *,
        before_images: bool,
    ) -> None:
        self._database = database
        self._file = file
        self._names = names
        self._after = after
        self._confirmations = confirmations
        self._before_images = before_images
        self._lock = threading.Lock()  # of the connection: close waits for a read, which it interrupts
        self._closed = threading.Event()
        self._range: Iterator[LogPiece] = iter(())
        self._connection = database.connect("rw")
        try:
            with database.errors():
                self._meta = self._load()
        except SourceError:
            self._connection.close()
            raise

    def read(self, wait_seconds: float) -> LogPiece | None:
        until = time.monotonic() + wait_seconds
        while True:
            try:
                with self._lock, self._database.errors():
                    if self._closed.is_set():
                        return None
                    self._file.require()
                    piece = next(self._range, None)
                    if piece is None:
                        self._range = self._next_range()
                        piece = next(self._range, None)
            except SourceError:
                if self._closed.is_set():
                    return None
                raise
            if piece is not None:
                return piece
            self._confirmations.settle()
            if until - time.monotonic() < _POLL_SECONDS or self._closed.wait(_POLL_SECONDS):
                return None

    def confirm(self, position: SqliteSequence) -> None:
        self._confirmations.confirm(position)

    def close(self) -> None:
        self._closed.set()
        self._connection.interrupt()
        # A read that waits for a lock is not interrupted. It ends after the busy timeout, and its connection with it.
        if self._lock.acquire(timeout=_CLOSE_SECONDS):
            try:
                self._range = iter(())
                self._connection.close()
            finally:
                self._lock.release()

    def _next_range(self) -> Iterator[LogPiece]:
        """All that was committed after the last range; nothing if nothing was."""
        connection, names, after = self._connection, self._names, self._after.sequence
        while True:
            head = self._verified_head()
            if head.sequence <= after:
                return iter(())
            announced = read_marks(connection, names, after, head.sequence)
            if announced is not None:  # whoever changes a capture writes a mark, if only an empty one
                self._meta = self._load()
            present = self._present(after, head.sequence)
            tables = [one for one in self._meta.tables if one.number in present and one.state is not State.BLOCKED]
            troubled = []
            for one in tables:
                tests = {
                    column.name: test
                    for column, slot in zip(one.schema.columns, one.slots, strict=True)
                    if (test := misfit(column.type, f"c{slot}")) is not None
                }
                null_key = " OR ".join(f"c{slot} IS NULL" for slot in one.key_slots)
                listed = ", ".join(f"max({test})" for test in (null_key, *tests.values()))
                null, *misfits = connection.execute(
                    f"SELECT {listed} FROM {names.log} WHERE seq > ? AND seq <= ? AND tab = {one.number} AND {_ROWS}",
                    (after, head.sequence),
                ).fetchone()
                mixed = frozenset(name for name, is_wrong in zip(tests, misfits, strict=True) if is_wrong)
                if null or mixed:
                    troubled.append(_Troubled(one, mixed, bool(null)))
            if not troubled:
                break
            self._announce(troubled)
        self._after = head
        numbers = ", ".join(str(one.number) for one in tables)
        rows = f"SELECT seq FROM {names.log} WHERE seq > ? AND tab IN ({numbers}) AND {_ROWS} ORDER BY seq LIMIT 1"
        first = connection.execute(rows, (after,)).fetchone() if tables else None
        return self._pieces(head.sequence if first is None else first[0] - 1, head, tables, announced)

    def _verified_head(self) -> SqliteSequence:
        """The log's newest position, where the triggers are right up to it."""
        connection, names = self._connection, self._names
        while True:
            with transaction(connection, "DEFERRED"):
                version = schema_version(connection)
                head = read_head(connection, names)
            if self._meta.is_right(version, before_images=self._before_images):
                self._confirmations.verified = max(self._confirmations.verified, head.sequence)
                return head
            follow_schema(connection, names, self._confirmations.verified, before_images=self._before_images)
            self._meta = self._load()

    def _present(self, low: int, high: int) -> set[int]:
        """The numbers of the tables with rows in (low, high]."""
        query = f"SELECT DISTINCT tab FROM {self._names.log} WHERE seq > ? AND seq <= ? AND {_ROWS}"
        return {number for (number,) in self._connection.execute(query, (low, high))}

    def _announce(self, troubled: Sequence[_Troubled]) -> None:
        """Retype a table with values that do not fit, block one with a NULL in a key; both by marks in the log."""
        connection, names = self._connection, self._names
        wrong: dict[int, frozenset[str]] = {}
        for one in troubled:
            if one.mixed:  # a scan: before the lock
                with transaction(connection, "DEFERRED"):
                    source = read_table(connection, one.captured.name)
                    more = mixed_columns(connection, source) if source else frozenset()
                wrong[one.captured.number] = one.mixed | more
        with transaction(connection, "IMMEDIATE"):
            if schema_version(connection) != self._meta.schema_version:
                return  # columns may be called otherwise now: the schema comes first
            now = {captured.number: captured for captured in self._load().tables}  # the catalog side may have been here
            for one in troubled:
                captured = now.get(one.captured.number, one.captured)
                key = captured.schema.key
                if not one.null_key and captured.state is not State.DROPPED:
                    texts = tuple(sorted(wrong[captured.number]))
                    new = as_text(captured, wrong[captured.number])
                    put_table(connection, names, new)
                    reason = f"values that the declared type does not fit make it text: {', '.join(texts)}"
                    add_mark(connection, names, schema=new.schema, notice=RecopyNeeded(new.table, reason, texts))
                    continue
                if captured.state is State.DROPPED:
                    forget_table(connection, names, captured.number)
                else:
                    put_table(connection, names, captured.with_state(State.BLOCKED))
                nulls = " OR ".join(f"{quoted(name)} IS NULL" for name in key)
                notice = TableBlocked(
                    captured.table,
                    f"a row has NULL in the key ({', '.join(key)}), or a value that its column cannot hold",
                    f"DELETE FROM {quoted(captured.name)} WHERE {nulls}; or give these rows a key; then sync again.",
                )
                add_mark(connection, names, notice=notice)
        self._meta = self._load()

    def _pieces(
        self, begin: int, head: SqliteSequence, tables: Sequence[Captured], announced: Announced | None
    ) -> Iterator[LogPiece]:
        """Window by window, in each table by table, cut by bytes where values are large."""
        is_first, low, high = True, begin, begin
        while high < head.sequence:
            low, high = high, min(high + WINDOW_ROWS, head.sequence)
            present = self._present(low, high) if len(tables) > _FEW_TABLES else {one.number for one in tables}
            for captured in (one for one in tables if one.number in present):
                slots = ", ".join(f"c{slot}" for slot in captured.slots)
                query = (
                    f"SELECT seq, op, ts, {slots} FROM {self._names.log}"
                    f" WHERE seq > ? AND seq <= ? AND tab = {captured.number} AND {_ROWS} ORDER BY seq"
                )
                kinds = [*_READ_TYPES, *(column.type for column in captured.schema.columns)]
                at = low
                while at < high:
                    # Each piece is a query of its own: none is open while the caller works.
                    with closing(portions(self._connection, query, (at, high), kinds)) as found:
                        portion = next(found, None)
                    if portion is None:
                        break
                    yield LogPiece(head, low, captured, portion.columns, is_first=is_first)
                    is_first = False
                    at = high if portion.is_last else portion.columns[0][-1]
            if high < head.sequence:
                yield LogPiece(head, low, width=high - low, is_first=is_first)
                is_first = False
        yield LogPiece(head, low, width=high - low, announced=announced, is_first=is_first, is_last=True)

    def _load(self) -> Meta:
        meta = load_meta(self._connection, self._names)
        if meta is None:
            raise SourceSetupError(
                "nothing is prepared in this database for the pipeline",
                remedy="Run `lakefeed sync`, which prepares it; if it was prepared, this is another database.",
            )
        return meta

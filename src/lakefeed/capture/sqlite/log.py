# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""The change log: read and decoded, from rows of the log table to Arrow, column by column; confirmed, and pruned.

SQLite shows committed transactions only, but not where in the log one ends and the next begins. So everything between
the last position and the log's head is one transaction. The steps of one such range:
  1. the file is the one that was opened; one read transaction: schema version and head. Another schema version, or
     triggers that do not log what is asked for: bring the triggers in line (drift), then again
  2. inspect (after, head]: values that do not fit their column, NULLs in keys. Any: announce, then again
  3. read the range in pieces: short queries, so that writers without WAL never wait long, and a bounded piece in memory

Rows of the log up to a head that was once read never change, so a range needs no transaction around it.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from lakefeed.capture.fit import MisfitError
from lakefeed.capture.log import Announced, Decoded, LogReader, Rows, Transaction
from lakefeed.capture.sqlite.database import LOCKED, Connections, Database, OpenedFile, quoted, transaction
from lakefeed.capture.sqlite.drift import follow_schema
from lakefeed.capture.sqlite.meta import Captured, Meta, Names, OwnTables, State, schema_version
from lakefeed.capture.sqlite.table import mixed_columns
from lakefeed.capture.sqlite.values import misfits, portions, to_arrow
from lakefeed.change.batch import Operation
from lakefeed.change.change_set import RecopyNeeded, TableBlocked
from lakefeed.change.position import SqliteSequence
from lakefeed.errors import DecodeError, SourceError, SourceSetupError, StateError

WINDOW_ROWS = 50_000
"""Rows of the log that are read at once at most, in a short read transaction: writers without WAL wait no longer."""
_POLL_SECONDS = 0.05
_CLOSE_SECONDS = 2.0
_FEW_TABLES = 2
_DELIVERED = (Operation.INSERT, Operation.UPDATE, Operation.DELETE, Operation.BEFORE)
_ROWS = f"op IN ({', '.join(str(int(operation)) for operation in _DELIVERED)})"
_READ_TYPES = (pa.int64(), pa.int8(), pa.int64())  # seq, op, ts

_CONFIRM_EVERY_SECONDS = 1.0
_CONFIRM_EVERY_ROWS = 10_000
_CONFIRM_LOCK_SECONDS = 0.25
_PRUNED_ROWS = 5_000  # in one transaction: a few milliseconds
_PRUNE_SECONDS = 0.1


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
            order = np.array(sequences, np.int64) - (piece.base + 1)
            transactions, times = np.zeros(len(sequences), np.int32), np.array(stamps, np.int64) * 1000
            kinds = pa.array(operations, pa.int8())
            decoded.items.append(Rows(schema, columns, kinds, order, transactions, times=times))
        if piece.announced is not None:
            decoded.items.append(piece.announced)
        return decoded


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
        self._after = after
        self._confirmations = confirmations
        self._before_images = before_images
        self._lock = threading.Lock()  # of the connection: close waits for a read, which it interrupts
        self._closed = threading.Event()
        self._range: Iterator[LogPiece] = iter(())
        self._connection = database.connect("rw")
        self._own = OwnTables(self._connection, names)
        try:
            with database.errors():
                self._meta = self._load()
        except SourceError:
            self._connection.close()
            raise

    def _load(self) -> Meta:
        meta = self._own.load()
        if meta is None:
            raise SourceSetupError(
                "nothing is prepared in this database for the pipeline",
                remedy="Run `lakefeed sync`, which prepares it; if it was prepared, this is another database.",
            )
        return meta

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
        own, after = self._own, self._after.sequence
        while True:
            head = self._verified_head()
            if head.sequence <= after:
                return iter(())
            announced = own.marks(after, head.sequence)
            if announced is not None:  # whoever changes a capture writes a mark, if only an empty one
                self._meta = self._load()
            present = self._present(after, head.sequence)
            tables = [one for one in self._meta.tables if one.number in present and one.state is not State.BLOCKED]
            mixed, null_key = dict[int, frozenset[str]](), set[int]()
            for one in tables:
                columns = zip(one.schema.columns, one.slots, strict=True)
                tests = misfits((column.name, column.type, f"c{slot}") for column, slot in columns)
                nulls = " OR ".join(f"{slot} IS NULL" for slot in one.key_slots)
                listed = ", ".join(f"max({test})" for test in (nulls, *tests.values()))
                query = f"SELECT {listed} FROM {own.names.log} WHERE {self._rows_of(one)}"
                null, *found = own.execute(query, (after, head.sequence)).fetchone()
                if any(found):
                    mixed[one.number] = frozenset(name for name, bad in zip(tests, found, strict=True) if bad)
                if null:
                    null_key.add(one.number)
            if not mixed and not null_key:
                break
            self._announce([one for one in tables if one.number in mixed or one.number in null_key], mixed, null_key)
        self._after = head
        numbers = ", ".join(str(one.number) for one in tables)
        rows = f"SELECT seq FROM {own.names.log} WHERE seq > ? AND tab IN ({numbers}) AND {_ROWS} ORDER BY seq LIMIT 1"
        first = own.execute(rows, (after,)).fetchone() if tables else None
        return self._pieces(head.sequence if first is None else first[0] - 1, head, tables, announced)

    def _verified_head(self) -> SqliteSequence:
        """The log's newest position, where the triggers are right up to it."""
        while True:
            with transaction(self._connection, "DEFERRED"):
                version, head = schema_version(self._connection), self._own.head()
            if self._meta.is_right(version, before_images=self._before_images):
                self._confirmations.verified = max(self._confirmations.verified, head.sequence)
                return head
            follow_schema(self._own, self._confirmations.verified, before_images=self._before_images)
            self._meta = self._load()

    def _present(self, low: int, high: int) -> set[int]:
        """The numbers of the tables with rows in (low, high]."""
        query = f"SELECT DISTINCT tab FROM {self._own.names.log} WHERE seq > ? AND seq <= ? AND {_ROWS}"
        return {number for (number,) in self._own.execute(query, (low, high))}

    def _rows_of(self, captured: Captured) -> str:
        """SQL: changes of one table, between two bound sequences."""
        return f"seq > ? AND seq <= ? AND tab = {captured.number} AND {_ROWS}"

    def _announce(self, troubled: list[Captured], mixed: dict[int, frozenset[str]], null_key: set[int]) -> None:
        """Retype a table with values that do not fit, block one with a NULL in a key; both by marks in the log."""
        own = self._own
        for one in troubled:
            if one.number in mixed:  # a scan: before the lock
                mixed[one.number] |= mixed_columns(self._connection, one.table.name)
        with transaction(self._connection, "IMMEDIATE"):
            if schema_version(self._connection) != self._meta.schema_version:
                return  # columns may be called otherwise now: the schema comes first
            now = {captured.number: captured for captured in self._load().tables}  # the catalog side may have been here
            for one in troubled:
                captured = now.get(one.number, one)
                if one.number not in null_key and captured.state is not State.DROPPED:
                    texts = tuple(sorted(mixed[one.number]))
                    new = captured.with_text(texts)
                    own.put_table(new)
                    reason = f"values that the declared type does not fit make it text: {', '.join(texts)}"
                    own.mark(schema=new.schema, notice=RecopyNeeded(new.table, reason, texts))
                    continue
                if captured.state is State.DROPPED:
                    own.forget_table(captured.number)
                else:
                    own.put_table(replace(captured, state=State.BLOCKED))
                table, key = captured.table, captured.schema.key
                nulls = " OR ".join(f"{quoted(name)} IS NULL" for name in key)
                reason = f"a row has NULL in the key ({', '.join(key)}), or a value that its column cannot hold"
                remedy = f"DELETE FROM {quoted(table.name)} WHERE {nulls}; or give these rows a key; then sync again."
                own.mark(notice=TableBlocked(table, reason, remedy))
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
                rows = f"{self._own.names.log} WHERE {self._rows_of(captured)}"
                query = f"SELECT seq, op, ts, {slots} FROM {rows} ORDER BY seq"
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


class Confirmations:
    """Confirmed positions: kept in the source's meta table, and the log before them pruned. Any thread.

    Writing to the source costs its writers time, so both are done at most about once a second or every 10,000 rows, in
    small transactions, and never wait long for a lock: what could not be written now is written next time. Written to
    is only the ``file`` that the capture reads: in another one the position means something else.
    ``verified`` (see Meta) is noted by whoever reads the log and kept on the same occasion.
    """

    def __init__(self, database: Database, file: OpenedFile, names: Names) -> None:
        quick = replace(database, busy_timeout_seconds=min(_CONFIRM_LOCK_SECONDS, database.busy_timeout_seconds))
        self._connections = Connections(quick, file, "rw")
        self._connections.keep()
        self._file = file
        self._names = names
        self._lock = threading.Lock()
        self._wanted: SqliteSequence | None = None
        self._written: SqliteSequence | None = None
        self._written_at = float("-inf")
        self.verified = 0

    def confirm(self, position: SqliteSequence) -> None:
        """Note a position; write it if it is time to."""
        with self._lock:
            self._wanted = position if self._wanted is None else max(position, self._wanted)
            rows = self._wanted.sequence - (self._written.sequence if self._written else 0)
            if self._is_time() or rows >= _CONFIRM_EVERY_ROWS:
                self._write(self._wanted, _PRUNE_SECONDS)

    def settle(self) -> None:
        """While the source is quiet: write what is left, as soon as it is time to."""
        with self._lock:
            if self._wanted is not None and self._wanted != self._written and self._is_time():
                self._write(self._wanted, _PRUNE_SECONDS)

    def close(self) -> None:
        """Write what is left. Idempotent."""
        with self._lock:
            try:
                if self._wanted is not None and self._wanted != self._written and self._file.is_there:
                    self._write(self._wanted, _CLOSE_SECONDS)
            finally:
                self._wanted = self._written = None
                self._connections.close()

    def _is_time(self) -> bool:
        return time.monotonic() - self._written_at >= _CONFIRM_EVERY_SECONDS

    def _write(self, position: SqliteSequence, prune_seconds: float) -> None:
        """Save the position, then prune. What a lock keeps from being written now is written next time.

        The confirmed row itself stays in the log, so that numbers only grow.
        """
        until = time.monotonic() + prune_seconds
        with self._connections.use() as connection:
            own, log = OwnTables(connection, self._names), self._names.log
            try:
                with transaction(connection, "IMMEDIATE"):
                    head = own.head()
                    if position > head:
                        # Pruning beyond the head would make the log count from 1 again.
                        self._wanted = self._written
                        raise StateError(f"cannot confirm {position}: the log's head is {head}")
                    query = f"SELECT key, value FROM {self._names.meta} WHERE key IN ('confirmed', 'verified')"
                    kept = dict(connection.execute(query).fetchall())
                    confirmed = max(position, SqliteSequence.parse(kept["confirmed"]))
                    own.put(confirmed=confirmed.text(), verified=max(self.verified, kept["verified"]))
                self._written, self._written_at = position, time.monotonic()
                while time.monotonic() < until:
                    (low,) = connection.execute(f"SELECT min(seq) FROM {log}").fetchone()
                    if low is None or low >= confirmed.sequence:
                        return
                    limit = min(confirmed.sequence, low + _PRUNED_ROWS)
                    connection.execute(f"DELETE FROM {log} WHERE seq < ?", (limit,))
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in LOCKED:
                    raise

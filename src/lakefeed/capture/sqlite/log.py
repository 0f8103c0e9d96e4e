# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""The change log: its ResumePoint, LogReader and Decoder. It turns rows of the log table into Arrow, column by column.

SQLite shows only committed transactions, but not where in the log one ends and the next begins. So everything between
the last position and the log's head is one transaction. The steps for one such range:
  1. check that the file is the one that was opened; read schema version and head in one read transaction. If the schema
     version changed, or the triggers do not log what is wanted, adapt the triggers (drift) and start again
  2. inspect (after, head]: values that do not fit their column, NULLs in keys. If there are any, announce them and
     start again
  3. read the range in pieces: short queries, so that writers without WAL never wait long, and bounded memory

Rows of the log up to a head that was read once never change, so a range needs no transaction around it."""

from __future__ import annotations

import sqlite3
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from lakefeed.capture.base import Lag
from lakefeed.capture.dialect import DescribedTable, Session
from lakefeed.capture.fit import MisfitError, became_text
from lakefeed.capture.log import Announced, Choose, Decoded, LogReader, ResumePoint, Rows, SchemaFacts, Transaction
from lakefeed.capture.sqlite.database import LOCKED, Database, FileStamp, OpenedFile, inode_of, quoted, transaction
from lakefeed.capture.sqlite.drift import capture_table, follow_schema
from lakefeed.capture.sqlite.installation import OLD_ROW, Captured, Installation, Meta, OwnTables, State
from lakefeed.capture.sqlite.table import SCHEMA, SourceTable, mixed_columns, null_in, read_table, schema_version
from lakefeed.capture.sqlite.values import misfits, portions, to_arrow
from lakefeed.change.batch import Operation
from lakefeed.change.change_set import TableBlocked
from lakefeed.change.choice import NOTHING_CHOSEN, Choices
from lakefeed.change.position import SqliteSequence
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import DecodeError, PositionLostError, SourceError, SourceSetupError, StateError

WINDOW_ROWS = 50_000  # read at most this much of the log in one short read transaction, for the sake of non-WAL writers
_POLL_SECONDS = 0.05
_ASK_SECONDS, _SETTLED_SECONDS = 1.0, 2.5
"""While nothing is written: how often the log is asked all the same, and how long a file's last write must be over
before its time stamp shows the next one (file systems date in steps of up to two seconds)."""
_CLOSE_SECONDS = 2.0
_FEW_TABLES = 2
_ROWS = f"op IN ({Operation.INSERT}, {Operation.UPDATE}, {Operation.DELETE}, {Operation.BEFORE})"
_READ_TYPES = (pa.int64(), pa.int8(), pa.int64())  # seq, op, ts

_CONFIRM_EVERY_SECONDS = 1.0
_CONFIRM_EVERY_ROWS = 10_000
_CONFIRM_LOCK_SECONDS = 0.25
_PRUNED_ROWS = 5_000  # in one transaction: a few milliseconds
_PRUNE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Part of a range of the log that ends at ``head``. ``rows`` are values by column (seq, op, ts, then those of the
    table) of ``captured``. Sequences count from ``base``; the last piece of a window has its ``width``. The last piece
    of a range has what the range announces (``announced``)."""

    head: SqliteSequence
    base: int
    captured: Captured | None = None
    rows: Sequence[Sequence[Any]] = ()
    width: int = 0
    announced: Announced | None = None
    is_last: bool = False


class LogDecoder:
    """See ``Decoder``. The piece contains the catalog's part: which column is in which slot."""

    _in_range = False

    def decode(self, piece: LogPiece) -> Decoded[SqliteSequence]:
        decoded = Decoded[SqliteSequence]([Transaction(piece.head, piece.head.stamp * 1000)], width=piece.width)
        decoded.continues, decoded.open = self._in_range, not piece.is_last
        decoded.reached = piece.head if piece.is_last else None
        self._in_range = decoded.open
        if piece.captured is not None:
            schema = piece.captured.schema
            sequences, operations, stamps, *values = piece.rows
            columns = []
            for column, data in zip(schema.columns, values, strict=True):
                try:
                    columns.append(to_arrow(data, column.type))
                except MisfitError as error:
                    what = f"{schema.table}.{column.name} holds a value that is not of type {column.type}"
                    raise DecodeError(what) from error
            order, times = np.array(sequences, np.int64) - (piece.base + 1), np.array(stamps, np.int64) * 1000
            kinds, indices = pa.array(operations, pa.int8()), np.zeros(len(sequences), np.int32)
            decoded.items.append(Rows(schema, columns, kinds, order, indices, times=times))
        if piece.announced is not None:
            decoded.items.append(piece.announced)
        return decoded


class SqliteLogReader(LogReader[SqliteSequence, LogPiece]):
    """See ``LogReader``: one connection, polled. ``read`` belongs to the stream's thread, ``close`` to any.

    A poll that waits looks at the file first, and asks SQLite only if it was written to: an idle source then costs
    two calls of the system, and not a transaction."""

    def __init__(
        self, file: OpenedFile, names: Installation, after: SqliteSequence, confirmations: Confirmations
    ) -> None:
        self._file = file
        self._after = after
        self._confirmations = confirmations
        self._lock = threading.Lock()  # guards the connection: close interrupts a read, then waits for it
        self._closed = threading.Event()
        self._range: Iterator[LogPiece] = iter(())
        self._seen: FileStamp | None = None  # before the last time that SQLite was asked, if nothing was new then
        self._asked_at = 0.0
        self._connection = file.database.connect("rw")
        self._own = OwnTables(self._connection, names)
        try:
            with file.database.errors():
                self._meta = self._own.require()
        except SourceError:
            self._connection.close()
            raise

    def read(self, wait_seconds: float) -> LogPiece | None:
        until = time.monotonic() + wait_seconds
        while True:
            stamp = self._file.stamp()
            is_due = wait_seconds <= 0 or stamp is None or time.monotonic() - self._asked_at >= _ASK_SECONDS
            if is_due or stamp != self._seen:
                asked_at, dated_at = time.monotonic(), time.time()
                try:
                    with self._lock, self._file.database.errors():
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
                    self._seen = None
                    return piece
                is_settled = stamp is not None and dated_at - stamp.written_at > _SETTLED_SECONDS
                self._seen, self._asked_at = stamp if is_settled else None, asked_at
            self._confirmations.settle()
            rest = until - time.monotonic()
            if rest <= 0 or self._closed.is_set():
                return None
            time.sleep(min(rest, _POLL_SECONDS))  # ``close`` does not wait for it

    def confirm(self, position: SqliteSequence) -> None:
        self._confirmations.confirm(position)

    def close(self) -> None:
        self._closed.set()
        self._connection.interrupt()
        # A read that waits for a lock cannot be interrupted. It ends after the busy timeout; the connection is left to
        # it.
        if self._lock.acquire(timeout=_CLOSE_SECONDS):
            try:
                self._range = iter(())
                self._connection.close()
            finally:
                self._lock.release()

    def _next_range(self) -> Iterator[LogPiece]:
        """Everything committed after the last range; empty if there is nothing."""
        own, after = self._own, self._after.sequence
        while True:
            with transaction(self._connection, "DEFERRED"):
                version, head = schema_version(self._connection), own.head()
            if not self._meta.is_right(version, own.names):
                follow_schema(own, self._confirmations.verified)
                self._meta = own.require()
                continue
            self._confirmations.verified = max(self._confirmations.verified, head.sequence)
            if head.sequence <= after:
                return iter(())
            announced = own.marks(after, head.sequence)
            if announced is not None:  # whoever changes a capture writes a mark, if only an empty one
                self._meta = own.require()
            present = self._present(after, head.sequence)
            tables = [one for one in self._meta.tables if one.number in present and one.state is not State.BLOCKED]
            troubled: dict[Captured, frozenset[str] | None] = {}  # with the mixed columns; None for a NULL in the key
            for one in tables:
                columns = zip(one.schema.columns, one.slots, strict=True)
                tests = misfits((column.name, column.type, f"c{slot}") for column, slot in columns)
                listed = ", ".join(f"max({test})" for test in (null_in(one.key_slots), *tests.values()))
                query = f"SELECT {listed} FROM {own.names.log} WHERE {self._rows_of(one)}"
                null, *found = own.execute(query, (after, head.sequence)).fetchone()
                if null or any(found):
                    mixed = frozenset(name for name, is_bad in zip(tests, found, strict=True) if is_bad)
                    troubled[one] = None if null else mixed
            if not troubled:
                break
            self._announce(troubled)
        self._after = head
        numbers = ", ".join(str(one.number) for one in tables)
        rows = f"SELECT seq FROM {own.names.log} WHERE seq > ? AND tab IN ({numbers}) AND {_ROWS} ORDER BY seq LIMIT 1"
        first = own.execute(rows, (after,)).fetchone() if tables else None
        return self._pieces(head.sequence if first is None else first[0] - 1, head, tables, announced)

    def _present(self, low: int, high: int) -> set[int]:
        """The numbers of the tables that have rows in (low, high]."""
        query = f"SELECT DISTINCT tab FROM {self._own.names.log} WHERE seq > ? AND seq <= ? AND {_ROWS}"
        return {number for (number,) in self._own.execute(query, (low, high))}

    def _rows_of(self, captured: Captured) -> str:
        """SQL: changes of one table between two bound sequences."""
        return f"seq > ? AND seq <= ? AND tab = {captured.number} AND {_ROWS}"

    def _announce(self, troubled: dict[Captured, frozenset[str] | None]) -> None:
        """Retype tables with values that do not fit, and block tables with a NULL in a key; both by marks in the
        log."""
        own = self._own
        for one, mixed in troubled.items():  # this scans the table, so it comes before the write lock
            troubled[one] = None if mixed is None else mixed | mixed_columns(self._connection, one.table.name)
        with transaction(self._connection, "IMMEDIATE"):
            if schema_version(self._connection) != self._meta.schema_version:
                return  # columns may have other names now: adapt to the schema first
            now = {one.number: one for one in own.require().tables}  # the catalog side may have changed it
            for one, mixed in troubled.items():
                captured = now.get(one.number, one)
                table, key, is_dropped = captured.table, captured.schema.key, captured.state is State.DROPPED
                if mixed is not None and not is_dropped:
                    captured = captured.with_text(mixed)
                    own.put_table(captured)
                    own.mark(schema=captured.schema, notice=became_text(table, sorted(mixed)))
                    continue
                if is_dropped:
                    own.forget_table(captured.number)
                else:
                    own.put_table(replace(captured, state=State.BLOCKED))
                reason = f"a row has NULL in the key ({', '.join(key)}), or a value that its column cannot hold"
                rows = f"{quoted(table.name)} WHERE {null_in(key)}"
                remedy = f"DELETE FROM {rows}; or give these rows a key; then sync again."
                own.mark(notice=TableBlocked(table, reason, remedy))
        self._meta = own.require()

    def _pieces(
        self, begin: int, head: SqliteSequence, tables: Sequence[Captured], announced: Announced | None
    ) -> Iterator[LogPiece]:
        """Window by window, and table by table in each; cut by bytes if values are large."""
        low = high = begin
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
                    # Each piece is a query of its own: no query is open while the caller works.
                    with closing(portions(self._connection, query, (at, high), kinds)) as found:
                        portion = next(found, None)
                    if portion is None:
                        break
                    yield LogPiece(head, low, captured, portion.columns)
                    at = high if portion.is_last else portion.columns[0][-1]
            if high < head.sequence:
                yield LogPiece(head, low, width=high - low)
        yield LogPiece(head, low, width=high - low, announced=announced, is_last=True)


class Confirmations:
    """Confirmed positions: saves them in the source's meta table, and prunes the log before them. Any thread.

    Writing to the source costs its writers time. So both happen about once a second or every 10,000 rows, in small
    transactions, and never wait long for a lock: what cannot be written now is written next time. Only the ``file``
    that the capture reads is written to: in another one the position means something else. Whoever reads the log sets
    ``verified`` (see Meta), which is saved on the same occasion."""

    def __init__(self, file: OpenedFile, names: Installation) -> None:
        seconds = min(_CONFIRM_LOCK_SECONDS, file.database.busy_timeout_seconds)
        self._file = OpenedFile(replace(file.database, busy_timeout_seconds=seconds), file.inode)
        self._file.keep()
        self._names = names
        self._lock = threading.Lock()
        self._wanted: SqliteSequence | None = None
        self._written: SqliteSequence | None = None
        self._written_at = float("-inf")
        self.verified = 0

    def confirm(self, position: SqliteSequence) -> None:
        """Note a position, and write it if it is time to."""
        with self._lock:
            self._wanted = max(position, self._wanted or position)
            rows = self._wanted.sequence - (self._written.sequence if self._written else 0)
            if rows >= _CONFIRM_EVERY_ROWS or time.monotonic() - self._written_at >= _CONFIRM_EVERY_SECONDS:
                self._write(self._wanted, _PRUNE_SECONDS)

    def settle(self) -> None:
        """While the source is idle: write what is left as soon as it is time to."""
        wanted = self._wanted
        if wanted is not None and wanted != self._written:
            self.confirm(wanted)

    def close(self) -> None:
        """Write what is left. Idempotent."""
        with self._lock:
            try:
                if self._wanted is not None and self._wanted != self._written and self._file.is_there:
                    self._write(self._wanted, _CLOSE_SECONDS)
            finally:
                self._wanted = self._written = None
                self._file.close()

    def _write(self, position: SqliteSequence, prune_seconds: float) -> None:
        """Save the position, then prune. The confirmed row itself stays in the log, so that numbers only grow."""
        until = time.monotonic() + prune_seconds
        with self._file.use("rw") as connection:
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
                    if low >= confirmed.sequence:
                        return
                    limit = min(confirmed.sequence, low + _PRUNED_ROWS)
                    connection.execute(f"DELETE FROM {log} WHERE seq < ?", (limit,))
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in LOCKED:
                    raise


class SqliteResumePoint(ResumePoint[SqliteSequence, LogPiece]):
    """See ``ResumePoint``. Calls share kept connections; ``confirm`` has its own, and so has a stream."""

    def __init__(self, database: Database, names: Installation) -> None:
        self._database = database
        self._names = names
        self.choices = NOTHING_CHOSEN
        """See ``ChangeCapture.represent``."""
        self._begin()

    def _begin(self) -> None:
        self._file = OpenedFile(self._database, inode_of(self._database.path))
        self._confirmations = Confirmations(self._file, self._names)

    @contextmanager
    def _reading(self) -> Iterator[OwnTables]:
        """The pipeline's tables at one moment."""
        with self._file.use() as connection, transaction(connection, "DEFERRED"):
            yield OwnTables(connection, self._names)

    def open(self) -> None:
        self._begin()
        self._file.keep()

    def close(self) -> None:
        try:
            self._confirmations.close()
        finally:
            self._file.close()

    def meta(self) -> Meta | None:
        """What is captured now; None if nothing is. Any thread."""
        with self._reading() as own:
            return own.load()

    def find(self) -> SqliteSequence | None:
        meta = self.meta()
        return None if meta is None else meta.confirmed

    def identity(self) -> str:
        meta = self.meta()
        assert meta is not None  # noqa: S101  # ``find`` was called first
        return meta.identity

    def create(self, tables: Sequence[TableId]) -> SqliteSequence:
        """Capture ``tables`` from here on, and go on with those already captured. Returns the log's head. A blocked
        table starts again. Columns of newly captured tables that hold values of several types become text. Writes
        nothing if there is nothing to do. Holds the write lock while it creates triggers, not while it scans tables."""
        with self._file.use("rw") as connection:
            own = OwnTables(connection, self._names)
            while True:
                meta = follow_schema(own, self._confirmations.verified)
                if meta is not None and all(meta.state(table) is State.LIVE for table in tables):
                    break
                with transaction(connection, "IMMEDIATE"):
                    meta = own.load()
                    if meta is None:
                        own.create()
                    elif not meta.is_right(schema_version(connection), self._names):
                        continue  # the schema changed in between
                    for table in tables:
                        if meta is None or meta.state(table) is not State.LIVE:
                            source = _require_table(connection, table)
                            for old in meta.tables if meta else ():
                                if old.table == table:
                                    own.remove_triggers(old.number)
                                    own.forget_table(old.number)
                            capture_table(own, source)
                            own.mark()
                    own.put_verified()
                break
            head = own.head()  # before the scan: the log has what is written meanwhile
            # Since the triggers exist, every later value is in the log; so one pass without a lock is enough.
            new = [one for one in own.require().tables if one.table in tables and not one.scanned]
            mixed = {one.number: mixed_columns(connection, one.table.name) for one in new if one.state is State.LIVE}
            for one in (one for one in own.require().tables if one.table in tables and one.state is State.LIVE):
                free = [column for column in one.schema.columns if column.name not in one.schema.key]
                texts = frozenset(column.name for column in free if self.choices.is_text(one.table, column.name))
                if not texts <= {column.name for column in free if pa.types.is_string(column.type)}:
                    mixed[one.number] = mixed.get(one.number, frozenset()) | texts
            if mixed:
                with transaction(connection, "IMMEDIATE"):
                    for captured in (one for one in own.require().tables if one.number in mixed):
                        text = captured.with_text(mixed[captured.number])
                        own.put_table(replace(text, scanned=True))
                        if text != captured:
                            own.mark(schema=text.schema)
            return head

    def origin(self, table: TableId, delivered: SqliteSequence | None) -> Mapping[str, Any]:  # noqa: ARG002
        """The name of the log, whose head a chunk's read transaction sees."""
        with self._reading() as own:
            _require_table(own.connection, table)
            meta = own.load()
        if meta is None or meta.state(table) is None:
            raise StateError(f"{table} would be copied before its changes are captured", remedy="Call prepare first.")
        self.create([table])  # adapted to the current schema, and scanned
        return {"pipeline": self._names.pipeline}

    def beside(self) -> Mapping[str, Any]:
        return {"pipeline": self._names.pipeline}

    def require(self, position: SqliteSequence) -> None:
        """PositionLostError, with the reason, unless the log has everything after ``position``."""
        sequence, stamp, log = position.sequence, position.stamp, self._names.log
        with self._reading() as own:
            if own.load() is None:
                return  # the flow knows whether this is a fresh start
            head, row = own.head(), own.execute(f"SELECT ts FROM {log} WHERE seq = ?", (sequence,)).fetchone()
            (first,) = own.execute(f"SELECT min(seq) FROM {log}").fetchone()
        if position > head:
            read = f"the pipeline has read up to {position} (was an older copy restored?)"
            raise PositionLostError(f"the database is behind: its log ends at {head}, {read}")
        if row is not None and row[0] != stamp:
            why = f"its time is {row[0]}, not {stamp}): an older copy was restored and has been written to since"
            raise PositionLostError(f"the log's entry {sequence} is not the one that was read ({why}")
        if first > sequence + 1:
            gone = f"entries after {sequence} were pruned, so some changes are gone"
            raise PositionLostError(f"the log begins at {first}: {gone}")
        if row is None and first <= sequence:
            raise PositionLostError(f"the log's entry {sequence} is missing: the log has been tampered with")

    def start(self, after: SqliteSequence) -> SqliteLogReader:
        return SqliteLogReader(self._file, self._names, after, self._confirmations)

    def confirm(self, position: SqliteSequence) -> None:
        self._confirmations.confirm(position)

    def ahead_bytes(self, low: SqliteSequence, high: SqliteSequence) -> int:
        """Every entry of the log is Lakefeed's own, and stays until it is confirmed: any of them merits a heartbeat."""
        return sys.maxsize if high > low else 0

    def end(self) -> SqliteSequence | None:
        with self._reading() as own:
            own_log = own.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (f"{self._names.prefix}log",))
            return None if own_log.fetchone() is None else own.head()

    def lag(self, confirmed_at: float | None) -> Lag:  # noqa: ARG002  # the log itself has the times
        with self._reading() as own:
            meta = own.load()
            if meta is None:
                return Lag()
            confirmed, head = meta.confirmed.sequence, own.head().sequence
            rows, unread = max(0, head - confirmed), f"FROM {self._names.log} WHERE seq > ? AND seq <= ?"
            if any(one.before_images for one in meta.tables):
                # Before images, and old rows that never became one, are not changes.
                old = f"SELECT count(*) {unread} AND op IN ({Operation.BEFORE}, {OLD_ROW})"
                rows -= own.execute(old, (confirmed, head)).fetchone()[0]
            oldest = own.execute(f"SELECT ts {unread} ORDER BY seq LIMIT 1", (confirmed, head)).fetchone()
        return Lag(rows=rows, seconds=max(0.0, time.time() - oldest[0] / 1000) if rows and oldest else 0.0)

    def drop(self) -> tuple[str, ...]:
        """Remove everything that this pipeline has in the source, and nothing else."""
        self._confirmations.close()
        with self._file.use("rw") as connection, transaction(connection, "IMMEDIATE"):
            found = OwnTables(connection, self._names).triggers()
            triggers = sorted(self._names.trigger(number, event) for number, one in found.items() for event in one)
            query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN (?, ?, ?) ORDER BY name"
            own = [self._names.prefix + name for name in ("log", "meta", "vacuum")]
            tables = [name for (name,) in connection.execute(query, own)]
            for name in (*triggers, *tables):
                connection.execute(f"DROP {'TRIGGER' if name in triggers else 'TABLE'} {quoted(name)}")
        return (*triggers, *tables)


def _require_table(connection: sqlite3.Connection, table: TableId) -> SourceTable:
    source = read_table(connection, table.name) if table.schema == SCHEMA else None
    if source is None:
        raise SourceSetupError(f"there is no table {table} that can be captured", remedy="Correct source.tables.")
    return source


class SqliteFacts(SchemaFacts[SqliteSequence]):
    """The change log knows the schema of each of its rows; the catalog counts only for tables that are not captured."""

    def __init__(self, resume: SqliteResumePoint) -> None:
        self._resume = resume

    def represent(self, choices: Choices) -> None:
        self._resume.choices = choices

    def discover(self, session: Session, choose: Choose) -> tuple[TableSchema, ...]:
        return tuple(schema for _, schema in self._read(session, choose(session.tables())))

    def snapshot(self, session: Session, table: TableId) -> tuple[DescribedTable, TableSchema] | None:
        return next(iter(self._read(session, [table])), None)

    def _read(self, session: Session, tables: Sequence[TableId]) -> list[tuple[DescribedTable, TableSchema]]:
        described = session.describe(tables)
        meta = self._resume.meta()
        captured = {one.table: one.schema for one in meta.in_force} if meta else {}
        return [(one, captured.get(table, one.schema)) for table, one in described.items()]

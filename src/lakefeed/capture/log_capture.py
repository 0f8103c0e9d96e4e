"""LogCapture: the ChangeCapture of every source that has a log, built from the seams in ``log``.

    ResumePoint.start → LogReader → Decoder → ChangeSetBuilder → change sets, cut at commits
                                     SchemaFacts.due ↗

A transaction of any size passes through, decoded piece by piece. The catalog side has one session, which serves one
call at a time and which ``close`` cancels; the stream side has the reader. Neither waits for the other."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic

from lakefeed.capture.base import (
    Capabilities,
    ChangeCapture,
    Continuity,
    Finding,
    Lag,
    SnapshotPlan,
    TableSize,
    of_kind,
    opened,
)
from lakefeed.capture.builder import ChangeSetBuilder, Limits
from lakefeed.capture.dialect import Dialect, Key, Refusal, Session, SpareSessions, no_table
from lakefeed.capture.log import Check, Decoder, LogReader, P, Piece, ResumePoint, SchemaFacts, not_prepared
from lakefeed.capture.select import TablePatterns
from lakefeed.capture.snapshot import TableChunk, keyed_chunks, plan_chunks, still_there
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.choice import Choices, is_literal
from lakefeed.change.position import Position
from lakefeed.change.table import Comments, TableId, TableSchema
from lakefeed.errors import ConfigError
from lakefeed.storage.base import Storage

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 3.0
_MORE_SECONDS = 0.02  # how long a change set with content waits for more before it is cut


class LogCapture(ChangeCapture, Generic[P, Piece]):
    """One database, one pipeline. ``positions`` are the kinds of position that the source uses, the usual one first;
    ``tables`` are patterns (see ``select``); the others are the seams of ``log``."""

    def __init__(
        self, positions: type[P] | tuple[type[P], ...], capabilities: Capabilities, *, tables: Sequence[str],
        dialect: Dialect, resume: ResumePoint[P, Piece], decoder: Callable[[], Decoder[P, Piece]],
        facts: SchemaFacts[P] | None = None, check: Check | None = None, limits: Limits | None = None,
    ) -> None:  # fmt: skip
        self._positions = positions if isinstance(positions, tuple) else (positions,)
        self.kind, self.slot = self._positions[0].kind, resume.slot
        self.capabilities = capabilities
        self._patterns = TablePatterns(tables, default_schema=dialect.default_schema, folds_case=dialect.folds_case)
        self._dialect = dialect
        self._resume = resume
        self._decoder = decoder
        self._facts: SchemaFacts[P] = facts or SchemaFacts()
        self._check = check
        self._limits = limits or Limits()
        self._seen: frozenset[TableId] = frozenset()
        self._session: Session | None = None
        self._sessions = SpareSessions()  # for chunks that this process reads
        self._stream: _Stream[P, Piece] | None = None
        self._confirmed_at: float | None = None
        self._left_out: dict[TableId, Refusal] = {}
        self._lock = threading.Lock()  # guards the fields above; never held across a call to the database
        self._catalog_lock = threading.Lock()  # held while a call uses the session

    def represent(self, choices: Choices) -> None:
        self._dialect = self._dialect.represent(choices)
        self._facts.represent(choices)

    def sizes(self, tables: Sequence[TableId]) -> Mapping[TableId, TableSize]:
        with closing(self._dialect.connect()) as session:
            return session.sizes(tables)

    def comments(self, table: TableId) -> Comments:
        with self._sessions.use(self._dialect) as session:
            return session.comments(table)

    def keep_state(self, state: Storage) -> None:
        self._resume.keep_state(state)

    def open(self) -> None:
        with self._lock, ExitStack() as undo:
            if self._session is None:
                self._resume.open()
                undo.callback(self._resume.close)
                self._session = self._dialect.connect()
                self._sessions.keep()
                undo.pop_all()

    def close(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        self._sessions.close()
        try:
            self._end_stream()
        finally:
            if session is not None:
                session.cancel()
            try:
                self._resume.close()
            finally:
                # Wait until the cancelled call has returned. If it hangs all the same, its session is left to it.
                if session is not None and self._catalog_lock.acquire(timeout=_CLOSE_SECONDS):
                    try:
                        session.close()
                    finally:
                        self._catalog_lock.release()

    def identity(self) -> str | None:
        opened(self._session)
        return None if self._resume.find() is None else self._resume.identity()

    def take_over(self, known: str, position: Position) -> Position:
        opened(self._session)
        return self._resume.take_over(known, of_kind(position, *self._positions))

    def continuity(self, position: Position | None, tables: Sequence[TableId]) -> Continuity:
        opened(self._session)
        found = self._resume.find()
        start = found if position is None else of_kind(position, *self._positions)
        if start is not None:
            self._resume.require(start)
        if found is None:
            return Continuity.FRESH
        self._facts.expect(tables)
        return Continuity.RESUMED

    def recall(self, schemas: Sequence[TableSchema]) -> None:
        self._seen |= {schema.table for schema in schemas}
        self._facts.recall(schemas)

    def discover(self) -> tuple[TableSchema, ...]:
        with self._catalog() as session:
            return self._facts.discover(session, self.choose)

    def unsent(self, table: TableId) -> str | None:
        return self._facts.unsent(table)

    def wants(self, table: TableId) -> bool:
        return bool(self._patterns.matching(table))

    def choose(self, there: Mapping[TableId, Refusal | None]) -> tuple[TableId, ...]:
        """The tables that the patterns match, without refused ones, about which a warning is logged once. ConfigError
        for a table that is named literally and cannot be captured, unless it was captured before: such a table is
        reported as blocked and must not stop the others."""
        refused = {table: refusal for table, refusal in there.items() if refusal is not None}
        for table, refusal in refused.items():
            named = [one for one in self._patterns.matching(table) if is_literal(one)]
            if named and table not in self._seen and not self._facts.is_captured(table):
                raise ConfigError(f"'{named[0]}' cannot be captured: {refusal.reason}", remedy=refusal.remedy)
        usable = [table for table, refusal in there.items() if refusal is None or refusal.remedy]
        found = self._patterns.choose(usable, self._seen)
        self._seen |= set(found) - refused.keys()
        for table in found:
            if table in refused and self._left_out.get(table) != refused[table]:
                log.warning("%s is left out: %s. %s", table, *refused[table])
                self._left_out[table] = refused[table]
        return tuple(table for table in found if table not in refused)

    def prepare(self, tables: Sequence[TableId]) -> P:
        with self._catalog():
            position = self._resume.create(tables)
            self._facts.prepared(tables)
            if (stream := self._stream) is not None:
                for table in tables:
                    stream.builder.unblock(table)
            return position

    def snapshot(self, table: TableId, *, chunk_rows: int = 250_000) -> SnapshotPlan:
        with self._catalog() as session:
            stream = self._stream
            origin = self._resume.origin(table, None if stream is None else stream.builder.position)
            if (found := self._facts.snapshot(session, table)) is None:
                raise no_table(table)
            described, schema = found
            exact = None if schema.key else self._resume.exactly(origin)
            whole = TableChunk(self._dialect, described, schema, origin=exact or origin)
            chunks, rows = plan_chunks(session, whole, chunk_rows)
            return SnapshotPlan(schema, chunks, rows, self._resume.exact_at(origin), exact is not None)

    def reread(
        self,
        known: TableSchema,
        *,
        keys: Sequence[Key] | None = None,
        chunk_rows: int = 250_000,
        where: Sequence[str] = (),
    ) -> SnapshotPlan:
        if (origin := self._resume.beside()) is None:
            return super().reread(known, keys=keys, chunk_rows=chunk_rows, where=where)
        with closing(self._dialect.connect()) as session:
            there = still_there(session.described(known.table), known)
            whole = TableChunk(self._dialect, *there, where=tuple(where), origin=origin)
            if keys is not None:
                return SnapshotPlan(whole.schema, keyed_chunks(whole, keys), len(keys))
            return SnapshotPlan(whole.schema, *plan_chunks(session, whole, chunk_rows))

    def copied(self, table: TableId) -> None:
        with self._catalog_lock:
            self._resume.copied(table)

    def chunk(self, data: Mapping[str, Any]) -> TableChunk:
        return replace(TableChunk.from_json(self._dialect, data), sessions=self._sessions)

    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        opened(self._session)
        start = self._resume.find() if after is None else of_kind(after, *self._positions)
        if start is None:
            raise not_prepared()
        stream = self._stream
        if stream is None or stream.builder.position != start:
            self._end_stream()  # first: if anything below fails, nobody must go on reading from it
            self._resume.require(start)
            self._facts.rewind(start)
            stream = self._begin(start)
        return self._change_sets(stream, wait_seconds)

    def _begin(self, start: P) -> _Stream[P, Piece]:
        decoder, builder = self._decoder(), ChangeSetBuilder(start, self._limits)
        stream = _Stream(self._resume.start(start), decoder, builder, self._facts, self._resume.ahead_bytes)
        with self._lock:
            is_open, self._stream = self._session is not None, stream
        if not is_open:  # another thread has closed the capture meanwhile
            stream.close()
        return stream

    def _change_sets(self, stream: _Stream[P, Piece], wait_seconds: float) -> Iterator[ChangeSet]:
        try:
            while True:
                if stream.builder.is_empty and self._facts.begins_again():
                    stream.close()
                    stream = self._begin(stream.builder.position)
                if (change_set := stream.next(wait_seconds)) is None:
                    return
                if stream.builder.is_empty:
                    self._facts.delivered(stream.builder.position)
                yield change_set
        except BaseException as error:
            if self._stream is stream and not isinstance(error, GeneratorExit):  # else it is closed already
                self._end_stream()
            raise

    def confirm(self, position: Position) -> None:
        own = of_kind(position, *self._positions)
        opened(self._session)
        stream = self._stream
        (self._resume if stream is None else stream.reader).confirm(own)
        if stream is not None and (at := stream.builder.time_of(own)) is not None:
            self._confirmed_at = at

    def end(self) -> P | None:
        return self._resume.end()

    def lag(self) -> Lag:
        return self._resume.lag(self._confirmed_at)

    def check(self) -> tuple[Finding, ...]:
        return self._check(self.choose) if self._check is not None else ()

    def uninstall(self) -> tuple[str, ...]:
        with self._catalog():
            self._end_stream()
            return self._resume.drop()

    def _end_stream(self) -> None:
        """Close the stream; the next call of ``live`` starts another one."""
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    @contextmanager
    def _catalog(self) -> Iterator[Session]:
        with self._catalog_lock:
            yield opened(self._session)


@dataclass(slots=True)
class _Stream(Generic[P, Piece]):
    """One reader with its decoder and builder. Any thread may call ``close``."""

    reader: LogReader[P, Piece]
    decoder: Decoder[P, Piece]
    builder: ChangeSetBuilder[P]
    facts: SchemaFacts[P]
    ahead_bytes: Callable[[P, P], int]
    closed: threading.Event = field(default_factory=threading.Event)

    def close(self) -> None:
        self.closed.set()
        self.reader.close()

    def next(self, wait_seconds: float) -> ChangeSet | None:
        """The next change set, a heartbeat if none is due in time, None once the stream is closed."""
        builder, until = self.builder, time.monotonic() + wait_seconds
        while not self.closed.is_set():
            is_waiting = builder.is_empty and not builder.in_transaction
            wait = max(until - time.monotonic(), 0.001) if is_waiting else _MORE_SECONDS
            piece = self.reader.read(min(wait, wait_seconds))
            if piece is not None:
                builder.add(self.decoder.decode(piece))
            for announced in self.facts.due(builder.reached):
                builder.announce(announced)
            # A log that never pauses may still have nothing for the lake, such as changes of a blocked table.
            is_over = (piece is None or (wait_seconds > 0 and builder.is_empty)) and time.monotonic() >= until
            ahead_bytes = self.ahead_bytes(builder.position, builder.reached)
            change_set = builder.due(more=piece is not None, is_over=is_over, ahead_bytes=ahead_bytes)
            if change_set is not None:
                return change_set
        return None

"""PostgresLog: the ChangeCapture of a PostgreSQL database, by logical decoding (pgoutput).

Guarantees and limits, beyond the contract of ChangeCapture:
- A change set ends at the end of a commit record, in commit order; positions are those ends.
- Nothing is written to the source but the pipeline's own slot and publication. Nothing moves the slot but ``confirm``.
- A copy is exact at its position while the process that planned it lives; see ``snapshot``.
- Tables whose changes the log does not have (no key and no full replica identity, unlogged) are never published:
  a published table without identity would refuse the application's own updates. ``check`` names them.
- Generated columns are not captured: the stream does not carry them.
- ``discover``, ``prepare``, ``snapshot`` and ``copied`` work on connections of their own, beside the stream.
- The identity has the timeline: after a failover or a restore to a point in time the pipeline stops and says so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from lakefeed.capture.base import Capabilities, ChangeCapture, Continuity, Finding, Lag, SnapshotPlan
from lakefeed.capture.builder import ChangeSetBuilder, Limits
from lakefeed.capture.postgres.catalog import SourceTable, one_reading, read_tables, wait_for_writers, with_columns
from lakefeed.capture.postgres.database import Connection, Database, Names, quoted, read_identity
from lakefeed.capture.postgres.dialect import PostgresDialect, PostgresSession, described, read_orderings
from lakefeed.capture.postgres.exported import ExportedSnapshots
from lakefeed.capture.postgres.facts import TableFacts
from lakefeed.capture.postgres.pgoutput import PgoutputDecoder, WalPiece
from lakefeed.capture.postgres.preflight import CheckOptions, check_source
from lakefeed.capture.postgres.resume import (
    Preparation,
    Slot,
    advance_slot,
    drop_slot,
    head,
    inserted,
    missing_slot,
    published,
    read_coverage,
    read_slot,
    require_position,
    seconds_behind,
    usable_slot,
)
from lakefeed.capture.postgres.snapshot import SnapshotOrigin
from lakefeed.capture.postgres.walsender import Walsender
from lakefeed.capture.reader import BackgroundReader
from lakefeed.capture.select import is_literal, is_wanted, match_tables
from lakefeed.capture.snapshot import TableChunk, plan_chunks
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import ConfigError, SourceSetupError, StateError

log = logging.getLogger(__name__)

DEFAULT_SCHEMA = "public"
_SHORT_SECONDS, _BACKLOG_SECONDS = 0.02, 0.25
"""How long nothing must come before a change set is cut: longer while a backlog is read in gulps."""
_WRITERS_SECONDS = 5.0
_CLOSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Stream:
    """Reader → decoder → builder, from one start."""

    walsender: Walsender
    reader: BackgroundReader[PostgresLsn, WalPiece]
    decoder: PgoutputDecoder
    builder: ChangeSetBuilder[PostgresLsn]


class PostgresLog(ChangeCapture):
    """One database, one pipeline. Made by ``Postgres(...).bind(pipeline)``."""

    kind = PostgresLsn.kind

    def __init__(
        self,
        database: Database,
        pipeline: str,
        *,
        tables: Sequence[str] = ("public.*",),
        text_columns: Sequence[str] = (),
        provision: bool = True,
        before_images: bool = False,
        limits: Limits | None = None,
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
        self._provision = provision
        self._before_images = before_images
        self._limits = limits or Limits()
        self._text_columns = tuple(text_columns)
        self._closed = threading.Event()
        self._preparation = Preparation(database, self._names, self._closed, provision=provision)
        self._exported = ExportedSnapshots(database, self._names, self._closed)
        self._facts = TableFacts(text_columns)
        self._dialect = PostgresDialect(database.dsn, self._text_columns, application_name=self._names.readers)
        self._seen: frozenset[TableId] = frozenset()
        self._sessions: set[PostgresSession] = set()
        self._connection: Connection | None = None
        self._catalog_lock = threading.RLock()  # of the connection, while a call uses it
        self._stream: _Stream | None = None
        self._confirmed_time: float | None = None

    def open(self) -> None:
        if self._connection is None:
            self._closed.clear()
            self._connection = self._database.connect(self._names.slot)

    def close(self) -> None:
        """T33: the replication connection goes first, so that nobody waits for a slot that a dead process has."""
        self._closed.set()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.reader.close()
        for session in tuple(self._sessions):
            session.cancel()
        self._exported.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.sever()  # a call that uses it in another thread fails now
            is_free = self._catalog_lock.acquire(timeout=_CLOSE_SECONDS)
            with suppress(psycopg.Error):
                connection.close()
            if is_free:
                self._catalog_lock.release()

    def identity(self) -> str | None:
        with self._working() as connection:
            if usable_slot(connection, self._names.slot) is None:
                return None
        return read_identity(self._database, self._names)

    def continuity(self, position: Position | None, tables: Sequence[TableId]) -> Continuity:
        with self._working() as connection:
            slot = usable_slot(connection, self._names.slot)
            if slot is None:
                if position is not None:
                    raise missing_slot(self._names, _own(position))
                return Continuity.FRESH
            require_position(connection, slot, _own(position) if position is not None else slot.confirmed)
            with one_reading(connection):
                there = read_tables(connection)
                coverage = read_coverage(connection, self._names.publication)
            self._facts.expect(connection, there, tables, coverage)
            return Continuity.RESUMED

    def recall(self, schemas: Sequence[TableSchema]) -> None:
        self._seen |= {schema.table for schema in schemas}
        self._facts.recall(schemas)

    def discover(self) -> tuple[TableSchema, ...]:
        with self._working() as connection:
            with one_reading(connection):
                there = read_tables(connection)
                chosen = self._choose(there)
                wanted = set(chosen)
                known = [
                    table for table in there if table not in wanted and self._facts.schemas.known(table) is not None
                ]
                sources = with_columns(connection, [there[table] for table in (*chosen, *known)])
                coverage = read_coverage(connection, self._names.publication)
            self._facts.compare(connection, there, sources, coverage)
            return tuple(source.schema(self._text_columns) for source in sources[: len(chosen)])

    def wants(self, table: TableId) -> bool:
        return is_wanted(self._patterns, table, default_schema=DEFAULT_SCHEMA, folds_case=False)

    def prepare(self, tables: Sequence[TableId]) -> PostgresLsn:
        with self._working() as connection:
            sources = _sources(connection, tables)
            made = self._preparation.prepare(connection, sources, self._exported.close)
            if made is not None:
                self._exported.add(made, tables)
            for source in sources:
                self._facts.learn(source)
                if (stream := self._stream) is not None:
                    stream.builder.unblock(source.id)
            with one_reading(connection):
                coverage = read_coverage(connection, self._names.publication)
            self._facts.prepared(sources, coverage)
            return self._slot(connection).confirmed

    def snapshot(self, table: TableId, *, chunk_rows: int = 250_000) -> SnapshotPlan:
        self._require_open()
        with self._database.connection(self._names.slot) as connection:
            self._slot(connection)
            (source,) = _sources(connection, [table])
            stream = self._stream
            delivered = stream.builder.position if stream is not None else PostgresLsn(0)
            least = max(delivered, self._preparation.since(table))
            origin = self._exported.for_copy(connection, source, least)
            if origin is None:
                origin = SnapshotOrigin("", "", PostgresLsn(0))
                if writers := wait_for_writers(connection, source, _WRITERS_SECONDS):
                    pids = ", ".join(str(pid) if pid is not None else "a prepared transaction" for pid in writers)
                    raise SourceSetupError(
                        f"the copy of {table} cannot start: transactions that may have written to it before it was "
                        f"published are still open, in the processes {pids}",
                        remedy=f"Commit them, or end them: SELECT pg_terminate_backend({writers[0] or '…'});",
                    )
            (source,) = _sources(connection, [table])
            as_queried = described(source, self._text_columns, read_orderings(connection, [source]))
        schema = self._facts.learn(source)
        whole = TableChunk(self._dialect, as_queried, schema, origin=origin.to_json())
        session = self._dialect.connect()
        try:
            self._sessions.add(session)
            chunks, rows = plan_chunks(session, whole, chunk_rows)
        finally:
            self._sessions.discard(session)
            session.close()
        return SnapshotPlan(schema, chunks, rows)

    def copied(self, table: TableId) -> None:
        self._exported.release(table)

    def chunk(self, data: Mapping[str, Any]) -> TableChunk:
        return TableChunk.from_json(self._dialect, data)

    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        self._require_open()
        with self._database.connection(self._names.slot) as connection:
            slot = usable_slot(connection, self._names.slot)
            if slot is None:
                if after is not None:
                    raise missing_slot(self._names, _own(after))
                raise _not_prepared()
            start = slot.confirmed if after is None else _own(after)
            if self._stream is None or self._stream.builder.position != start:
                require_position(connection, slot, start)
                stream, self._stream = self._stream, None
                if stream is not None:
                    stream.reader.close()
                self._facts.schemas.rewind(start)
                walsender = Walsender(self._database, self._names, start)
                self._stream = _Stream(
                    walsender,
                    BackgroundReader(str(self._database), walsender),
                    PgoutputDecoder(self._facts.resolve, before_images=self._before_images),
                    ChangeSetBuilder(start, self._limits),
                )
        return self._change_sets(wait_seconds)

    def end(self) -> PostgresLsn:
        with self._database.connection(self._names.slot) as connection:
            return inserted(connection)

    def confirm(self, position: Position) -> None:
        own, stream = _own(position), self._stream
        if stream is not None:
            stream.reader.confirm(own)
            self._confirmed_time = stream.builder.time_of(own)
            return
        self._require_open()
        with self._database.connection(self._names.slot) as connection:
            advance_slot(connection, self._names.slot, own)

    def lag(self) -> Lag:
        with self._database.connection(self._names.slot) as connection:
            slot = read_slot(connection, self._names.slot)
            if slot is None:
                return Lag()
            behind = max(0, head(connection).value - slot.confirmed.value)
            seconds = seconds_behind(connection, slot) if behind else 0.0
        if behind and self._confirmed_time is not None:  # this process follows the stream and knows better
            seconds = max(0.0, time.time() - self._confirmed_time)
        return Lag(bytes=behind, seconds=seconds, source=slot.health)

    def slot(self) -> Slot | None:
        """The slot as the server reports it (``wal_status``, ``safe_wal_size``), on a connection of its own."""
        with self._database.connection(self._names.slot) as connection:
            return read_slot(connection, self._names.slot)

    def check(self) -> tuple[Finding, ...]:
        options = CheckOptions(provision=self._provision, before_images=self._before_images)
        return check_source(self._database, self._names, self._choose, options)

    def uninstall(self) -> tuple[str, ...]:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.reader.close()
        self._exported.close()
        removed = []
        with self._working() as connection:
            if drop_slot(connection, self._names.slot):
                removed.append(f"replication slot {self._names.slot}")
            if published(connection, self._names.publication) is not None:
                connection.execute(f"DROP PUBLICATION {quoted(self._names.publication)}".encode())
                removed.append(f"publication {self._names.publication}")
        return tuple(removed)

    def _change_sets(self, wait_seconds: float) -> Iterator[ChangeSet]:
        while not self._closed.is_set():
            stream = self._stream
            if stream is None:
                return
            try:
                change_set = self._next(stream, wait_seconds)
            except BaseException:
                if self._stream is stream:  # what was taken in is lost: the next call of ``live`` starts again
                    self._stream = None
                stream.reader.close()
                raise
            if self._closed.is_set():
                return
            if stream.builder.is_empty:  # else some of what was resolved waits for its transaction's end
                self._facts.schemas.settle(stream.builder.position)
            yield change_set

    def _next(self, stream: _Stream, wait_seconds: float) -> ChangeSet:
        """What the stream has, and what the catalog showed beside it; a heartbeat if that is nothing in time.

        Without a wait, "nothing" means that the server has said so for everything that is in its log now.
        """
        reader, builder = stream.reader, stream.builder
        reader.is_drained = False  # that was true at the call before; time has passed since
        until = time.monotonic() + wait_seconds
        while True:
            wait = wait_seconds
            if wait_seconds > 0:
                wait = max(0.001, until - time.monotonic())
                if not builder.is_empty:
                    wait = _BACKLOG_SECONDS if stream.walsender.gulping else _SHORT_SECONDS
            piece = reader.read(wait)
            if piece is not None:
                builder.add(stream.decoder.decode(piece))
            for announced in self._facts.schemas.due(builder.reached):
                builder.announce(announced)
            if builder.is_ready(more=piece is not None):
                return builder.cut()
            # A log that never pauses may have nothing for the lake: changes of a blocked table, say.
            ahead_bytes = builder.reached.value - builder.position.value
            is_over = piece is None or (wait_seconds > 0 and builder.is_empty)
            is_over = (is_over and time.monotonic() >= until) or self._closed.is_set()
            if is_over or builder.is_idle_too_long(ahead_bytes):
                return builder.heartbeat(ahead_bytes)

    def _choose(self, there: Mapping[TableId, SourceTable]) -> tuple[TableId, ...]:
        """The tables that the patterns match, without those whose changes the log does not have."""
        refused = {table: refusal for table, source in there.items() if (refusal := source.refusal) is not None}
        for pattern in filter(is_literal, self._patterns):
            table = TableId.parse(pattern if "." in pattern else f"{DEFAULT_SCHEMA}.{pattern}")
            # One that was captured is left out and reported as blocked; it must not stop the others.
            if (refusal := refused.get(table)) is not None and self._facts.schemas.known(table) is None:
                raise ConfigError(f"'{pattern}' cannot be captured: {refusal[0]}", remedy=refusal[1])
        found = match_tables(self._patterns, there, default_schema=DEFAULT_SCHEMA, folds_case=False, seen=self._seen)
        self._seen |= set(found)
        for table in found:
            if (refusal := refused.get(table)) is not None:
                log.warning("%s is left out: %s. %s", table, *refusal)
        return tuple(table for table in found if table not in refused)

    def _slot(self, connection: Connection) -> Slot:
        slot = usable_slot(connection, self._names.slot)
        if slot is None:
            raise _not_prepared()
        return slot

    def _require_open(self) -> Connection:
        if self._connection is None:
            raise StateError("the capture is not open", remedy="Call open first.")
        return self._connection

    @contextmanager
    def _working(self) -> Iterator[Connection]:
        with self._catalog_lock, self._database.errors():
            yield self._require_open()


def _sources(connection: Connection, tables: Sequence[TableId]) -> list[SourceTable]:
    with one_reading(connection):
        there = read_tables(connection)
        for table in tables:
            if table not in there:
                remedy = "Correct source.tables, or create the table."
                raise SourceSetupError(f"there is no table {table}", remedy=remedy)
        return with_columns(connection, [there[table] for table in tables])


def _own(position: Position) -> PostgresLsn:
    if not isinstance(position, PostgresLsn):
        raise StateError(f"{position.encode()} is not a position of PostgreSQL")
    return position


def _not_prepared() -> StateError:
    return StateError("there is no replication slot for the pipeline yet", remedy="Call prepare first.")

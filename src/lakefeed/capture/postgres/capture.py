"""PostgresLog: the ChangeCapture of a PostgreSQL database, by logical decoding (pgoutput).

Guarantees and limits, beyond the contract of ChangeCapture:
- A change set ends at the end of a commit record, in commit order; positions are those ends.
- Nothing is written to the source but the pipeline's own slot and publication. Nothing moves the slot but ``confirm``.
- A copy is exact at its position while the process that planned it lives; see ``snapshot`` and ``bracket``.
- Tables whose changes PostgreSQL cannot tell (no key and no full replica identity, unlogged) are never published:
  a published table without identity would refuse the application's own updates. ``check`` names them.
- Generated columns are not captured: the stream does not carry them.
- The identity has the timeline: after a failover or a restore to a point in time the pipeline stops and says so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from lakefeed.capture.base import Capabilities, ChangeCapture, Continuity, Finding, Lag, SnapshotPlan
from lakefeed.capture.postgres.assemble import Assembler, Resolved
from lakefeed.capture.postgres.catalog import FULL, SourceTable, not_whole, read_table, read_tables, with_columns
from lakefeed.capture.postgres.catchup import Window
from lakefeed.capture.postgres.database import Connection, Database
from lakefeed.capture.postgres.drift import Drift
from lakefeed.capture.postgres.feed import ChangeFeed
from lakefeed.capture.postgres.holds import Holds
from lakefeed.capture.postgres.message import Relation
from lakefeed.capture.postgres.names import Names, quoted
from lakefeed.capture.postgres.plan import plan_chunks
from lakefeed.capture.postgres.preflight import CheckOptions, check_source
from lakefeed.capture.postgres.preparation import Preparation
from lakefeed.capture.postgres.publication import published, read_coverage
from lakefeed.capture.postgres.relations import Relations
from lakefeed.capture.postgres.server import read_identity
from lakefeed.capture.postgres.slot import (
    Slot,
    advance_slot,
    drop_slot,
    head,
    inserted,
    missing_slot,
    read_slot,
    require_position,
    seconds_behind,
    usable_slot,
)
from lakefeed.capture.postgres.snapshot import Origin, TableChunk
from lakefeed.capture.postgres.stream import Limits
from lakefeed.capture.select import is_literal, is_wanted, match_tables
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import ConfigError, SourceSetupError, StateError

log = logging.getLogger(__name__)

DEFAULT_SCHEMA = "public"


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
        self._preparation = Preparation(database, self._names, provision=provision)
        self._before_images = before_images
        self._limits = limits or Limits()
        self._relations = Relations(text_columns)
        self._text_columns = tuple(text_columns)
        self._connection: Connection | None = None
        self._feed: ChangeFeed | None = None
        self._holds = Holds(database, self._names)
        self._drift = Drift(self._relations)
        self._window = Window()
        self._confirmed_time: float | None = None
        self._closed = threading.Event()

    def open(self) -> None:
        if self._connection is None:
            self._connection = self._database.connect(self._names.slot)
            self._closed.clear()

    def close(self) -> None:
        """T33: the replication connection goes first, so that nobody waits for a slot that a dead process has."""
        self._closed.set()
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()
        self._holds.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

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
            self._drift.expect(connection, tables, read_coverage(connection, self._names.publication))
            return Continuity.RESUMED

    def recall(self, schemas: Sequence[TableSchema]) -> None:
        self._relations.recall(schemas)

    def discover(self) -> tuple[TableSchema, ...]:
        with self._working() as connection:
            there = read_tables(connection)
            chosen = self._choose(there)
            known = [table for table in there if table not in chosen and self._relations.known(table) is not None]
            sources = with_columns(connection, [there[table] for table in (*chosen, *known)])
            self._drift.look(connection, there, sources, read_coverage(connection, self._names.publication))
            return tuple(source.schema(self._text_columns) for source in sources[: len(chosen)])

    def wants(self, table: TableId) -> bool:
        return is_wanted(self._patterns, table, default_schema=DEFAULT_SCHEMA, folds_case=False)

    def prepare(self, tables: Sequence[TableId]) -> PostgresLsn:
        with self._working() as connection:
            sources = [self._source(connection, table) for table in tables]
            made = self._preparation.prepare(connection, sources)
            if made is not None:
                self._holds.add(made, tables)
            for source in sources:
                self._relations.learn(source)
                if self._feed is not None:
                    self._feed.unblock(source.id)
            self._drift.prepared(sources, read_coverage(connection, self._names.publication))
            return self._slot(connection).confirmed

    def snapshot(self, table: TableId, *, chunk_rows: int = 250_000) -> SnapshotPlan:
        with self._working() as connection:
            source = self._source(connection, table)
            self._slot(connection)
            delivered = self._feed.position if self._feed is not None else PostgresLsn(0)
            hold = self._holds.for_copy(connection, source, max(delivered, self._preparation.since(table)))
            schema = self._relations.learn(source)
            origin = Origin(hold.snapshot, hold.content, hold.position)
            whole = TableChunk(self._database, self._names, schema, origin, source.kind == "r")
            chunks, rows = plan_chunks(connection, whole, source, chunk_rows)
            return SnapshotPlan(schema, chunks, rows)

    def copied(self, table: TableId) -> None:
        self._holds.release(table)

    def chunk(self, data: Mapping[str, Any]) -> TableChunk:
        return TableChunk.from_json(self._database, self._names, data)

    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        with self._working() as connection:
            slot = usable_slot(connection, self._names.slot)
            if slot is None:
                if after is not None:
                    raise missing_slot(self._names, _own(after))
                raise _not_prepared()
            start = slot.confirmed if after is None else _own(after)
            if self._feed is None or self._feed.position != start:
                require_position(connection, slot, start)
                self._restart(connection, start)
        return self._change_sets(wait_seconds)

    def end(self) -> PostgresLsn:
        with self._database.connection(self._names.slot) as connection:
            return inserted(connection)

    def confirm(self, position: Position) -> None:
        own = _own(position)
        if self._feed is not None and self._feed.confirm(own):
            self._confirmed_time = self._feed.time_of(own)
            return
        with self._working() as connection:
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
        if self._feed is not None:
            self._feed.close()
            self._feed = None
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
            feed = self._feed
            if feed is None:
                return
            with self._working() as connection:
                self._holds.tidy(connection)
                change_set = self._next(feed, wait_seconds)
            if self._closed.is_set():
                return
            if feed.is_empty:  # else some of what was resolved waits for its transaction's end
                self._relations.settle()
                self._drift.settle(feed.position)
            yield change_set

    def _next(self, feed: ChangeFeed, wait_seconds: float) -> ChangeSet:
        """What the stream has; and if that is nothing, what the catalog says beside it."""
        self._tell(feed)
        change_set = feed.next(wait_seconds)
        if change_set.is_heartbeat and self._tell(feed):
            return replace(feed.next(0), start=change_set.start)
        return change_set

    def _tell(self, feed: ChangeFeed) -> bool:
        found = self._drift.due(feed.reached)
        for one in found:
            feed.tell(one)
        return bool(found)

    def _restart(self, connection: Connection, start: PostgresLsn) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None
        self._relations.rewind()
        self._drift.rewind(start)
        resolve = partial(self._resolve, connection)
        assembler = Assembler(start, resolve, before_images=self._before_images)
        self._feed = ChangeFeed(self._database, self._names, connection, assembler, self._limits, self._window)

    def _resolve(self, connection: Connection, relation: Relation) -> Resolved:
        found = self._relations.resolve(connection, relation)
        if found.layout is None or relation.identity != FULL:
            return found
        partitions = not_whole(connection, relation.id).keys() - {relation.id}  # its own identity is the stream's word
        return replace(found, layout=replace(found.layout, whole_old_rows=not partitions))

    def _choose(self, there: Mapping[TableId, SourceTable]) -> tuple[TableId, ...]:
        """The tables that the patterns match, without those whose changes PostgreSQL cannot tell."""
        refused = {table: source.refusal for table, source in there.items() if source.refusal is not None}
        for pattern in filter(is_literal, self._patterns):
            table = TableId.parse(pattern if "." in pattern else f"{DEFAULT_SCHEMA}.{pattern}")
            # One that was captured is left out and told as blocked; it must not hold up the others.
            if (refusal := refused.get(table)) is not None and self._relations.known(table) is None:
                raise ConfigError(f"'{pattern}' cannot be captured: {refusal[0]}", remedy=refusal[1])
        found = match_tables(self._patterns, there, default_schema=DEFAULT_SCHEMA, folds_case=False)
        for table in found:
            if (refusal := refused.get(table)) is not None:
                log.warning("%s is left out: %s. %s", table, *refusal)
        return tuple(table for table in found if table not in refused)

    def _source(self, connection: Connection, table: TableId) -> SourceTable:
        source = read_table(connection, table)
        if source is None:
            raise SourceSetupError(f"there is no table {table}", remedy="Correct source.tables, or create the table.")
        return source

    def _slot(self, connection: Connection) -> Slot:
        slot = usable_slot(connection, self._names.slot)
        if slot is None:
            raise _not_prepared()
        return slot

    @contextmanager
    def _working(self) -> Iterator[Connection]:
        if self._connection is None:
            raise StateError("the capture is not open", remedy="Call open first.")
        with self._database.errors():
            yield self._connection


def _own(position: Position) -> PostgresLsn:
    if not isinstance(position, PostgresLsn):
        raise StateError(f"{position.encode()} is not a position of PostgreSQL")
    return position


def _not_prepared() -> StateError:
    return StateError("there is no replication slot for the pipeline yet", remedy="Call prepare first.")

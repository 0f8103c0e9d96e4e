"""PostgresResumePoint: what the source keeps for one pipeline, its replication slot and its publication.

The publication is made first, then the slot, so that the slot's first change already finds its table published. Nothing
moves the slot but ``confirm``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from lakefeed.capture.base import Lag
from lakefeed.capture.log import ResumePoint
from lakefeed.capture.postgres.catalog import read_tables, wait_for_writers
from lakefeed.capture.postgres.database import Connection, Connections, Names, quoted, read_identity
from lakefeed.capture.postgres.pgoutput import WalPiece
from lakefeed.capture.postgres.slot import (
    advance_slot,
    create_slot,
    drop_slot,
    head,
    inserted,
    missing_slot,
    publication_statements,
    published,
    read_slot,
    require_position,
    seconds_behind,
    shortcomings,
    slot_statement,
    usable_slot,
)
from lakefeed.capture.postgres.snapshot import ExportedSnapshots, SnapshotOrigin
from lakefeed.capture.postgres.walsender import Walsender
from lakefeed.capture.reader import BackgroundReader
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, SourceSetupError, SourceUnavailableError, StateError

WRITERS_SECONDS = 5.0
"""How long a copy without an exported snapshot waits for transactions from before its table was published."""
_MISSED = (
    " Changes made meanwhile were not published: a table that is not copied again by itself then needs"
    " `lakefeed rebuild`."
)
_AT_ONCE_SECONDS = 0.05


class PostgresResumePoint(ResumePoint[PostgresLsn, WalPiece]):
    """See ``ResumePoint``. Each call has a connection of its own."""

    def __init__(self, connections: Connections, names: Names, *, provision: bool) -> None:
        self._connections = connections
        self._database = connections.database
        self._names = names
        self._provision = provision
        self._closed = threading.Event()
        self._exported = ExportedSnapshots(self._database, names, self._closed)
        self._since: dict[TableId, tuple[int, PostgresLsn]] = {}

    def open(self) -> None:
        self._closed.clear()

    def close(self) -> None:
        self._closed.set()
        self._exported.close()
        self._connections.sever()

    def find(self) -> PostgresLsn | None:
        with self._connections.connection() as connection:
            slot = usable_slot(connection, self._names.slot)
        return None if slot is None else slot.confirmed

    def identity(self) -> str:
        """It has the timeline: after a failover or a restore to a point in time the pipeline stops and says so."""
        return read_identity(self._database, self._names)

    def create(self, tables: Sequence[TableId]) -> PostgresLsn:
        """Exported snapshots are given up before anything waits for a lock: an application's CREATE INDEX CONCURRENTLY
        that waits for a snapshot of ours would have the lock that we wait for."""
        names = self._names
        with self._connections.connection() as connection:
            there = read_tables(connection)
            for table in tables:
                if table not in there:
                    remedy = "Correct source.tables, or create the table."
                    raise SourceSetupError(f"there is no table {table}", remedy=remedy)
                if (refusal := there[table].refusal) is not None:
                    raise SourceSetupError(f"{table} cannot be captured: {refusal.reason}", remedy=refusal.remedy)
            slot = usable_slot(connection, names.slot)
            for one in shortcomings(connection, names.publication):
                remedy = one.remedy + (_MISSED if slot is not None else "")
                raise ConfigError(f"{one.problem}, so that changes would be missing or differ", remedy=remedy)
            try:
                if self._provision:
                    self._publish(connection, tables)
                else:
                    self._require_provided(connection, tables, slot=slot is not None)
            finally:
                # Where the log was when tables were first seen as published, also those that others published.
                members = published(connection, names.publication) or {}
                at = inserted(connection)
                for table in tables:
                    if table in members and self._since.get(table, (None, at))[0] != members[table]:
                        self._since[table] = (members[table], at)
            if slot is not None:
                return slot.confirmed
        self._exported.close()
        made = create_slot(self._database, names.slot, self._closed, temporary=False)
        self._exported.add(made, tables)
        found = self.find()
        return made[1] if found is None else found

    def origin(self, table: TableId, delivered: PostgresLsn | None) -> Mapping[str, Any]:
        """A table may have had transactions under way that began before it was published, so that the stream does not
        have them. A copy with the snapshot of a slot that was made later has: making it waits for them."""
        with self._connections.connection() as connection:
            if usable_slot(connection, self._names.slot) is None:
                raise StateError("there is no replication slot for the pipeline yet", remedy="Call prepare first.")
            source = read_tables(connection).get(table)
            if source is None:
                remedy = "Correct source.tables, or create the table."
                raise SourceSetupError(f"there is no table {table}", remedy=remedy)
            first = PostgresLsn(0)
            least = max(delivered or first, self._since.get(table, (0, first))[1])
            origin = self._exported.for_copy(connection, table, least)
            if origin is None:
                origin = SnapshotOrigin("", "", first)
                if writers := wait_for_writers(connection, source, WRITERS_SECONDS):
                    pids = ", ".join(str(pid) if pid is not None else "a prepared transaction" for pid in writers)
                    raise SourceSetupError(
                        f"the copy of {table} cannot start: transactions that may have written to it before it was "
                        f"published are still open, in the processes {pids}",
                        remedy=f"Commit them, or end them: SELECT pg_terminate_backend({writers[0] or '…'});",
                    )
        return origin.to_json()

    def copied(self, table: TableId) -> None:
        self._exported.release(table)

    def require(self, position: PostgresLsn) -> None:
        with self._connections.connection() as connection:
            slot = usable_slot(connection, self._names.slot)
            if slot is None:
                raise missing_slot(self._names, position)
            require_position(connection, slot, position)

    def start(self, after: PostgresLsn) -> BackgroundReader[PostgresLsn, WalPiece]:
        return BackgroundReader(str(self._database), Walsender(self._database, self._names, after))

    def confirm(self, position: PostgresLsn) -> None:
        with self._connections.connection() as connection:
            advance_slot(connection, self._names.slot, position)

    def ahead_bytes(self, low: PostgresLsn, high: PostgresLsn) -> int:
        return high.value - low.value

    def end(self) -> PostgresLsn:
        with self._database.connection(self._names.slot) as connection:
            return inserted(connection)

    def lag(self, confirmed_at: float | None) -> Lag:
        with self._database.connection(self._names.slot) as connection:
            slot = read_slot(connection, self._names.slot)
            if slot is None:
                return Lag()
            behind = max(0, head(connection).value - slot.confirmed.value)
            seconds = seconds_behind(connection, slot) if behind else 0.0
        if behind and confirmed_at is not None:  # this process follows the stream and knows better
            seconds = max(0.0, time.time() - confirmed_at)
        return Lag(bytes=behind, seconds=seconds, source=slot.health)

    def drop(self) -> tuple[str, ...]:
        self._exported.close()
        removed = []
        with self._connections.connection() as connection:
            if drop_slot(connection, self._names.slot):
                removed.append(f"replication slot {self._names.slot}")
            if published(connection, self._names.publication) is not None:
                connection.execute(f"DROP PUBLICATION {quoted(self._names.publication)}".encode())
                removed.append(f"publication {self._names.publication}")
        return tuple(removed)

    def _publish(self, connection: Connection, wanted: Sequence[TableId]) -> None:
        """All at once; one by one if some may not be. The others then are published before the slot is made, and one
        snapshot does for all. A table that somebody has locked is tried at once first, then for as long as
        ``lock_timeout`` allows with no snapshot of ours kept."""
        there = published(connection, self._names.publication)
        for statement in publication_statements(self._names.publication, there, wanted):
            try:
                try:
                    with connection.transaction():
                        connection.execute(f"SET LOCAL lock_timeout = '{_AT_ONCE_SECONDS * 1000:.0f}ms'".encode())
                        connection.execute(statement.encode())
                except psycopg.errors.LockNotAvailable:
                    if len(wanted) > 1:
                        raise
                    self._exported.close()
                    connection.execute(statement.encode())
            except (psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable) as error:
                failed: list[TableId] = []
                for table in wanted if len(wanted) > 1 else ():
                    try:
                        self._publish(connection, [table])
                    except (SourceSetupError, SourceUnavailableError):
                        failed.append(table)
                if len(wanted) > 1 and not failed:
                    return
                if isinstance(error, psycopg.errors.LockNotAvailable):
                    named = ", ".join(map(str, failed or wanted))
                    raise SourceSetupError(
                        f"{named} cannot be published now: another session has a lock on it that ALTER PUBLICATION "
                        "waits for",
                        remedy="Lakefeed tries again by itself; pg_locks shows the session.",
                    ) from error
                raise SourceSetupError(
                    f"this role may not prepare the source: {error}", remedy=f"Run as the tables' owner: {statement};"
                ) from error

    def _require_provided(self, connection: Connection, wanted: Sequence[TableId], *, slot: bool) -> None:
        """Somebody else makes publication and slot. Without them nothing goes; a table that is not published is its
        own problem."""
        there = published(connection, self._names.publication)
        statements = publication_statements(self._names.publication, there, wanted)
        if there is not None and slot and not statements:
            return
        missing = [*statements, *([] if slot else [slot_statement(self._names.slot)])]
        kind = SourceSetupError if there is not None and slot else ConfigError
        raise kind(
            "source.provision is off, and the publication or the slot is not ready",
            remedy=f"Run: {'; '.join(missing)};",
        )

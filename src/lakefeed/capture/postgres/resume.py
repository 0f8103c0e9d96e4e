"""PostgresResumePoint: what the source keeps for one pipeline, its publication and its replication slot. They are made
in that order, so that the slot's first change finds its table published. Nothing moves the slot but ``confirm``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import psycopg

from lakefeed.capture.base import Lag
from lakefeed.capture.log import ResumePoint
from lakefeed.capture.postgres import slot as slots
from lakefeed.capture.postgres.catalog import SourceTable, read_tables, sql_name
from lakefeed.capture.postgres.database import Connection, Connections, Names, quoted, wait_while
from lakefeed.capture.postgres.pgoutput import WalPiece
from lakefeed.capture.postgres.slot import head, inserted, read_slot, usable_slot
from lakefeed.capture.postgres.walsender import Walsender
from lakefeed.capture.reader import BackgroundReader
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, PositionLostError, SourceSetupError, StateError

log = logging.getLogger(__name__)

WRITERS_SECONDS = 5.0  # for transactions from before a table was published, if its copy has no exported snapshot
_MISSED = " Changes made meanwhile were not published: a table that is not copied by itself needs `lakefeed rebuild`."

# Sessions, and prepared transactions (no process), that have written to a table.
_WRITERS = """
SELECT l.virtualtransaction, l.pid FROM pg_locks l
 WHERE l.locktype = 'relation' AND l.relation = ANY(%s) AND l.granted AND l.database = (
       SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"""

_PUBLISHED = """
SELECT t.schemaname, t.tablename, coalesce(r.oid, p.oid)::int8, r.prattrs IS NOT NULL OR r.prqual IS NOT NULL,
       EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated = 's')
  FROM pg_publication p JOIN pg_publication_tables t ON t.pubname = p.pubname
  JOIN pg_namespace n ON n.nspname = t.schemaname JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
  LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
 WHERE p.pubname = %s ORDER BY 1, 2"""


class Shortcoming(NamedTuple):
    """Why a publication does not publish everything, or something else than a copy has, with the statement that
    repairs it. ``table`` is the one it concerns, None for all. Not ``misses``: tables in question are not published."""

    problem: str
    remedy: str
    table: TableId | None = None
    misses: bool = True


class Coverage(NamedTuple):
    """What a publication publishes at one moment. ``members`` are its tables, each with a number that is another one if
    the table was taken out and put back, or the publication made again; None if there is no publication."""

    name: str
    members: Mapping[TableId, int] | None = None
    shortcomings: tuple[Shortcoming, ...] = ()

    def gap(self, table: TableId) -> str | None:
        """Why changes of a table are not published, None if they are."""
        if self.members is None:
            return f"the publication {self.name} was dropped"
        if table not in self.members:
            return "it is not published any more"
        return next((one.problem for one in self.shortcomings if one.misses and one.table in (None, table)), None)

    def member(self, table: TableId) -> int | None:
        return (self.members or {}).get(table)

    def removal(self, table: TableId) -> str:
        return f"ALTER PUBLICATION {quoted(self.name)} DROP TABLE ONLY {sql_name(table)}"

    def statement(self, wanted: Iterable[TableId]) -> str | None:
        """The SQL that makes the publication cover ``wanted``; None if it does."""
        missing = sorted(set(wanted) - (self.members or {}).keys())
        # ONLY: children would be published, too, and without an identity the application's UPDATEs of them would fail.
        tables = ", ".join(f"ONLY {sql_name(table)}" for table in missing)
        if self.members is None:
            of = f" FOR TABLE {tables}" if tables else ""
            return f"CREATE PUBLICATION {quoted(self.name)}{of} WITH (publish_via_partition_root = true)"
        return f"ALTER PUBLICATION {quoted(self.name)} ADD TABLE {tables}" if tables else None


def read_coverage(connection: Connection, name: str) -> Coverage:
    row = connection.execute("SELECT to_jsonb(p) FROM pg_publication p WHERE pubname = %s", (name,)).fetchone()
    if row is None:
        return Coverage(name)
    options: dict[str, Any] = row[0]  # as JSON, because each version of PostgreSQL has other columns there
    publication, alter = f"publication {quoted(name)}", f"ALTER PUBLICATION {quoted(name)}"
    found, members = list[Shortcoming](), dict[TableId, int]()
    if not all(options[kind] for kind in ("pubinsert", "pubupdate", "pubdelete", "pubtruncate")):
        remedy = f"{alter} SET (publish = 'insert, update, delete, truncate');"
        found.append(Shortcoming(f"{publication} leaves out some kinds of changes", remedy))
    if not options["pubviaroot"]:
        remedy = f"{alter} SET (publish_via_partition_root = true);"
        found.append(Shortcoming(f"{publication} publishes partitions under their own names", remedy, misses=False))
    rows = [row for row in connection.execute(_PUBLISHED, (name,)) if "." not in row[0]]
    for schema, table_name, number, is_narrowed, has_generated in rows:
        table = TableId(schema, table_name)
        members[table] = number
        if has_generated and options.get("pubgencols", "n") != "n":
            problem = f"{publication} publishes generated columns of {table}, which a copy does not have"
            found.append(Shortcoming(problem, f"{alter} SET (publish_generated_columns = none);", table))
        if is_narrowed:
            only = f"ONLY {sql_name(table)}"
            problem = f"{publication} has a column list or a row filter for {table}"
            found.append(Shortcoming(problem, f"{alter} DROP TABLE {only}; {alter} ADD TABLE {only};", table))
    return Coverage(name, members, tuple(found))


def _at_once(connection: Connection, statement: str) -> None:
    """LockNotAvailable instead of a wait: a snapshot of ours may be kept meanwhile."""
    with connection.transaction():
        connection.execute("SET LOCAL lock_timeout = '50ms'")
        connection.execute(statement.encode())


def withdraw(connection: Connection, coverage: Coverage, table: TableId) -> bool:
    """Take a table that has lost its identity out of the publication: as long as it is in there, PostgreSQL refuses the
    application's own UPDATEs and DELETEs of it. False if that cannot be now; nothing waits for it."""
    try:
        _at_once(connection, coverage.removal(table))
    except psycopg.Error as error:
        log.warning("%s cannot be taken out of the publication now: %s", table, error)
        return False
    log.warning("%s was taken out of the publication: it has no usable replica identity any more", table)
    return True


class PostgresResumePoint(ResumePoint[PostgresLsn, WalPiece]):
    """See ``ResumePoint``. Each call has a connection of its own."""

    def __init__(self, connections: Connections, names: Names, *, provision: bool) -> None:
        self._connections, self._database, self._names = connections, connections.database, names
        self._provision, self.slot, self._closed = provision, names.slot, threading.Event()
        self._exported = slots.ExportedSnapshots(self._database, names, self._closed)
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
        return None if slot is None or slot.lost is not None else slot.confirmed

    def identity(self) -> str:
        """It has the timeline: a failover or a restore to a point in time begins a new one, and the pipeline stops."""
        with self._database.connection(self._names.slot, replication=True) as connection:
            system, timeline, _, name = connection.one("IDENTIFY_SYSTEM")
        return f"system {system}, timeline {timeline}, database {name}"

    def create(self, tables: Sequence[TableId]) -> PostgresLsn:
        """1. the publication, 2. the slot. Exported snapshots are given up before anything waits for a lock: a CREATE
        INDEX CONCURRENTLY that waits for a snapshot of ours would have the lock that we wait for."""
        names = self._names
        with self._connections.connection() as connection:
            there = read_tables(connection)
            for table in tables:
                if (refusal := _source(there, table).refusal) is not None:
                    raise SourceSetupError(f"{table} cannot be captured: {refusal.reason}", remedy=refusal.remedy)
            slot = usable_slot(connection, names.slot)
            if slot is not None and slot.lost is not None and self._provision:
                # The pipeline begins again: one that goes on has been refused by ``require``.
                connection.execute("SELECT pg_drop_replication_slot(%s)", (names.slot,))
                slot = None
            coverage = read_coverage(connection, names.publication)
            for one in coverage.shortcomings:
                remedy = one.remedy + (_MISSED if slot is not None else "")
                raise ConfigError(f"{one.problem}, so that changes would be missing or differ", remedy=remedy)
            try:
                if self._provision:
                    self._publish(connection, coverage, tables)
                else:  # somebody else makes both; a table that is not published is its own problem
                    statements = (coverage.statement(tables), None if slot else slots.slot_statement(names.slot))
                    kind = SourceSetupError if coverage.members is not None and slot else ConfigError
                    if missing := "; ".join(one for one in statements if one is not None):
                        problem = "source.provision is off, and the publication or the slot is not ready"
                        raise kind(problem, remedy=f"Run: {missing};")
            finally:
                # Where the log was when tables were first seen as published, also those that others published.
                coverage, at = read_coverage(connection, names.publication), inserted(connection)
                for table in tables:
                    member = coverage.member(table)
                    if member is not None and self._since.get(table, (None, at))[0] != member:
                        self._since[table] = (member, at)
            if slot is not None:
                return slot.confirmed
        self._exported.close()
        made = slots.create_slot(self._database, names.slot, self._closed, temporary=False)
        self._exported.add(made, tables)
        return self.find() or made[1]

    def origin(self, table: TableId, delivered: PostgresLsn | None) -> Mapping[str, Any]:
        """A table may have had transactions under way that began before it was published, so that the stream does not
        have them. A copy with the snapshot of a slot that was made later has: making it waits for them."""
        with self._connections.connection() as connection:
            if usable_slot(connection, self._names.slot) is None:
                raise StateError("there is no replication slot for the pipeline yet", remedy="Call prepare first.")
            source = _source(read_tables(connection), table)
            least = max(delivered or PostgresLsn(0), self._since.get(table, (0, PostgresLsn(0)))[1])
            origin = self._exported.for_copy(connection, table, least)
            if origin is None:
                oids = [source.oid, *(leaf.oid for leaf in source.leaves)]
                if writers := wait_while(connection, _WRITERS, WRITERS_SECONDS, oids):
                    pids = ", ".join(str(pid) if pid is not None else "a prepared transaction" for pid in writers)
                    problem = (
                        f"the copy of {table} cannot start: transactions that may have written to it before it was"
                    )
                    problem += f" published are still open, in the processes {pids}"
                    remedy = f"Commit them, or end them: SELECT pg_terminate_backend({writers[0] or '…'});"
                    raise SourceSetupError(problem, remedy=remedy)
        return (origin or slots.SnapshotOrigin())._asdict()

    def exact_at(self, origin: Mapping[str, Any]) -> PostgresLsn | None:
        exported = slots.SnapshotOrigin(**origin)
        return exported.position if exported.snapshot else None

    def copied(self, table: TableId) -> None:
        self._exported.release(table)

    def require(self, position: PostgresLsn) -> None:
        name, problem = self._names.slot, None
        with self._connections.connection() as connection:
            slot, reached = usable_slot(connection, name), head(connection)
        if slot is None:
            problem = f"the replication slot {name} is gone; what was written after {position} cannot be read any more"
        elif slot.lost is not None:
            problem = f"the replication slot {name} was invalidated: {slot.lost}"
        elif position < slot.confirmed:
            problem = f"the replication slot {name} is at {slot.confirmed}, ahead of the pipeline's {position}: it was"
            problem += " advanced or created again by somebody else, and the changes between are gone"
        elif position > reached:
            problem = f"the pipeline is at {position}, but the server has written no further than {reached}: it was"
            problem += " restored or rewound, or it is another server"
        if problem is not None:
            remedy = "restore the source's log, or move the pipeline's state directory away and let it copy every table"
            raise PositionLostError(problem, remedy=f"Choose: {remedy} again.")

    def start(self, after: PostgresLsn) -> BackgroundReader[PostgresLsn, WalPiece]:
        return BackgroundReader(str(self._database), Walsender(self._database, self._names, after))

    def confirm(self, position: PostgresLsn) -> None:
        name = self._names.slot
        with self._connections.connection() as connection:
            slot = read_slot(connection, name)
            if slot is not None and position > slot.confirmed:
                connection.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (name, position.text()))

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
            seconds = slot.seconds_behind if behind else 0.0
        if behind and confirmed_at is not None:  # this process follows the stream and knows better
            seconds = max(0.0, time.time() - confirmed_at)
        shown = ("active_pid", "confirmed_flush_lsn", "wal_status", "safe_wal_size")  # by PostgreSQL's own names
        health = {"slot": slot.report["slot_name"], **{name: slot.report.get(name) for name in shown}}
        return Lag(bytes=behind, seconds=seconds, source={**health, "invalidation_reason": slot.lost})

    def drop(self) -> tuple[str, ...]:
        """SourceSetupError names what this role may not drop, with the statements, after all the rest is dropped."""
        self._exported.close()
        slot, publication = self._names.slot, self._names.publication
        removed, left = list[str](), list[str]()
        with self._connections.connection() as connection:
            there = list[tuple[str, str]]()
            if usable_slot(connection, slot) is not None:
                there.append((f"replication slot {slot}", f"SELECT pg_drop_replication_slot('{slot}')"))
            if read_coverage(connection, publication).members is not None:
                there.append((f"publication {publication}", f"DROP PUBLICATION {quoted(publication)}"))
            for name, statement in there:
                try:
                    connection.execute(statement.encode())
                    removed.append(name)
                except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectInUse) as error:
                    left.append(f"{statement};")
                    log.warning("%s cannot be dropped: %s", name, error)
        if left:
            done = f"removed {' and '.join(removed)}; the rest" if removed else "what Lakefeed made in the source"
            raise SourceSetupError(
                f"{done} may not be dropped by this role, or is in use",
                remedy=f"Run as its owner, then uninstall again: {' '.join(left)}",
            )
        return tuple(removed)

    def _publish(self, connection: Connection, coverage: Coverage, wanted: Sequence[TableId]) -> None:
        """All at once; one by one if some may not be, so that the others are published before the slot is made. One
        that somebody has locked is tried for as long as ``lock_timeout`` allows, then with no snapshot of ours kept."""
        if (statement := coverage.statement(wanted)) is None:
            return
        try:
            try:
                _at_once(connection, statement)
            except psycopg.errors.LockNotAvailable:
                if len(wanted) > 1:
                    raise
                self._exported.close()
                connection.execute(statement.encode())
            return
        except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege) as error:
            if len(wanted) <= 1:
                problem = f"this role may not prepare the source: {error}"
                remedy = f"Run as the tables' owner: {statement};"
                if isinstance(error, psycopg.errors.LockNotAvailable):
                    lock = "another session has a lock on it that ALTER PUBLICATION waits for"
                    problem = f"{wanted[0]} cannot be published now: {lock}"
                    remedy = "The next sync tries again by itself; pg_locks shows the session."
                raise SourceSetupError(problem, remedy=remedy) from error
        failed: list[SourceSetupError] = []
        for table in wanted:
            try:
                self._publish(connection, read_coverage(connection, self._names.publication), [table])
            except SourceSetupError as error:
                failed.append(error)
        if failed:
            raise failed[0]


def _source(there: Mapping[TableId, SourceTable], table: TableId) -> SourceTable:
    if table not in there:
        raise SourceSetupError(f"there is no table {table}", remedy="Correct source.tables, or create the table.")
    return there[table]

"""PostgresResumePoint: what the source keeps for one pipeline, namely its publication and its replication slot. They
are created in that order, so that the table of the slot's first change is published. Only ``confirm`` moves the slot.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import psycopg

from lakefeed.capture.base import Lag
from lakefeed.capture.log import ResumePoint
from lakefeed.capture.postgres import slot as slots
from lakefeed.capture.postgres.catalog import SourceTable, read_tables, with_columns
from lakefeed.capture.postgres.database import Connection, Connections, Names, quoted, run, wait_while
from lakefeed.capture.postgres.pgoutput import WalPiece
from lakefeed.capture.postgres.publication import Publications, Wanted, at_once, make_inserts, read_publications
from lakefeed.capture.postgres.slot import head, inserted, read_slot, usable_slot
from lakefeed.capture.postgres.walsender import Walsender
from lakefeed.capture.reader import BackgroundReader
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId
from lakefeed.errors import (
    IN_CONFIGURATION,
    ConfigError,
    PositionLostError,
    SourceChangedError,
    SourceSetupError,
    SourceUnavailableError,
    StateError,
)

log = logging.getLogger(__name__)

WRITERS_SECONDS = 5.0  # to wait for transactions from before a table was published, if there is no exported snapshot
_AGAIN = "lakefeed uninstall FILE, then lakefeed sync FILE."
_YET = "The next sync retries by itself: the stream first has to pass the creation of the publication."
_MISSED = (
    " Changes made meanwhile were not published. A table that is not copied by itself needs "
    "`lakefeed rebuild FILE TABLE --from-source`."
)

# Sessions, and prepared transactions (which have no process), that have written to a table.
_WRITERS = """
SELECT l.virtualtransaction, l.pid FROM pg_locks l
 WHERE l.locktype = 'relation' AND l.relation = ANY(%s) AND l.granted AND l.database = (
       SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"""


_HISTORY = re.compile(r"^\s*(\d+)\s+([0-9A-Fa-f]+/[0-9A-Fa-f]+)", re.MULTILINE)


class Server(NamedTuple):
    """A cluster, one of its timelines, and one of its databases."""

    system: str
    timeline: int
    database: str

    @property
    def text(self) -> str:
        return f"system {self.system}, timeline {self.timeline}, database {self.database}"

    @classmethod
    def parse(cls, text: str) -> Server:
        found = re.fullmatch(r"system (\d+), timeline (\d+), database (.*)", text, re.DOTALL)
        if found is None:
            raise SourceChangedError(f"the journal belongs to {text}, which is not a PostgreSQL database")
        return cls(found[1], int(found[2]), found[3])


def identify(connection: Connection) -> Server:
    """Needs a replication connection."""
    system, timeline, _, name = connection.one("IDENTIFY_SYSTEM")
    return Server(str(system), int(timeline), str(name))


def read_history(connection: Connection, timeline: int) -> dict[int, PostgresLsn]:
    """The ancestors of a timeline, each with the position where it was left. The first timeline has none. Needs a
    replication connection."""
    if timeline == 1:
        return {}
    content = run(connection, f"TIMELINE_HISTORY {timeline}").get_value(0, 1) or b""
    return {int(parent): PostgresLsn.parse(at) for parent, at in _HISTORY.findall(content.decode(errors="replace"))}


class PostgresResumePoint(ResumePoint[PostgresLsn, WalPiece]):
    """See ``ResumePoint``. Each call uses a connection of its own."""

    def __init__(
        self, connections: Connections, names: Names, *, provision: bool, wanted: Callable[[], Wanted] | None = None,
        upgraded_from: str | None = None,
    ) -> None:  # fmt: skip
        self._connections, self._database, self._names = connections, connections.database, names
        self._provision, self.slot, self._closed = provision, names.slot, threading.Event()
        self._wanted = wanted or (lambda: Wanted(names))
        self._short_until: PostgresLsn | None = None  # a stream that starts before it lacks the second publication
        self._exported = slots.ExportedSnapshots(self._database, names, self._closed)
        self._upgraded_from = upgraded_from
        self._server: Server | None = None  # the server whose identity was asked; the stream must come from that one
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
        """Includes the timeline: a promotion or point-in-time recovery starts a new one. See ``take_over``."""
        with self._database.connection(self._names.slot, replication=True) as connection:
            self._server = identify(connection)
        return self._server.text

    def take_over(self, known: str, position: PostgresLsn) -> PostgresLsn:
        """A server continues another one's history if its timeline descends from that one's and branched off at or
        after the position, so that it has everything that was captured, and everything else on it comes later; and if
        the slot exists and is not past the position."""
        before = Server.parse(known)
        with self._database.connection(self._names.slot, replication=True) as connection:
            now = identify(connection)
            history = read_history(connection, now.timeline) if before.system == now.system else {}
        if before.database != now.database:
            raise SourceChangedError(f"the journal belongs to {known}, not to {now.text}")
        if before.system != now.system:
            return self._upgraded(before, now, position)
        if before.timeline == now.timeline:
            return position
        self._require_descent(before, now, history, position)
        self.require(position)
        began = history[before.timeline]
        log.warning(
            "%s is on timeline %d, which left timeline %d at %s: it was promoted. The pipeline is at %s, before that, "
            "and goes on without a copy", self._database, now.timeline, before.timeline, began, position,
        )  # fmt: skip
        return position

    def _require_descent(
        self, before: Server, now: Server, history: Mapping[int, PostgresLsn], position: PostgresLsn
    ) -> None:
        old, new = before.timeline, now.timeline
        if old not in history:
            reason = "it is a primary from before a fail-over" if new < old else "it branched off before that one began"
            raise PositionLostError(
                f"{self._database} is on timeline {new}, which does not descend from timeline {old}, where the pipeline"
                f" is at {position}: {reason}",
                remedy=f"Point source.dsn at the server with timeline {old} or one that was promoted from it, for "
                "example with host=a,b target_session_attrs=primary; or begin again, which copies every table: "
                f"{_AGAIN}",
            )
        if position > (left := history[old]):
            raise PositionLostError(
                f"{self._database} is on timeline {new}, which left timeline {old} at {left}, but the pipeline has "
                f"captured up to {position}: the last {position.value - left.value} bytes of log that it has read were "
                "never on this server. It is a standby that was promoted before it had them, or a backup restored to "
                "an earlier moment",
                remedy=f"Point source.dsn at the server with timeline {old}, if it is still there; or begin again, "
                f"which copies every table: {_AGAIN} So that this cannot happen at the next promotion: ALTER SYSTEM "
                "SET synchronized_standby_slots = 'the slot of the standby'; SELECT pg_reload_conf(); (PostgreSQL 17)",
            )

    def _upgraded(self, before: Server, now: Server, position: PostgresLsn) -> PostgresLsn:
        """pg_upgrade creates a cluster with another system identifier, whose log continues at a later position. From 17
        on it keeps slots, but only those that have received the whole log. Nothing in the new cluster distinguishes
        such a slot from one that was created later, so the operator has to say."""
        with self._connections.connection() as connection:
            slot = usable_slot(connection, self._names.slot)
        if self._upgraded_from != before.system or slot is None or slot.confirmed < position:
            raise SourceChangedError(
                f"the journal belongs to {before.text}, but {self._database} is {now.text}: another cluster",
                remedy="Point source.dsn at the cluster it belongs to. If pg_upgrade made this cluster from that one, "
                f"from PostgreSQL 17 or newer, and kept the slot {self._names.slot}, go on without a copy: add "
                f'upgraded_from: "{before.system}" below source {IN_CONFIGURATION}. Otherwise begin again, which '
                f"copies every table: {_AGAIN}",
            )
        self.require(slot.confirmed)
        log.warning(
            "%s was made by pg_upgrade of %s; the pipeline goes on at %s", now.text, before.text, slot.confirmed
        )
        return slot.confirmed

    def create(self, tables: Sequence[TableId]) -> PostgresLsn:
        """1. the publications, 2. the slot. Exported snapshots are released before anything waits for a lock: a CREATE
        INDEX CONCURRENTLY that waits for one of our snapshots may hold the very lock that we wait for."""
        names = self._names
        with self._connections.connection() as connection:
            there, wanted = read_tables(connection), self._wanted()
            for table in tables:
                if (refusal := _source(there, table).refusal(wanted.choices)) is not None:
                    raise SourceSetupError(f"{table} cannot be captured: {refusal.reason}", remedy=refusal.remedy)
            slot = usable_slot(connection, names.slot)
            if slot is not None and slot.lost is not None and self._provision:
                # The pipeline begins again: ``require`` has refused one that goes on.
                connection.execute("SELECT pg_drop_replication_slot(%s)", (names.slot,))
                slot = None
            if self._provision and wanted.has_inserts:
                self._make_inserts(connection, wanted, there)
            sources = with_columns(connection, [there[table] for table in tables])
            there |= {source.id: source for source in sources}
            published = read_publications(connection, wanted, there)
            for one in published.shortcomings:
                remedy = one.remedy + (_MISSED if slot is not None else "")
                raise ConfigError(f"{one.problem}, so that changes would be missing or differ", remedy=remedy)
            try:
                if self._provision:
                    self._publish(connection, published, sources)
                else:  # somebody else creates both; an unpublished table concerns that table only
                    make = slots.slot_statement(names.slot, connection.info.server_version)
                    statements = (*published.statements(sources), *([] if slot else [make]))
                    kind = SourceSetupError if published.main.members is not None and slot else ConfigError
                    if missing := "; ".join(statements):
                        problem = "source.provision is off, and the publication or the slot is not ready"
                        raise kind(problem, remedy=f"Run: {missing};")
            finally:
                # Where the log was when a table was first seen as published, even if somebody else published it.
                published, at = read_publications(connection, wanted, there), inserted(connection)
                for source in sources:
                    member = published.member(source)
                    if member is not None and self._since.get(source.id, (None, at))[0] != member:
                        self._since[source.id] = (member, at)
            if slot is not None:
                return slot.confirmed
        self._exported.close()
        made = slots.create_slot(self._database, names.slot, self._closed, temporary=False)
        self._exported.add(made, tables)
        return self.find() or made[1]

    def origin(self, table: TableId, delivered: PostgresLsn | None) -> Mapping[str, Any]:
        """Transactions that began before a table was published may still be open, and the stream does not have their
        changes. A copy under the snapshot of a later slot has them: creating a slot waits for such transactions."""
        with self._connections.connection() as connection:
            if (slot := usable_slot(connection, self._names.slot)) is None:
                raise StateError("there is no replication slot for the pipeline yet", remedy="Call prepare first.")
            there, wanted = read_tables(connection), self._wanted()
            source = _source(there, table)
            if source.follows_inserts(wanted.choices):
                since = read_publications(connection, wanted, there).inserts.since
                if since is not None and (delivered or slot.confirmed) < since:
                    raise SourceSetupError(f"the stream does not include the inserts of {table} yet", remedy=_YET)
            least = max(delivered or PostgresLsn(0), self._since.get(table, (0, PostgresLsn(0)))[1])
            origin = self._exported.for_copy(connection, table, least)
            if origin is None:
                oids = [source.oid, *(leaf.oid for leaf in source.leaves)]
                if writers := wait_while(connection, _WRITERS, WRITERS_SECONDS, oids):
                    pids = ", ".join(str(pid) if pid is not None else "a prepared transaction" for pid in writers)
                    problem = f"the copy of {table} cannot start: transactions that may have written to it before"
                    problem += f" it was published are still open, in the processes {pids}"
                    remedy = f"Commit them, or end them: SELECT pg_terminate_backend({writers[0] or '…'});"
                    raise SourceSetupError(problem, remedy=remedy)
        return (origin or slots.SnapshotOrigin())._asdict()

    def exact_at(self, origin: Mapping[str, Any]) -> PostgresLsn | None:
        exported = slots.SnapshotOrigin(**origin)
        return exported.position if exported.snapshot else None

    def beside(self) -> Mapping[str, Any]:
        return slots.SnapshotOrigin()._asdict()

    def copied(self, table: TableId) -> None:
        self._exported.release(table)

    def require(self, position: PostgresLsn) -> None:
        name, problem = self._names.slot, None
        with self._connections.connection() as connection:
            slot, reached = usable_slot(connection, name), head(connection)
        if slot is None:
            problem = f"the replication slot {name} is gone; what was written after {position} cannot be read any more"
            problem += self._promoted_without_slot()
        elif slot.lost is not None:
            problem = f"the replication slot {name} was invalidated: {slot.lost}"
        elif position < slot.confirmed:
            problem = f"the replication slot {name} is at {slot.confirmed}, ahead of the pipeline's {position}: it was"
            problem += " advanced or created again by somebody else, and the changes between are gone"
        elif position > reached:
            problem = f"the pipeline is at {position}, but the server has written no further than {reached}: it was"
            problem += " restored or rewound, or it is another server"
        if problem is not None:
            raise PositionLostError(problem, remedy=f"Begin again, which copies every table: {_AGAIN}")

    def _promoted_without_slot(self) -> str:
        """If the server was promoted or restored, a text that says so, since that is why it has no slot."""
        with self._database.connection(self._names.slot, replication=True) as connection:
            timeline = identify(connection).timeline
            history = read_history(connection, timeline)
        if not history:
            return ""
        return (
            f". The server is on timeline {timeline}, which began at {max(history.values())}: it is a standby that was "
            "promoted, or a backup that was restored, without the slot. A standby has it with sync_replication_slots "
            "and hot_standby_feedback on and a database name in primary_conninfo (PostgreSQL 17)"
        )

    def start(self, after: PostgresLsn) -> BackgroundReader[PostgresLsn, WalPiece]:
        names = [self._names.publication]
        with self._connections.connection() as connection:
            inserts = read_publications(connection, self._wanted(), {}).inserts
            slot = read_slot(connection, self._names.slot)
        if self._provision and slot is not None and slot.report.get("failover") is False:
            slots.enable_failover(self._database, self._names.slot)
        self._short_until = inserts.since if inserts.since is not None and after < inserts.since else None
        if inserts.members is not None and self._short_until is None and not inserts.is_pending:
            names.append(inserts.name)
        return BackgroundReader(
            str(self._database), Walsender(self._database, self._names, after, names, self._is_same)
        )

    def _is_same(self, connection: Connection) -> None:
        """One connection string may lead to several servers: the stream must come from the one that was asked."""
        if self._server is not None and (found := identify(connection)) != self._server:
            problem = f"{self._database} is now {found.text}, no longer {self._server.text}"
            raise SourceUnavailableError(problem, remedy="None needed: Lakefeed finds out whether it can go on there.")

    def is_short(self, position: PostgresLsn) -> bool:
        """Whether the stream, which is at ``position``, must start again to include the second publication. True
        once."""
        until = self._short_until
        if until is None or position < until:
            return False
        self._short_until = None
        return True

    def confirm(self, position: PostgresLsn) -> None:
        name = self._names.slot
        with self._connections.connection() as connection:
            slot = read_slot(connection, name)
            if slot is not None and position > slot.confirmed:
                connection.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (name, position.text()))

    def ahead_bytes(self, low: PostgresLsn, high: PostgresLsn) -> int:
        if self._short_until is not None and low < self._short_until <= high:
            return 1 << 62  # makes the position pass it now, so that the stream starts again
        return high.value - low.value

    def end(self) -> PostgresLsn:
        with self._database.connection(self._names.slot) as connection:
            return inserted(connection)

    def lag(self, confirmed_at: float | None) -> Lag:
        with self._database.connection(self._names.slot) as connection:
            slot = read_slot(connection, self._names.slot)
            if slot is None:
                return Lag()
            end = head(connection).value
            behind = max(0, end - slot.confirmed.value)
            seconds = slot.seconds_behind if behind else 0.0
        if behind and confirmed_at is not None:  # this process reads the stream and knows better
            seconds = max(0.0, time.time() - confirmed_at)
        # By PostgreSQL's own names.
        shown = ("active_pid", "confirmed_flush_lsn", "wal_status", "safe_wal_size", "failover")
        health = {"slot": slot.report["slot_name"], **{name: slot.report.get(name) for name in shown}}
        restart = slot.report.get("restart_lsn")  # None once the server has removed the log
        return Lag(
            bytes=behind,
            seconds=seconds,
            retained_bytes=max(0, end - PostgresLsn.parse(restart).value) if restart else None,
            left_bytes=slot.report.get("safe_wal_size"),  # None: max_slot_wal_keep_size is -1, so all is kept
            source={**health, "invalidation_reason": slot.lost},
        )

    def drop(self) -> tuple[str, ...]:
        """Drops everything it may; then a SourceSetupError names what this role may not drop, with the statements."""
        self._exported.close()
        slot = self._names.slot
        removed, left = list[str](), list[str]()
        with self._connections.connection() as connection:
            there = list[tuple[str, str]]()
            if usable_slot(connection, slot) is not None:
                there.append((f"replication slot {slot}", f"SELECT pg_drop_replication_slot('{slot}')"))
            published = read_publications(connection, self._wanted(), {})
            for one in (published.main, published.inserts):
                if one.members is not None:
                    there.append((f"publication {one.name}", f"DROP PUBLICATION {quoted(one.name)}"))
            for name, statement in there:
                try:
                    connection.execute(statement.encode())
                    removed.append(name)
                except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectInUse) as error:
                    left.append(f"{statement};")
                    log.warning("%s cannot be dropped: %s", name, error)
        if left:
            done = f"removed {' and '.join(removed)}; the rest" if removed else "what Lakefeed created in the source"
            raise SourceSetupError(
                f"{done} cannot be dropped by this role, or is in use",
                remedy=f"Run as its owner, then uninstall again: {' '.join(left)}",
            )
        return tuple(removed)

    def _make_inserts(self, connection: Connection, wanted: Wanted, there: Mapping[TableId, SourceTable]) -> None:
        inserts = read_publications(connection, wanted, there).inserts
        if inserts.members is not None and not inserts.is_pending:
            return
        try:
            make_inserts(connection, inserts)
        except psycopg.errors.InsufficientPrivilege as error:
            remedy = f"Run as the tables' owner, before the slot is made: {inserts.statement({})};"
            raise SourceSetupError(f"this role may not prepare the source: {error}", remedy=remedy) from error
        self._short_until = read_publications(connection, wanted, there).inserts.since

    def _publish(self, connection: Connection, published: Publications, sources: Sequence[SourceTable]) -> None:
        """All tables at once; one by one if that is refused, so that the others are published before the slot is
        created. For a single table that somebody has locked, it releases our snapshots and waits up to
        ``lock_timeout``."""
        if not (statement := "; ".join(published.statements(sources))):
            return
        try:
            try:
                at_once(connection, statement)
            except psycopg.errors.LockNotAvailable:
                if len(sources) > 1:
                    raise
                self._exported.close()
                connection.execute(statement.encode())
            return
        except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege) as error:
            if len(sources) <= 1:
                problem = f"this role may not prepare the source: {error}"
                remedy = "Let an administrator run the script that `lakefeed check FILE --sql` prints."
                if isinstance(error, psycopg.errors.LockNotAvailable):
                    lock = "another session holds a lock on it that ALTER PUBLICATION waits for"
                    problem = f"{sources[0].id} cannot be published now: {lock}"
                    remedy = "The next sync retries by itself; pg_locks shows the session."
                raise SourceSetupError(problem, remedy=remedy) from error
        failed: list[SourceSetupError] = []
        for source in sources:
            try:
                now = read_publications(connection, published.wanted, {one.id: one for one in sources})
                self._publish(connection, now, [source])
            except SourceSetupError as error:
                failed.append(error)
        if failed:
            raise failed[0]


def _source(there: Mapping[TableId, SourceTable], table: TableId) -> SourceTable:
    if table not in there:
        raise SourceSetupError(f"there is no table {table}", remedy="Correct source.tables, or create the table.")
    return there[table]

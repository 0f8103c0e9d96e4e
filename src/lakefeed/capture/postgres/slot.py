"""Replication slots, and the snapshots that creating one exports. Nothing here waits without a limit.

A read transaction under an exported snapshot sees exactly the commits up to a position; only creating a slot gives
both. For a copy that starts after the pipeline's own slot was created, a temporary slot is created; a plain transaction
imports its snapshot at once, so that the temporary slot retains no log. Losing a snapshot is not an error: chunks then
have brackets. A snapshot keeps the server from cleaning up, and some commands wait for it, such as CREATE INDEX
CONCURRENTLY. So the transaction that holds it touches no table and no catalog, it is held only for tables whose copy is
not finished, and a thread checks every half second whether a session waits for it, and if so releases it at once.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psycopg
from psycopg import errors, sql

from lakefeed.capture.postgres.catalog import sql_name, wait_for_commits
from lakefeed.capture.postgres.database import BEGIN, KEEPING, SLOT, Connection, Database, Names, finish, quoted, run
from lakefeed.capture.postgres.wire import wait_ready
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId
from lakefeed.errors import LakefeedError, SourceSetupError, SourceUnavailableError

log = logging.getLogger(__name__)

PLUGIN = "pgoutput"
FAILOVER = 170_000  # the first server version with slots that standbys synchronise
SLOT_SECONDS = 600.0  # limit for creating the pipeline's own slot: trying again would wait for even more transactions
WAIT_SECONDS = 5.0  # how long creating a snapshot may wait for transactions; without one, a copy uses brackets
IDLE_SECONDS = 300.0  # how long a snapshot is held while nobody reads from it: the reading process may be dead
CHECK_SECONDS = 0.5
_REPORT_SECONDS, _COMMIT_SECONDS = 5.0, 30.0
# The transaction that exported it has ended, or there is no snapshot of that name.
_NO_SNAPSHOT = (errors.ObjectNotInPrerequisiteState, errors.InvalidParameterValue, errors.UndefinedObject)

_SLOT = """
SELECT to_jsonb(s), extract(epoch FROM CASE WHEN s.active_pid IS NULL
         THEN clock_timestamp() - (to_jsonb(s) ->> 'inactive_since')::timestamptz
         ELSE (SELECT r.flush_lag FROM pg_stat_replication r WHERE r.pid = s.active_pid) END)::float8
  FROM pg_replication_slots s WHERE s.slot_name = %s"""

_BLOCKING = """
SELECT a.pid, coalesce(a.usename, '?'), coalesce(a.state, '?'), extract(epoch FROM now() - a.xact_start)::int8
  FROM pg_stat_activity a WHERE a.pid = ANY(pg_blocking_pids(%s)) ORDER BY a.xact_start LIMIT 1"""


class Slot(NamedTuple):
    """A replication slot. ``report`` is the server's own row, with keys that depend on the version; ``lost`` says why
    the slot is unusable. ``seconds_behind`` is the possible age of what is not confirmed: how long a connected reader
    takes to confirm; without a reader, how long nobody has been reading (known from PostgreSQL 17 on)."""

    report: Mapping[str, Any]
    confirmed: PostgresLsn
    lost: str | None
    seconds_behind: float | None


def read_slot(connection: Connection, name: str) -> Slot | None:
    if (row := connection.execute(_SLOT, (name,)).fetchone()) is None:
        return None
    report, seconds = row
    lost = report.get("invalidation_reason") or ("its log was removed" if report["wal_status"] == "lost" else None)
    confirmed = PostgresLsn.parse(report["confirmed_flush_lsn"] or "0/0")
    return Slot(report, confirmed, lost, None if seconds is None else max(0.0, seconds))


def usable_slot(connection: Connection, name: str) -> Slot | None:
    """The slot, or None if there is none. A slot of somebody else is refused and never touched."""
    if (slot := read_slot(connection, name)) is None:
        return None
    pid, plugin, database = (slot.report[key] for key in ("active_pid", "plugin", "database"))
    here = connection.info.dbname
    if plugin != PLUGIN or database != here:
        belongs = f"belongs to plugin '{plugin}' and database '{database}', not to {PLUGIN} and '{here}'"
        remedy = "Give the pipeline another name, or drop that slot if nobody needs it."
        raise SourceSetupError(f"the replication slot {name} {belongs}", remedy=remedy)
    if slot.report["confirmed_flush_lsn"] is None:
        waits = "for a client that may be gone: it waits for transactions that were running"
        problem = f"the replication slot {name} is still being created by the server process {pid}, {waits}"
        raise SourceUnavailableError(problem, remedy=f"Wait, or end it: SELECT pg_terminate_backend({pid});")
    return slot


def head(connection: Connection) -> PostgresLsn:
    """How far the log is flushed, which is what logical decoding can see."""
    return PostgresLsn.parse(connection.one("SELECT pg_current_wal_flush_lsn()::text")[0])


def inserted(connection: Connection) -> PostgresLsn:
    """How far the log is written, flushed or not: every commit that is visible now is before it."""
    return PostgresLsn.parse(connection.one("SELECT pg_current_wal_insert_lsn()::text")[0])


def slot_statement(name: str, version: int) -> str:
    """With ``failover``, a standby that synchronises slots has the slot, too, so that promoting it needs no copy."""
    failover = ", failover => true" if version >= FAILOVER else ""
    return f"SELECT pg_create_logical_replication_slot('{name}', '{PLUGIN}'{failover})"


def enable_failover(database: Database, name: str) -> None:
    """For a slot created without it. A slot that is in use stays as it is until the next start."""
    with database.connection(name, replication=True) as connection:
        try:
            run(connection, f"ALTER_REPLICATION_SLOT {quoted(name)} (FAILOVER true)")
        except (errors.ObjectInUse, errors.ObjectNotInPrerequisiteState, errors.InsufficientPrivilege) as error:
            log.warning("the slot %s does not survive a fail-over: %s", name, error)


def create_slot(
    database: Database, name: str, stop: threading.Event, *, temporary: bool, seconds: float | None = None
) -> tuple[Connection, PostgresLsn, str]:
    """Create a slot. Returns the connection that created it, its consistent point, and the name of the snapshot
    exported there. The snapshot has exactly the transactions whose commits are before the point, and lives until the
    connection is used or closed; a temporary slot lives no longer than the connection either. Creating a slot waits for
    running transactions and logs which; SourceUnavailableError if they do not end within ``seconds``, or ``stop`` is
    set."""
    connection = database.connect(name, SLOT, replication=True)
    try:
        with database.errors():
            kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
            failover = ", FAILOVER" if not temporary and connection.info.server_version >= FAILOVER else ""
            command = f"CREATE_REPLICATION_SLOT {quoted(name)} {kind} {PLUGIN} (SNAPSHOT 'export'{failover})"
            pgconn = connection.pgconn
            pgconn.send_query(command.encode())
            began = reported_at = time.monotonic()
            while pgconn.flush() or pgconn.is_busy():
                wait_ready((pgconn.socket,), 0.5)
                pgconn.consume_input()
                now = time.monotonic()
                is_over = now - began >= (seconds or SLOT_SECONDS) or stop.is_set()
                if pgconn.is_busy() and (is_over or now - reported_at >= _REPORT_SECONDS):
                    reported_at, blocking = now, "transactions that were running when it began"
                    with suppress(LakefeedError), database.connection("lakefeed") as asking:
                        for row in asking.execute(_BLOCKING, (connection.info.backend_pid,)):
                            blocking = "the transaction of process {} (user {}, {}), open for {} s".format(*row)
                    reason = f"{database}: creating the replication slot {name} waits for {blocking}"
                    log.warning("%s, for %.0f s now", reason, now - began)
                    if is_over:
                        pgconn.get_cancel().cancel()  # otherwise the server goes on creating it, for nobody
                        remedy = "End that transaction, or wait until it ends."
                        raise SourceUnavailableError(reason, remedy=remedy)
            made = finish(connection)
            _, point, snapshot, _ = ((made.get_value(0, column) or b"").decode() for column in range(4))
    except BaseException:
        connection.close()
        raise
    return connection, PostgresLsn.parse(point), snapshot


# Whether a session waits for one of our processes; and whether somebody reads, which shows as a transaction.
_IN_USE = """
SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_blocking_pids(pid) && %s::int4[]),
       EXISTS (SELECT FROM pg_stat_activity WHERE application_name = %s AND state <> 'idle')"""

# The transaction's snapshot shows pg_class as of then; pg_relation_filenode and pg_partition_tree show the present.
_CHANGED = """
WITH RECURSIVE tree(part) AS (
  SELECT %(table)s::regclass::oid
  UNION ALL SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.part
              JOIN pg_class c ON c.oid = t.part AND c.relkind = 'p'),
was AS (SELECT c.oid, c.relfilenode FROM tree t JOIN pg_class c ON c.oid = t.part),
now AS (SELECT oid, coalesce(pg_relation_filenode(oid), 0) AS file FROM (
  SELECT %(table)s::regclass::oid UNION SELECT relid::oid FROM pg_partition_tree(%(table)s::regclass)) AS p(oid))
SELECT count(*) FROM was FULL JOIN now USING (oid) WHERE was.relfilenode IS DISTINCT FROM now.file"""


class SnapshotOrigin(NamedTuple):
    """The exported snapshot of a plan: its name, its content, and its position in the log. Without a name there is no
    snapshot, and chunks have brackets. Its JSON form is a dict of these texts."""

    snapshot: str = ""
    content: str = ""
    at: str = "0/0"

    @property
    def position(self) -> PostgresLsn:
        return PostgresLsn.parse(self.at)


def import_snapshot(connection: Connection, origin: SnapshotOrigin) -> bool:
    """Begin a read transaction under an exported snapshot. False if it is gone, or another one now has its name, which
    a restart of the server makes possible."""
    if not origin.snapshot:
        return False
    connection.execute(BEGIN)
    with suppress(*_NO_SNAPSHOT):
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(origin.snapshot)))
        if connection.one("SELECT pg_current_snapshot()::text") == (origin.content,):
            return True
    connection.execute("ROLLBACK")
    return False


def shows(connection: Connection, table: str) -> bool:
    """Whether the transaction's snapshot shows the table (its name as SQL) and its partitions as they are now. One that
    was rewritten or attached since would be read with the current catalog but old rows: none after a rewrite."""
    return connection.execute(_CHANGED, {"table": table}).fetchone() == (0,)


def bracketed(connection: Connection) -> tuple[PostgresLsn, PostgresLsn]:
    """Begin a read transaction, and return which commits it sees: all up to the first position, none after the second.
    A commit is in the log before its rows become visible. So the position read first is a valid lower bound only after
    all transactions that may have been committing then have ended; SourceUnavailableError if they do not."""
    low = inserted(connection)
    if not wait_for_commits(connection, _COMMIT_SECONDS):
        problem = f"transactions that were active {_COMMIT_SECONDS:.0f} s ago still are, so the copy cannot start"
        remedy = "Wait until they end; pg_stat_activity shows them."
        raise SourceUnavailableError(problem, remedy=remedy)
    connection.execute(BEGIN)
    connection.execute("SELECT pg_current_snapshot()")  # the first statement takes the snapshot
    return low, inserted(connection)


@dataclass(eq=False, slots=True)
class _Kept:
    """A snapshot, the transaction that holds it, and the tables still to be copied from it."""

    origin: SnapshotOrigin
    transaction: Connection
    tables: set[TableId]
    used_at: float = field(default_factory=time.monotonic)
    busy: threading.Lock = field(default_factory=threading.Lock)  # held while the transaction is in use


class ExportedSnapshots:
    """The snapshots that are held for copies. Any thread may call it."""

    def __init__(self, database: Database, names: Names, stop: threading.Event) -> None:
        self._database, self._names, self._stop = database, names, stop
        self._lock, self._changed = threading.RLock(), threading.Event()
        self._kept: list[_Kept] = []
        self._thread: threading.Thread | None = None

    def add(self, made: tuple[Connection, PostgresLsn, str], tables: Iterable[TableId]) -> SnapshotOrigin:
        """Take over the snapshot of a slot that was just created; the slot's connection is closed."""
        connection, position, snapshot = made
        with closing(connection):
            transaction = self._database.connect(self._names.slot, KEEPING)
            try:
                with self._database.errors():
                    transaction.execute(BEGIN)
                    transaction.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
                    name, content = transaction.one("SELECT pg_export_snapshot(), pg_current_snapshot()::text")
            except BaseException:
                transaction.close()
                raise
        kept = _Kept(SnapshotOrigin(name, content, position.text()), transaction, set(tables))
        with self._lock:
            self._kept.append(kept)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="lakefeed-snapshots", daemon=True)
                self._thread.start()
        return kept.origin

    def for_copy(self, connection: Connection, table: TableId, least: PostgresLsn) -> SnapshotOrigin | None:
        """The newest snapshot; or a new one if that is before ``least``, or does not show the table as it is: a copy
        must include all delivered changes, and all from before the table was published. None if no slot is free, or
        running transactions prevent creating one in time. Releases whatever ``table`` was to be copied from before."""
        with self._lock:
            origin = self._kept[-1].origin if self._kept else SnapshotOrigin()
        is_usable = False
        if origin.position >= least and import_snapshot(connection, origin):
            is_usable = shows(connection, sql_name(table))
            connection.execute("ROLLBACK")
        if not is_usable:
            name = f"{self._names.slot[:46]}_tmp_{secrets.token_hex(6)}"
            try:
                made = create_slot(self._database, name, self._stop, temporary=True, seconds=WAIT_SECONDS)
            except (SourceUnavailableError, SourceSetupError) as error:
                log.warning("%s is copied without an exported snapshot: %s", table, error.message)
                self.release(table)
                return None
            origin = self.add(made, [table])
        self.release(table, but=origin)
        return origin

    def release(self, table: TableId, *, but: SnapshotOrigin | None = None) -> None:
        """The copy of ``table`` is over, or will use ``but``. A snapshot that no table needs any more ends."""
        with self._lock:
            for kept in list(self._kept):
                kept.tables = kept.tables | {table} if kept.origin == but else kept.tables - {table}
                if not kept.tables:
                    self._end(kept)

    def close(self) -> None:
        """Release every snapshot. More may be added later."""
        with self._lock:
            for kept in list(self._kept):
                self._end(kept)

    def _end(self, kept: _Kept) -> None:
        self._kept = [one for one in self._kept if one is not kept]
        kept.transaction.sever()  # the other thread may be using it, and then fails
        with kept.busy, suppress(psycopg.Error):
            kept.transaction.close()
        self._changed.set()

    def _watch(self) -> None:
        """Runs until no snapshot is left. A server that does not answer no longer has our snapshots either."""
        try:
            with self._database.connection(self._names.slot, KEEPING) as connection:
                while self._kept:
                    for kept in list(self._kept):
                        pids, reason = [kept.transaction.info.backend_pid], None
                        is_waited_for, is_read = connection.one(_IN_USE, pids, self._names.readers)
                        kept.used_at = time.monotonic() if is_read else kept.used_at
                        if is_waited_for:
                            reason = "a session of the application waits for it"
                        elif time.monotonic() - kept.used_at > IDLE_SECONDS:
                            reason = "nobody has read from it for a long time"
                        try:
                            with kept.busy:
                                kept.transaction.execute("SELECT 1")  # so that the server sees a live client
                        except psycopg.Error:
                            reason = "its connection was lost"
                        if reason is not None and kept in self._kept:  # it may have been ended meanwhile
                            log.warning("the exported snapshot at %s is released: %s", kept.origin.position, reason)
                            with self._lock:
                                self._end(kept)
                    self._changed.wait(CHECK_SECONDS)
                    self._changed.clear()
        except LakefeedError as error:
            log.warning("exported snapshots are released: %s", error.message)
        self.close()

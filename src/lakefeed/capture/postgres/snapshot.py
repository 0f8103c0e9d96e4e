"""Which commits a read transaction has: under an exported snapshot exactly those up to its position, else a bracket.

ExportedSnapshots: snapshots with the exact position in the log that they belong to, kept alive for chunk readers.

A replication slot is the only thing that knows both. For a copy that starts later than the pipeline's own slot, a
temporary one is made; its snapshot is taken over by a plain transaction at once, so that the slot keeps no log back.
Losing a snapshot is no error: chunks then read under their own and say between which positions that is.

A snapshot keeps the server from cleaning up, and whoever waits for old snapshots (CREATE INDEX CONCURRENTLY, for one)
waits for it. So the transaction that keeps it touches no table and no catalog, it is kept only for tables whose copy is
not over, and a thread asks every second whether a session waits for it, and gives it up at once if so.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from lakefeed.capture.postgres.catalog import sql_name, wait_for_commits
from lakefeed.capture.postgres.database import KEEPING, Connection, Database, Names
from lakefeed.capture.postgres.slot import create_slot, inserted
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId
from lakefeed.errors import LakefeedError, SourceUnavailableError

log = logging.getLogger(__name__)

IDLE_SECONDS = 300.0
"""How long a snapshot is kept while nobody reads from it: the process that was to read may be dead."""
CHECK_SECONDS = 0.5
WAIT_SECONDS = 5.0
"""How long making a snapshot may wait for running transactions. Without one, the copy is read with brackets."""

_WAITED_FOR = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_blocking_pids(pid) && %s::int4[])"
# A chunk is read in a transaction; the session that plans copies has none while it waits.
_READERS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND state <> 'idle'"

BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_COMMIT_SECONDS = 30.0

# The transaction's snapshot shows pg_class as of then; pg_relation_filenode and pg_partition_tree show it as of now.
_CHANGED = """
WITH RECURSIVE tree(part) AS (
  SELECT %(table)s::regclass::oid
  UNION ALL SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.part
              JOIN pg_class c ON c.oid = t.part AND c.relkind = 'p'),
was AS (SELECT c.oid, c.relfilenode FROM tree t JOIN pg_class c ON c.oid = t.part),
now AS (SELECT oid, coalesce(pg_relation_filenode(oid), 0) AS file
          FROM (SELECT %(table)s::regclass::oid
                UNION SELECT relid::oid FROM pg_partition_tree(%(table)s::regclass)) AS p(oid))
SELECT count(*) FROM was FULL JOIN now USING (oid) WHERE was.relfilenode IS DISTINCT FROM now.file"""


@dataclass(frozen=True, slots=True)
class SnapshotOrigin:
    """The exported snapshot of a plan: its name, what it contains, and where in the log it belongs. Without a name
    there was none, and chunks have brackets."""

    snapshot: str
    content: str
    position: PostgresLsn

    def to_json(self) -> dict[str, str]:
        return {"snapshot": self.snapshot, "content": self.content, "at": self.position.text()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SnapshotOrigin:
        return cls(data["snapshot"], data["content"], PostgresLsn.parse(data["at"]))


def import_snapshot(connection: Connection, origin: SnapshotOrigin) -> bool:
    """Begin a read transaction under an exported snapshot, if it is still there and still the same: names are used
    again after a restart. False: no transaction is open."""
    if not origin.snapshot:
        return False
    connection.execute(BEGIN)
    try:
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(origin.snapshot)))
        row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
        if row is not None and row[0] == origin.content:
            return True
    except (
        psycopg.errors.ObjectNotInPrerequisiteState,  # it is of a transaction that is over
        psycopg.errors.InvalidParameterValue,  # no such snapshot
        psycopg.errors.UndefinedObject,
    ):
        pass
    connection.execute("ROLLBACK")
    return False


def shows(connection: Connection, table: str) -> bool:
    """Whether the transaction's snapshot has the rows of a table (its name as SQL) and of its partitions of now. One
    that was rewritten or attached since would be read with the catalog of now and the rows of then: an ALTER TABLE that
    rewrites leaves none to be seen."""
    row = connection.execute(_CHANGED, {"table": table}).fetchone()
    return row is not None and row[0] == 0


def bracketed(connection: Connection) -> tuple[PostgresLsn, PostgresLsn]:
    """Begin a read transaction, and say which commits it has: all up to the first position, none after the second.

    By visibility and not by log position alone (T5): a commit is in the log before its rows become visible. So the
    position that was read first is a low mark only once every transaction that might have been committing at that
    moment is over; the high mark is read after the snapshot. SourceUnavailableError if they do not come to an end.
    """
    low = inserted(connection)
    if not wait_for_commits(connection, _COMMIT_SECONDS):
        raise SourceUnavailableError(
            f"transactions that were active {_COMMIT_SECONDS:.0f} s ago are still active, so a copy cannot be dated",
            remedy="Lakefeed tries again by itself; a long statement in pg_stat_activity is what it waits for.",
        )
    connection.execute(BEGIN)
    connection.execute("SELECT pg_current_snapshot()")  # the first statement takes the snapshot
    return low, inserted(connection)


@dataclass(eq=False, slots=True)
class _Kept:
    """A snapshot, the transaction that keeps it, and the tables that are still to be copied from it."""

    origin: SnapshotOrigin
    transaction: Connection
    tables: set[TableId]
    used_at: float = field(default_factory=time.monotonic)
    busy: threading.Lock = field(default_factory=threading.Lock)
    """Of the transaction, while somebody uses it."""


class ExportedSnapshots:
    """Any thread."""

    def __init__(self, database: Database, names: Names, stop: threading.Event) -> None:
        self._database = database
        self._names = names
        self._stop = stop
        self._lock = threading.RLock()
        self._kept: list[_Kept] = []
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, made: tuple[Connection, PostgresLsn, str], tables: Iterable[TableId]) -> SnapshotOrigin:
        """Take over the snapshot of a slot that was just made; the slot's connection is closed."""
        connection, position, snapshot = made
        try:
            transaction = self._database.connect(self._names.slot, KEEPING)
            try:
                with self._database.errors():
                    transaction.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    transaction.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
                    row = transaction.execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text").fetchone()
                assert row is not None  # noqa: S101  # functions always answer
            except BaseException:
                transaction.close()
                raise
        finally:
            connection.close()
        kept = _Kept(SnapshotOrigin(str(row[0]), str(row[1]), position), transaction, set(tables))
        with self._lock:
            self._kept.append(kept)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="lakefeed-snapshots", daemon=True)
                self._thread.start()
        return kept.origin

    def for_copy(self, connection: Connection, table: TableId, least: PostgresLsn) -> SnapshotOrigin | None:
        """The newest snapshot, or one of now if that is not at ``least`` or behind it, or shows another table. None
        if running transactions do not let one be made in time.

        A copy must have all changes that were delivered, and all from before the table was published. What the table
        was to be copied from before is not kept for it any longer.
        """
        with self._lock:
            newest = self._kept[-1] if self._kept else None
        origin = newest.origin if newest is not None and newest.origin.position >= least else None
        if origin is not None:
            is_usable = False
            if import_snapshot(connection, origin):
                is_usable = shows(connection, sql_name(table))
                connection.execute("ROLLBACK")
            origin = origin if is_usable else None
        if origin is None:
            name = f"{self._names.slot[:46]}_tmp_{secrets.token_hex(6)}"
            try:
                made = create_slot(self._database, name, self._stop, temporary=True, seconds=WAIT_SECONDS)
            except SourceUnavailableError as error:
                log.warning("%s is copied without an exported snapshot: %s", table, error.message)
                self.release(table)
                return None
            origin = self.add(made, ())
        self.release(table, but=origin)
        with self._lock:
            for kept in self._kept:
                if kept.origin == origin:
                    kept.tables.add(table)
        return origin

    def release(self, table: TableId, *, but: SnapshotOrigin | None = None) -> None:
        """The copy of ``table`` is over. A snapshot that is kept for no table ends."""
        with self._lock:
            for kept in list(self._kept):
                if kept.origin != but:
                    kept.tables.discard(table)
                    if not kept.tables:
                        self._end(kept)

    def close(self) -> None:
        """Give up every snapshot. More may be added later."""
        with self._lock:
            for kept in list(self._kept):
                self._end(kept)

    def _end(self, kept: _Kept) -> None:
        self._kept = [one for one in self._kept if one is not kept]
        kept.transaction.sever()  # the other thread may be using it, and fails now
        with kept.busy, suppress(psycopg.Error):
            kept.transaction.close()
        self._changed.set()

    def _watch(self) -> None:
        """Until no snapshot is left. A server that cannot be asked has no snapshot of ours any more."""
        try:
            with self._database.connection(self._names.slot, KEEPING) as connection:
                while self._kept:
                    for kept in list(self._kept):
                        self._check(connection, kept)
                    self._changed.wait(CHECK_SECONDS)
                    self._changed.clear()
        except LakefeedError as error:
            log.warning("exported snapshots are given up: %s", error.message)
        self.close()

    def _check(self, connection: Connection, kept: _Kept) -> None:
        reason = None
        try:
            with kept.busy:
                kept.transaction.execute("SELECT 1")  # so that the server knows that somebody is there
        except psycopg.Error:
            reason = "its connection was lost"
        waited_for = connection.execute(_WAITED_FOR, ([kept.transaction.info.backend_pid],)).fetchone()
        readers = connection.execute(_READERS, (self._names.readers,)).fetchone()
        if readers is not None and readers[0]:
            kept.used_at = time.monotonic()
        if waited_for is not None and waited_for[0]:
            reason = "a session of the application waits for it"
        elif time.monotonic() - kept.used_at > IDLE_SECONDS:
            reason = "nobody has read from it for long"
        if reason is not None:
            log.warning("the exported snapshot at %s is given up: %s", kept.origin.position, reason)
            with self._lock:
                self._end(kept)

"""Replication slots and publications as the server reports them, and the statements that make them.

Nothing here waits without an end: not for a lock, and not for the transactions that a new slot waits for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from lakefeed.capture.postgres.catalog import sql_name
from lakefeed.capture.postgres.database import SLOT, Connection, Database, Names, quoted, rows_of
from lakefeed.capture.postgres.wire import wait_ready
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId
from lakefeed.errors import LakefeedError, PositionLostError, SourceSetupError, SourceUnavailableError

log = logging.getLogger(__name__)

PLUGIN = "pgoutput"
_CHOICES = (
    "Choose: restore the source's log, or move the pipeline's state directory away and let it copy every table again."
)


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot as the server reports it."""

    name: str
    plugin: str
    database: str
    active_pid: int | None
    confirmed: PostgresLsn
    wal_status: str | None
    safe_wal_size: int | None
    lost: str | None
    """Why it cannot be used any more."""
    idle_since: float | None = None
    """Since when nobody reads from it (seconds since 1970, the server's clock); known from PostgreSQL 17 on."""
    unfinished: bool = False
    """The server is still making it; if its client goes away, it will not be there."""

    @property
    def health(self) -> dict[str, int | str | None]:
        """What ``status`` shows of it, by PostgreSQL's own names."""
        return {
            "slot": self.name,
            "active_pid": self.active_pid,
            "confirmed_flush_lsn": self.confirmed.text(),
            "wal_status": self.wal_status,
            "safe_wal_size": self.safe_wal_size,
            "invalidation_reason": self.lost,
        }


def read_slot(connection: Connection, name: str) -> Slot | None:
    """As JSON, because each version of PostgreSQL has other columns there."""
    row = connection.execute("SELECT to_jsonb(s) FROM pg_replication_slots s WHERE slot_name = %s", (name,)).fetchone()
    if row is None:
        return None
    data: dict[str, Any] = row[0]
    reason = data.get("invalidation_reason") or ("its log was removed" if data.get("wal_status") == "lost" else None)
    confirmed = PostgresLsn.parse(data["confirmed_flush_lsn"]) if data.get("confirmed_flush_lsn") else PostgresLsn(0)
    size, since = data.get("safe_wal_size"), data.get("inactive_since")
    return Slot(
        name, data.get("plugin") or "", data.get("database") or "", data.get("active_pid"), confirmed,
        data.get("wal_status"), size, reason, datetime.fromisoformat(since).timestamp() if since else None,
        data.get("plugin") == PLUGIN and data.get("confirmed_flush_lsn") is None,
    )  # fmt: skip


def seconds_behind(connection: Connection, slot: Slot) -> float | None:
    """How old what is not confirmed may be, as the server knows it; None if it does not.

    For a reader that is connected the server measures how long a confirmation takes. Without one, it is as long as
    nobody has been reading.
    """
    if slot.active_pid is not None:
        query = "SELECT extract(epoch FROM flush_lag)::float8 FROM pg_stat_replication WHERE pid = %s"
        row = connection.execute(query, (slot.active_pid,)).fetchone()
        return max(0.0, row[0]) if row is not None and row[0] is not None else None
    row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    return max(0.0, row[0] - slot.idle_since) if row is not None and slot.idle_since is not None else None


def usable_slot(connection: Connection, name: str) -> Slot | None:
    """The slot, if there is one. Somebody else's is refused, never touched."""
    slot = read_slot(connection, name)
    if slot is None:
        return None
    if slot.unfinished:
        raise SourceUnavailableError(
            f"the replication slot {name} is still being made by the server's process {slot.active_pid}, for a client "
            "that may be gone: it waits for transactions that were running",
            remedy=f"Lakefeed tries again by itself; or end it: SELECT pg_terminate_backend({slot.active_pid});",
        )
    here = connection.info.dbname
    if slot.plugin != PLUGIN or slot.database != here:
        raise SourceSetupError(
            f"the replication slot {name} belongs to plugin '{slot.plugin}' and database '{slot.database}', "
            f"not to {PLUGIN} and '{here}'",
            remedy="Give the pipeline another name, or drop that slot if nobody needs it.",
        )
    return slot


def head(connection: Connection) -> PostgresLsn:
    """How far the log is flushed: what logical decoding can see."""
    row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None  # noqa: S101  # a function always answers
    return PostgresLsn.parse(str(row[0]))


def inserted(connection: Connection) -> PostgresLsn:
    """How far the log is written, flushed or not: every commit that is visible now lies before it."""
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None  # noqa: S101  # a function always answers
    return PostgresLsn.parse(str(row[0]))


def require_position(connection: Connection, slot: Slot, position: PostgresLsn) -> None:
    """PositionLostError unless everything strictly after ``position`` can still be read."""
    if slot.lost is not None:
        raise PositionLostError(f"the replication slot {slot.name} was invalidated: {slot.lost}", remedy=_CHOICES)
    if position < slot.confirmed:
        raise PositionLostError(
            f"the replication slot {slot.name} is at {slot.confirmed}, ahead of the pipeline's {position}: it was "
            "advanced or created again by somebody else, and the changes between are gone",
            remedy=_CHOICES,
        )
    reached = head(connection)
    if position > reached:
        raise PositionLostError(
            f"the pipeline is at {position}, but the server has written no further than {reached}: it was restored "
            "or rewound, or it is another server",
            remedy=_CHOICES,
        )


def missing_slot(names: Names, position: PostgresLsn) -> PositionLostError:
    return PositionLostError(
        f"the replication slot {names.slot} is gone; what was written after {position} cannot be read any more",
        remedy=_CHOICES,
    )


def slot_statement(name: str) -> str:
    """The SQL that makes the slot, for those who make it themselves."""
    return f"SELECT pg_create_logical_replication_slot('{name}', '{PLUGIN}')"


def advance_slot(connection: Connection, name: str, position: PostgresLsn) -> None:
    """Let the server forget everything up to ``position``. Never moves back."""
    slot = read_slot(connection, name)
    if slot is None or position <= slot.confirmed:
        return
    try:
        connection.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (name, position.text()))
    except psycopg.errors.ObjectInUse as error:
        raise SourceUnavailableError(f"the replication slot {name} is in use: {error}") from error


def drop_slot(connection: Connection, name: str) -> bool:
    slot = usable_slot(connection, name)
    if slot is None:
        return False
    connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    return True


_REPORT_SECONDS = 5.0
SLOT_SECONDS = 600.0
"""For the pipeline's own slot. Long: whoever begins again waits for everything that has begun since."""

_BLOCKING = """
SELECT a.pid, coalesce(a.usename, '?'), coalesce(a.state, '?'), extract(epoch FROM now() - a.xact_start)::int8
  FROM pg_stat_activity a WHERE a.pid = ANY(pg_blocking_pids(%s)) ORDER BY a.xact_start LIMIT 1"""


def create_slot(
    database: Database, name: str, stop: threading.Event, *, temporary: bool, seconds: float | None = None
) -> tuple[Connection, PostgresLsn, str]:
    """A new slot: the connection that made it, its consistent point, and the name of the snapshot exported there.

    The snapshot has exactly the transactions whose commits lie before the point. It lives until the connection is used
    or closed; a temporary slot goes with the connection. While transactions are running it waits, and reports for
    which; SourceUnavailableError if they do not come to an end within ``seconds``, or ``stop`` is set.
    """
    connection = database.connect(name, SLOT, replication=True)
    try:
        with database.errors():
            kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
            statement = f"CREATE_REPLICATION_SLOT {quoted(name)} {kind} {PLUGIN} (SNAPSHOT 'export')"
            pgconn = connection.pgconn
            pgconn.send_query(statement.encode())
            began = reported_at = time.monotonic()
            while pgconn.flush() or pgconn.is_busy():
                wait_ready((pgconn.socket,), 0.5)
                pgconn.consume_input()
                now = time.monotonic()
                is_over = now - began >= (seconds or SLOT_SECONDS) or stop.is_set()
                if pgconn.is_busy() and (is_over or now - reported_at >= _REPORT_SECONDS):
                    reported_at = now
                    reason = f"{database}: making the replication slot {name} waits for {_blocking(connection)}"
                    log.warning("%s, for %.0f s now", reason, now - began)
                    if is_over:
                        pgconn.get_cancel().cancel()  # the server would go on making it, for nobody
                        raise SourceUnavailableError(
                            reason,
                            remedy="Lakefeed tries again by itself; end that transaction, or let it come to its end.",
                        )
            rows: list[tuple[str | None, ...]] = []
            while (result := pgconn.get_result()) is not None:
                if result.status not in (psycopg.pq.ExecStatus.COMMAND_OK, psycopg.pq.ExecStatus.TUPLES_OK):
                    raise psycopg.errors.error_from_result(result)
                rows += rows_of(result)
            _, point, snapshot, _ = rows[0]
    except BaseException:
        connection.close()
        raise
    return connection, PostgresLsn.parse(point or ""), snapshot or ""


def _blocking(connection: Connection) -> str:
    """The transaction that the server waits for, in words."""
    with suppress(LakefeedError), connection.database.connection("lakefeed") as asking:
        row = asking.execute(_BLOCKING, (connection.info.backend_pid,)).fetchone()
        if row is not None:
            pid, user, state, seconds = row
            return f"the transaction of process {pid} (user {user}, {state}), open for {seconds} s"
    return "transactions that were running when it began"


_PUBLISHED = """
SELECT t.schemaname, t.tablename, coalesce(r.oid, p.oid)::int8
  FROM pg_publication p JOIN pg_publication_tables t ON t.pubname = p.pubname
  JOIN pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
  LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
 WHERE p.pubname = %s"""

_NARROWED = """
SELECT n.nspname, c.relname FROM pg_publication_rel r
  JOIN pg_publication p ON p.oid = r.prpubid JOIN pg_class c ON c.oid = r.prrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = %s AND (r.prattrs IS NOT NULL OR r.prqual IS NOT NULL) ORDER BY 1, 2"""

_GENERATED = """
SELECT t.schemaname, t.tablename FROM pg_publication_tables t JOIN pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 WHERE t.pubname = %s AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated = 's')
 ORDER BY 1, 2"""

_KINDS = ("pubinsert", "pubupdate", "pubdelete", "pubtruncate")


@dataclass(frozen=True, slots=True)
class Shortcoming:
    """Why a publication does not publish everything, with the statement that repairs it.

    ``table`` is the one it concerns, None for all. Not ``misses``: tables in question are not published at all.
    """

    problem: str
    remedy: str
    table: TableId | None = None
    misses: bool = True


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a publication publishes at one moment; ``members`` as ``published`` reads them."""

    name: str
    members: Mapping[TableId, int] | None
    shortcomings: tuple[Shortcoming, ...]

    def gap(self, table: TableId) -> str | None:
        """Why changes of a table are not published, None if they are."""
        if self.members is None:
            return f"the publication {self.name} was dropped"
        if table not in self.members:
            return "it is not published any more"
        return next((one.problem for one in self.shortcomings if one.misses and one.table in (None, table)), None)

    def member(self, table: TableId) -> int | None:
        return (self.members or {}).get(table)


def read_coverage(connection: Connection, name: str) -> Coverage:
    return Coverage(name, published(connection, name), tuple(shortcomings(connection, name)))


def published(connection: Connection, name: str) -> Mapping[TableId, int] | None:
    """The tables of the publication; None if there is no publication.

    Each with a number that is another one if the table was taken out and put back, or the publication made again.
    """
    row = connection.execute("SELECT oid FROM pg_publication WHERE pubname = %s", (name,)).fetchone()
    if row is None:
        return None
    rows = connection.execute(_PUBLISHED, (name,))
    return {TableId(schema, table): number for schema, table, number in rows if "." not in schema}


def publication_statements(name: str, there: Collection[TableId] | None, wanted: Iterable[TableId]) -> Sequence[str]:
    """The SQL that makes the publication cover ``wanted``."""
    missing = sorted(set(wanted) - set(there or ()))
    # ONLY: children of a table are published with it otherwise, asked for or not, and without an identity the
    # application's own UPDATE and DELETE on them would fail.
    tables = ", ".join(f"ONLY {sql_name(table)}" for table in missing)
    if there is None:
        of = f" FOR TABLE {tables}" if tables else ""
        return [f"CREATE PUBLICATION {quoted(name)}{of} WITH (publish_via_partition_root = true)"]
    return [f"ALTER PUBLICATION {quoted(name)} ADD TABLE {tables}"] if tables else []


def shortcomings(connection: Connection, name: str) -> Iterator[Shortcoming]:
    """Why a publication that is there does not publish everything, or something else than a copy has."""
    row = connection.execute("SELECT to_jsonb(p) FROM pg_publication p WHERE pubname = %s", (name,)).fetchone()
    if row is None:
        return
    options: dict[str, Any] = row[0]  # as JSON, because each version of PostgreSQL has other columns there
    publication, alter = f"publication {quoted(name)}", f"ALTER PUBLICATION {quoted(name)}"
    if not all(options[kind] for kind in _KINDS):
        remedy = f"{alter} SET (publish = 'insert, update, delete, truncate');"
        yield Shortcoming(f"{publication} leaves out some kinds of changes", remedy)
    if not options["pubviaroot"]:
        remedy = f"{alter} SET (publish_via_partition_root = true);"
        yield Shortcoming(f"{publication} publishes partitions under their own names", remedy, misses=False)
    if options.get("pubgencols", "n") != "n":
        remedy = f"{alter} SET (publish_generated_columns = none);"
        for schema, table in connection.execute(_GENERATED, (name,)).fetchall():
            problem = f"{publication} publishes generated columns of {schema}.{table}, which a copy does not have"
            yield Shortcoming(problem, remedy, _table(schema, table))
    for schema, table in connection.execute(_NARROWED, (name,)).fetchall():
        only = "ONLY " + f"{quoted(schema)}.{quoted(table)}"
        remedy = f"{alter} DROP TABLE {only}; {alter} ADD TABLE {only};"
        problem = f"{publication} has a column list or a row filter for {schema}.{table}"
        yield Shortcoming(problem, remedy, _table(schema, table))


def _table(schema: str, name: str) -> TableId | None:
    return TableId(schema, name) if "." not in schema else None

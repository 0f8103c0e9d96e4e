"""The replication slot and the publication of one pipeline: state, creation, position, removal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from lakefeed.capture.postgres.catalog import sql_name
from lakefeed.capture.postgres.database import Connection, Database, require
from lakefeed.capture.postgres.names import Names, quoted
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId
from lakefeed.errors import PositionLostError, SourceSetupError, SourceUnavailableError

PLUGIN = "pgoutput"
_CHOICES = (
    "Choose: restore the source's log, or move the pipeline's state directory away and let it copy every table anew."
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


def read_slot(connection: Connection, name: str) -> Slot | None:
    """As JSON, because each version of PostgreSQL has other columns there."""
    row = connection.execute("SELECT to_jsonb(s) FROM pg_replication_slots s WHERE slot_name = %s", (name,)).fetchone()
    if row is None:
        return None
    data: dict[str, Any] = row[0]
    reason = data.get("invalidation_reason") or ("its log was removed" if data.get("wal_status") == "lost" else None)
    confirmed = PostgresLsn.parse(data["confirmed_flush_lsn"]) if data.get("confirmed_flush_lsn") else PostgresLsn(0)
    size = data.get("safe_wal_size")
    return Slot(
        name, data.get("plugin") or "", data.get("database") or "", data.get("active_pid"), confirmed,
        data.get("wal_status"), size, reason,
    )  # fmt: skip


def usable_slot(connection: Connection, name: str) -> Slot | None:
    """The slot, if there is one. Somebody else's is refused, never touched."""
    slot = read_slot(connection, name)
    if slot is None:
        return None
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


def require_position(connection: Connection, slot: Slot, position: PostgresLsn) -> None:
    """PositionLostError unless everything strictly after ``position`` can still be read."""
    if slot.lost is not None:
        raise PositionLostError(f"the replication slot {slot.name} was invalidated: {slot.lost}", remedy=_CHOICES)
    if position < slot.confirmed:
        raise PositionLostError(
            f"the replication slot {slot.name} is at {slot.confirmed}, ahead of the pipeline's {position}: it was "
            "advanced or created anew by somebody else, and the changes between are gone",
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
        f"the replication slot {names.slot} is gone; what was written after {position} cannot be told any more",
        remedy=_CHOICES,
    )


def create_slot(database: Database, name: str, *, temporary: bool) -> tuple[Connection, PostgresLsn, str]:
    """A new slot: the connection that made it, its consistent point, and the name of the snapshot exported there.

    The snapshot has exactly the transactions whose commits lie before the point. It lives until the connection is used
    or closed; a temporary slot goes with the connection. Making one waits for transactions that are running.
    """
    connection = database.connect(name, replication=True)
    try:
        with database.errors():
            kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
            rows = require(connection, f"CREATE_REPLICATION_SLOT {quoted(name)} {kind} {PLUGIN} (SNAPSHOT 'export')")
            _, point, snapshot, _ = rows[0]
    except BaseException:
        connection.close()
        raise
    return connection, PostgresLsn.parse(point or ""), snapshot or ""


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


def published(connection: Connection, name: str) -> frozenset[TableId] | None:
    """The tables of the publication; None if there is no publication."""
    row = connection.execute("SELECT oid FROM pg_publication WHERE pubname = %s", (name,)).fetchone()
    if row is None:
        return None
    rows = connection.execute("SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", (name,))
    return frozenset(TableId(schema, table) for schema, table in rows if "." not in schema)


def publication_statements(name: str, there: frozenset[TableId] | None, wanted: Iterable[TableId]) -> Sequence[str]:
    """The SQL that makes the publication cover ``wanted``."""
    missing = sorted(set(wanted) - (there or frozenset()))
    tables = ", ".join(map(sql_name, missing))
    if there is None:
        of = f" FOR TABLE {tables}" if tables else ""
        return [f"CREATE PUBLICATION {quoted(name)}{of} WITH (publish_via_partition_root = true)"]
    return [f"ALTER PUBLICATION {quoted(name)} ADD TABLE {tables}"] if tables else []

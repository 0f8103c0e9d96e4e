"""The replication slot of one pipeline: state, position, removal. ``creation`` makes it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.names import Names
from lakefeed.change.lsn import PostgresLsn
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
    idle_since: float | None = None
    """Since when nobody reads from it (seconds since 1970, the server's clock); known from PostgreSQL 17 on."""
    unfinished: bool = False
    """The server is at making it; if its client goes away, it will not be there."""

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
    size = data.get("safe_wal_size")
    return Slot(
        name, data.get("plugin") or "", data.get("database") or "", data.get("active_pid"), confirmed,
        data.get("wal_status"), size, reason, _seconds(data.get("inactive_since")),
        data.get("plugin") == PLUGIN and data.get("confirmed_flush_lsn") is None,
    )  # fmt: skip


def _seconds(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None


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

"""Which server this is."""

from __future__ import annotations

from lakefeed.capture.postgres.database import Database, require
from lakefeed.capture.postgres.names import Names


def read_identity(database: Database, names: Names) -> str:
    """System identifier, timeline and database. A failover or a restore to a point in time begins a new timeline."""
    with database.connection(names.slot, replication=True) as connection:
        ((system, timeline, _, name),) = require(connection, "IDENTIFY_SYSTEM")
    return f"system {system}, timeline {timeline}, database {name}"

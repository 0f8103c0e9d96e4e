"""The bracket of a read under its own snapshot, by visibility and not by log position alone (T5).

A commit is in the log before its rows become visible. So the position that was read first is a low mark only once
every transaction that might have been committing at that moment is over; the high mark is read after the snapshot.
"""

from __future__ import annotations

import time

from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.slot import inserted
from lakefeed.change.lsn import PostgresLsn
from lakefeed.errors import SourceUnavailableError

_WAIT_SECONDS = 30.0

# Every transaction with an id holds a lock on it until its rows are visible, and everybody may look at locks.
_RUNNING = "SELECT transactionid::text FROM pg_locks WHERE locktype = 'transactionid' AND granted"
# An open transaction whose client is idle is not committing. A prepared one (its lock has no process) is committed by
# somebody's statement. Of any other, and of sessions that this role may not look into, nothing is known: it is
# waited for.
_COMMITTING = """
SELECT count(*) FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'transactionid' AND l.granted AND l.transactionid::text = ANY(%s)
   AND CASE WHEN l.pid IS NULL
       THEN EXISTS (SELECT FROM pg_stat_activity b WHERE b.state = 'active' AND b.query ILIKE '%%commit prepared%%'
                       AND b.pid <> pg_backend_pid())
       ELSE coalesce(a.state, '') NOT LIKE 'idle in transaction%%' END"""


def bracketed(connection: Connection) -> tuple[PostgresLsn, PostgresLsn]:
    """Begin a read transaction, and say which commits it has: all up to the first position, none after the second.

    SourceUnavailableError if transactions that were active before do not come to an end.
    """
    low = inserted(connection)
    running = [str(xid) for (xid,) in connection.execute(_RUNNING)]
    until = time.monotonic() + _WAIT_SECONDS
    while _still_committing(connection, running):
        if time.monotonic() > until:
            raise SourceUnavailableError(
                f"transactions that were active {_WAIT_SECONDS:.0f} s ago are still at it, so a copy cannot be dated",
                remedy="Lakefeed tries again by itself; a long statement in pg_stat_activity is what it waits for.",
            )
        time.sleep(0.01)
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute("SELECT pg_current_snapshot()")  # the first statement takes the snapshot
    return low, inserted(connection)


def _still_committing(connection: Connection, running: list[str]) -> bool:
    """Whether some of the transactions in ``running`` are not over, and not known to be idle."""
    row = connection.execute(_COMMITTING, (running,)).fetchone() if running else None
    return row is not None and row[0] > 0

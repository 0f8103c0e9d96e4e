"""The bracket of a read under its own snapshot, by visibility and not by log position alone (T5).

A commit is in the log before its rows become visible. So the position that was read first is a low mark only once
every transaction that might have been committing at that moment is over; the high mark is read after the snapshot.
"""

from __future__ import annotations

import time

from lakefeed.capture.postgres.database import Connection
from lakefeed.change.lsn import PostgresLsn
from lakefeed.errors import SourceUnavailableError

_WAIT_SECONDS = 30.0

_INSERTED = "SELECT pg_current_wal_insert_lsn()::text"
# An open transaction whose client is idle is not committing. A prepared one is committed by somebody's statement. Of
# any other, and of sessions that this role may not look into, nothing is known: it is waited for.
_COMMITTING = """
SELECT count(*) FROM pg_snapshot_xip(%s::pg_snapshot) AS x(xid)
  LEFT JOIN pg_stat_activity a ON a.backend_xid::text::int8 = (x.xid::text::int8 & 4294967295)
  LEFT JOIN pg_prepared_xacts p ON p.transaction::text::int8 = (x.xid::text::int8 & 4294967295)
 WHERE coalesce(a.state, '') NOT LIKE 'idle in transaction%%'
   AND (p.gid IS NULL OR EXISTS (SELECT FROM pg_stat_activity b WHERE b.query ILIKE '%%commit prepared%%'
                                    AND b.state = 'active' AND b.pid <> pg_backend_pid()))"""


def bracketed(connection: Connection) -> tuple[PostgresLsn, PostgresLsn]:
    """Begin a read transaction, and say which commits it has: all up to the first position, none after the second.

    SourceUnavailableError if transactions that were active before do not come to an end.
    """
    low = _lsn(connection)
    running = _text(connection, "SELECT pg_current_snapshot()::text")
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
    return low, _lsn(connection)


def _still_committing(connection: Connection, running: str) -> bool:
    """Whether some of the transactions in ``running`` are still not visible, and not known to be idle."""
    now = _text(connection, "SELECT pg_current_snapshot()::text")
    xips = set(running.split(":")[2].split(",")) & set(now.split(":")[2].split(",")) - {""}
    if not xips:
        return False
    numbers = sorted(map(int, xips))
    snapshot = f"{numbers[0]}:{numbers[-1] + 1}:{','.join(map(str, numbers))}"
    row = connection.execute(_COMMITTING, (snapshot,)).fetchone()
    return row is not None and row[0] > 0


def _lsn(connection: Connection) -> PostgresLsn:
    return PostgresLsn.parse(_text(connection, _INSERTED))


def _text(connection: Connection, query: str) -> str:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None  # noqa: S101  # functions always answer
    return str(row[0])

"""Making a replication slot, which takes as long as the transactions that are running at that moment."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

import psycopg

from lakefeed.capture.postgres.database import Connection, Database, rows_of
from lakefeed.capture.postgres.names import quoted
from lakefeed.capture.postgres.readiness import wait_readable
from lakefeed.capture.postgres.slot import PLUGIN
from lakefeed.change.lsn import PostgresLsn
from lakefeed.errors import LakefeedError, SourceUnavailableError

log = logging.getLogger(__name__)

_SAY_SECONDS = 5.0
_GIVE_UP_SECONDS = 600.0
"""Long: whoever begins anew waits for everything that has begun since."""

_BLOCKING = """
SELECT a.pid, coalesce(a.usename, '?'), coalesce(a.state, '?'), extract(epoch FROM now() - a.xact_start)::int8
  FROM pg_stat_activity a WHERE a.pid = ANY(pg_blocking_pids(%s)) ORDER BY a.xact_start LIMIT 1"""


def create_slot(database: Database, name: str, *, temporary: bool) -> tuple[Connection, PostgresLsn, str]:
    """A new slot: the connection that made it, its consistent point, and the name of the snapshot exported there.

    The snapshot has exactly the transactions whose commits lie before the point. It lives until the connection is used
    or closed; a temporary slot goes with the connection. While transactions are running it waits, and says for which;
    SourceUnavailableError if they do not come to an end.
    """
    connection = database.connect(name, replication=True)
    try:
        with database.errors():
            kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
            statement = f"CREATE_REPLICATION_SLOT {quoted(name)} {kind} {PLUGIN} (SNAPSHOT 'export')"
            connection.pgconn.send_query(statement.encode())
            _wait(database, connection, name)
            _, point, snapshot, _ = _answer(connection)
    except BaseException:
        connection.close()
        raise
    return connection, PostgresLsn.parse(point or ""), snapshot or ""


def _wait(database: Database, connection: Connection, name: str) -> None:
    """Until the server has answered."""
    pgconn = connection.pgconn
    began = said_at = time.monotonic()
    while pgconn.flush() or pgconn.is_busy():
        wait_readable(pgconn.socket, seconds=0.5)
        pgconn.consume_input()
        now = time.monotonic()
        if pgconn.is_busy() and now - said_at >= _SAY_SECONDS:
            said_at = now
            reason = f"{database}: making the replication slot {name} waits for {_blocking(database, connection)}"
            log.warning("%s, for %.0f s now", reason, now - began)
            if now - began >= _GIVE_UP_SECONDS:
                pgconn.get_cancel().cancel()  # the server would go on making it, for nobody
                raise SourceUnavailableError(
                    reason, remedy="Lakefeed tries again by itself; end that transaction, or let it come to its end."
                )


def _blocking(database: Database, connection: Connection) -> str:
    """The transaction that the server waits for, in words."""
    with suppress(LakefeedError), database.connection("lakefeed") as asking:
        row = asking.execute(_BLOCKING, (connection.info.backend_pid,)).fetchone()
        if row is not None:
            pid, user, state, seconds = row
            return f"the transaction of process {pid} (user {user}, {state}), open for {seconds} s"
    return "transactions that were running when it began"


def _answer(connection: Connection) -> tuple[str | None, ...]:
    rows: list[tuple[str | None, ...]] = []
    while (result := connection.pgconn.get_result()) is not None:
        if result.status not in (psycopg.pq.ExecStatus.COMMAND_OK, psycopg.pq.ExecStatus.TUPLES_OK):
            raise psycopg.errors.error_from_result(result)
        rows += rows_of(result)
    return rows[0]

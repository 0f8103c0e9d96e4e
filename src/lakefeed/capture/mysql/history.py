"""What a server reports about its binlog: where it ends, what is visible, which files exist. Each call runs one or two
short statements on the caller's connection.

Positions are file and offset for MySQL without GTIDs, GTID sets for MySQL with GTIDs, and MariaDB's own GTIDs.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from lakefeed.capture.mysql.database import Connection, literal
from lakefeed.change.mysql import MariadbGtid, MysqlBinlog, MysqlGtid
from lakefeed.change.position import decode_position
from lakefeed.change.table import TableId
from lakefeed.errors import PositionLostError, SourceError, SourceSetupError, SourceUnavailableError

Gtid = MysqlGtid | MariadbGtid | MysqlBinlog
"""A position of a stream: GTIDs, or file and offset."""

FIRST_OFFSET = 4
LogPlace = tuple[str, int]
"""A file of the server's binlog, and an offset in it."""
VISIBLE_SECONDS = 10.0
_LIST = re.compile(r"\[(.*)\]")
_COMMITTING = """
SELECT OWNER_THREAD_ID, OWNER_EVENT_ID, OBJECT_TYPE FROM performance_schema.metadata_locks
 WHERE LOCK_STATUS = 'GRANTED' AND (OBJECT_TYPE = 'COMMIT' OR OBJECT_NAME = 'metadata_locks')"""
GTID_MODE = (
    "SET GLOBAL enforce_gtid_consistency = ON; SET GLOBAL gtid_mode = OFF_PERMISSIVE; "
    "SET GLOBAL gtid_mode = ON_PERMISSIVE; SET GLOBAL gtid_mode = ON; -- and set the same in the server's option file"
)


class StreamNotes:
    """What is kept along with each position that the stream passes. ``place`` is its location in the server's files: a
    GTID set does not contain it, and lag in bytes is counted from there. ``retyped`` has, for each table, the columns
    whose type ALTER statements have stated since the table's last row: now, and at each position. Belongs to the
    stream's thread."""

    def __init__(self) -> None:
        self.retyped: dict[TableId, set[str]] = {}
        self._passed: deque[tuple[Gtid, dict[str, Any]]] = deque()

    def start(self, kept: Mapping[str, Any]) -> None:
        """A new stream starts where ``take`` returned ``kept``."""
        self._passed.clear()
        self.retyped.clear()
        self.retyped.update({TableId.parse(name): set(columns) for name, columns in kept.get("retyped", {}).items()})

    def note(self, position: Gtid, place: LogPlace) -> None:
        retyped = {str(table): sorted(columns) for table, columns in self.retyped.items()}
        self._passed.append((position, {"place": place, "retyped": retyped}))

    def take(self, position: Gtid) -> dict[str, Any]:
        """The last note up to ``position``, once, to be stored as JSON; earlier notes are dropped."""
        found: dict[str, Any] = {}
        while self._passed and self._passed[0][0] <= position:
            _, found = self._passed.popleft()
        return found


def executed(connection: Connection, like: Gtid | None = None) -> Gtid:
    """All transactions that are visible; for MariaDB and for positions by file, all that are in the binlog. The result
    is a position of the same kind as ``like``; if that is None, of MySQL's GTIDs if they are on."""
    if connection.database.flavour == "mariadb":
        return MariadbGtid(str(connection.value("SELECT @@gtid_binlog_pos")))
    if isinstance(like, MysqlBinlog):
        return log_end(connection)
    mode = str(connection.value("SELECT @@gtid_mode")).upper()
    if mode == "ON":
        return MysqlGtid("".join(str(connection.value("SELECT @@GLOBAL.gtid_executed")).split()))
    if like is None:
        return log_end(connection)
    raise SourceSetupError(f"gtid_mode is {mode}, but the pipeline's position is a GTID set", remedy=GTID_MODE)


def log_end(connection: Connection) -> MysqlBinlog:
    """The newest binlog file, and its length."""
    newer = connection.database.flavour == "mysql" and connection.version >= (8, 4)
    row = connection.run("SHOW BINARY LOG STATUS" if newer else "SHOW MASTER STATUS")
    if not row:
        raise PositionLostError("the server writes no binlog", remedy="Set log_bin in its file and restart it.")
    return MysqlBinlog(str(row[0][0]), int(row[0][1]))


def owned(connection: Connection) -> MysqlGtid:
    """Transactions that are being committed; their rows may already be visible."""
    text = str(connection.value("SELECT @@GLOBAL.gtid_owned") or "")
    return MysqlGtid(re.sub(r"#\d+|\s", "", text))


def snapshot_position(connection: Connection) -> MariadbGtid:
    """MariaDB: the exact binlog position of this transaction's snapshot."""
    status = dict(connection.run("SHOW STATUS LIKE 'binlog_snapshot_%'"))
    file, offset = status.get("Binlog_snapshot_file", ""), status.get("Binlog_snapshot_position", "0")
    found = connection.value(f"SELECT BINLOG_GTID_POS({literal(file)}, {int(offset)})")
    if found is None:
        raise SourceError(f"the server does not know the GTID of {file}:{offset}", remedy="Set log_bin = ON.")
    return MariadbGtid(str(found))


def wait_for_commits(connection: Connection) -> None:
    """Wait until every commit that has begun by now has finished, so that everything the binlog has by now is visible.
    A commit holds a metadata lock from before it is written to the binlog until its rows are visible. MySQL without
    GTIDs shows this nowhere else."""
    until, waiting = time.monotonic() + VISIBLE_SECONDS, None
    while True:
        locks = connection.run(_COMMITTING)
        if all(kind == "COMMIT" for *_, kind in locks):  # this query itself locks the table that it reads
            raise SourceSetupError(
                "the server does not show metadata locks, which tell whether a commit has finished",
                remedy="Set performance_schema = ON in the server's option file and restart the server, "
                f"or turn GTIDs on: {GTID_MODE}",
            )
        commits = {(thread, event) for thread, event, kind in locks if kind == "COMMIT"}
        waiting = commits if waiting is None else waiting & commits
        if not waiting:
            return
        if time.monotonic() > until:
            threads = ", ".join(str(thread) for thread, _ in sorted(waiting))
            raise SourceUnavailableError(f"{connection.database}: the commits of threads {threads} do not finish")
        time.sleep(0.01)


def visible(connection: Connection, delivered: str | None) -> Gtid:
    """The transactions that are visible now, once they include all that were ``delivered``: the server sends a
    transaction to its replicas a moment before its rows become visible."""
    least = None if delivered is None else decode_position(delivered)
    assert least is None or isinstance(least, Gtid)  # noqa: S101  # a position of this source
    until, low = time.monotonic() + VISIBLE_SECONDS, executed(connection, least)
    if isinstance(low, MysqlBinlog):
        wait_for_commits(connection)
    while least is not None and not low >= least:
        if time.monotonic() > until:
            problem = f"it has not reached {least} yet. Is it a replica that lags behind?"
            raise SourceUnavailableError(f"{connection.database}: {problem}")
        time.sleep(0.01)
        low = executed(connection, least)
    return low


def log_files(connection: Connection) -> list[tuple[str, int]]:
    """Names and lengths of the binlog files, oldest first."""
    return [(str(row[0]), int(row[1])) for row in connection.run("SHOW BINARY LOGS")]


def bytes_behind(connection: Connection, place: LogPlace) -> int | None:
    """How many bytes of binlog follow ``place``; None if its file no longer exists."""
    files = log_files(connection)
    names = [name for name, _ in files]
    if place[0] not in names:
        return None
    return max(0, sum(size for _, size in files[names.index(place[0]) :]) - place[1])


def log_begin(connection: Connection, like: Gtid) -> Gtid:
    """Up to where the server has purged its binlog, as a position of the same kind as ``like``."""
    if isinstance(like, MysqlGtid):
        return MysqlGtid("".join(str(connection.value("SELECT @@GLOBAL.gtid_purged")).split()))
    first = log_files(connection)[0][0]
    if isinstance(like, MysqlBinlog):
        return MysqlBinlog(first, FIRST_OFFSET)
    events = connection.run(f"SHOW BINLOG EVENTS IN '{first}' LIMIT 5")
    lists = [match[1] for row in events if row[2] == "Gtid_list" and (match := _LIST.search(str(row[5])))]
    return MariadbGtid(lists[0] if lists else "")

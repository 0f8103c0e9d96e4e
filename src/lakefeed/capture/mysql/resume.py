"""MysqlResumePoint: where a pipeline is in a server's binlog. The server keeps nothing for it: a file of the pipeline's
own has the confirmed position, so that a server is never written to and never fills its disk for us.

GTIDs tell whether a server has the history that the position belongs to. A replica that was promoted has, so the
pipeline goes on there without a copy; a server whose GTIDs do not cover the position, and one that has purged what
comes after it, is refused.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lakefeed.capture.base import Lag
from lakefeed.capture.log import ResumePoint
from lakefeed.capture.mysql.binlog import BinlogPiece, Gtid
from lakefeed.capture.mysql.database import Database
from lakefeed.capture.mysql.dialect import executed, read_columns, read_identity
from lakefeed.capture.mysql.stream import BinlogReader, log_end, server_id
from lakefeed.capture.reader import BackgroundReader
from lakefeed.change.mysql import MariadbGtid, MysqlGtid
from lakefeed.change.position import decode_position
from lakefeed.change.table import TableId
from lakefeed.durable import make_directory, pack, replace_file, unpack
from lakefeed.errors import PositionLostError, SourceChangedError, SourceSetupError, StateError

_NAME = "binlog.resume.json"
_AGAIN = "move the pipeline's state directory away: every table is copied again"
_LIST = re.compile(r"\[(.*)\]")


class MysqlResumePoint(ResumePoint[Gtid, BinlogPiece]):
    """See ``ResumePoint``. Without a ``directory`` the position is kept in memory."""

    def __init__(self, database: Database, pipeline: str, directory: Path | None = None) -> None:
        self._database = database
        self._pipeline = pipeline
        self._file = None if directory is None else directory / _NAME
        self._kept: dict[str, Any] | None = None

    def keep_state(self, directory: Path) -> None:
        self._file = self._file or directory / _NAME

    def find(self) -> Gtid | None:
        kept = self._load()
        return None if kept is None else _position(kept)

    def identity(self) -> str:
        """Of the history, not of the server: it stays the same after a fail-over."""
        return str((self._load() or {}).get("identity"))

    def create(self, tables: Sequence[TableId]) -> Gtid:
        with self._database.connection() as connection:
            there = read_columns(connection, tables)
            for table in tables:
                if table not in there:
                    remedy = "Correct source.tables, or create the table."
                    raise SourceSetupError(f"there is no table {table}", remedy=remedy)
            kept = self._load()
            if kept is None:
                at: Gtid = executed(connection)
                kept = {
                    "identity": f"{self._database.flavour} {uuid.uuid4()}",
                    "server": read_identity(connection),
                    "position": at.encode(),
                    "file": log_end(connection)[0],
                    "tables": [],
                }
            names = sorted({*kept["tables"], *map(str, tables)})
            if names != kept["tables"]:
                kept = {**kept, "tables": names}
                self._save(kept)
        return _position(kept)

    def tables(self) -> tuple[TableId, ...]:
        """Those that were prepared."""
        return tuple(TableId.parse(name) for name in (self._load() or {}).get("tables", ()))

    def origin(self, table: TableId, delivered: Gtid | None) -> Mapping[str, Any]:  # noqa: ARG002  # all tables alike
        kept = self._load()
        if kept is None:
            raise StateError("nothing is prepared for the pipeline yet", remedy="Call prepare first.")
        return {"delivered": kept["position"] if delivered is None else delivered.encode()}

    def require(self, position: Gtid) -> None:
        kept = self._load() or {}
        with self._database.connection() as connection:
            now: Gtid = executed(connection)
            server = read_identity(connection)
            is_same = server == kept.get("server", server)
            newest = log_end(connection)[0]
            if is_same and newest < kept.get("file", 0):
                raise PositionLostError(
                    f"the binlog was reset: its newest file is number {newest}, and {kept['file']} was seen before",
                    remedy=f"Restore the server's log, or {_AGAIN}.",
                )
            if not position <= now:
                missing = (
                    position.without(now)
                    if isinstance(position, MysqlGtid) and isinstance(now, MysqlGtid)
                    else f"{position} (it has {now})"
                )
                raise PositionLostError(
                    f"{self._database} does not have the transactions that were captured up to {position}; it lacks "
                    f"{missing}",
                    remedy=f"Point source.dsn at the server that has them, or {_AGAIN}.",
                )
            if not is_same:  # its GTIDs cover ours, so it goes on; unless they prove nothing
                own = int(connection.value("SELECT @@server_id"))
                if isinstance(position, MysqlGtid):
                    proves = bool(position.intervals)
                else:  # a MariaDB GTID names its server by server_id alone
                    proves = bool(position.domains) and all(one != own for _, one, _ in position.domains)
                if not proves:
                    raise SourceChangedError(
                        f"{self._database} is another server than before, and its GTIDs do not prove the same history"
                    )
            if isinstance(position, MysqlGtid):
                purged: Gtid = MysqlGtid("".join(str(connection.value("SELECT @@GLOBAL.gtid_purged")).split()))
            else:
                first = connection.run("SHOW BINARY LOGS")[0][0]
                events = connection.run(f"SHOW BINLOG EVENTS IN '{first}' LIMIT 5")
                lists = [match[1] for row in events if (match := _LIST.search(str(row[5]))) and row[2] == "Gtid_list"]
                purged = MariadbGtid(lists[0] if lists else "")
            if not purged <= position:
                raise PositionLostError(
                    f"the binlog after {position} was purged; the server has forgotten {purged}",
                    remedy=f"Restore the server's log and keep it longer (binlog_expire_logs_seconds), or {_AGAIN}.",
                )
            if kept and (not is_same or newest > kept["file"]):
                self._save({**kept, "server": server, "file": newest})

    def start(self, after: Gtid) -> BackgroundReader[Gtid, BinlogPiece]:
        own_id = server_id(self._pipeline, str(self._file or id(self)))
        return BackgroundReader(str(self._database), BinlogReader(self._database, own_id, after, self.confirm))

    def confirm(self, position: Gtid) -> None:
        kept = self._load()
        if kept is not None and position > _position(kept):
            self._save({**kept, "position": position.encode()})

    def end(self) -> Gtid:
        with self._database.connection() as connection:
            found: Gtid = executed(connection)
            return found

    def lag(self, confirmed_at: float | None) -> Lag:
        kept = self._load()
        if kept is None:
            return Lag()
        now = self.end()
        if now <= _position(kept):
            return Lag(seconds=0.0, source={"executed": now.text()})
        seconds = None if confirmed_at is None else max(0.0, time.time() - confirmed_at)
        return Lag(seconds=seconds, source={"executed": now.text()})

    def drop(self) -> tuple[str, ...]:
        kept, self._kept = self._load(), None
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        return (_NAME,) if kept is not None else ()

    def _load(self) -> dict[str, Any] | None:
        if self._file is None:
            return self._kept
        try:
            return unpack(self._file.read_bytes(), self._file)
        except FileNotFoundError:
            return None

    def _save(self, kept: dict[str, Any]) -> None:
        if self._file is None:
            self._kept = kept
        else:
            make_directory(self._file.parent)
            replace_file(self._file, pack(kept))


def _position(kept: Mapping[str, Any]) -> Gtid:
    found = decode_position(kept["position"])
    assert isinstance(found, MysqlGtid | MariadbGtid)  # noqa: S101  # it wrote it itself
    return found

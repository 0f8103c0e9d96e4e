"""MysqlResumePoint: a pipeline's position in a server's binlog. The server keeps nothing for the pipeline: a file of
the pipeline's own has the confirmed position, so Lakefeed never writes to the server and never fills its disk.

GTIDs show whether a server has the history that the position belongs to. A promoted replica has it, so the pipeline
goes on there without a copy. A server whose GTIDs do not include the position, or that has purged what comes after it,
is refused. A position by file belongs to one server; the creation time of a file shows whether that server's log was
reset.
"""

from __future__ import annotations

import hashlib
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from lakefeed.capture.base import Lag
from lakefeed.capture.log import ResumePoint
from lakefeed.capture.mysql.binlog import BinlogPiece
from lakefeed.capture.mysql.database import Database
from lakefeed.capture.mysql.dialect import read_columns, read_identity
from lakefeed.capture.mysql.history import Gtid, StreamNotes, bytes_behind, executed, log_begin, log_end, log_files
from lakefeed.capture.mysql.stream import BinlogReader, made_at
from lakefeed.capture.mysql.xa import PreparedTransactions
from lakefeed.capture.reader import BackgroundReader
from lakefeed.change.mysql import MariadbGtid, MysqlBinlog, MysqlGtid
from lakefeed.change.position import decode_position
from lakefeed.change.table import TableId
from lakefeed.durable import pack, unpack
from lakefeed.errors import LakefeedError, PositionLostError, SourceChangedError, SourceSetupError, StateError
from lakefeed.storage.base import Storage

_NAME = "binlog.resume.json"
_AGAIN = "move the pipeline's state directory away: every table is copied again"


def server_id(pipeline: str, state: str) -> int:
    """A replica id that no server has (theirs are small) and no other pipeline: of two readers with the same id, each
    disconnects the other."""
    digest = hashlib.sha256(f"{socket.gethostname()}\0{state}\0{pipeline}".encode()).digest()
    return 0x8000_0000 | int.from_bytes(digest[:4], "big") & 0x7FFF_FFFF


class MysqlResumePoint(ResumePoint[Gtid, BinlogPiece]):
    """See ``ResumePoint``. Without ``state`` the position exists only in memory."""

    def __init__(
        self,
        database: Database,
        pipeline: str,
        prepared: PreparedTransactions,
        notes: StreamNotes,
        state: Storage | None = None,
    ) -> None:
        self._database = database
        self._prepared, self._notes = prepared, notes
        self._reader: BinlogReader | None = None
        self._pipeline = pipeline
        self._state = state
        self._kept: dict[str, Any] | None = None

    def keep_state(self, state: Storage) -> None:
        self._state = self._state or state.below()

    def find(self) -> Gtid | None:
        kept = self._load()
        return None if kept is None else _position(kept)

    def identity(self) -> str:
        """Identifies the history, not the server: it survives a fail-over."""
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
                newest, at = log_end(connection), executed(connection)
                kept = {
                    "identity": f"{self._database.flavour} {uuid.uuid4()}",
                    "server": read_identity(connection),
                    "position": at.encode(),
                    "place": (newest.file, newest.offset),
                    "log": [newest.file, made_at(self._database, newest.file)],
                    "tables": [],
                }
            names = sorted({*kept["tables"], *map(str, tables)})
            if names != kept["tables"]:
                kept = {**kept, "tables": names}
                self._save(kept)
        return _position(kept)

    def tables(self) -> tuple[TableId, ...]:
        """The tables that were prepared."""
        return tuple(TableId.parse(name) for name in (self._load() or {}).get("tables", ()))

    def origin(self, table: TableId, delivered: Gtid | None) -> Mapping[str, Any]:  # noqa: ARG002  # all tables alike
        kept = self._load()
        if kept is None:
            raise StateError("nothing is prepared for the pipeline yet", remedy="Call prepare first.")
        return {"delivered": kept["position"] if delivered is None else delivered.encode()}

    def exactly(self, origin: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**origin, "exact": True}

    def beside(self) -> Mapping[str, Any]:
        return {}

    def require(self, position: Gtid) -> None:
        server, newest = self.examine(position)
        kept = self._load()
        if kept is not None and (server != kept.get("server") or newest not in kept.get("log", ())):
            place = kept.get("place") if server == kept.get("server") else None
            log = [newest, made_at(self._database, newest)]
            self._save({**kept, "server": server, "log": log, "place": place})

    def examine(self, position: Gtid) -> tuple[str, str]:
        """As ``require``, but writes nothing. Returns the server's identity and its newest binlog file."""
        kept = self._load() or {}
        with self._database.connection() as connection:
            now, newest, server = executed(connection, position), log_end(connection), read_identity(connection)
            is_same = server == kept.get("server", server)
            if is_same and "log" in kept:
                name, made = kept["log"]
                there = name in dict(log_files(connection))
                if (there and made_at(self._database, name) != made) or MysqlBinlog(name, 0) > newest:
                    raise PositionLostError(
                        f"the binlog was reset: its file {name} is missing, or not the one that was read before",
                        remedy=f"Restore the server's log, or {_AGAIN}.",
                    )
            if not is_same and isinstance(position, MysqlBinlog):
                other = f"{self._database} is another server than before"
                raise SourceChangedError(f"{other}, and {position} is a position in the files of the previous one")
            if not position <= now:
                missing = position
                if not isinstance(position, MysqlBinlog):
                    missing = position.without(now)  # type: ignore[arg-type]  # both are of one kind
                problem = "does not have all transactions that were captured"
                raise PositionLostError(
                    f"{self._database} {problem}: it lacks {missing} and has {now}",
                    remedy=f"Point source.dsn at the server that has them, or {_AGAIN}.",
                )
            if not is_same:  # another server, whose GTIDs include ours: fine if that proves a common history
                if isinstance(position, MariadbGtid):  # its GTIDs identify a server only by server_id
                    own = int(connection.value("SELECT @@server_id"))
                    proves = bool(position.domains) and all(one != own for _, one, _ in position.domains)
                else:
                    proves = isinstance(position, MysqlGtid) and bool(position.intervals)
                if not proves:
                    raise SourceChangedError(
                        f"{self._database} is another server than before, and its GTIDs do not prove a common history"
                    )
            begin, purged = self._begin(position), log_begin(connection, position)
            if not purged <= begin:
                raise PositionLostError(
                    f"the binlog after {begin} was purged; the server no longer has anything before {purged}",
                    remedy=f"Restore the server's log and keep it longer (binlog_expire_logs_seconds), or {_AGAIN}.",
                )
        return server, newest.file

    def _begin(self, after: Gtid) -> Gtid:
        """Where a stream must start to deliver what comes after ``after``: before the XA transactions that were open at
        the confirmed position. That may be earlier than ``after``; later XA transactions began after it."""
        kept = self._load()
        return after if kept is None else min(after, _position({"position": kept.get("oldest") or kept["position"]}))

    def start(self, after: Gtid) -> BackgroundReader[Gtid, BinlogPiece]:
        begin = self._begin(after)
        self._prepared.start(begin if begin != after else None)
        self._notes.start(self._load() or {})
        own_id = server_id(self._pipeline, self._state.place(_NAME) if self._state is not None else str(id(self)))

        def refused(answer: str) -> LakefeedError:
            """The server has one code for all reasons; whether the position is at fault is found by asking again."""
            try:
                self.require(after)
            except LakefeedError as error:
                return error
            return SourceSetupError(
                f"{self._database} ended the stream of the replica {own_id}: {answer}",
                remedy=f"If another reader uses the server_id {own_id}, stop it; SHOW PROCESSLIST shows it. If the "
                f"log is damaged, {_AGAIN}.",
            )

        self._reader = BinlogReader(self._database, own_id, after, begin=begin, confirm=self.confirm, refused=refused)
        return BackgroundReader(str(self._database), self._reader)

    def confirm(self, position: Gtid) -> None:
        kept = self._load()
        if kept is None or not position > _position(kept):
            return
        oldest = self._prepared.oldest(position)
        made = self._reader.made if self._reader is not None else {}
        kept = {**kept, "position": position.encode(), "oldest": oldest.encode() if oldest != position else None}
        kept |= self._notes.take(position)
        self._save({**kept, "log": list(made.items())[-1]} if made else kept)

    def end(self) -> Gtid:
        with self._database.connection() as connection:
            return executed(connection, self.find())

    def lag(self, confirmed_at: float | None) -> Lag:
        kept = self._load()
        if kept is None:
            return Lag()
        position, place = _position(kept), kept.get("place")
        with self._database.connection() as connection:
            now, files = executed(connection, position), log_files(connection)
            expire = int(connection.value("SELECT @@GLOBAL.binlog_expire_logs_seconds"))
            behind = None if place is None else bytes_behind(connection, (place[0], place[1]))
        seconds = None if confirmed_at is None else max(0.0, time.time() - confirmed_at)
        if now <= position:
            behind, seconds = 0, 0.0
        name, names = kept["log"][0], [file for file, _ in files]  # the file of the position, or an earlier one
        return Lag(
            bytes=behind,
            seconds=seconds,
            retained_bytes=sum(size for _, size in files[names.index(name) :]) if name in names else None,
            # A file expires this long after its last change, which is later than the oldest unconfirmed change.
            left_seconds=max(0.0, expire - seconds) if expire and seconds is not None else None,
            source={"executed": now.text(), "binlog_file": name},
        )

    def away_seconds(self) -> float:
        """How long nothing has been confirmed although the server has more; 0 if it has no more."""
        age = self._state.age_seconds(_NAME, exact=False) if self._state is not None else None
        return 0.0 if age is None or self.lag(None).bytes == 0 else max(0.0, age)

    def drop(self) -> tuple[str, ...]:
        kept, self._kept = self._load(), None
        if self._state is not None:
            self._state.remove([_NAME])
        return (_NAME,) if kept is not None else ()

    def _load(self) -> dict[str, Any] | None:
        if self._state is None:
            return self._kept
        try:
            return unpack(self._state.read(_NAME), self._state.place(_NAME))
        except FileNotFoundError:
            return None

    def _save(self, kept: dict[str, Any]) -> None:
        if self._state is None:
            self._kept = kept
        else:
            self._state.replace(_NAME, pack(kept))


def _position(kept: Mapping[str, Any]) -> Gtid:
    found = decode_position(kept["position"])
    assert isinstance(found, Gtid)  # noqa: S101  # written by this class
    return found

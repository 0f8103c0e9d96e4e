"""BinlogReader: the binlog strictly after a GTID set, as the server sends it to a replica. Packets, not decoded."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import struct
import uuid
import zlib
from collections.abc import Callable

import pymysql

from lakefeed.capture.log import LogReader
from lakefeed.capture.mysql.binlog import FORMAT, HEADER, HEARTBEAT, ROTATE, BinlogPiece, Gtid
from lakefeed.capture.mysql.database import STREAM, Connection, Database, literal
from lakefeed.capture.mysql.dialect import executed
from lakefeed.capture.mysql.packets import PacketReader, Packets
from lakefeed.change.mysql import MariadbGtid, MysqlGtid
from lakefeed.errors import DecodeError, PositionLostError

_COM_BINLOG_DUMP, _COM_BINLOG_DUMP_GTID = 0x12, 0x1E
_THROUGH_GTID = 0x04
_HEARTBEAT_NANOSECONDS = 500_000_000
_UNKNOWN_SECONDS = 0.1
_FILE = re.compile(rb"[^\x00-\x1f/\\]+\.([0-9]{6,10})")
FATAL = 1236
"""The server cannot send the log from here, or another reader has the same server id."""


def server_id(pipeline: str, place: str) -> int:
    """A number that no server has (they are small) and no other pipeline: two readers of one id end each other."""
    digest = hashlib.sha256(f"{socket.gethostname()}\0{place}\0{pipeline}".encode()).digest()
    return 0x8000_0000 | int.from_bytes(digest[:4], "big") & 0x7FFF_FFFF


class BinlogReader(LogReader[Gtid, BinlogPiece]):
    """See ``LogReader``. Read without a wait, it asks the server where the log ends, and returns pieces until it has
    come there."""

    def __init__(self, database: Database, own_id: int, after: Gtid, confirm: Callable[[Gtid], None]) -> None:
        self._database = database
        self._after = after
        self._confirm = confirm
        self._connection = database.connect(STREAM)
        self._ask: Connection | None = None
        self._woken, self._waker = os.pipe()
        self._file, self._offset, self._name = 0, 0, ""
        self._has_checksums = False
        self._has_read = False
        self._target: tuple[int, int] | None = None
        self._is_closed = False
        try:
            with database.errors():
                run = self._connection.run
                run("SET SESSION net_write_timeout = 3600")  # a consumer that is busy is no dead one
                for name in ("master", "source"):
                    run(f"SET @{name}_binlog_checksum = 'CRC32'")  # as the file has it: none if that has none
                    run(f"SET @{name}_heartbeat_period = {_HEARTBEAT_NANOSECONDS}")
                if isinstance(self._after, MariadbGtid):
                    run("SET @mariadb_slave_capability = 4")
                    run("SET @slave_gtid_strict_mode = 1, @slave_gtid_ignore_duplicates = 0")
                    run(f"SET @slave_connect_state = {literal(self._after.text())}")
                    self._connection.driver._execute_command(_COM_BINLOG_DUMP, struct.pack("<IHI", 4, 0, own_id))
                else:
                    run(f"SET @slave_uuid = '{uuid.uuid5(uuid.NAMESPACE_OID, str(own_id))}'")
                    block = encode_set(self._after)
                    command = struct.pack("<HII", _THROUGH_GTID, own_id, 0) + struct.pack("<QI", 4, len(block)) + block
                    self._connection.driver._execute_command(_COM_BINLOG_DUMP_GTID, command)
                self._packets = PacketReader(self._connection, STREAM.answer, self._woken)
        except BaseException:
            self.close()
            raise

    def read(self, wait_seconds: float) -> BinlogPiece | None:
        with self._database.errors():
            if wait_seconds > 0:
                found = self._take(wait_seconds)
                return None if found is None else BinlogPiece(self._after, found)
            self._ask = self._ask or self._database.connect()
            self._target = self._target or log_end(self._ask)
            is_reached = (self._file, self._offset) >= self._target
            if is_reached or (not self._has_read and executed(self._ask) <= self._after):
                self._target = None
                return None
            return BinlogPiece(self._after, self._take(_UNKNOWN_SECONDS))

    def size(self, piece: BinlogPiece) -> int:
        return 0 if piece.packets is None else len(piece.packets.data)

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._waker, b"x")

    def confirm(self, position: Gtid) -> None:
        self._confirm(position)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._connection.sever()
        self._connection.close()
        if self._ask is not None:
            self._ask.sever()
            self._ask.close()
        for pipe in (self._woken, self._waker):
            with contextlib.suppress(OSError):
                os.close(pipe)

    def _take(self, wait_seconds: float) -> Packets | None:
        found = self._packets.take(wait_seconds)
        with contextlib.suppress(BlockingIOError):
            os.set_blocking(self._woken, False)
            os.read(self._woken, 4096)
        if found is None:
            return None
        data = found.data
        for at, end in zip(found.starts, found.ends, strict=True):
            if data[at] != 0:
                if data[at] == 0xFE:
                    raise ConnectionError("the server ended the stream")
                try:
                    pymysql.err.raise_mysql_exception(data[at:end])
                except pymysql.err.MySQLError as error:
                    if error.args[0] != FATAL:
                        raise
                    raise PositionLostError(
                        f"{self._database}: the server cannot send its log after {self._after}: {error.args[1]}",
                        remedy="If another reader has the same server id, stop it. If the log was purged or reset, "
                        "move the pipeline's state directory away: every table is copied again.",
                    ) from error
            if end - at <= HEADER.size + 4:
                raise DecodeError(f"an event of the binlog behind {self._name}:{self._offset} is too short")
            _, code, _, _, offset, _ = HEADER.unpack_from(data, at + 1)
            (checksum,) = struct.unpack_from("<I", data, end - 4)
            is_right = zlib.crc32(memoryview(data)[at + 1 : end - 4]) == checksum
            if code == FORMAT:
                self._has_checksums = data[end - 5] == 1
            if self._has_checksums and not is_right and code != ROTATE:
                raise DecodeError(
                    f"an event of the binlog behind {self._name}:{self._offset} has another checksum than its bytes",
                    remedy="Run it again, in case the network did it. If the server's file is damaged, move the "
                    "pipeline's state directory away: every table is copied again.",
                )
            if code == ROTATE:
                # Some of these events end in a checksum, whose bytes must not become part of the name (T16).
                match = _FILE.fullmatch(data, at + 1 + HEADER.size + 8, end - 4 if is_right else end)
                if match is None:
                    raise DecodeError("the binlog rotates to a file without a name")
                self._name = match[0].decode(errors="replace")
                self._file, self._offset = int(match[1]), struct.unpack_from("<Q", data, at + 1 + HEADER.size)[0]
            elif offset:
                high = self._offset >> 32 << 32
                self._offset = (
                    high + offset + ((1 << 32) if offset < self._offset & 0xFFFF_FFFF and code != FORMAT else 0)
                )
            self._has_read = self._has_read or code not in (ROTATE, FORMAT, HEARTBEAT)
        return found


def log_end(connection: Connection) -> tuple[int, int]:
    """The number of the newest file of the binlog, and its length."""
    newer = connection.database.flavour == "mysql" and connection.version >= (8, 4)
    row = connection.run("SHOW BINARY LOG STATUS" if newer else "SHOW MASTER STATUS")
    if not row:
        raise PositionLostError(
            "the server writes no binlog", remedy="Set log_bin in the server's file and restart it."
        )
    return int(str(row[0][0]).rpartition(".")[2]), int(row[0][1])


def encode_set(position: Gtid) -> bytes:
    """A GTID set as the protocol has it; its intervals end before their last number."""
    assert isinstance(position, MysqlGtid)  # noqa: S101  # MariaDB has another way
    if any(tag for (_, tag), _ in position.intervals):
        raise PositionLostError(
            "the position has tagged GTIDs, which Lakefeed does not understand yet",
            remedy="Use servers that assign no tags (gtid_next = AUTOMATIC).",
        )
    found = [struct.pack("<Q", len(position.intervals))]
    for (server, _), intervals in position.intervals:
        found += [uuid.UUID(server).bytes, struct.pack("<Q", len(intervals))]
        found += [struct.pack("<QQ", low, high + 1) for low, high in intervals]
    return b"".join(found)

"""BinlogReader: the binlog strictly after a position, as the server sends it to a replica: packets, not decoded."""

from __future__ import annotations

import contextlib
import os
import struct
import time
import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pymysql

from lakefeed.capture.log import LogReader
from lakefeed.capture.mysql.binlog import BinlogPiece
from lakefeed.capture.mysql.columns import gathered
from lakefeed.capture.mysql.database import STREAM, Connection, Database, literal
from lakefeed.capture.mysql.events import FORMAT, HEADER, HEARTBEAT, ROTATE, Place
from lakefeed.capture.mysql.history import FIRST_OFFSET, Gtid, executed, log_end, log_files
from lakefeed.capture.mysql.packets import PacketReader, Packets, join
from lakefeed.change.mysql import MariadbGtid, MysqlBinlog, MysqlGtid
from lakefeed.errors import DecodeError, PositionLostError, SourceUnavailableError

_COM_BINLOG_DUMP, _COM_BINLOG_DUMP_GTID = 0x12, 0x1E
_THROUGH_GTID = 0x04
_HEARTBEAT_NANOSECONDS = 500_000_000
_UNKNOWN_SECONDS = 0.1
_ANSWER_SECONDS = 10.0
_NUMBER = struct.Struct("<I")
_RESIDUE, _RESET = 0x2144DF1C, b"\x00\x80\xfd\xfb\xab"
_REFUSED = (1236, 4052)
"""The server cannot send the log from this position, or another reader has the same server id."""


class BinlogReader(LogReader[Gtid, BinlogPiece]):
    """See ``LogReader``. Read without a wait, it asks the server where the log ends, and returns pieces until it gets
    there. ``begin``: where the stream starts, if that is earlier than ``after``. ``refused`` turns the server's reason
    for ending the stream into an error. ``made``: creation times of the files read so far."""

    def __init__(
        self,
        database: Database,
        own_id: int,
        after: Gtid,
        *,
        begin: Gtid | None = None,
        confirm: Callable[[Gtid], None] | None = None,
        refused: Callable[[str], Exception] = PositionLostError,
    ) -> None:
        self._database = database
        self._after, self._begin = after, after if begin is None else begin
        self._confirm, self._refused = confirm, refused
        self._connection = database.connect(STREAM)
        self._ask: Connection | None = None
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        self._place = Place()
        self._has_checksums = False
        self.made: dict[str, int] = {}
        self._has_read = False
        self._end: bytes | None = None  # a packet that is not an event
        self._target: MysqlBinlog | None = None
        self._is_closed = False
        try:
            with database.errors():
                request_log(self._connection, self._begin, own_id)
                self._packets = PacketReader(self._connection, STREAM.answer, self._woken)
        except BaseException:
            self.close()
            raise

    def read(self, wait_seconds: float) -> BinlogPiece | None:
        with self._database.errors():
            if wait_seconds > 0:
                found = self._take(wait_seconds)
                return None if found is None else self._piece(found)
            self._ask = self._ask or self._database.connect()
            self._target = self._target or log_end(self._ask)
            at, target = self._place, self._target
            is_reached = (at.number, at.offset) >= (target.sequence, target.offset)
            if is_reached or (not self._has_read and executed(self._ask, self._after) <= self._after):
                self._target = None
                return None
            return self._piece(self._take(_UNKNOWN_SECONDS))

    def _piece(self, packets: Packets | None) -> BinlogPiece:
        return BinlogPiece(self._after, packets, self._begin, (self._place.name, self._place.offset))

    def size(self, piece: BinlogPiece) -> int:
        return 0 if piece.packets is None else len(piece.packets.data)

    def joined(self, pieces: Sequence[BinlogPiece]) -> list[BinlogPiece]:
        return [replace(pieces[-1], packets=join([one.packets for one in pieces if one.packets is not None]))]

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._waker, b"x")

    def confirm(self, position: Gtid) -> None:
        if self._confirm is not None:
            self._confirm(position)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for connection in (self._connection, self._ask):
            if connection is not None:
                connection.sever()
                connection.close()
        for pipe in (self._woken, self._waker):
            with contextlib.suppress(OSError):
                os.close(pipe)

    def _take(self, wait_seconds: float) -> Packets | None:
        if self._end is not None:
            self._refuse(self._end)
        found, place = self._packets.take(wait_seconds), self._place
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        if found is None:
            return None
        data, view = found.data, np.frombuffer(found.data, np.uint8)
        is_no_event = (view[found.starts] != 0) | (found.ends - found.starts <= HEADER.size + 4)
        if is_no_event.any():  # return the events before it first
            first = int(is_no_event.argmax())
            self._end = data[found.starts[first] : found.ends[first]]
            found = Packets(data, found.starts[:first], found.ends[:first])
            if first == 0:
                self._refuse(self._end)
        starts, ends = found.starts, found.ends
        codes, checked = view[starts + 5], 0
        for index in np.flatnonzero((codes == ROTATE) | (codes == FORMAT)).tolist():
            self._check_sums(found, checked, index)
            at, end, code = int(starts[index]), int(ends[index]), int(codes[index])
            if code == FORMAT:
                self._has_checksums = data[end - 5] == 1
                self.made[place.name] = _NUMBER.unpack_from(data, at + 1)[0]
            place.move(data, at + 1, end, code, _NUMBER.unpack_from(data, at + 14)[0])
            checked = index + (code == ROTATE)  # a ROTATE event may have no checksum
        self._check_sums(found, checked, len(codes))
        self._move(found, len(codes) - 1)
        self._has_read = self._has_read or not np.isin(codes, (ROTATE, FORMAT, HEARTBEAT)).all()
        return found

    def _move(self, packets: Packets, index: int) -> None:
        data, at = packets.data, int(packets.starts[index])
        self._place.move(data, at + 1, int(packets.ends[index]), data[at + 5], _NUMBER.unpack_from(data, at + 14)[0])

    def _check_sums(self, packets: Packets, low: int, high: int) -> None:
        """Verify the checksums of these events. DecodeError on a mismatch.

        One CRC-32 over all of them is enough. Bytes followed by their own CRC-32 always have the same CRC-32, the
        residue. The five bytes between two events (packet header and a zero) are replaced by _RESET, which takes the
        CRC from the residue back to its initial state. So the result is the residue if every checksum matches; a
        mismatch changes it, whatever follows."""
        if not self._has_checksums or low == high:
            return
        starts, ends = packets.starts[low:high] + 1, packets.ends[low:high] - 4
        whole = bytearray(memoryview(packets.data)[starts[0] : ends[-1] + 4])
        between: Any = np.ndarray((len(whole) - 4,), "V5", whole, 0, (1,))
        between[starts[1:] - starts[0] - 5] = np.void(_RESET)
        if zlib.crc32(whole) == _RESIDUE:
            return
        slices = map(slice, starts.tolist(), ends.tolist())
        sums = np.array(list(map(zlib.crc32, map(memoryview(packets.data).__getitem__, slices))), np.uint32)
        is_wrong = sums != gathered(np.frombuffer(packets.data, np.uint8), ends, "<u4")
        if is_wrong.any():
            first = low + int(is_wrong.argmax())
            if first:
                self._move(packets, first - 1)
            raise DecodeError(
                f"checksum mismatch in the binlog event after {self._place}",
                remedy="Run it again, in case the network is at fault. If the server's file is damaged, move the "
                "pipeline's state directory away: every table is copied again.",
            )

    def _refuse(self, packet: bytes) -> None:
        """Raise the error for a packet that is not an event: the server has ended or refused the stream."""
        if packet[0] == 0xFE:
            raise ConnectionError("the server ended the stream")
        if packet[0] == 0:
            raise DecodeError(f"the binlog event after {self._place} is too short")
        try:
            pymysql.err.raise_mysql_exception(packet)
        except pymysql.err.MySQLError as error:
            if error.args[0] not in _REFUSED:
                raise
            raise self._refused(str(error.args[1])) from error


def request_log(connection: Connection, begin: Gtid, own_id: int) -> None:
    """Make the server send its log after ``begin``, as if to the replica ``own_id``. From here on the connection
    carries only events."""
    flavour, execute = connection.database.flavour, connection.driver._execute_command
    settings = ["SESSION net_write_timeout = 3600"]  # a busy consumer is not a dead one
    settings += [  # checksums as in the file, which may have none
        f"@{name}_binlog_checksum = 'CRC32', @{name}_heartbeat_period = {_HEARTBEAT_NANOSECONDS}"
        for name in ("master", "source")
    ]
    if flavour == "mysql" and own_id:
        settings.append(f"@slave_uuid = '{uuid.uuid5(uuid.NAMESPACE_OID, str(own_id))}'")
    if flavour == "mariadb":
        settings.append("@mariadb_slave_capability = 4, @slave_gtid_strict_mode = 1, @slave_gtid_ignore_duplicates = 0")
    if isinstance(begin, MariadbGtid):
        settings.append(f"@slave_connect_state = {literal(begin.text())}")
    connection.run(f"SET {', '.join(settings)}")
    if isinstance(begin, MysqlGtid):
        block = encode_set(begin)
        head = struct.pack("<HIIQI", _THROUGH_GTID, own_id, 0, FIRST_OFFSET, len(block))
        execute(_COM_BINLOG_DUMP_GTID, head + block)
        return
    file, offset = "", FIRST_OFFSET
    if isinstance(begin, MysqlBinlog):
        file, offset = begin.file, begin.offset
        if offset >= 1 << 32:  # more than the command can carry: only one huge transaction can end there, with its file
            following = (name for name, _ in log_files(connection) if MysqlBinlog(name, FIRST_OFFSET) > begin)
            file, offset = next(following, file), FIRST_OFFSET
    execute(_COM_BINLOG_DUMP, struct.pack("<IHI", offset, 0, own_id) + file.encode())


def made_at(database: Database, name: str) -> int | None:
    """When a binlog file was created (seconds since 1970): after RESET, a file of the same name has another time. None
    if the server does not send the file."""
    with contextlib.closing(BinlogReader(database, 0, MysqlBinlog(name, FIRST_OFFSET))) as reader:
        until = time.monotonic() + _ANSWER_SECONDS
        try:
            while name not in reader.made and time.monotonic() < until:
                reader.read(1.0)
        except (SourceUnavailableError, PositionLostError):
            if name not in reader.made:  # a reader with server_id 0 gets what exists, then the end of the stream
                raise
        return reader.made.get(name)


def encode_set(position: MysqlGtid) -> bytes:
    """A GTID set in the protocol's format; the ends of intervals are exclusive. A set with tags (MySQL 8.3) is marked
    in the first and last byte of the count, and each member has its tag: the doubled length, then the text."""
    count, is_tagged = len(position.intervals), any(tag for (_, tag), _ in position.intervals)
    found = [struct.pack("<Q", 1 << 56 | count << 8 | 1 if is_tagged else count)]
    for (server, tag), intervals in position.intervals:
        name = bytes([2 * len(tag)]) + tag.encode() if is_tagged else b""
        found += [uuid.UUID(server).bytes, name, struct.pack("<Q", len(intervals))]
        found += [struct.pack("<QQ", low, high + 1) for low, high in intervals]
    return b"".join(found)

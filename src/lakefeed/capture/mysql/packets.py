"""Packets of the client protocol, read from a socket in bulk; and the rows of a prepared statement, column by column.

The driver logs in and runs small statements. Bulk data, that is rows and the binlog, is read here: all packets of one
read stay in one buffer, and two arrays say where each begins and ends.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pymysql

from lakefeed.capture.fit import REPLACED, MisfitError
from lakefeed.capture.mysql import columns as to_arrow
from lakefeed.capture.mysql.columns import (
    PAD,
    TEMPORAL,
    ByteReader,
    Field,
    Ints,
    Kind,
    big_endian,
    gathered,
    padded,
)  # fmt: skip
from lakefeed.capture.mysql.database import Connection
from lakefeed.change.batch import replaced_metadata
from lakefeed.change.choice import rule_of
from lakefeed.change.table import OutOfRange
from lakefeed.errors import DecodeError

_LONGEST = 0xFFFFFF
_GULP_BYTES = 4 << 20
_HEAD = struct.Struct("<I").unpack_from
_COM_STMT_PREPARE, _COM_STMT_EXECUTE, _COM_STMT_CLOSE = 0x16, 0x17, 0x19
_EOF, _ERROR, _OK = 0xFE, 0xFF, 0x00


@dataclass(frozen=True, slots=True)
class Packets:
    """``data[start:end]`` is the payload of each packet. ``data`` may have more bytes after the last one."""

    data: bytes
    starts: Ints
    ends: Ints


def join(runs: Sequence[Packets]) -> Packets | None:
    """Several runs as one, without the bytes after the last packet of each."""
    if len(runs) < 2:
        return runs[0] if runs else None
    data = [run.data[: int(run.ends[-1])] if len(run.ends) else b"" for run in runs]
    before = np.cumsum([0, *map(len, data[:-1])])
    starts = np.concatenate([run.starts + by for run, by in zip(runs, before, strict=True)])
    ends = np.concatenate([run.ends + by for run, by in zip(runs, before, strict=True)])
    return Packets(b"".join(data), starts, ends)


class PacketReader:
    """The packets that arrive on a connection from now on. OSError if the connection is lost."""

    def __init__(self, connection: Connection, answer_seconds: float, wake: Any = None) -> None:
        self._socket = connection.socket
        self._wake = wake
        self._answer_seconds = answer_seconds
        self._buffer = bytearray()
        self._parts: list[bytes] = []
        self._rest: Packets | None = None

    def take(self, wait_seconds: float | None = None) -> Packets | None:
        """The whole packets that have arrived; None if none arrives within ``wait_seconds``. Without ``wait_seconds``
        a silent server is a TimeoutError."""
        until = time.monotonic() + (self._answer_seconds if wait_seconds is None else wait_seconds)
        if (rest := self._rest) is not None:
            self._rest = None
            return rest
        while True:
            if found := self._whole():
                return found
            if not self._is_readable(max(0.0, until - time.monotonic())):
                if wait_seconds is None:
                    raise TimeoutError(f"the server sent nothing for {self._answer_seconds:.0f} s")
                return None
            self._socket.settimeout(self._answer_seconds)
            chunk = self._socket.recv(_GULP_BYTES)
            if not chunk:
                raise ConnectionError("the server closed the connection")
            self._buffer += chunk
            while len(self._buffer) < _GULP_BYTES and self._is_readable(0.0, wake=False):
                chunk = self._socket.recv(_GULP_BYTES)
                if not chunk:
                    break
                self._buffer += chunk

    def one(self) -> bytes:
        """The next packet. ``take`` returns the packets after it."""
        found = self.take()
        assert found is not None  # noqa: S101  # without wait_seconds, take raises instead
        if len(found.starts) > 1:
            self._rest = Packets(found.data, found.starts[1:], found.ends[1:])
        packet = found.data[found.starts[0] : found.ends[0]]
        if packet[:1] == b"\xff":
            pymysql.err.raise_mysql_exception(packet)
        return packet

    def _is_readable(self, seconds: float, *, wake: bool = True) -> bool:
        pending = getattr(self._socket, "pending", None)
        if pending is not None and pending():
            return True
        others = [self._wake] if wake and self._wake is not None else []
        ready, _, _ = select.select([self._socket, *others], [], [], seconds)
        return self._socket in ready

    def _whole(self) -> Packets | None:
        """The complete packets, up to one that is split into parts of 16 MB; that one is returned on its own."""
        data, at, size = self._buffer, 0, len(self._buffer)
        begins: list[int] = []
        last = min(0, size - 4) if self._parts else size - 4
        while at <= last:  # runs once per change, so it is short
            begins.append(at)
            at += (_HEAD(data, at)[0] & _LONGEST) + 4  # three bytes of length; the fourth is a sequence number
        if at > size:
            at = begins.pop()
        edges = np.array([*begins, at], np.int64)
        long = np.flatnonzero(np.diff(edges) == _LONGEST + 4)
        if begins and (self._parts or (len(long) and long[0] == 0)):
            end = int(edges[1])
            self._parts.append(bytes(data[4:end]))
            del self._buffer[:end]
            if len(long):
                return self._whole()
            whole, self._parts = b"".join(self._parts), []
            return Packets(whole, np.zeros(1, np.int64), np.array([len(whole)]))
        edges = edges[: long[0] + 1] if len(long) else edges
        if len(edges) == 1:
            return None
        with memoryview(data) as view:
            found = Packets(b"".join((view[: edges[-1]], bytes(PAD))), edges[:-1] + 4, edges[1:])
        del self._buffer[: edges[-1]]
        return found


_FIXED = {1: 1, 2: 2, 13: 2, 3: 4, 9: 4, 8: 8, 4: 4, 5: 8}
"""Bytes of the types without a length prefix: tiny, short, year, long, int24, longlong, float, double."""
_TIME, _BIT, _GEOMETRY = 11, 16, 255
_NAMES = {
    1: "tinyint", 2: "smallint", 13: "smallint", 3: "int", 9: "int", 8: "bigint", 7: "timestamp", 10: "date",
    12: "datetime", 11: "time", 16: "bit",
}  # fmt: skip


def read_rows(connection: Connection, sql: str, schema: pa.Schema, answer_seconds: float) -> Iterator[pa.RecordBatch]:
    """The rows of a SELECT through the binary protocol, which sends numbers unchanged: a float is not rounded.

    Prepares the statement and closes it. If the caller stops early, the connection is unusable and must be closed.
    """
    driver = connection.driver
    driver._execute_command(_COM_STMT_PREPARE, sql)
    reader = PacketReader(connection, answer_seconds)
    answer = reader.one()
    statement, count, parameters = struct.unpack_from("<IHH", answer, 1)
    for _ in range(parameters + bool(parameters) + count + bool(count)):
        reader.one()
    driver._execute_command(_COM_STMT_EXECUTE, struct.pack("<IBI", statement, 0, 1))
    count = reader.one()[0]
    if count != len(schema):
        raise DecodeError(f"a query gave {count} columns instead of {len(schema)}")
    types = []
    for _ in range(count):  # the type's code and attributes follow six texts and a length
        packet = ByteReader(reader.one())
        for _ in range(6):
            packet.text()
        width, code, flags, digits = struct.unpack("<3xIBHB", packet.take(11))
        size = width if code == _BIT else digits if digits <= 6 else 0
        types.append((code, Kind(_NAMES.get(code, "text"), bool(flags & 0x20), size)))
    reader.one()  # EOF after the column definitions
    is_over = False
    while not is_over:
        batch = reader.take()
        assert batch is not None  # noqa: S101  # without wait_seconds, take raises instead
        starts, ends = batch.starts, batch.ends
        first = batch.data[starts[-1]]
        if first == _EOF and ends[-1] - starts[-1] < 9:
            is_over, starts, ends = True, starts[:-1], ends[:-1]
        elif first == _ERROR:
            pymysql.err.raise_mysql_exception(batch.data[starts[-1] : ends[-1]])
        if len(starts):
            replaced: dict[str, int] = {}
            arrays = _decoded(batch.data, starts, ends, types, schema, replaced)
            given = schema.with_metadata(replaced_metadata(replaced)) if replaced else schema
            yield pa.RecordBatch.from_arrays(arrays, schema=given)
    driver._execute_command(_COM_STMT_CLOSE, struct.pack("<I", statement))


def _decoded(
    raw: bytes,
    row: Ints,
    limit: Ints,
    types: list[tuple[int, Kind]],
    schema: pa.Schema,
    replaced: dict[str, int],
) -> list[Any]:
    data = padded(raw)
    at = row + 1 + (len(schema) + 9) // 8
    arrays = []
    for index, ((code, kind), column) in enumerate(zip(types, schema, strict=True)):
        bit = index + 2
        valid = (data[row + 1 + bit // 8] >> (bit % 8)) & 1 == 0
        if code in _FIXED:
            lengths = np.where(valid, _FIXED[code], 0)
            begin = at
        else:
            # Length-encoded: one byte, or 0xFC, 0xFD, 0xFE followed by two, three or eight bytes.
            mark = data[at].astype(np.int64)
            lengths, begin = np.where(valid, mark, 0), at + valid
            for long_mark, width in ((0xFC, 2), (0xFD, 3), (0xFE, 8)):
                long = valid & (mark == long_mark)
                if np.any(long):
                    lengths[long] = gathered(data, at[long] + 1, "<i8") & ((1 << 8 * width) - 1 if width < 8 else -1)
                    begin[long] += width
        at = begin + lengths
        if np.any(at > limit):
            raise DecodeError("a row of a result ends too early")
        before = REPLACED.values
        try:
            arrays.append(_array(Field(data, begin, lengths, valid), code, kind, column.type, rule_of(column)))
        except MisfitError as error:
            raise error.of(column.name) from error
        if REPLACED.values > before:
            replaced[column.name] = REPLACED.values - before
    return arrays


def _array(field: Field, code: int, kind: Kind, type_: pa.DataType, rule: OutOfRange) -> Any:
    if code == _TIME:
        return to_arrow.times(field, kind, type_, *_temporal(field, is_time=True))
    if kind.name in TEMPORAL:
        parts, rule = _temporal(field, is_time=False), OutOfRange.TEXT if pa.types.is_string(type_) else rule
        return to_arrow.dates(field, kind, parts[:3] if kind.name == "date" else parts, rule)
    if code in (4, 5):
        return field.array(gathered(field.data, field.starts, "<f4" if code == 4 else "<f8"), type_)
    if code in _FIXED:
        native = to_arrow.integers(field, kind, kind.arrow())
        return native if native.type == type_ else native.cast(type_)
    if code == _BIT:
        return to_arrow.bits(field, (kind.size + 7) // 8, kind)
    if code == _GEOMETRY:
        return to_arrow.without_srid(field)
    raw = field.binary()
    if type_ == pa.binary():
        return raw
    text = raw.cast(pa.string())
    return text if type_ == pa.string() else text.cast(type_)


def _temporal(field: Field, *, is_time: bool) -> tuple[Any, ...]:
    """A date as (year, month, day, hour, minute, second, microsecond); a time as (is negative, hours, minute, second,
    microsecond). The server omits trailing parts that are zero."""
    data, at, lengths = field.data, field.starts, np.where(field.valid, field.lengths, 0)

    def byte(index: int, least: int) -> Any:
        return np.where(lengths >= least, data[np.minimum(at + index, len(data) - 1)], 0).astype(np.int64)

    whole = 12 if is_time else 11
    micro_at = np.minimum(at + whole - 4, len(data) - 4)
    micro = np.where(lengths >= whole, gathered(data, micro_at, "<u4"), 0).astype(np.int64)
    if is_time:
        days = np.where(lengths >= 8, gathered(data, np.minimum(at + 1, len(data) - 4), "<u4"), 0).astype(np.int64)
        return byte(0, 8) == 1, days * 24 + byte(5, 8), byte(6, 8), byte(7, 8), micro
    year = np.where(lengths >= 4, big_endian(data, np.minimum(at, len(data) - 2), 2), 0)
    year = (year >> 8) | (year & 0xFF) << 8
    return year, byte(2, 4), byte(3, 4), byte(4, 7), byte(5, 7), byte(6, 7), micro

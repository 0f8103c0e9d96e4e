"""COPY ... TO STDOUT (FORMAT binary): rows and values in PostgreSQL's binary form → Arrow. Pure but for ``read_copy``.

Format: PostgreSQL documentation, "COPY", "Binary Format". A header, then for each row a column count (int16) and for
each column a length (int32, -1 for NULL) and that many bytes, then a trailer. The server sends one row in a message, so
that it is known where each begins; all rows of a piece are then walked together, column by column.

Each reader of values takes a column and gives exactly what ``values.to_arrow`` gives for the printed form. What the
Arrow type cannot hold is an MisfitError by the same rule; bytes that no PostgreSQL sends are a DecodeError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
from psycopg.pq import ExecStatus

from lakefeed.capture.fit import MisfitError
from lakefeed.capture.postgres.database import Connection, quoted, run
from lakefeed.capture.postgres.values import (
    EPOCH_MICROSECONDS,
    NUMERIC,
    Bytes,
    Ints,
    Mask,
    Slices,
    SourceType,
    arrow_type,
    as_buffer,
    gathered,
    integers,
    padded,
    to_arrow,
)
from lakefeed.capture.postgres.wire import ERROR, READY, SILENCE_SECONDS, Line, error_of, is_plain, wait_ready
from lakefeed.errors import DecodeError

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES = len(_SIGNATURE) + 8  # flags, length of an extension that there is none of
_TRAILER = b"\xff\xff"
_COUNT = 2


@dataclass(frozen=True, slots=True)
class CopyRows:
    """Rows one after another in one buffer."""

    data: Bytes
    begins: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.begins)

    def message(self, index: int) -> bytes:
        return self.data[self.begins[index] : self.ends[index]].tobytes()

    def part(self, start: int, stop: int) -> CopyRows:
        """The rows from ``start`` to before ``stop``."""
        return CopyRows(self.data, self.begins[start:stop], self.ends[start:stop])

    def columns(self, count: int) -> tuple[Slices, ...]:
        """The values of each column. DecodeError if the rows are not of ``count`` columns."""
        if np.any(self.begins + _COUNT > self.ends) or np.any(integers(self.data, self.begins, ">i2") != count):
            raise DecodeError(f"a copied row does not have {count} columns")
        place = self.begins + _COUNT
        found = []
        for _ in range(count):
            starts = place + 4
            self._within(starts)
            lengths = integers(self.data, place, ">i4")
            valid = lengths >= 0
            if not valid.all():
                if np.any(lengths < -1):
                    raise DecodeError("a copied value has a negative length")
                lengths = np.maximum(lengths, 0)
            place = starts + lengths
            self._within(place)
            found.append(Slices(self.data, starts, lengths, valid))
        if np.any(place != self.ends):
            raise DecodeError("a copied row has bytes left over")
        return tuple(found)

    def _within(self, place: Ints) -> None:
        if np.any(place > self.ends):
            raise DecodeError("a copied row ends too early")


def make_rows(rows: list[bytes]) -> CopyRows:
    """Whole rows, as they come from the server."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    ends = np.cumsum(lengths)
    return CopyRows(padded(rows), ends - lengths, ends)


def read_copy(connection: Connection, query: str, *, piece_bytes: int, piece_rows: int) -> Iterator[CopyRows]:
    """The rows of ``query``, in pieces of about that size. psycopg.Error if it fails, also in the middle.

    Whoever stops before the end has no connection any more.
    """
    command = f"COPY ({query}) TO STDOUT (FORMAT binary)"
    envelope = _Envelope()
    for piece in (_from_socket if is_plain(connection) else _from_libpq)(connection, command, piece_bytes):
        rows = envelope.opened(piece)
        for start in range(0, len(rows), piece_rows):
            yield rows.part(start, min(start + piece_rows, len(rows)))
    envelope.check()


class _Envelope:
    """What is around the rows: the header, in one message with the first of them, and the trailer, a message too."""

    def __init__(self) -> None:
        self._begun = self._ended = False

    def opened(self, piece: CopyRows) -> CopyRows:
        """The rows of a piece."""
        if self._ended:
            raise DecodeError("a copy goes on behind its trailer")
        if not self._begun:
            piece, self._begun = _without_header(piece), True
        self._ended = len(piece) > 0 and piece.message(len(piece) - 1) == _TRAILER
        return piece.part(0, len(piece) - self._ended)

    def check(self) -> None:
        """DecodeError if the last message was not the trailer."""
        if not self._ended:
            raise DecodeError("a copy ended without its trailer")


def _from_socket(connection: Connection, command: str, piece_bytes: int) -> Iterator[CopyRows]:
    line, ready = Line(connection), False
    failed: psycopg.Error | None = None
    try:
        line.send(b"Q", command.encode() + b"\0")
        while not ready:
            frames = line.listen(piece_bytes)
            begins, ends = frames.data_bodies()
            if len(begins):
                yield CopyRows(frames.data, begins, ends)
            for index in frames.others():
                ready = ready or frames.kind(index) == READY
                if frames.kind(index) == ERROR:
                    failed = error_of(frames.body(index))
    except psycopg.OperationalError as error:
        raise failed or error from None  # why the server has gone, if it said so
    finally:
        line.close()
        if not ready:
            connection.close()  # libpq does not know that there is more to come
    if failed is not None:
        raise failed


def _from_libpq(connection: Connection, command: str, piece_bytes: int) -> Iterator[CopyRows]:
    pgconn = connection.pgconn
    run(connection, command)
    rows: list[bytes] = []
    size = 0
    count, data = pgconn.get_copy_data(1)
    while count >= 0:
        if count > 0:
            rows.append(data)  # type: ignore[arg-type]  # a memoryview, which join takes as well
            size += count
        elif not wait_ready((pgconn.socket,), SILENCE_SECONDS):
            connection.require_alive()
        else:
            pgconn.consume_input()
        if size >= piece_bytes:
            yield make_rows(rows)
            rows, size = [], 0
        count, data = pgconn.get_copy_data(1)
    if rows:
        yield make_rows(rows)
    failed = None  # all results are taken, also behind an error: only then can the connection be used again
    while (result := pgconn.get_result()) is not None:
        failed = result if result.status == ExecStatus.FATAL_ERROR else failed
    if failed is not None:
        raise psycopg.errors.error_from_result(failed)


def _without_header(piece: CopyRows) -> CopyRows:
    """Behind the header, the first row comes in the same message; of no rows, the trailer does."""
    first = piece.message(0) if len(piece) else b""
    if not first.startswith(_SIGNATURE) or len(first) < _HEADER_BYTES:
        raise DecodeError("a copy does not begin with its signature")
    if len(first) == _HEADER_BYTES:
        return piece.part(1, len(piece))
    begins = piece.begins.copy()
    begins[0] += _HEADER_BYTES
    return CopyRows(piece.data, begins, piece.ends)


Array = Any  # pyarrow's stubs know arrays by their scalar type, which is decided here at run time

_EPOCH_DAYS = EPOCH_MICROSECONDS // 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, counted from 1970
_DAY = 86_400_000_000
_UUID_BYTES = 16
_UUID_TEXT = 36
_JSONB_VERSION = 1
_HEX = np.frombuffer("".join(f"{octet:02x}" for octet in range(256)).encode(), np.uint16)
_UUID_PARTS = ((0, 8, 0), (8, 12, 9), (12, 16, 14), (16, 20, 19), (20, 32, 24))
"""Digits from, to, and where they go: the dashes are between."""


def booleans(values: Slices) -> Array:
    octets = _fixed(values, "u1")
    if np.any(octets[values.valid] > 1):
        raise DecodeError("a boolean that is neither 0 nor 1")
    return _made(octets != 0, values.valid)


def small_integers(values: Slices) -> Array:
    return _made(_fixed(values, ">i2").astype(np.int16), values.valid)


def plain_integers(values: Slices) -> Array:
    return _made(_fixed(values, ">i4").astype(np.int32), values.valid)


def big_integers(values: Slices) -> Array:
    return _made(_fixed(values, ">i8").astype(np.int64), values.valid)


def oids(values: Slices) -> Array:
    return _made(_fixed(values, ">u4").astype(np.int64), values.valid)


def reals(values: Slices) -> Array:
    return _made(_one_nan(_fixed(values, ">f4").astype(np.float32)), values.valid)


def doubles(values: Slices) -> Array:
    return _made(_one_nan(_fixed(values, ">f8").astype(np.float64)), values.valid)


def dates(values: Slices) -> Array:
    """Days since 2000. The two outermost numbers stand for the infinities, and are out of range here anyway."""
    days = _fixed(values, ">i4").astype(np.int64) + _EPOCH_DAYS
    _require(values.valid, days, _FIRST_DAY, _LAST_DAY, "a date")
    return _made(days.astype(np.int32), values.valid).view(pa.date32())


def timestamps(values: Slices) -> Array:
    return _instants(values).view(pa.timestamp("us"))


def zoned_timestamps(values: Slices) -> Array:
    return _instants(values).view(pa.timestamp("us", tz="UTC"))


def octets(values: Slices) -> Array:
    return values.binary()


def texts(values: Slices) -> Array:
    """Types whose binary form is the text itself."""
    try:
        return values.binary().cast(pa.string())  # checks that it is UTF-8
    except pa.ArrowInvalid as error:
        raise MisfitError(str(error).splitlines()[0][:200]) from error


def jsonb(values: Slices) -> Array:
    """A version number, then the text."""
    some = values.valid
    if np.any(values.lengths[some] < 1) or np.any(values.data[values.starts[some]] != _JSONB_VERSION):
        raise DecodeError("a jsonb of an unknown version")
    return texts(Slices(values.data, values.starts + some, values.lengths - some, some))


def uuids(values: Slices) -> Array:
    count = len(values.starts)
    raw = _fixed(values, f"V{_UUID_BYTES}").view(np.uint8)
    digits = _HEX[raw].view(np.uint8).reshape(count, 2 * _UUID_BYTES)
    text = np.full((count, _UUID_TEXT), ord("-"), np.uint8)
    for begin, end, place in _UUID_PARTS:
        text[:, place : place + end - begin] = digits[:, begin:end]
    offsets = np.arange(0, (count + 1) * _UUID_TEXT, _UUID_TEXT, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [validity(values.valid), as_buffer(offsets), as_buffer(text)])


def validity(valid: Mask) -> pa.Buffer | None:
    """Arrow's bitmap of the values that are not NULL; None if all are."""
    return None if valid.all() else as_buffer(np.packbits(valid, bitorder="little"))


def _fixed(values: Slices, kind: str) -> Any:
    """The values as numbers of one size, in the order of bytes that they came in; anything where they are NULL."""
    width = np.dtype(kind).itemsize
    if np.any(values.lengths[values.valid] != width):
        raise DecodeError(f"a value that should have {width} bytes has not")
    return gathered(values.data, values.starts, kind)


def _made(numbers: npt.NDArray[Any], valid: Mask) -> Array:
    return pa.array(numbers, mask=None if valid.all() else ~valid)


def _one_nan(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As printed, a NaN has neither sign nor payload."""
    strange = np.isnan(numbers)
    if strange.any():
        numbers[strange] = np.nan
    return numbers


def _instants(values: Slices) -> Array:
    """Microseconds since 2000."""
    micros = _fixed(values, ">i8").astype(np.int64)
    first, last = _FIRST_DAY * _DAY - EPOCH_MICROSECONDS, (_LAST_DAY + 1) * _DAY - EPOCH_MICROSECONDS - 1
    _require(values.valid, micros, first, last, "a timestamp")
    return _made(micros + EPOCH_MICROSECONDS, values.valid)


def _require(valid: Mask, numbers: npt.NDArray[Any], first: int, last: int, what: str) -> None:
    if np.any(((numbers < first) | (numbers > last)) & valid):
        raise MisfitError(f"{what} that is infinite, BC or after the year 9999")


WIDEST = 18
"""Digits that a sum in 64 bits can hold."""
_NUMERIC_HEAD = 8
_GROUP = 4  # decimal digits in a digit of base 10,000
_BASE = 10**_GROUP
_POSITIVE, _NEGATIVE, _SPECIAL = 0x0000, 0x4000, 0xC000


def decimals(values: Slices, kind: pa.Decimal128Type) -> Any:
    """A column of ``numeric`` as ``kind``, which has at most WIDEST digits."""
    some = np.flatnonzero(values.valid)
    sums = np.zeros(len(values.starts), np.int64)
    if len(some):
        data, starts, lengths = values.data, values.starts[some], values.lengths[some]
        if np.any(lengths < _NUMERIC_HEAD):
            raise DecodeError("a numeric ends too early")
        count, weight = integers(data, starts, ">i2"), integers(data, starts + 2, ">i2")
        sign = integers(data, starts + 4, ">u2")
        if np.any(sign & _SPECIAL == _SPECIAL):
            raise MisfitError("a numeric that is NaN or infinite")
        if np.any((sign != _POSITIVE) & (sign != _NEGATIVE)) or np.any(lengths != _NUMERIC_HEAD + 2 * count):
            raise DecodeError("a numeric that is none")
        found = _added(data, starts + _NUMERIC_HEAD, count, weight, kind.scale)
        if np.any(found >= 10**kind.precision):
            raise MisfitError(f"a numeric that does not fit {kind}")
        sums[some] = np.where(sign == _NEGATIVE, -found, found)
    pairs = np.empty((len(sums), 2), np.int64)  # the low half, then the high one, which is the sign alone
    pairs[:, 0], pairs[:, 1] = sums, sums >> 63
    return pa.Array.from_buffers(kind, len(sums), [validity(values.valid), as_buffer(pairs)])


def _added(data: Any, digits: Ints, count: Ints, weight: Ints, scale: int) -> Ints:
    """The absolute values times 10 to the ``scale``."""
    sums = np.zeros(len(digits), np.int64)
    lowest = -(-scale // _GROUP)  # places behind the point
    has_digits = count > 0
    highest = int(weight[has_digits].max(initial=-lowest))
    if (highest + 1) * _GROUP + scale > WIDEST + _GROUP or np.any(has_digits & (weight - count + 1 < -lowest)):
        raise MisfitError("a numeric with more digits than its column has")
    for place in range(highest, -lowest - 1, -1):
        index = weight - place
        there = (index >= 0) & (index < count)
        digit = integers(data, digits + 2 * np.where(there, index, 0), ">i2")
        digit = np.where(there, digit, 0)
        if np.any((digit < 0) | (digit >= _BASE)):
            raise DecodeError("a numeric with a digit that is none")
        kept = min(_GROUP, scale + _GROUP * (place + 1))  # of the last group, those before the scale ends
        cut = 10 ** (_GROUP - kept)
        if cut > 1 and np.any(digit % cut):
            raise MisfitError("a numeric with more digits than its column has")
        sums = sums * 10**kept + digit // cut
    return sums


_READERS: dict[int, Callable[[Slices], Any]] = {
    16: booleans,
    17: octets,
    19: texts,  # name
    20: big_integers,
    21: small_integers,
    23: plain_integers,
    25: texts,
    26: oids,
    114: texts,  # json
    700: reals,
    701: doubles,
    1042: texts,  # char(n)
    1043: texts,  # varchar
    1082: dates,
    1114: timestamps,
    1184: zoned_timestamps,
    2950: uuids,
    3802: jsonb,
}
_TEXTS = (19, 25, 114, 1042, 1043, 2950, 3802)
"""Their binary form tells what is printed, so that they may also be columns that are kept as printed."""


@dataclass(frozen=True, slots=True)
class Form:
    """``sql`` is what to select, ``read`` makes Arrow of it: MisfitError for a value that the column cannot hold."""

    sql: str
    read: Callable[[Slices], Any]


def form_of(name: str, kind: pa.DataType, stated: SourceType) -> Form:
    """``kind`` is the column's Arrow type, ``stated`` the type that the server says it has."""
    column = quoted(name)
    if arrow_type(stated) == kind:
        if stated.oid == NUMERIC and isinstance(kind, pa.Decimal128Type) and kind.precision <= WIDEST:
            return Form(column, partial(decimals, kind=kind))
        reader = _READERS.get(stated.oid)
        if reader is not None and (stated.oid in _TEXTS or kind != pa.string()):
            return Form(column, reader)
    # By the type's output function, which a cast to text is not for all types; only a NULL itself is NULL.
    return Form(
        f"CASE WHEN {column} IS DISTINCT FROM NULL THEN format('%s', {column}) END",
        lambda values: to_arrow(values.binary(), kind),
    )

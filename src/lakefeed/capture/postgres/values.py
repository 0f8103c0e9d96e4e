"""Values as PostgreSQL prints them → Arrow, a whole column at a time. Pure; the same for stream and snapshot.

The type rule says which Arrow type a column gets (the table for people is in docs/postgres.md): one rule over one
representation, the text that PostgreSQL prints under the session settings of ``database.SESSION``. A type that is not
in the table below is text, exactly as printed.

What Arrow and Spark cannot hold exactly in the column's type (``infinity``, BC, years above 9999, NaN in a numeric with
precision) stops that table with a remedy (``fit``): name the column in ``text_columns``, and it is kept as printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.fit import MisfitError

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

EPOCH_MICROSECONDS = 946_684_800_000_000
"""PostgreSQL counts time from 2000, Arrow from 1970."""
PAD = 16
"""Zero bytes behind the data, so that an integer or a uuid can be read at every place of it."""


def padded(parts: list[bytes]) -> Bytes:
    """The parts one after another, with the pad behind them."""
    return np.frombuffer(b"".join([*parts, bytes(PAD)]), np.uint8)


def gathered(data: Bytes, at: Ints, kind: str) -> Any:
    """What begins at ``at``, seen as ``kind`` (``>i4``, ``V16`` …), one for each place."""
    dtype = np.dtype(kind)
    # A view in which every byte begins a value: numpy reads unaligned, one gather instead of one for each byte.
    view: Any = np.ndarray((len(data) - dtype.itemsize + 1,), dtype, data, 0, (1,))
    return view[at]


def integers(data: Bytes, at: Ints, kind: str) -> Ints:
    """The big-endian integers (``>i4``, ``>u2`` …) that begin at ``at``, one for each place."""
    found: Ints = gathered(data, at, kind).astype(np.int64)
    return found


@dataclass(frozen=True, slots=True)
class Slices:
    """``data[start : start + length]`` for each row; NULL where ``valid`` is False."""

    data: Bytes
    starts: Ints
    lengths: Ints
    valid: Mask

    def binary(self) -> Any:
        """An Arrow binary array, copied once by Arrow itself.

        The buffer is seen as alternating values and gaps between them, whose every second element is then taken. That
        needs values in buffer order without overlap, which rows of a message stream are, with one rare exception.
        """
        count = len(self.starts)
        ends = self.starts + self.lengths
        if count == 0 or np.any(self.starts[1:] < ends[:-1]):
            pairs = zip(self.starts.tolist(), ends.tolist(), self.valid.tolist(), strict=True)
            return pa.array([self.data[a:b].tobytes() if ok else None for a, b, ok in pairs], pa.binary())
        offsets = np.empty(2 * count, np.int32)
        offsets[0::2], offsets[1::2] = self.starts, ends
        buffers: Any = [None, *map(as_buffer, (offsets, self.data))]
        alternating = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
        wanted: Any = pa.array(
            np.arange(0, 2 * count - 1, 2, dtype=np.int32), mask=None if self.valid.all() else ~self.valid
        )
        return alternating.take(wanted)


def as_buffer(array: Any) -> pa.Buffer:
    """Arrow's view of an array's memory, without a copy."""
    return pa.py_buffer(array)


NUMERIC = 1700
_WIDEST_DECIMAL = 38
_TYPMOD_HEADER = 4  # typmods of variable-length types count a header that no longer exists

_PLAIN: dict[int, pa.DataType] = {
    16: pa.bool_(),
    17: pa.binary(),  # bytea
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    26: pa.int64(),  # oid: 32 bits without a sign
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True, slots=True)
class SourceType:
    """A column's type as the catalog has it: domains are looked through to the type that they restrict."""

    oid: int
    modifier: int = -1
    name: str = ""


def arrow_type(source: SourceType) -> pa.DataType:
    """The column's Arrow type. A numeric is a decimal if its declaration bounds it to 38 digits, else text: there is no
    number type that holds it all."""
    if source.oid != NUMERIC:
        return _PLAIN.get(source.oid, pa.string())
    modifier = source.modifier - _TYPMOD_HEADER
    if modifier < 0:
        return pa.string()
    precision = modifier >> 16 & 0xFFFF
    scale = ((modifier & 0x7FF) ^ 1024) - 1024  # eleven bits with a sign, since PostgreSQL 15
    if scale < 0:  # numeric(3,-2) holds up to 99900
        precision, scale = precision - scale, 0
    precision = max(precision, scale)  # numeric(2,4) holds up to 0.0099
    return pa.decimal128(precision, scale) if precision <= _WIDEST_DECIMAL else pa.string()


KEEP_AS_TEXT = "Add '{column}' to source.text_columns, which keeps that column as PostgreSQL prints it."
"""The remedy for a value that does not fit its column."""
Array = Any  # pyarrow's stubs know arrays by their scalar type, which is decided here at run time

_BAD = 255
_NIBBLE = np.full(256, _BAD, dtype=np.uint8)
_NIBBLE[np.frombuffer(b"0123456789", np.uint8)] = np.arange(10)
_NIBBLE[np.frombuffer(b"abcdef", np.uint8)] = np.arange(10, 16)


def to_arrow(texts: Array, kind: pa.DataType) -> Array:
    """A column of printed values (binary or string) as ``kind``. MisfitError if one of them does not fit exactly."""
    try:
        if pa.types.is_binary(kind):
            return _from_hex(texts)
        strings = texts.cast(pa.string())  # from binary, this checks that it is UTF-8
        if pa.types.is_string(kind):
            return strings
        if pa.types.is_boolean(kind):
            truth = pc.equal(strings, pa.scalar("t"))
            if not pc.all(pc.or_(truth, pc.equal(strings, pa.scalar("f"))), min_count=0).as_py():
                raise MisfitError("a boolean that is neither t nor f")
            return truth
        if isinstance(kind, pa.TimestampType) and kind.tz is not None:
            # The session's time zone is UTC, so the offset is always +00.
            if not pc.all(pc.ends_with(strings, "+00"), min_count=0).as_py():
                raise MisfitError("a timestamp with time zone that is infinite, BC or not in UTC")
            return pc.assume_timezone(pc.utf8_slice_codeunits(strings, 0, -3).cast(pa.timestamp("us")), "UTC")
        return strings.cast(kind)  # of dates Arrow reads four-digit years only, and ``0044-03-15 BC`` is refused
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise MisfitError(str(error).splitlines()[0][:200]) from error


def _from_hex(texts: Array) -> Array:
    """``\\x0aff`` → two bytes. All values at once: drop the prefixes, then pair the nibbles."""
    packed = pa.concat_arrays([texts.cast(pa.binary())])  # offsets from 0, however it was sliced
    count = len(packed)
    valid = packed.is_valid().to_numpy(zero_copy_only=False)
    _, offsets_buffer, data_buffer = packed.buffers()
    if count == 0 or data_buffer is None:
        return pa.array([None if not ok else b"" for ok in valid], pa.binary())
    first = packed.offset
    offsets = np.frombuffer(offsets_buffer, np.int32)[first : first + count + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    present = np.flatnonzero(valid)
    if np.any(lengths[present] < 2) or np.any(lengths % 2):
        raise MisfitError("a bytea that is not in hexadecimal form")
    if np.any(data[starts[present]] != ord("\\")) or np.any(data[starts[present] + 1] != ord("x")):
        raise MisfitError("a bytea that is not in hexadecimal form")
    keep = np.ones(len(data), dtype=bool)
    keep[: offsets[0]] = keep[offsets[-1] :] = False
    keep[starts[present]] = keep[starts[present] + 1] = False
    nibbles = _NIBBLE[data[keep]]
    if np.any(nibbles == _BAD):
        raise MisfitError("a bytea with a digit that is not hexadecimal")
    octets = (nibbles[0::2] << 4) | nibbles[1::2]
    sizes = np.where(valid, lengths // 2 - 1, 0)
    ends = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    mask = None if valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(
        pa.binary(), count, [mask, pa.py_buffer(ends.tobytes()), pa.py_buffer(octets.tobytes())]
    )

"""Values as PostgreSQL prints them → Arrow, a whole column at a time. Pure; the same for stream and snapshot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array = Any  # pyarrow's stubs know arrays by their scalar type, which is decided here at run time

_BAD = 255
_NIBBLE = np.full(256, _BAD, dtype=np.uint8)
_NIBBLE[np.frombuffer(b"0123456789", np.uint8)] = np.arange(10)
_NIBBLE[np.frombuffer(b"abcdef", np.uint8)] = np.arange(10, 16)
_DATE_WIDTH = len("2000-01-01")


class UnfitError(Exception):
    """A value that the column's Arrow type cannot hold exactly. Internal: whoever decodes turns it into a decision."""


def to_arrow(texts: Array, kind: pa.DataType) -> Array:
    """A column of printed values (binary or string) as ``kind``. UnfitError if one of them does not fit exactly."""
    try:
        return _convert(texts, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UnfitError(str(error).splitlines()[0][:200]) from error


def _convert(texts: Array, kind: pa.DataType) -> Array:
    if pa.types.is_binary(kind):
        return _from_hex(texts)
    strings = texts.cast(pa.string())  # from binary, this checks that it is UTF-8
    if pa.types.is_string(kind):
        return strings
    if pa.types.is_boolean(kind):
        return _from_letters(strings)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _from_iso(strings, kind)
    return strings.cast(kind)


def _from_letters(strings: Array) -> Array:
    truth = pc.equal(strings, pa.scalar("t"))
    if not pc.all(pc.or_(truth, pc.equal(strings, pa.scalar("f"))), min_count=0).as_py():
        raise UnfitError("a boolean that is neither t nor f")
    return truth


def _from_iso(strings: Array, kind: pa.DataType) -> Array:
    """Arrow reads four-digit years only, and would take ``0044-03-15 BC`` for no date at all: both are refused."""
    if not isinstance(kind, pa.TimestampType) or kind.tz is None:
        return strings.cast(kind)
    # The session's time zone is UTC, so the offset is always +00.
    if not pc.all(pc.ends_with(strings, "+00"), min_count=0).as_py():
        raise UnfitError("a timestamp with time zone that is infinite, BC or not in UTC")
    return pc.assume_timezone(pc.utf8_slice_codeunits(strings, 0, -3).cast(pa.timestamp("us")), "UTC")


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
        raise UnfitError("a bytea that is not in hexadecimal form")
    if np.any(data[starts[present]] != ord("\\")) or np.any(data[starts[present] + 1] != ord("x")):
        raise UnfitError("a bytea that is not in hexadecimal form")
    keep = np.ones(len(data), dtype=bool)
    keep[: offsets[0]] = keep[offsets[-1] :] = False
    keep[starts[present]] = keep[starts[present] + 1] = False
    nibbles = _NIBBLE[data[keep]]
    if np.any(nibbles == _BAD):
        raise UnfitError("a bytea with a digit that is not hexadecimal")
    octets = (nibbles[0::2] << 4) | nibbles[1::2]
    sizes = np.where(valid, lengths // 2 - 1, 0)
    ends = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    mask = None if valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(
        pa.binary(), count, [mask, pa.py_buffer(ends.tobytes()), pa.py_buffer(octets.tobytes())]
    )

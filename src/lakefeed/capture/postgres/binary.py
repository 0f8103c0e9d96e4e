"""Values in PostgreSQL's binary form → Arrow, a whole column at a time. Pure and total.

Each function takes the values of a column and gives exactly what ``text.to_arrow`` gives for the printed form. What the
Arrow type cannot hold is an UnfitError by the same rule; bytes that no PostgreSQL sends are a DecodeError.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakefeed.capture.postgres.message import EPOCH_MICROSECONDS
from lakefeed.capture.postgres.slices import Mask, Slices, gathered
from lakefeed.capture.postgres.text import UnfitError
from lakefeed.errors import DecodeError

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


def integers(values: Slices) -> Array:
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
        raise UnfitError(str(error).splitlines()[0][:200]) from error


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
    return pa.Array.from_buffers(pa.string(), count, [validity(values.valid), _buffer(offsets), _buffer(text)])


def validity(valid: Mask) -> pa.Buffer | None:
    """Arrow's bitmap of the values that are not NULL; None if all are."""
    return None if valid.all() else _buffer(np.packbits(valid, bitorder="little"))


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
        raise UnfitError(f"{what} that is infinite, BC or after the year 9999")


def _buffer(array: npt.NDArray[Any]) -> pa.Buffer:
    stored: Any = array
    return pa.py_buffer(stored)

"""numeric in PostgreSQL's binary form → decimal128, a whole column at a time. Pure and total.

Format (numeric_send): number of digits, weight of the first, sign, display scale (int16 each), then the digits, in base
10,000. All values are added up together, one place of the number after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from lakefeed.capture.postgres.binary import validity
from lakefeed.capture.postgres.slices import Ints, Slices, integers
from lakefeed.capture.postgres.text import UnfitError
from lakefeed.errors import DecodeError

WIDEST = 18
"""Digits that a sum in 64 bits can hold."""
_HEAD = 8
_GROUP = 4  # decimal digits in a digit of base 10,000
_BASE = 10**_GROUP
_POSITIVE, _NEGATIVE, _SPECIAL = 0x0000, 0x4000, 0xC000


def decimals(values: Slices, kind: pa.Decimal128Type) -> Any:
    """A column of ``numeric`` as ``kind``, which has at most WIDEST digits."""
    some = np.flatnonzero(values.valid)
    sums = np.zeros(len(values.starts), np.int64)
    if len(some):
        sums[some] = _sums(values, some, kind)
    pairs = np.empty((len(sums), 2), np.int64)  # the low half, then the high one, which is the sign alone
    pairs[:, 0], pairs[:, 1] = sums, sums >> 63
    stored: Any = pairs
    return pa.Array.from_buffers(kind, len(sums), [validity(values.valid), pa.py_buffer(stored)])


def _sums(values: Slices, some: Ints, kind: pa.Decimal128Type) -> Ints:
    data, starts, lengths = values.data, values.starts[some], values.lengths[some]
    if np.any(lengths < _HEAD):
        raise DecodeError("a numeric ends too early")
    count, weight = integers(data, starts, ">i2"), integers(data, starts + 2, ">i2")
    sign = integers(data, starts + 4, ">u2")
    if np.any(sign & _SPECIAL == _SPECIAL):
        raise UnfitError("a numeric that is NaN or infinite")
    if np.any((sign != _POSITIVE) & (sign != _NEGATIVE)) or np.any(lengths != _HEAD + 2 * count):
        raise DecodeError("a numeric that is none")
    sums = _added(data, starts + _HEAD, count, weight, kind.scale)
    if np.any(sums >= 10**kind.precision):
        raise UnfitError(f"a numeric that does not fit {kind}")
    return np.where(sign == _NEGATIVE, -sums, sums)


def _added(data: Any, digits: Ints, count: Ints, weight: Ints, scale: int) -> Ints:
    """The absolute values times 10 to the ``scale``."""
    sums = np.zeros(len(digits), np.int64)
    lowest = -(-scale // _GROUP)  # places behind the point
    has_digits = count > 0
    highest = int(weight[has_digits].max(initial=-lowest))
    if (highest + 1) * _GROUP + scale > WIDEST + _GROUP or np.any(has_digits & (weight - count + 1 < -lowest)):
        raise UnfitError("a numeric with more digits than its column has")
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
            raise UnfitError("a numeric with more digits than its column has")
        sums = sums * 10**kept + digit // cut
    return sums

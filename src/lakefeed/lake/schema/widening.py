"""Widening: which column types hold every value of another, without rounding, cutting or parsing. Pure.

| from | to |
|---|---|
| an integer | a longer integer; double, if it has at most 32 bits; a decimal with as many digits before the point |
| float | double |
| decimal | a decimal with no fewer digits before and after the point |
| date | timestamp without time zone: midnight of that day. With a zone nobody could say whose midnight |
| list | a list of a type that holds the items |
"""

from __future__ import annotations

import pyarrow as pa

_INTEGER_DIGITS: dict[pa.DataType, int] = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


def holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Is every value of ``narrow`` a value of ``wide``, too?"""
    if wide == narrow:
        return True
    if narrow in _INTEGER_DIGITS:
        return _holds_integers(wide, narrow)
    if pa.types.is_decimal128(narrow) and pa.types.is_decimal128(wide):
        digits = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return bool(wide.scale >= narrow.scale and digits)
    if pa.types.is_list(narrow) and pa.types.is_list(wide):
        return holds(wide.value_type, narrow.value_type)
    return (narrow, wide) in ((pa.float32(), pa.float64()), (pa.date32(), pa.timestamp("us")))


def _holds_integers(wide: pa.DataType, narrow: pa.DataType) -> bool:
    digits = _INTEGER_DIGITS[narrow]
    if wide in _INTEGER_DIGITS:
        return _INTEGER_DIGITS[wide] > digits
    if wide == pa.float64():
        return digits <= 10  # 53 bits hold every 32-bit number
    return bool(pa.types.is_decimal128(wide) and wide.precision - wide.scale >= digits)

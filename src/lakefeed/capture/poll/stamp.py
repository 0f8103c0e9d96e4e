"""Time stamps of any column type as microseconds since 1970 (UTC), a whole column at a time.

| Arrow type           | read as                                                                                  |
|----------------------|------------------------------------------------------------------------------------------|
| timestamp            | itself; without a time zone it is taken for UTC                                          |
| string               | ISO 8601: date, 'T' or blank, time, up to 6 digits of a second, 'Z' or an offset or none |
| integer              | time since 1970 in seconds, milliseconds or microseconds, by its size                    |

Text is ordered by the database as text, so all values of a column must be written in one form; ``PolledTable.times``
finds out that they are not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Instants = npt.NDArray[np.int64]

_ISO = (
    r"^(?P<day>\d{4}-\d{2}-\d{2})(?:[T ](?P<minute>\d{2}:\d{2})(?::(?P<second>\d{2})(?:[.,](?P<part>\d{1,6}))?)?)?"
    r"\s*(?P<zone>Z|z|[+-]\d{2}(?::?\d{2})?)?$"
)
_SECONDS_BELOW, _MILLIS_BELOW, _MICROS_BELOW = 10**11, 10**14, 10**17


class StampError(Exception):
    """A value that is no time. Internal: whoever reads turns it into a decision."""


def is_stamp(kind: pa.DataType) -> bool:
    """Whether a column of this type can say when a row changed. A date cannot: it is the same all day long."""
    return pa.types.is_timestamp(kind) or pa.types.is_string(kind) or pa.types.is_int64(kind)


def instants(values: Any) -> Any:
    """An int64 array, NULL where ``values`` is. StampError for a value that is no time."""
    kind = values.type
    try:
        if pa.types.is_timestamp(kind):
            return values.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64())
        if pa.types.is_string(kind):
            return _from_text(values)
        return _from_numbers(values)
    except pa.ArrowInvalid as error:
        raise StampError(str(error).splitlines()[0][:200]) from error


def _from_numbers(values: Any) -> Any:
    size = pc.max(pc.abs(values)).as_py()
    if size is None or size < _SECONDS_BELOW:
        return pc.multiply_checked(values, 1_000_000)
    if size < _MILLIS_BELOW:
        return pc.multiply_checked(values, 1_000)
    if size < _MICROS_BELOW:
        return values
    raise StampError(f"{size} is not a time in seconds, milliseconds or microseconds since 1970")


def _from_text(values: Any) -> Any:
    if pc.all(pc.match_substring_regex(values, r"^-?\d{1,17}$"), min_count=1).as_py():
        return _from_numbers(values.cast(pa.int64()))  # SQLite: a number in a column declared DATETIME
    parts = pc.extract_regex(values, _ISO)
    wrong = pc.and_(pc.is_null(parts), pc.is_valid(values))
    if pc.any(wrong).as_py():
        raise StampError(f"{values.filter(wrong)[0].as_py()!r} is not a time")
    day, minute, second, part, zone = (pc.struct_field(parts, [index]) for index in range(5))
    text = pc.binary_join_element_wise(day, "T", _or(minute, "00:00"), ":", _or(second, "00"), "")
    whole = text.cast(pa.timestamp("us")).cast(pa.int64())
    micros = pc.utf8_rpad(_or(part, "0"), 6, "0").cast(pa.int64())
    return pc.subtract(pc.add(whole, micros), _offset(zone))


def _or(texts: Any, default: str) -> Any:
    return pc.if_else(pc.equal(texts, pa.scalar("")), default, texts)


def _offset(zone: Any) -> Any:
    """Of +02:00, 7_200_000_000; of Z and of nothing, 0."""
    digits = pc.replace_substring_regex(zone, r"[^0-9]", "")
    digits = pc.utf8_rpad(_or(digits, "0"), 4, "0").cast(pa.int64())
    minutes = pc.add(
        pc.multiply(pc.divide(digits, 100), 60), pc.subtract(digits, pc.multiply(pc.divide(digits, 100), 100))
    )
    sign = pc.if_else(pc.starts_with(zone, "-"), -60_000_000, 60_000_000)
    return pc.multiply(minutes, sign)

"""Values as PostgreSQL sends them, converted to Arrow a whole column at a time. Pure. docs/types.md has the types.

Values arrive in two forms, which give exactly the same results: the log has what PostgreSQL prints under
``database.SESSION``; a copy has the binary form for the types in ``_TYPES``. A type that is not listed there is text,
exactly as printed; an array of any type is a list (``lists``).

Values that Arrow and Spark cannot hold exactly in the column's type (``infinity``, BC, years above 9999, NaN in a
numeric with precision) are treated by the column's rule (``fit``). Bytes that PostgreSQL never sends raise DecodeError.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.fit import BY_RULE, REPLACED, MisfitError, out_of_range
from lakefeed.capture.postgres.lists import binary_lists, printed_lists
from lakefeed.capture.postgres.slices import Array, Mask, Slices, numbers
from lakefeed.change.table import OutOfRange
from lakefeed.errors import DecodeError

EPOCH_US = 946_684_800_000_000  # PostgreSQL counts time from 2000, Arrow from 1970
STOP, NULL, CLAMP = OutOfRange.STOP, OutOfRange.NULL, OutOfRange.CLAMP

# Remedies: for a text in a database without an encoding (the regular expression matches the bytes of valid UTF-8 in
# hexadecimal form), and for a row that the server cannot send.
NOT_UTF8 = (
    "Correct the value in the source, or take '{table}' out of source.tables. Where it is Latin-1: UPDATE {sql_table} "
    "SET {sql_column} = convert_from(convert(convert_to({sql_column}, 'SQL_ASCII'), 'LATIN1', 'UTF8'), 'SQL_ASCII') "
    "WHERE encode(convert_to({sql_column}, 'SQL_ASCII'), 'hex') "
    "!~ '^([0-7].|[cd].[89ab].|e.[89ab].[89ab].|f.[89ab].[89ab].[89ab].)*$';"
)
TOO_LARGE = "Make the row smaller (printed, less than 1 GB) or delete it, or take the table out of source.tables."

_CLOCK = r"^\d\d:\d\d:\d\d(\.\d{1,6})?$"


def may_misfit(kind: pa.DataType) -> bool:
    """Whether PostgreSQL has values, in a type that maps to ``kind``, that ``kind`` cannot hold."""
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_decimal(kind) or pa.types.is_list(kind)


def to_arrow(texts: Array, kind: pa.DataType, rule: OutOfRange = STOP) -> Array:
    """A column of printed values (binary) as ``kind``. MisfitError if a value does not fit and the rule is STOP. The
    other rules cost nothing if all values fit."""
    if pa.types.is_list(kind):
        return printed_lists(texts, kind, rule, partial(to_arrow, kind=kind.value_type, rule=rule))
    try:
        return _exactly(texts, kind)
    except MisfitError as error:
        if rule not in (NULL, CLAMP) or not may_misfit(kind) or error.remedy != BY_RULE:
            raise
        strings = texts.cast(pa.string())
    if not isinstance(kind, pa.Decimal128Type):
        return _exactly(_in_range(strings, kind, rule).cast(pa.binary()), kind)
    try:
        texts_of = strings.to_pylist()
        numbers_of = [_decimal(text, kind, rule) for text in texts_of]
    except ArithmeticError as error:
        raise DecodeError("a numeric is not a number") from error
    pairs = zip(texts_of, numbers_of, strict=True)
    REPLACED.values += sum(text is not None and (made is None or made != Decimal(text)) for text, made in pairs)
    return pa.array(numbers_of, kind)


def _exactly(texts: Array, kind: pa.DataType) -> Array:
    try:
        if pa.types.is_binary(kind):
            return _from_hex(texts)
        try:
            strings = texts.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise MisfitError("a text that is not UTF-8", remedy=NOT_UTF8) from error
        if pa.types.is_string(kind):
            return strings
        if pa.types.is_boolean(kind):
            truth = pc.equal(strings, pa.scalar("t"))
            if not pc.all(pc.or_(truth, pc.equal(strings, pa.scalar("f"))), min_count=0).as_py():
                raise out_of_range("a boolean that is neither t nor f")
            return truth
        if isinstance(kind, pa.TimestampType) and kind.tz is not None:
            # The session's time zone is UTC, so the offset is always +00.
            if not pc.all(pc.ends_with(strings, "+00"), min_count=0).as_py():
                raise out_of_range("a timestamp with time zone that is infinite, BC or not in UTC")
            return pc.assume_timezone(pc.utf8_slice_codeunits(strings, 0, -3).cast(pa.timestamp("us")), "UTC")
        try:
            return strings.cast(kind)  # Arrow only reads dates with four-digit years, and refuses ``0044-03-15 BC``
        except pa.ArrowInvalid:
            if pa.types.is_int64(kind) and pc.all(pc.match_substring_regex(strings, _CLOCK)).as_py():
                return _microseconds(strings)
            raise
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise out_of_range(str(error).splitlines()[0][:200]) from error


def _in_range(strings: Array, kind: pa.DataType, rule: OutOfRange) -> Array:
    """Dates and times, with those outside the years 1 to 9999 replaced by NULL, or by the first or last one inside."""
    is_low = pc.or_(pc.ends_with(strings, " BC"), pc.equal(strings, pa.scalar("-infinity")))
    is_fit: Any = pc.and_(pc.match_substring_regex(strings, r"^\d{4}-"), pc.invert(is_low))
    first, last = "0001-01-01", "9999-12-31"
    if isinstance(kind, pa.TimestampType):
        zone = "+00" if kind.tz is not None else ""
        first, last = f"{first} 00:00:00{zone}", f"{last} 23:59:59.999999{zone}"
    REPLACED.values += len(strings) - strings.null_count - (pc.sum(is_fit).as_py() or 0)
    nearest = pc.if_else(is_low, pa.scalar(first), pa.scalar(last)) if rule is CLAMP else pa.scalar(None, pa.string())
    return pc.if_else(is_fit, strings, nearest)


def _decimal(text: str | None, kind: pa.Decimal128Type, rule: OutOfRange) -> Decimal | None:
    """One number, if some of its column do not fit: with the scale of ``kind``, else the nearest one or NULL."""
    value, most = Decimal(text or "NaN"), Decimal(10**kind.precision - 1).scaleb(-kind.scale)
    if value.is_nan():
        return None
    nearest = max(-most, min(most, value))
    if nearest == value:  # otherwise it is at the edge and has the right scale
        nearest = _WIDE.quantize(value, Decimal(1).scaleb(-kind.scale))
    return nearest if nearest == value or rule is CLAMP else None


_WIDE = Context(prec=100, rounding=ROUND_HALF_UP)  # rounds as PostgreSQL's round does


def _microseconds(strings: Array) -> Array:
    """Times of day, ``12:34:56.789``, as microseconds since midnight."""
    hours, minutes, seconds = (pc.utf8_slice_codeunits(strings, at, at + 2).cast(pa.int64()) for at in (0, 3, 6))
    micros = pc.utf8_rpad(pc.utf8_slice_codeunits(strings, 9), 6, "0").cast(pa.int64())
    whole = pc.add(pc.multiply(pc.add(pc.multiply(hours, 60), minutes), 60), seconds)
    return pc.add(pc.multiply(whole, 1_000_000), micros)


def _from_hex(texts: Array) -> Array:
    """``\\x0aff`` as two bytes. All values at once: their digits are contiguous in Arrow's buffer."""
    if not pc.all(pc.starts_with(texts, "\\x"), min_count=0).as_py():
        raise out_of_range("a bytea that is not in hexadecimal form")
    digits = pc.replace_substring(texts, "\\x", "", max_replacements=1)
    valid, offsets, data = digits.buffers()
    ends: Any = np.frombuffer(offsets, np.int32)[: len(digits) + 1]
    try:
        octets = binascii.unhexlify(data[: ends[-1]])
    except binascii.Error as error:
        raise out_of_range("a bytea with a digit that is not hexadecimal") from error
    if np.any(ends % 2):
        raise out_of_range("a bytea that ends inside an octet")
    return pa.Array.from_buffers(pa.binary(), len(digits), [valid, pa.py_buffer(ends // 2), pa.py_buffer(octets)])


def _from_buffers(kind: pa.DataType, valid: Mask, *arrays: Any) -> Array:
    """An Arrow array over numpy's memory, without a copy."""
    bitmap = None if valid.all() else np.packbits(valid, bitorder="little")
    buffers = [None if one is None else pa.py_buffer(one) for one in (bitmap, *arrays)]
    return pa.Array.from_buffers(kind, len(valid), buffers)


_FIRST_DAY, _LAST_DAY, _DAY = -719_162, 2_932_896, 86_400_000_000  # 0001-01-01 and 9999-12-31 from 1970; a day in µs


def _fixed(values: Slices, sent: str, made: Any) -> Any:
    """The values as numbers of one size; arbitrary where they are NULL."""
    width = np.dtype(sent).itemsize
    if np.any(values.lengths[values.valid] != width):
        raise DecodeError(f"a value does not have {width} bytes")
    return numbers(values.data, values.starts, sent, made)


def _booleans(values: Slices) -> Array:
    octets = _fixed(values, "u1", np.uint8)
    if np.any(octets[values.valid] > 1):
        raise DecodeError("a boolean that is neither 0 nor 1")
    return pa.array(octets != 0, mask=~values.valid)


def _numbers(values: Slices, sent: str, kind: pa.DataType) -> Array:
    found = _fixed(values, sent, kind.to_pandas_dtype())
    if pa.types.is_floating(kind):
        found[np.isnan(found)] = np.nan  # as printed, a NaN has neither sign nor payload
    return pa.array(found, mask=None if values.valid.all() else ~values.valid)


def _instants(values: Slices, sent: str, day: int, kind: pa.DataType, rule: OutOfRange = STOP) -> Array:
    """Days or microseconds since 2000. The extreme numbers stand for the infinities, and are out of range anyway."""
    found, valid = _fixed(values, sent, np.int64), values.valid
    epoch = EPOCH_US // _DAY * day
    first, last = _FIRST_DAY * day - epoch, (_LAST_DAY + 1) * day - epoch - 1
    is_outside = ((found < first) | (found > last)) & valid
    if is_outside.any():
        if rule is NULL:
            valid = valid & ~is_outside
        elif rule is not CLAMP:
            raise out_of_range(f"a {'date' if day == 1 else 'timestamp'} that is infinite, BC or after the year 9999")
        found = np.clip(found, first, last)
        REPLACED.values += int(is_outside.sum())
    made = (found + epoch).astype(np.dtype(sent).newbyteorder("="))
    return pa.array(made, mask=None if valid.all() else ~valid).view(kind)


def _texts(values: Slices) -> Array:
    """Types whose binary form is their text."""
    return to_arrow(values.binary(), pa.string())


def _jsonb(values: Slices) -> Array:
    """A version byte, then the text."""
    some = values.valid
    if np.any(values.lengths[some] < 1) or np.any(values.data[values.starts[some]] != 1):
        raise DecodeError("a jsonb of an unknown version")
    return _texts(Slices(values.data, values.starts + some, values.lengths - some, some))


def _uuids(values: Slices) -> Array:
    count, octets = len(values.starts), _fixed(values, "V16", "V16").tobytes()
    digits = np.frombuffer(octets.hex().encode(), np.uint8).reshape(count, 32)
    text = np.insert(digits, (8, 12, 16, 20), ord("-"), axis=1)
    return _from_buffers(pa.string(), values.valid, np.arange(0, (count + 1) * 36, 36, dtype=np.int32), text)


WIDEST = 18  # digits that fit into a 64-bit sum
_NUMERIC_HEAD, _NEGATIVE, _SPECIAL = 8, 0x4000, 0xC000
_GROUP = 4  # decimal digits in a digit of base 10,000


def decimals(values: Slices, kind: pa.Decimal128Type, rule: OutOfRange = STOP) -> Array:
    """A column of ``numeric`` as ``kind``, which has at most WIDEST digits: sums up its digits of base 10,000."""
    if np.any(values.lengths[values.valid] < _NUMERIC_HEAD):
        raise DecodeError("a numeric ends too early")
    data, signs = values.data, numbers(values.data, values.starts + 4, ">u2")
    is_nan = values.valid & (signs & _SPECIAL == _SPECIAL)  # never an infinity: a numeric with a precision has none
    if is_nan.any() and rule not in (NULL, CLAMP):
        raise out_of_range("a numeric that is NaN or infinite")
    REPLACED.values += int(is_nan.sum())
    is_number = values.valid & ~is_nan
    starts, lengths = values.starts[is_number], values.lengths[is_number]
    count, weight, sign = (numbers(data, starts + at, form) for at, form in ((0, ">i2"), (2, ">i2"), (4, ">u2")))
    if np.any(sign & ~_NEGATIVE) or np.any(lengths != _NUMERIC_HEAD + 2 * count):
        raise DecodeError("a numeric has an unknown sign or a wrong length")
    sums, some = np.zeros(len(starts), np.int64), count > 0
    lowest = -(-kind.scale // _GROUP)  # groups after the decimal point
    highest = int(weight[some].max(initial=-lowest))
    too_fine = np.any(some & (weight - count + 1 < -lowest))
    if too_fine or (highest + 1) * _GROUP + kind.scale > WIDEST + _GROUP:
        raise out_of_range("a numeric with more digits than its column has")
    for power in range(highest, -lowest - 1, -1):
        index = weight - power
        there = (index >= 0) & (index < count)
        digit = np.where(there, numbers(data, starts + _NUMERIC_HEAD + 2 * np.where(there, index, 0), ">i2"), 0)
        if np.any((digit < 0) | (digit >= 10**_GROUP)):
            raise DecodeError("a numeric has a digit above 9999")
        kept = min(_GROUP, kind.scale + _GROUP * (power + 1))  # in the last group, only the digits within the scale
        cut = 10 ** (_GROUP - kept)
        if cut > 1 and np.any(digit % cut):
            raise out_of_range("a numeric with more digits than its column has")
        sums = sums * 10**kept + digit // cut
    if np.any(sums >= 10**kind.precision):
        raise out_of_range(f"a numeric that does not fit {kind}")
    pairs = np.zeros((len(values.starts), 2), np.int64)  # the low half, then the high one, which is only the sign
    pairs[is_number, 0] = np.where(sign == _NEGATIVE, -sums, sums)
    pairs[:, 1] = pairs[:, 0] >> 63
    return _from_buffers(kind, is_number, pairs)


Reader = Callable[[Slices], Array]  # a column in binary form → what to_arrow makes of, or refuses in, its printed form


def _typed(kind: pa.DataType, read: Callable[..., Array], **how: Any) -> tuple[pa.DataType, Reader]:
    return kind, partial(read, kind=kind, **how)


_TYPES: dict[int, tuple[pa.DataType, Reader]] = {
    **dict.fromkeys((19, 25, 114, 1042, 1043), (pa.string(), _texts)),  # name, text, json, char(n), varchar
    16: (pa.bool_(), _booleans),
    17: (pa.binary(), Slices.binary),  # bytea
    20: _typed(pa.int64(), _numbers, sent=">i8"),
    21: _typed(pa.int16(), _numbers, sent=">i2"),
    23: _typed(pa.int32(), _numbers, sent=">i4"),
    26: _typed(pa.int64(), _numbers, sent=">u4"),  # oid: 32 bits, unsigned
    700: _typed(pa.float32(), _numbers, sent=">f4"),
    701: _typed(pa.float64(), _numbers, sent=">f8"),
    1082: _typed(pa.date32(), _instants, sent=">i4", day=1),
    1114: _typed(pa.timestamp("us"), _instants, sent=">i8", day=_DAY),
    1184: _typed(pa.timestamp("us", tz="UTC"), _instants, sent=">i8", day=_DAY),
    2950: (pa.string(), _uuids),
    3802: (pa.string(), _jsonb),
}
"""The Arrow type of a column, and the reader of its binary form."""
_NUMERIC, _TIME, _WIDEST_DECIMAL = 1700, 1083, 38
_TYPMOD_HEADER = 4  # typmods of variable-length types count a header that no longer exists
INTEGERS = (20, 21, 23, 26)
_FIXED = {16: 1, 20: 8, 21: 2, 23: 4, 26: 4, 700: 4, 701: 8, 1082: 4, 1114: 8, 1184: 8, 2950: 16}
"""Sizes in bytes of types whose arrays are read in binary form."""
_ELEMENTS = {
    1000: 16, 1001: 17, 1003: 19, 1016: 20, 1005: 21, 1007: 23, 1009: 25, 1028: 26, 199: 114, 1021: 700, 1022: 701,
    1014: 1042, 1015: 1043, 1182: 1082, 1115: 1114, 1185: 1184, 1231: 1700, 2951: 2950, 3807: 3802,
}  # fmt: skip
"""Element types of array types. Other arrays are read in printed form."""


class SourceType(NamedTuple):
    """A column's type as the catalog has it; a domain is resolved to the type that it restricts. ``is_list``: it is an
    array of that type."""

    oid: int
    modifier: int = -1
    name: str = ""
    is_list: bool = False

    @property
    def is_numeric(self) -> bool:
        return self.oid == _NUMERIC and not self.is_list

    @property
    def is_time(self) -> bool:
        return self.oid == _TIME and not self.is_list


def arrow_type(source: SourceType) -> pa.DataType:
    """The column's Arrow type. A numeric is a decimal if it is declared with at most 38 digits, else text."""
    if source.is_list:
        return pa.list_(arrow_type(source._replace(is_list=False)))
    if source.oid != _NUMERIC:
        return _TYPES[source.oid][0] if source.oid in _TYPES else pa.string()
    modifier = source.modifier - _TYPMOD_HEADER
    if modifier < 0:
        return pa.string()
    precision = modifier >> 16 & 0xFFFF
    scale = ((modifier & 0x7FF) ^ 1024) - 1024  # eleven bits, signed since PostgreSQL 15
    if scale < 0:  # numeric(3,-2) holds up to 99900
        precision, scale = precision - scale, 0
    precision = max(precision, scale)  # numeric(2,4) holds up to 0.0099
    return pa.decimal128(precision, scale) if precision <= _WIDEST_DECIMAL else pa.string()


def stated_type(oid: int, modifier: int) -> SourceType:
    """A type as the server states it for the result of a query."""
    return SourceType(_ELEMENTS.get(oid, oid), modifier, is_list=oid in _ELEMENTS)


def form_of(column: str, kind: pa.DataType, stated: SourceType, rule: OutOfRange = STOP) -> tuple[str, Reader]:
    """What a copy selects for ``column`` (as SQL, of type ``stated`` by the server), and the reader that makes it
    ``kind``."""
    if arrow_type(stated) == kind:
        if stated.is_numeric and isinstance(kind, pa.Decimal128Type) and kind.precision <= WIDEST:
            return column, partial(decimals, kind=kind, rule=rule)
        if pa.types.is_list(kind) and stated.oid in _FIXED:
            element = _ruled(stated.oid, kind.value_type, rule)
            return column, partial(binary_lists, kind=kind, width=_FIXED[stated.oid], element=element, rule=rule)
        if stated.oid in _TYPES and not stated.is_list:
            return column, _ruled(stated.oid, kind, rule)
    if stated.is_time and pa.types.is_int64(kind):
        return column, partial(_numbers, sent=">i8", kind=kind)
    # By the type's output function, which a cast to text does not use for all types. Only NULL itself becomes NULL.
    printed = f"CASE WHEN {column} IS DISTINCT FROM NULL THEN format('%s', {column}) END"
    return printed, lambda values: to_arrow(values.binary(), kind, rule)


def _ruled(oid: int, kind: pa.DataType, rule: OutOfRange) -> Reader:
    read: Callable[..., Array] = _TYPES[oid][1]
    return partial(read, rule=rule) if may_misfit(kind) else read

"""Values as PostgreSQL sends them → Arrow, a whole column at a time. Pure. docs/postgres.md has the types for people.

Values come in two forms, which give exactly the same: the log has what PostgreSQL prints under ``database.SESSION``, a
copy has the binary form of the types in ``_TYPES``. A type that is not there is text, exactly as printed.

What Arrow and Spark cannot hold exactly in the column's type (``infinity``, BC, years above 9999, NaN in a numeric with
precision) stops that table with a remedy (``fit``): name the column in ``text_columns``, and it is kept as printed.
Bytes that no PostgreSQL sends are a DecodeError.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.fit import MisfitError
from lakefeed.errors import DecodeError

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Array = Any  # pyarrow's stubs know arrays by their scalar type, which is decided here at run time

EPOCH_US = 946_684_800_000_000  # PostgreSQL counts time from 2000, Arrow from 1970
PAD = 16  # zero bytes behind the data, so that an integer or a uuid can be read at every place of it


def numbers(data: Bytes, at: Ints, sent: str, made: Any = np.int64) -> Any:
    """What begins at ``at`` in the form ``sent`` (``>i4``, ``V16`` …), one for each place, as the dtype ``made``."""
    dtype = np.dtype(sent)
    # A view in which every byte begins a value: numpy reads unaligned, one gather instead of one for each byte.
    view: Any = np.ndarray((len(data) - dtype.itemsize + 1,), dtype, data, 0, (1,))
    return view[at].astype(made, copy=False)


@dataclass(frozen=True)
class Messages:
    """Messages one after another in one padded buffer."""

    data: Bytes
    begins: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, which: slice | Mask) -> Messages:
        return Messages(self.data, self.begins[which], self.ends[which])

    @cached_property
    def kinds(self) -> Bytes:
        """The first byte of each."""
        return self.data[self.begins]

    def message(self, index: int) -> bytes:
        return self.data[self.begins[index] : self.ends[index]].tobytes()


def as_messages(parts: list[bytes]) -> Messages:
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    ends = np.cumsum(lengths)
    return Messages(np.frombuffer(b"".join([*parts, bytes(PAD)]), np.uint8), ends - lengths, ends)


def join(runs: Sequence[Messages] = ()) -> Messages:
    """Several runs of messages as one: what is decoded together costs less than one by one."""
    runs = [run for run in runs if len(run)]
    if len(runs) < 2:
        return runs[0] if runs else as_messages([])
    # Of each buffer, only the stretch that its run lies in.
    pieces = [run.data[run.begins[0] : run.ends[-1]] for run in runs]
    ends = np.cumsum([len(piece) for piece in pieces])
    moved = [(run, end - run.ends[-1]) for run, end in zip(runs, ends, strict=True)]
    return Messages(
        np.concatenate([*pieces, np.zeros(PAD, np.uint8)]),
        np.concatenate([run.begins + by for run, by in moved]),
        np.concatenate([run.ends + by for run, by in moved]),
    )


@dataclass(frozen=True, slots=True)
class Slices:
    """A column: ``data[start : start + length]`` for each row; NULL where ``valid`` is False."""

    data: Bytes
    starts: Ints
    lengths: Ints
    valid: Mask

    def take(self, rows: Ints) -> Slices:
        return Slices(self.data, self.starts[rows], self.lengths[rows], self.valid[rows])

    def then(self, more: Slices) -> Slices:
        """These, then ``more`` of the same data."""
        starts, lengths = np.append(self.starts, more.starts), np.append(self.lengths, more.lengths)
        return Slices(self.data, starts, lengths, np.append(self.valid, more.valid))

    def binary(self) -> Array:
        """An Arrow binary array, copied once by Arrow itself: the buffer is seen as alternating values and gaps, whose
        every second element is taken. That needs values in buffer order without overlap. Rows of a message stream are,
        but for those that share one value: an old row is a delete and a before image, and completes a new one."""
        count, starts, lengths = len(self.starts), self.starts, self.lengths
        wanted: Any = np.arange(count)
        if np.any(starts[1:] < starts[:-1] + lengths[:-1]):
            starts, first, wanted = np.unique(starts, return_index=True, return_inverse=True)
            lengths = lengths[first]
        offsets: Any = np.zeros(max(2 * len(starts), 1), np.int32)
        offsets[0::2], offsets[1::2] = starts, starts + lengths
        data: Any = self.data
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        alternating = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
        return alternating.take(pa.array(2 * wanted, mask=None if self.valid.all() else ~self.valid))


# Remedies: for a value that does not fit its column; for a text of a database without an encoding (the bytes of UTF-8
# are matched in hexadecimal form); for a row that the server cannot send.
KEEP_AS_TEXT = "Add '{column}' to source.text_columns, which keeps that column as PostgreSQL prints it."
NOT_UTF8 = (
    "Correct the value in the source, or take '{table}' out of source.tables. Where it is Latin-1: UPDATE {sql_table} "
    "SET {sql_column} = convert_from(convert(convert_to({sql_column}, 'SQL_ASCII'), 'LATIN1', 'UTF8'), 'SQL_ASCII') "
    "WHERE encode(convert_to({sql_column}, 'SQL_ASCII'), 'hex') "
    "!~ '^([0-7].|[cd].[89ab].|e.[89ab].[89ab].|f.[89ab].[89ab].[89ab].)*$';"
)
TOO_LARGE = "Make the row smaller (printed, less than 1 GB) or delete it, or take the table out of source.tables."


def misfit(reason: str) -> MisfitError:
    return MisfitError(reason, remedy=KEEP_AS_TEXT)


def to_arrow(texts: Array, kind: pa.DataType) -> Array:
    """A column of printed values (binary) as ``kind``. MisfitError if one of them does not fit exactly."""
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
                raise misfit("a boolean that is neither t nor f")
            return truth
        if isinstance(kind, pa.TimestampType) and kind.tz is not None:
            # The session's time zone is UTC, so the offset is always +00.
            if not pc.all(pc.ends_with(strings, "+00"), min_count=0).as_py():
                raise misfit("a timestamp with time zone that is infinite, BC or not in UTC")
            return pc.assume_timezone(pc.utf8_slice_codeunits(strings, 0, -3).cast(pa.timestamp("us")), "UTC")
        return strings.cast(kind)  # of dates Arrow reads four-digit years only, and ``0044-03-15 BC`` is refused
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise misfit(str(error).splitlines()[0][:200]) from error


def _from_hex(texts: Array) -> Array:
    """``\\x0aff`` → two bytes. All values at once: their digits stand one after another in Arrow's buffer."""
    if not pc.all(pc.starts_with(texts, "\\x"), min_count=0).as_py():
        raise misfit("a bytea that is not in hexadecimal form")
    digits = pc.replace_substring(texts, "\\x", "", max_replacements=1)
    valid, offsets, data = digits.buffers()
    ends: Any = np.frombuffer(offsets, np.int32)[: len(digits) + 1]
    try:
        octets = binascii.unhexlify(data[: ends[-1]])
    except binascii.Error as error:
        raise misfit("a bytea with a digit that is not hexadecimal") from error
    if np.any(ends % 2):
        raise misfit("a bytea that ends inside an octet")
    return pa.Array.from_buffers(pa.binary(), len(digits), [valid, pa.py_buffer(ends // 2), pa.py_buffer(octets)])


def _from_buffers(kind: pa.DataType, valid: Mask, *arrays: Any) -> Array:
    """An Arrow array over numpy's memory, without a copy of it."""
    bitmap = None if valid.all() else np.packbits(valid, bitorder="little")
    buffers = [None if one is None else pa.py_buffer(one) for one in (bitmap, *arrays)]
    return pa.Array.from_buffers(kind, len(valid), buffers)


def copied_columns(rows: Messages, count: int) -> tuple[Slices, ...]:
    """The columns of rows in the binary form of COPY: a column count (int16), then for each column a length (int32, -1
    for NULL) and that many bytes. DecodeError if the rows are not of ``count`` columns."""
    place, ends = rows.begins + 2, rows.ends
    if np.any(place > ends) or np.any(numbers(rows.data, rows.begins, ">i2") != count):
        raise DecodeError(f"a copied row does not have {count} columns")
    found = []
    for _ in range(count):
        starts, lengths = place + 4, numbers(rows.data, place, ">i4")
        place = starts + np.maximum(lengths, 0)
        if np.any(lengths < -1) or np.any(place > ends):
            raise DecodeError("a copied row ends too early, or a value has a negative length")
        found.append(Slices(rows.data, starts, place - starts, lengths >= 0))
    if np.any(place != ends):
        raise DecodeError("a copied row has bytes left over")
    return tuple(found)


_FIRST_DAY, _LAST_DAY, _DAY = -719_162, 2_932_896, 86_400_000_000  # 0001-01-01 and 9999-12-31, from 1970; in µs


def _fixed(values: Slices, sent: str, made: Any) -> Any:
    """The values as numbers of one size; anything where they are NULL."""
    width = np.dtype(sent).itemsize
    if np.any(values.lengths[values.valid] != width):
        raise DecodeError(f"a value that should have {width} bytes has not")
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


def _instants(values: Slices, sent: str, day: int, kind: pa.DataType) -> Array:
    """Days or microseconds since 2000. The outermost numbers stand for the infinities, and are out of range anyway."""
    found = _fixed(values, sent, np.int64)
    epoch = EPOCH_US // _DAY * day
    if np.any(((found < _FIRST_DAY * day - epoch) | (found >= (_LAST_DAY + 1) * day - epoch)) & values.valid):
        raise misfit(f"a {'date' if day == 1 else 'timestamp'} that is infinite, BC or after the year 9999")
    made = (found + epoch).astype(np.dtype(sent).newbyteorder("="))
    return pa.array(made, mask=None if values.valid.all() else ~values.valid).view(kind)


def _texts(values: Slices) -> Array:
    """Types whose binary form is the text itself."""
    return to_arrow(values.binary(), pa.string())


def _jsonb(values: Slices) -> Array:
    """A version number, then the text."""
    some = values.valid
    if np.any(values.lengths[some] < 1) or np.any(values.data[values.starts[some]] != 1):
        raise DecodeError("a jsonb of an unknown version")
    return _texts(Slices(values.data, values.starts + some, values.lengths - some, some))


def _uuids(values: Slices) -> Array:
    count, octets = len(values.starts), _fixed(values, "V16", "V16").tobytes()
    digits = np.frombuffer(octets.hex().encode(), np.uint8).reshape(count, 32)
    text = np.insert(digits, (8, 12, 16, 20), ord("-"), axis=1)
    return _from_buffers(pa.string(), values.valid, np.arange(0, (count + 1) * 36, 36, dtype=np.int32), text)


WIDEST = 18  # digits that a sum in 64 bits can hold
_NUMERIC_HEAD, _NEGATIVE, _SPECIAL = 8, 0x4000, 0xC000
_GROUP = 4  # decimal digits in a digit of base 10,000


def decimals(values: Slices, kind: pa.Decimal128Type) -> Array:
    """A column of ``numeric`` as ``kind``, which has at most WIDEST digits: those of base 10,000 are added up."""
    data, starts, lengths = values.data, values.starts[values.valid], values.lengths[values.valid]
    if np.any(lengths < _NUMERIC_HEAD):
        raise DecodeError("a numeric ends too early")
    count, weight, sign = (numbers(data, starts + at, form) for at, form in ((0, ">i2"), (2, ">i2"), (4, ">u2")))
    if np.any(sign & _SPECIAL == _SPECIAL):
        raise misfit("a numeric that is NaN or infinite")
    if np.any(sign & ~_NEGATIVE) or np.any(lengths != _NUMERIC_HEAD + 2 * count):
        raise DecodeError("a numeric that is none")
    sums, some = np.zeros(len(starts), np.int64), count > 0
    lowest = -(-kind.scale // _GROUP)  # groups behind the point
    highest = int(weight[some].max(initial=-lowest))
    too_fine = np.any(some & (weight - count + 1 < -lowest))
    if too_fine or (highest + 1) * _GROUP + kind.scale > WIDEST + _GROUP:
        raise misfit("a numeric with more digits than its column has")
    for place in range(highest, -lowest - 1, -1):
        index = weight - place
        there = (index >= 0) & (index < count)
        digit = np.where(there, numbers(data, starts + _NUMERIC_HEAD + 2 * np.where(there, index, 0), ">i2"), 0)
        if np.any((digit < 0) | (digit >= 10**_GROUP)):
            raise DecodeError("a numeric with a digit that is none")
        kept = min(_GROUP, kind.scale + _GROUP * (place + 1))  # of the last group, those before the scale ends
        cut = 10 ** (_GROUP - kept)
        if cut > 1 and np.any(digit % cut):
            raise misfit("a numeric with more digits than its column has")
        sums = sums * 10**kept + digit // cut
    if np.any(sums >= 10**kind.precision):
        raise misfit(f"a numeric that does not fit {kind}")
    pairs = np.zeros((len(values.starts), 2), np.int64)  # the low half, then the high one, which is the sign alone
    pairs[values.valid, 0] = np.where(sign == _NEGATIVE, -sums, sums)
    pairs[:, 1] = pairs[:, 0] >> 63
    return _from_buffers(kind, values.valid, pairs)


Reader = Callable[[Slices], Array]  # a column in binary form → what to_arrow gives, and refuses, in printed form


def _typed(kind: pa.DataType, read: Callable[..., Array], **how: Any) -> tuple[pa.DataType, Reader]:
    return kind, partial(read, kind=kind, **how)


_TYPES: dict[int, tuple[pa.DataType, Reader]] = {
    **dict.fromkeys((19, 25, 114, 1042, 1043), (pa.string(), _texts)),  # name, text, json, char(n), varchar
    16: (pa.bool_(), _booleans),
    17: (pa.binary(), Slices.binary),  # bytea
    20: _typed(pa.int64(), _numbers, sent=">i8"),
    21: _typed(pa.int16(), _numbers, sent=">i2"),
    23: _typed(pa.int32(), _numbers, sent=">i4"),
    26: _typed(pa.int64(), _numbers, sent=">u4"),  # oid: 32 bits without a sign
    700: _typed(pa.float32(), _numbers, sent=">f4"),
    701: _typed(pa.float64(), _numbers, sent=">f8"),
    1082: _typed(pa.date32(), _instants, sent=">i4", day=1),
    1114: _typed(pa.timestamp("us"), _instants, sent=">i8", day=_DAY),
    1184: _typed(pa.timestamp("us", tz="UTC"), _instants, sent=">i8", day=_DAY),
    2950: (pa.string(), _uuids),
    3802: (pa.string(), _jsonb),
}
"""Which Arrow type a column gets, and what reads its binary form."""
_NUMERIC, _WIDEST_DECIMAL = 1700, 38
_TYPMOD_HEADER = 4  # typmods of variable-length types count a header that no longer exists


class SourceType(NamedTuple):
    """A column's type as the catalog has it: domains are looked through to the type that they restrict."""

    oid: int
    modifier: int = -1
    name: str = ""


def arrow_type(source: SourceType) -> pa.DataType:
    """The column's Arrow type. A numeric is a decimal if it is declared with at most 38 digits, else text."""
    if source.oid != _NUMERIC:
        return _TYPES[source.oid][0] if source.oid in _TYPES else pa.string()
    modifier = source.modifier - _TYPMOD_HEADER
    if modifier < 0:
        return pa.string()
    precision = modifier >> 16 & 0xFFFF
    scale = ((modifier & 0x7FF) ^ 1024) - 1024  # eleven bits with a sign, since PostgreSQL 15
    if scale < 0:  # numeric(3,-2) holds up to 99900
        precision, scale = precision - scale, 0
    precision = max(precision, scale)  # numeric(2,4) holds up to 0.0099
    return pa.decimal128(precision, scale) if precision <= _WIDEST_DECIMAL else pa.string()


def form_of(column: str, kind: pa.DataType, stated: SourceType) -> tuple[str, Reader]:
    """What a copy selects for ``column`` (as SQL, of type ``stated`` by the server), and what makes ``kind`` of it."""
    if arrow_type(stated) == kind:
        if stated.oid == _NUMERIC and isinstance(kind, pa.Decimal128Type) and kind.precision <= WIDEST:
            return column, partial(decimals, kind=kind)
        if stated.oid in _TYPES:
            return column, _TYPES[stated.oid][1]
    # By the type's output function, which a cast to text is not for all types; only a NULL itself is NULL.
    printed = f"CASE WHEN {column} IS DISTINCT FROM NULL THEN format('%s', {column}) END"
    return printed, lambda values: to_arrow(values.binary(), kind)

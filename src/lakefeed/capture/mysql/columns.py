"""Kind: the type of a MySQL or MariaDB column, as both the catalog and the binlog can state it, and its Arrow type.
Then the conversion of values in a buffer to Arrow, a whole column at a time, for the stream and for copies. Pure.

docs/mysql.md has the table of types. A Kind has only what both sides know, so that a table has the same schema whoever
describes it: texts and bytes have their maximum length in bytes, and a mediumtext is a text.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.fit import BY_RULE, REPLACED, MisfitError
from lakefeed.change.table import OutOfRange
from lakefeed.errors import DecodeError

Flavour = Literal["mysql", "mariadb"]
INTEGERS = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
"""Their sizes in bytes."""
TEMPORAL = ("date", "datetime", "timestamp")
_SIGNED: dict[int, pa.DataType] = {1: pa.int8(), 2: pa.int16(), 3: pa.int32(), 4: pa.int32(), 8: pa.int64()}
_UNSIGNED: dict[int, pa.DataType] = dict(
    zip((1, 2, 3, 4), (pa.int16(), pa.int32(), pa.int32(), pa.int64()), strict=True)
)
_UNSIGNED[8] = pa.decimal128(20, 0)
_PLAIN: dict[str, pa.DataType] = {
    "float": pa.float32(), "double": pa.float64(), "year": pa.int16(), "date": pa.date32(),
    "datetime": pa.timestamp("us"), "timestamp": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(), "varbinary": pa.binary(), "blob": pa.binary(), "geometry": pa.binary(),
    "vector": pa.binary(),
}  # fmt: skip
WIDEST_DECIMAL, _DIGITS_OF_64_BITS = 38, 18
_GEOMETRIES = (
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
    "geometrycollection", "geomcollection",
)  # fmt: skip
_TYPE = re.compile(r"(\w+)(?:\((\d+)(?:,(\d+))?\))?")
_MEMBER = re.compile(r"'((?:[^']|'')*)'")

CODECS: dict[str, str] = {
    "utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "ascii": "utf-8", "latin1": "latin1", "ucs2": "utf-16-be",
    "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be", "gbk": "gbk", "gb2312": "gb2312",
    "gb18030": "gb18030", "big5": "big5", "sjis": "shift_jis", "cp932": "cp932", "ujis": "euc_jp", "euckr": "euc_kr",
    "latin2": "iso8859-2", "latin5": "iso8859-9", "latin7": "iso8859-13", "greek": "iso8859-7", "hebrew": "iso8859-8",
    "cp1250": "cp1250", "cp1251": "cp1251", "cp1256": "cp1256", "cp1257": "cp1257", "cp850": "cp850", "cp852": "cp852",
    "cp866": "cp866", "koi8r": "koi8-r", "koi8u": "koi8-u", "tis620": "tis-620",
}  # fmt: skip
"""Python's names of the server's character sets. A column in any other one is refused."""


ZeroDates = OutOfRange
"""What happens to impossible dates (0000-00-00, 2026-00-10). ``source.zero_dates`` applies where no rule of the lake
does."""


@dataclass(frozen=True, slots=True)
class Kind:
    """``size`` is a decimal's precision, the number of bits of a bit, the fractional digits of a time, or the maximum
    bytes of a text. ``charset`` is the character set of texts, enum and set; ``members`` are those of enum and set."""

    name: str
    unsigned: bool = False
    size: int = 0
    scale: int = 0
    charset: str = ""
    members: tuple[str, ...] = ()

    @property
    def source_type(self) -> str:
        sizes = f"({self.size},{self.scale})" if self.name == "decimal" else f"({self.size})" if self.size else ""
        return f"{self.name}{sizes}{' unsigned' if self.unsigned else ''}"

    def arrow(self, zero_dates: ZeroDates = ZeroDates.STOP) -> pa.DataType:
        if self.name in INTEGERS:
            return (_UNSIGNED if self.unsigned else _SIGNED)[INTEGERS[self.name]]
        if self.name == "decimal":
            return pa.decimal128(self.size, self.scale) if self.size <= WIDEST_DECIMAL else pa.string()
        if self.name == "bit":
            return pa.bool_() if self.size == 1 else pa.int64() if self.size < 64 else pa.decimal128(20, 0)
        if self.name in TEMPORAL and zero_dates is ZeroDates.TEXT:
            return pa.string()
        return _PLAIN.get(self.name, pa.string())  # texts, enum, set, json, time, uuid, inet4, inet6


def kind_of(
    column_type: str, charset: str | None, precision: int | None, scale: int | None, longest: int | None
) -> Kind | None:
    """The kind of a column of information_schema.COLUMNS, from COLUMN_TYPE, CHARACTER_SET_NAME, NUMERIC_PRECISION,
    NUMERIC_SCALE and CHARACTER_OCTET_LENGTH. None for an unknown type."""
    match = _TYPE.match(column_type.lower())
    if match is None:
        return None
    name, size = match[1], int(match[2] or 0)
    unsigned = "unsigned" in column_type.lower().partition("(")[2] or " unsigned" in column_type.lower()
    if name in INTEGERS:
        return Kind(name, unsigned)
    if name == "decimal":
        return Kind(name, False, precision or 0, scale or 0)
    if name in ("float", "double", "year", "json", "date"):
        return Kind(name)
    if name in ("datetime", "timestamp", "time", "bit", "binary"):
        return Kind(name, size=size)
    if name in ("enum", "set"):
        members = tuple(one.replace("''", "'") for one in _MEMBER.findall(column_type))
        return Kind(name, charset=charset or "", members=members)
    if name in ("char", "varchar") or name.endswith("text"):
        return Kind("text" if name.endswith("text") else name, size=longest or 0, charset=charset or "")
    if name == "varbinary" or name.endswith("blob"):
        return Kind("varbinary" if name == "varbinary" else "blob", size=longest or 0)
    if name in _GEOMETRIES:
        return Kind("geometry")
    return Kind(name) if name in ("vector", "uuid", "inet4", "inet6") else None


Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PAD = 64
"""Zero bytes after the data, so that a number can be read at every offset, even where the value is NULL. The longest
number, a decimal, has 30 bytes."""
ZERO_DATES = f"Correct the value. {BY_RULE}"
_MICROSECONDS = 1_000_000
_DAY = 86_400 * _MICROSECONDS
_CP1252 = bytes(range(256)).decode("cp1252", "replace")
_LATIN1 = "".join(chr(code) if letter == "\ufffd" else letter for code, letter in enumerate(_CP1252))
"""MySQL's latin1 is cp1252, with control characters where cp1252 has no character."""


class ByteReader:
    """Reads bytes from front to back. DecodeError if they end too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._data)

    def take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) < count:
            raise DecodeError("an event or a packet ends too early")
        self._at += count
        return found

    def number(self) -> int:
        """A length-encoded number: one byte, or 0xFC, 0xFD, 0xFE followed by two, three or eight bytes."""
        first = self.take(1)[0]
        return first if first < 0xFB else int.from_bytes(self.take({0xFC: 2, 0xFD: 3}.get(first, 8)), "little")

    def numbers(self) -> list[int]:
        """All numbers up to the end."""
        found = []
        while not self.is_over:
            found.append(self.number())
        return found

    def text(self) -> bytes:
        """A length-encoded string: a number, and as many bytes."""
        return self.take(self.number())

    def rest(self) -> bytes:
        return self._data[self._at :]


def padded(data: bytes | bytearray, end: int | None = None) -> Bytes:
    """The data, followed by PAD zero bytes. ``end`` is the end of data that may already be followed by them."""
    is_padded = end is not None and len(data) >= end + PAD
    return np.frombuffer(data if is_padded else bytes(data) + bytes(PAD), np.uint8)


def gathered(data: Bytes, at: Ints, kind: str) -> Any:
    """The values of type ``kind`` (``<i4``, ``>u2`` …) at the given offsets."""
    width = np.dtype(kind).itemsize
    return _gathered(data, at, width).view(kind) if width > 1 else data[at].view(kind)


def _gathered(data: Bytes, at: Ints, width: int) -> Any:
    view: Any = np.ndarray((len(data) - width + 1,), f"V{width}", data, 0, (1,))  # a value starts at every byte
    return view[at]


def big_endian(data: Bytes, at: Ints, width: int) -> Ints:
    """Unsigned numbers of ``width`` bytes, 7 at most."""
    if width == 0:
        return np.zeros(len(at), np.int64)
    whole = gathered(data, at, ">u8") >> np.uint64(64 - 8 * width)
    return whole.astype(np.int64)  # type: ignore[no-any-return]


def begin_with(data: Bytes, at: Ints, text: bytes) -> Mask:
    """Whether ``text`` is found at each offset. At least len(text) bytes must follow each."""
    if not text:
        return np.ones(len(at), bool)
    words = -(-len(text) // 8)
    found = _gathered(data, at, 8 * words).view("<u8").reshape(len(at), words)
    wanted = np.frombuffer(text.ljust(8 * words, b"\0"), "<u8")
    same = found[:, :-1] == wanted[:-1]
    last = (found[:, -1] ^ wanted[-1]) << np.uint64(64 * words - 8 * len(text))
    return same.all(axis=1) & (last == 0)  # type: ignore[no-any-return]


def _buffer(array: Any) -> pa.Buffer:
    """An Arrow buffer over an array's memory, without a copy."""
    return pa.py_buffer(array)


@dataclass(frozen=True, slots=True)
class Field:
    """One column of many rows: ``data[start : start + length]`` for each row; NULL where ``valid`` is False."""

    data: Bytes
    starts: Ints
    lengths: Ints
    valid: Mask

    def binary(self) -> Any:
        """An Arrow binary array, which Arrow copies once: the buffer is viewed as alternating values and gaps, of which
        every second one is taken. Values must be in buffer order and must not overlap."""
        count = len(self.starts)
        if count == 0:
            return pa.array([], pa.binary())
        offsets = np.empty(2 * count, np.int32)
        offsets[0::2] = self.starts
        offsets[1::2] = self.starts + self.lengths
        buffers: Any = [None, _buffer(offsets), _buffer(self.data)]
        alternating = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
        wanted: Any = np.arange(0, 2 * count - 1, 2, dtype=np.int32)
        return alternating.take(pa.array(wanted, mask=None if self.valid.all() else ~self.valid))

    def array(self, values: Any, type_: pa.DataType) -> Any:
        """Numbers for every row, with NULLs inserted."""
        return pa.array(values, type_, mask=None if self.valid.all() else ~self.valid)

    def text(self, values: Any) -> Any:
        """Texts for every row, with NULLs inserted."""
        return values if self.valid.all() else pc.if_else(pa.array(self.valid), values, None)


def integers(field: Field, kind: Kind, type_: pa.DataType) -> Any:
    """Little-endian integers, as in the binlog and in the binary protocol; a mediumint has 3 bytes in the binlog."""
    width = INTEGERS[kind.name]
    if width == 8 and kind.unsigned:
        return unsigned(field, gathered(field.data, field.starts, "<u8"))
    if width == 3:
        found = gathered(field.data, field.starts, "<u4").astype(np.int64) & 0xFFFFFF
        values: Any = found if kind.unsigned else found - ((found & 0x800000) << 1)
    else:
        values = gathered(field.data, field.starts, f"<{'u' if kind.unsigned else 'i'}{width}")
    return field.array(values.astype(type_.to_pandas_dtype()), type_)


def unsigned(field: Field, values: Any) -> Any:
    """Unsigned 64-bit numbers as decimal(20, 0)."""
    halves = np.zeros((len(values), 2), np.uint64)
    halves[:, 0] = values
    return _decimals(field, halves, 20, 0)


def _decimals(field: Field, halves: Any, precision: int, scale: int) -> Any:
    """128-bit numbers given as two halves, the lower one first."""
    validity = None if field.valid.all() else _buffer(np.packbits(field.valid, bitorder="little"))
    buffers: Any = [validity, _buffer(np.ascontiguousarray(halves))]
    return pa.Array.from_buffers(pa.decimal128(precision, scale), len(halves), buffers)


def bits(field: Field, width: int, kind: Kind) -> Any:
    """Big-endian in ``width`` bytes, in the binlog and in results alike."""
    found = np.zeros(len(field.starts), np.uint64)
    for index in range(width):
        found = (found << np.uint64(8)) | field.data[field.starts + index].astype(np.uint64)
    if kind.size == 64:
        return unsigned(field, found)
    return field.array(found.astype(bool) if kind.size == 1 else found.astype(np.int64),
                       pa.bool_() if kind.size == 1 else pa.int64())  # fmt: skip


def packed_decimal(field: Field, kind: Kind) -> Any:
    """Groups of nine digits in four bytes, with smaller groups at both ends. The first bit is the sign; the bits of a
    negative number are inverted."""
    groups, values = decimal_groups(kind), []
    at, negative = field.starts, field.data[field.starts] < 0x80
    for index, (_, width) in enumerate(groups):
        value = big_endian(field.data, at, width) ^ (1 << (8 * width - 1) if index == 0 else 0)
        values.append(np.where(negative, value ^ ((1 << (8 * width)) - 1), value))
        at = at + width
    if kind.size > WIDEST_DECIMAL:  # beyond Arrow's decimal128: text, as the server prints it
        text = _joined("", *(_digits(value, digits) for value, (digits, _) in zip(values, groups, strict=True)))
        whole = pc.utf8_ltrim(pc.utf8_slice_codeunits(text, 0, kind.size - kind.scale), "0")
        parts = [pc.if_else(pc.equal(whole, pa.scalar("")), "0", whole)]
        if kind.scale:
            parts.append(pc.utf8_slice_codeunits(text, kind.size - kind.scale, kind.size))
        is_minus = negative & np.any([value != 0 for value in values], axis=0)
        return field.text(_joined("", _signs(is_minus), _joined(".", *parts)))
    if kind.size <= _DIGITS_OF_64_BITS:
        number = values[0]
        for value, (digits, _) in zip(values[1:], groups[1:], strict=True):
            number = number * 10**digits + value
        number = np.where(negative, -number, number)
        return _decimals(field, np.stack((number, number >> 63), axis=1), kind.size, kind.scale)
    limbs = [np.zeros(len(at), np.uint64) for _ in range(4)]  # of 32 bits each, the lowest one first
    for value, (digits, _) in zip(values, groups, strict=True):
        carry = value.astype(np.uint64)
        for index, limb in enumerate(limbs):
            product = limb * np.uint64(10**digits) + carry
            limbs[index], carry = product & np.uint64(0xFFFFFFFF), product >> np.uint64(32)
    low, high = limbs[0] | limbs[1] << np.uint64(32), limbs[2] | limbs[3] << np.uint64(32)
    halves = np.where(negative, ~low + np.uint64(1), low), np.where(negative, ~high + (low == 0), high)
    return _decimals(field, np.stack(halves, axis=1), kind.size, kind.scale)


_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4)


def decimal_groups(kind: Kind) -> list[tuple[int, int]]:
    """Digits and bytes of each group of a packed decimal, from left to right."""
    whole = kind.size - kind.scale
    first, last = [(whole % 9, _BYTES[whole % 9])], [(kind.scale % 9, _BYTES[kind.scale % 9])]
    return [one for one in [*first, *[(9, 4)] * (whole // 9 + kind.scale // 9), *last] if one[0]]


def _last_day(year: Any, month: Any) -> Any:
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    return np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 0, 0, 0])[month & 15] + (leap & (month == 2))


def dates(field: Field, kind: Kind, parts: tuple[Any, ...], zero_dates: ZeroDates) -> Any:
    """``parts`` are year, month, day and, unless the column is a date, hour, minute, second, microsecond. CLAMP
    replaces an impossible date by the nearest one in the same year and month, if these are valid."""
    year, month, day, *clock = (np.asarray(one, np.int64) for one in parts)
    if zero_dates is ZeroDates.TEXT:
        text = _joined("-", _digits(year, 4), _digits(month, 2), _digits(day, 2))
        return field.text(_joined(" ", text, _clock(kind.size, *clock)) if clock else text)
    is_date = (month >= 1) & (month <= 12) & (day >= 1) & (day <= _last_day(year, month)) & (year >= 1)
    if not np.all(is_date | ~field.valid):
        REPLACED.values += int(np.sum(~is_date & field.valid))
        if zero_dates is ZeroDates.CLAMP:
            year, month = np.maximum(year, 1), np.clip(month, 1, 12)
            day = np.clip(day, 1, _last_day(year, month))
        elif zero_dates is ZeroDates.NULL:
            field = Field(field.data, field.starts, field.lengths, field.valid & is_date)
        else:
            raise MisfitError("it holds an impossible date, such as 0000-00-00", remedy=ZERO_DATES)
    # Days of the civil calendar, with years that begin in March, so that the leap day is the last one.
    shifted = year - (month <= 2)
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    days = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    if kind.name == "date":
        return field.array(days.astype(np.int32), pa.int32()).cast(pa.date32())
    hour, minute, second, micro = clock
    values = days * _DAY + (hour * 3_600 + minute * 60 + second) * _MICROSECONDS + micro
    return field.array(values, pa.int64()).cast(kind.arrow(zero_dates))


def instants(field: Field, kind: Kind, seconds: Any, micro: Any, zero_dates: ZeroDates) -> Any:
    """Timestamps from seconds since 1970; MySQL stores 0 for 0000-00-00 00:00:00."""
    if zero_dates is not ZeroDates.TEXT and not np.any((seconds == 0) & field.valid):
        return field.array(seconds * _MICROSECONDS + micro, pa.int64()).cast(kind.arrow(zero_dates))
    whole = seconds.astype("datetime64[s]").astype("datetime64[D]")
    years = whole.astype("datetime64[Y]").astype(np.int64) + 1970
    months = whole.astype("datetime64[M]").astype(np.int64) % 12 + 1
    day = (whole - whole.astype("datetime64[M]")).astype(np.int64) + 1
    of_day, zero = seconds % 86_400, seconds == 0
    parts = [np.where(zero, 0, one) for one in (years, months, day, of_day // 3_600, of_day // 60 % 60, of_day % 60)]
    return dates(field, kind, (*parts, micro), zero_dates)


def times(
    field: Field, kind: Kind, type_: pa.DataType, negative: Any, hour: Any, minute: Any, second: Any, micro: Any
) -> Any:
    """Times of up to 838 hours, as the server prints them, or in microseconds."""
    if pa.types.is_int64(type_):
        whole = (hour.astype(np.int64) * 3_600 + minute * 60 + second) * _MICROSECONDS + micro
        return field.array(np.where(negative, -whole, whole), type_)
    return field.text(_joined("", _signs(negative), _clock(kind.size, hour, minute, second, micro)))


def _clock(digits: int, hour: Any, minute: Any, second: Any, micro: Any) -> Any:
    """Times as the server prints them, with this number of fractional digits."""
    text = _joined(":", _digits(hour, 2), _digits(minute, 2), _digits(second, 2))
    return _joined(".", text, pc.utf8_slice_codeunits(_digits(micro, 6), 0, digits)) if digits else text


def _digits(values: Any, least: int) -> Any:
    """Numbers as texts with at least this many digits."""
    return pc.utf8_lpad(pa.array(values.astype(np.int64)).cast(pa.string()), least, "0")


def _signs(negative: Any) -> Any:
    return pc.if_else(pa.array(negative), "-", "")


def _joined(between: str, *texts: Any) -> Any:
    return pc.binary_join_element_wise(*texts, between)


def decoded_text(raw: Any, charset: str) -> Any:
    """Bytes in a server's character set as strings."""
    codec = CODECS.get(charset)
    if codec is None:
        raise MisfitError(f"Lakefeed cannot decode its character set {charset}", remedy=_CONVERT)
    if codec == "utf-8":
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise DecodeError(f"a text is not valid {charset}: {error}") from error
    encoded = raw.dictionary_encode()
    try:
        if charset == "latin1":
            texts = [one.decode("latin1").translate(_LATIN1_TABLE) for one in encoded.dictionary.to_pylist()]
        else:
            texts = [one.decode(codec) for one in encoded.dictionary.to_pylist()]
    except UnicodeDecodeError as error:
        raise MisfitError(f"it holds a text that is not valid {charset}", remedy=_CONVERT) from error
    return pa.array(texts, pa.string()).take(encoded.indices)


_CONVERT = "ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4; for its column {column}."


_LATIN1_TABLE = dict(enumerate(_LATIN1))


def padded_binary(field: Field, size: int) -> Any:
    """binary(n) values: the binlog omits trailing zero bytes."""
    if np.all((field.lengths == size) | ~field.valid):
        return field.binary()
    return _fixed(field, _filled_up(field, size))


def _filled_up(field: Field, size: int) -> Bytes:
    """One line of ``size`` bytes for each value, padded with zeros."""
    offsets = np.arange(size)
    found = field.data[np.minimum(field.starts[:, None] + offsets, len(field.data) - 1)]
    return np.where(offsets < field.lengths[:, None], found, np.uint8(0))


def _fixed(field: Field, lines: Bytes) -> Any:
    """The lines of a matrix as binary values, with NULLs inserted."""
    buffers: Any = [None, _buffer(np.ascontiguousarray(lines))]
    found = pa.Array.from_buffers(pa.binary(lines.shape[1]), len(lines), buffers).cast(pa.binary())
    return found if field.valid.all() else pc.if_else(pa.array(field.valid), found, None)


_HEXADECIMAL = np.frombuffer(b"0123456789abcdef", np.uint8)
_ADDRESS_BYTES = {"uuid": 16, "inet4": 4, "inet6": 16}


def addresses(field: Field, name: str) -> Any:
    """MariaDB's uuid, inet4 and inet6 as it prints them. The log omits trailing zero bytes."""
    size = _ADDRESS_BYTES[name]
    if np.any(field.lengths[field.valid] > size):
        raise DecodeError(f"a value of type {name} has more than {size} bytes")
    lines = _filled_up(field, size)
    if name == "inet4":
        return field.text(_joined(".", *(_digits(lines[:, index], 1) for index in range(size))))
    if name == "uuid":
        digits = _HEXADECIMAL[np.stack((lines >> 4, lines & 15), axis=2)].reshape(len(lines), 2 * size)
        return _fixed(field, np.insert(digits, (8, 12, 16, 20), ord("-"), axis=1)).cast(pa.string())
    encoded = _fixed(field, lines).dictionary_encode()  # inet_ntop knows which zeros an inet6 omits
    texts = [socket.inet_ntop(socket.AF_INET6, one) for one in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def without_srid(field: Field) -> Any:
    """WKB: the server stores a geometry as four bytes of SRID followed by WKB."""
    skipped = np.minimum(field.lengths, 4)
    return Field(field.data, field.starts + skipped, field.lengths - skipped, field.valid).binary()

"""TableMap: what a TABLE_MAP event tells of a table under ``binlog_row_metadata = FULL``. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from pymysql.charset import charset_by_id

from lakefeed.capture.mysql.columns import decimal_groups
from lakefeed.capture.mysql.kind import CODECS, Kind
from lakefeed.change.table import TableId
from lakefeed.errors import DecodeError

_BINARY = 63
_NUMERIC = {1: "tinyint", 2: "smallint", 9: "mediumint", 3: "int", 8: "bigint", 246: "decimal", 4: "float", 5: "double"}
_WIDTHS = {1: 1, 2: 2, 9: 3, 3: 4, 8: 8, 4: 4, 5: 8, 13: 1, 10: 3}
_CHARACTER = (254, 253, 15, 252)
_META_BYTES = {246: 2, 254: 2, 253: 2, 15: 2, 252: 1, 245: 1, 255: 1, 242: 1, 16: 2, 4: 1, 5: 1, 17: 1, 18: 1, 19: 1}
_BLOBS = {252: "blob", 245: "json", 255: "geometry", 242: "vector"}
_FRACTIONS = {17: ("timestamp", 4), 18: ("datetime", 5), 19: ("time", 3)}
_KNOWN = {*_NUMERIC, *_CHARACTER, *_BLOBS, *_FRACTIONS, 13, 10, 16, 247, 248}


@dataclass(frozen=True, slots=True)
class WireColumn:
    """How a column stands in a row: ``width`` bytes, or ``prefix`` bytes of length before it. ``kind`` is None for a
    type that is not understood."""

    name: str
    kind: Kind | None
    nullable: bool
    width: int
    prefix: int


@dataclass(frozen=True, slots=True)
class TableMap:
    """``columns`` have empty names where the log has none."""

    table: TableId
    columns: tuple[WireColumn, ...]
    key: tuple[int, ...]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        found = self.data[self.at : self.at + count]
        if len(found) < count:
            raise DecodeError("a table map ends too early")
        self.at += count
        return found

    def number(self) -> int:
        first = self.take(1)[0]
        return first if first < 0xFB else int.from_bytes(self.take({0xFC: 2, 0xFD: 3}.get(first, 8)), "little")

    def numbers(self) -> list[int]:
        found = []
        while self.at < len(self.data):
            found.append(self.number())
        return found


def read_table_map(body: bytes, *, counts_years: bool = False) -> TableMap:
    """The event without its header and table id. DecodeError for whatever it should not be. ``counts_years``: MariaDB
    tells of year columns, too, whether they have a sign."""
    reader = _Reader(body)
    schema = reader.take(reader.take(1)[0] + 1)[:-1].decode(errors="replace")
    name = reader.take(reader.take(1)[0] + 1)[:-1].decode(errors="replace")
    count = reader.number()
    codes = list(reader.take(count))
    metas = _Reader(reader.take(reader.number()))
    meta = [metas.take(_META_BYTES.get(code, 0)) for code in codes]
    nulls = reader.take((count + 7) // 8)
    extras: dict[int, bytes] = {}
    while reader.at < len(body):
        field = reader.take(1)[0]
        extras[field] = reader.take(reader.number())
    for index, code in enumerate(codes):
        if code == 254 and meta[index][0] in (247, 248):  # enum and set hide behind a char
            codes[index] = meta[index][0]
    unsigned = _flags(extras.get(1, b""), [code in _NUMERIC or (counts_years and code == 13) for code in codes])
    charsets = _charsets(extras.get(2), extras.get(3), [code in _CHARACTER for code in codes])
    member_sets = _charsets(extras.get(10), extras.get(11), [code in (247, 248) for code in codes])
    members = {247: _members(extras.get(6, b"")), 248: _members(extras.get(5, b""))}
    names = _Reader(extras.get(4, b""))
    columns = []
    for index, code in enumerate(codes):
        called = names.take(names.number()).decode(errors="replace") if 4 in extras else ""
        collation = charsets[index] if charsets[index] is not None else member_sets[index]
        charset = charset_name(collation) if collation is not None else ""
        listed = members[code].pop(0) if members.get(code) else ()
        texts = tuple(one.decode(CODECS.get(charset, "latin1"), "replace") for one in listed)
        kind, width, prefix = _kind(code, meta[index], unsigned[index], collation, charset, texts)
        nullable = bool(nulls[index // 8] >> (index % 8) & 1)
        columns.append(WireColumn(called, kind, nullable, width, prefix))
    key = _Reader(extras[8]).numbers() if 8 in extras else _Reader(extras.get(9, b"")).numbers()[0::2]
    if any(index >= count for index in key) or not schema or not name or "." in schema:
        raise DecodeError("a table map names no table, or a key that is not there")
    return TableMap(TableId(schema, name), tuple(columns), tuple(key))


def _kind(
    code: int, meta: bytes, unsigned: bool, collation: int | None, charset: str, members: tuple[str, ...]
) -> tuple[Kind | None, int, int]:
    """The kind, the width and the bytes of the length before it."""
    if code == 246:
        kind = Kind("decimal", False, meta[0], meta[1])
        return kind, sum(width for _, width in decimal_groups(kind)), 0
    if code in _NUMERIC:
        return Kind(_NUMERIC[code], unsigned and code not in (4, 5)), _WIDTHS[code], 0
    if code in (13, 10):
        return Kind("year" if code == 13 else "date"), _WIDTHS[code], 0
    if code in _FRACTIONS:
        name, width = _FRACTIONS[code]
        return Kind(name, size=meta[0]), width + (meta[0] + 1) // 2, 0
    if code == 16:
        return Kind("bit", size=meta[1] * 8 + meta[0]), meta[1] + bool(meta[0]), 0
    if code in (247, 248):
        return Kind("enum" if code == 247 else "set", charset=charset, members=members), meta[1], 0
    if code == 15 or code == 253:
        longest = int.from_bytes(meta, "little")
        kind = Kind("varbinary") if collation == _BINARY else Kind("varchar", charset=charset)
        return kind, 0, 2 if longest > 255 else 1
    if code == 254:
        # Lengths above 255 hide two bits in the first byte, inverted.
        longest = ((meta[0] << 4 & 0x300) ^ 0x300) + meta[1]
        kind = Kind("binary", size=longest) if collation == _BINARY else Kind("char", charset=charset)
        return kind, 0, 2 if longest > 255 else 1
    if code in _BLOBS:
        name = _BLOBS[code]
        if name == "blob" and collation != _BINARY:
            return Kind("text", charset=charset), 0, meta[0]
        return Kind(name), 0, meta[0]
    return None, 0, 0


def _flags(bitmap: bytes, chosen: list[bool]) -> list[bool]:
    found, at = [], 0
    for is_chosen in chosen:
        found.append(is_chosen and at // 8 < len(bitmap) and bool(bitmap[at // 8] & 0x80 >> at % 8))
        at += is_chosen
    return found


def _charsets(default: bytes | None, each: bytes | None, chosen: list[bool]) -> list[int | None]:
    """The collation of each chosen column: a list of all, or a default and the exceptions."""
    if each is not None:
        given = _Reader(each).numbers()
    else:
        usual, *pairs = _Reader(default or b"").numbers() or [0]
        exceptions = dict(zip(pairs[0::2], pairs[1::2], strict=False))
        given = [exceptions.get(index, usual) for index in range(sum(chosen))]
    if len(given) < sum(chosen):
        raise DecodeError("a table map has too few collations")
    numbers = iter(given)
    return [next(numbers) if is_chosen else None for is_chosen in chosen]


def _members(data: bytes) -> list[tuple[bytes, ...]]:
    reader, found = _Reader(data), []
    while reader.at < len(data):
        found.append(tuple(reader.take(reader.number()) for _ in range(reader.number())))
    return found


@cache
def charset_name(collation: int) -> str:
    """The character set of a collation, by its number; empty if nobody knows it."""
    if 2048 <= collation <= 4096:  # MariaDB's uca1400 collations, by character set
        return {8: "utf8mb3", 9: "utf8mb4", 10: "ucs2", 11: "utf16", 12: "utf32"}.get(collation >> 8, "")
    try:
        found: Any = charset_by_id(collation)
        return str(found.name)
    except (KeyError, AttributeError):
        return ""

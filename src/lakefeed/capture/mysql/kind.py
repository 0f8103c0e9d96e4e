"""Kind: the type of a MySQL or MariaDB column, as the catalog and the binlog both can tell it, and its Arrow type.

The table for people is in docs/mysql.md. A kind has only what both sides know, so that a table looks the same whoever
describes it: the binlog does not tell the length of a varchar, nor text from mediumtext.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import pyarrow as pa

INTEGERS = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
"""Bytes of each."""
TEMPORAL = ("date", "datetime", "timestamp")
TEXTS = ("char", "varchar", "text", "enum", "set")
_SIGNED: dict[int, pa.DataType] = {1: pa.int8(), 2: pa.int16(), 3: pa.int32(), 4: pa.int32(), 8: pa.int64()}
_UNSIGNED: dict[int, pa.DataType] = {
    1: pa.int16(),
    2: pa.int32(),
    3: pa.int32(),
    4: pa.int64(),
    8: pa.decimal128(20, 0),
}
_PLAIN: dict[str, pa.DataType] = {
    "float": pa.float32(), "double": pa.float64(), "year": pa.int16(), "date": pa.date32(),
    "datetime": pa.timestamp("us"), "timestamp": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(), "varbinary": pa.binary(), "blob": pa.binary(), "geometry": pa.binary(),
    "vector": pa.binary(),
}  # fmt: skip
WIDEST_DECIMAL = 38
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
"""How Python calls a server's character sets. A column in another one is refused."""


class ZeroDates(Enum):
    """What becomes of dates that no calendar has (0000-00-00, 2026-00-10): the table stops, they are NULL, or all
    columns of dates and times are text."""

    STOP = "stop"
    NULL = "null"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Kind:
    """``size`` is a decimal's precision, the bits of bit, the bytes of binary, the digits of a second's fraction.
    ``charset`` is what texts, enum and set are stored in; ``members`` those of enum and set."""

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

    def arrow(self, zero_dates: ZeroDates) -> pa.DataType:
        if self.name in INTEGERS:
            return (_UNSIGNED if self.unsigned else _SIGNED)[INTEGERS[self.name]]
        if self.name == "decimal":
            return pa.decimal128(self.size, self.scale) if self.size <= WIDEST_DECIMAL else pa.string()
        if self.name == "bit":
            return pa.bool_() if self.size == 1 else pa.int64() if self.size < 64 else pa.decimal128(20, 0)
        if self.name in TEMPORAL and zero_dates is ZeroDates.TEXT:
            return pa.string()
        return _PLAIN.get(self.name, pa.string())  # texts, enum, set, json, time, uuid, inet4, inet6


def kind_of(column_type: str, charset: str | None, precision: int | None, scale: int | None) -> Kind | None:
    """What information_schema.COLUMNS has: COLUMN_TYPE, CHARACTER_SET_NAME, NUMERIC_PRECISION and NUMERIC_SCALE. None
    for a type that is not understood."""
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
    if name in ("char", "varchar"):
        return Kind(name, charset=charset or "")
    if name.endswith("text"):
        return Kind("text", charset=charset or "")
    if name == "varbinary" or name.endswith("blob"):
        return Kind("varbinary" if name == "varbinary" else "blob")
    if name in _GEOMETRIES:
        return Kind("geometry")
    return Kind(name) if name in ("vector", "uuid", "inet4", "inet6") else None


Flavour = Literal["mysql", "mariadb"]

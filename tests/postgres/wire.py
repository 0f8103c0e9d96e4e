"""pgoutput messages made by hand, by the documentation of the protocol and not by Lakefeed's decoder."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum


class Mark(Enum):
    UNCHANGED = "u"


UNCHANGED = Mark.UNCHANGED
Value = str | None | Mark
INT4, TEXT, BYTEA = 23, 25, 17


def begin(final: int = 100, time: int = 0, xid: int = 7) -> bytes:
    return struct.pack(">cQqI", b"B", final, time, xid)


def commit(end: int = 110, time: int = 0) -> bytes:
    return struct.pack(">cBQQq", b"C", 0, end - 10, end, time)


def relation(
    number: int, name: str, columns: Sequence[tuple[str, int, bool]], *, identity: str = "d", schema: str = "public"
) -> bytes:
    head = b"R" + struct.pack(">I", number) + schema.encode() + b"\0" + name.encode() + b"\0" + identity.encode()
    parts = [bytes([key]) + column.encode() + b"\0" + struct.pack(">Ii", kind, -1) for column, kind, key in columns]
    return head + struct.pack(">H", len(columns)) + b"".join(parts)


def row(values: Sequence[Value]) -> bytes:
    return struct.pack(">H", len(values)) + b"".join(map(_column, values))


def _column(value: Value) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, Mark):
        return b"u"
    return b"t" + struct.pack(">i", len(value.encode())) + value.encode()


def insert(number: int, new: Sequence[Value]) -> bytes:
    return b"I" + struct.pack(">I", number) + b"N" + row(new)


def update(number: int, new: Sequence[Value], *, key: Sequence[Value] = (), old: Sequence[Value] = ()) -> bytes:
    before = b"K" + row(key) if key else b"O" + row(old) if old else b""
    return b"U" + struct.pack(">I", number) + before + b"N" + row(new)


def delete(number: int, *, key: Sequence[Value] = (), old: Sequence[Value] = ()) -> bytes:
    return b"D" + struct.pack(">I", number) + (b"K" + row(key) if key else b"O" + row(old))


def truncate(*numbers: int, flags: int = 0) -> bytes:
    return b"T" + struct.pack(">IB", len(numbers), flags) + struct.pack(f">{len(numbers)}I", *numbers)


def origin(name: str) -> bytes:
    return b"O" + struct.pack(">Q", 1) + name.encode() + b"\0"


def type_(number: int, name: str) -> bytes:
    return b"Y" + struct.pack(">I", number) + b"public\0" + name.encode() + b"\0"


def message(prefix: str, content: bytes) -> bytes:
    return b"M" + struct.pack(">BQ", 1, 1) + prefix.encode() + b"\0" + struct.pack(">I", len(content)) + content

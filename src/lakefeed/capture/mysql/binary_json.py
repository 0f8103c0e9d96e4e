"""MySQL's binary JSON → the text that the server prints for it. Pure; DecodeError for anything else."""

from __future__ import annotations

import base64
import json
import math
import struct
from decimal import Decimal

import numpy as np

from lakefeed.capture.mysql.columns import Field, Kind, packed_decimal, padded
from lakefeed.errors import DecodeError

_DEEPEST = 110  # the server's own limit is 100


def json_text(data: bytes) -> str:
    if not data:
        return "null"  # a column that was made NOT NULL without a value
    try:
        return _value(data[0], data, 1, 0)
    except (IndexError, struct.error, UnicodeDecodeError, ValueError, KeyError) as error:
        raise DecodeError(f"a JSON value cannot be read ({error})") from error


def _value(kind: int, data: bytes, at: int, depth: int) -> str:
    if depth > _DEEPEST:
        raise DecodeError("a JSON value is nested too deep")
    if kind <= 3:
        data = data[at:]
        large, is_array = kind & 1, kind >= 2
        size = 4 if large else 2
        count, total = (int.from_bytes(data[at : at + size], "little") for at in (0, size))
        if total > len(data) or count > len(data):
            raise DecodeError("a JSON container ends too early")
        entry = 1 + size
        values_at = 2 * size + (0 if is_array else count * (size + 2))
        found = []
        for index in range(count):
            at = values_at + index * entry
            inner = data[at]
            is_inline = inner in (4, 5, 6) or (large and inner in (7, 8))
            offset = at + 1 if is_inline else int.from_bytes(data[at + 1 : at + entry], "little")
            text = _value(inner, data, offset, depth + 1)
            if not is_array:
                key_at = 2 * size + index * (size + 2)
                start = int.from_bytes(data[key_at : key_at + size], "little")
                length = int.from_bytes(data[key_at + size : key_at + size + 2], "little")
                text = f"{_quoted(_bytes(data, start, length).decode())}: {text}"
            found.append(text)
        return f"[{', '.join(found)}]" if is_array else f"{{{', '.join(found)}}}"
    if kind == 4:
        return {0: "null", 1: "true", 2: "false"}[data[at]]
    if kind in _NUMBERS:
        return str(struct.unpack_from(_NUMBERS[kind], data, at)[0])
    if kind == 0x0B:
        return _double(struct.unpack_from("<d", data, at)[0])
    if kind == 0x0C:
        length, at = _length(data, at)
        return _quoted(_bytes(data, at, length).decode())
    if kind == 0x0F:
        type_, (length, at) = data[at], _length(data, at + 1)
        return _opaque(type_, _bytes(data, at, length))
    raise DecodeError(f"a JSON value has the unknown type {kind}")


_NUMBERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}


def _bytes(data: bytes, at: int, length: int) -> bytes:
    found = data[at : at + length]
    if len(found) < length:
        raise DecodeError("a JSON value ends too early")
    return found


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Seven bits in each byte, the lowest first."""
    length = 0
    for shift in range(0, 35, 7):
        length |= (data[at] & 0x7F) << shift
        at += 1
        if not data[at - 1] & 0x80:
            return length, at
    raise DecodeError("a JSON length is too long")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _double(value: float) -> str:
    """The shortest digits that mean the number; a power of ten where the point is more than 15 places off."""
    if not math.isfinite(value):
        raise DecodeError("a JSON number is not finite")
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + int(exponent) if value else 1
    minus = "-" if sign else ""
    if -15 < point <= 15:
        whole, fraction = (text[:point].ljust(point, "0"), text[point:]) if point > 0 else ("0", "0" * -point + text)
        return f"{minus}{whole}.{fraction or '0'}"
    return f"{minus}{text[0]}{'.' + text[1:] if text[1:] else ''}e{point - 1}"


def _opaque(kind: int, data: bytes) -> str:
    if kind == 246:  # a decimal: precision, scale, and as in a row
        field = Field(padded(data), np.array([2]), np.array([len(data) - 2]), np.array([True]))
        return str(packed_decimal(field, Kind("decimal", False, data[0], data[1]))[0].as_py())
    if kind in (7, 10, 11, 12) and len(data) == 8:
        packed = struct.unpack("<q", data)[0]
        sign, packed = "-" if packed < 0 else "", abs(packed)
        micro, whole = packed & 0xFFFFFF, packed >> 24
        clock = f"{whole >> 12 & (0x3FF if kind == 11 else 31):02}:{whole >> 6 & 63:02}:{whole & 63:02}.{micro:06}"
        if kind == 11:
            return f'"{sign}{clock}"'
        months, day = whole >> 22, whole >> 17 & 31
        date = f"{months // 13:04}-{months % 13:02}-{day:02}"
        return f'"{date}"' if kind == 10 else f'"{date} {clock}"'
    return f'"base64:type{kind}:{base64.b64encode(data).decode()}"'

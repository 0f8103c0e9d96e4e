"""MySQL's binary JSON as the text that the server prints. Pure; DecodeError for anything else.

The documents of one column mostly have the same keys. So all documents are walked together, value by value: those with
the same keys form a group, and each of their values forms a column again. Rare cases are read one by one.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.mysql.columns import (
    Bytes,
    Field,
    Ints,
    Kind,
    begin_with,
    decimal_groups,
    gathered,
    packed_decimal,
    padded,
)
from lakefeed.errors import DecodeError

_DEEPEST = 110  # the server's own limit is 100
_FEW = 24
"""Fewer values than this are read one by one, which is faster."""
_MOST_GROUPS = 16


def json_texts(field: Field) -> Any:
    """A column of documents as texts."""
    # An empty document comes from a column that was made NOT NULL without a value.
    at, ends = field.starts, field.starts + field.lengths
    there = np.flatnonzero(field.valid & (field.lengths > 0))
    try:
        texts = _column(field.data, field.data[at[there]], at[there] + 1, ends[there], 0)
    except (IndexError, struct.error, UnicodeDecodeError, ValueError, KeyError, RecursionError) as error:
        raise DecodeError(f"a JSON value cannot be read ({error})") from error
    if len(there) == len(at):
        return texts
    indices = np.where(field.valid, len(there), -1)
    indices[there] = np.arange(len(there))
    return pa.concat_arrays([texts, pa.array(["null"])]).take(pa.array(indices, mask=~field.valid))


def _column(data: Bytes, kinds: Bytes, at: Ints, ends: Ints, depth: int) -> Any:
    """Values of any kind, each at its offset in a document that ends at ``ends``."""
    if depth > _DEEPEST or np.any(at >= ends):
        raise DecodeError("a JSON value is nested too deep, or ends too early")
    if len(at) < _FEW:
        return _one_by_one(data, kinds, at, ends, depth)
    if np.all(kinds == kinds[0]):
        return _of_kind(data, int(kinds[0]), at, ends, depth)
    parts, rows = [], []
    for kind in np.unique(kinds).tolist():
        chosen = np.flatnonzero(kinds == kind)
        parts.append(_of_kind(data, kind, at[chosen], ends[chosen], depth))
        rows.append(chosen)
    return _together(parts, rows)


def _together(parts: list[Any], rows: list[Ints]) -> Any:
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(rows), kind="stable")))


def _one_by_one(data: Bytes, kinds: Bytes, at: Ints, ends: Ints, depth: int) -> Any:
    rows = zip(kinds.tolist(), at.tolist(), ends.tolist(), strict=True)
    return pa.array([_value(kind, data[a:b].tobytes(), 0, depth) for kind, a, b in rows], pa.string())


def _of_kind(data: Bytes, kind: int, at: Ints, ends: Ints, depth: int) -> Any:
    same = np.full(len(at), kind, np.uint8)
    if kind <= 3:
        return _containers(data, kind, at, ends, depth)
    if kind == 4 and data[at].max() <= 2:
        return pa.array(["null", "true", "false"]).take(data[at])
    if kind in _NUMBERS and np.all(at + struct.calcsize(_NUMBERS[kind]) <= ends):
        return pa.array(gathered(data, at, _DTYPES[kind])).cast(pa.string())
    head = 1 if kind == 0x0F else 0
    if kind in (0x0C, 0x0F) and np.all(at + head < ends) and data[at + head].max() < 0x80:  # lengths of one byte
        lengths, begin = data[at + head].astype(np.int64), at + head + 1
        follows = np.all(begin[1:] >= (begin + lengths)[:-1]) and np.all(begin + lengths <= ends)
        if kind == 0x0C and follows:
            texts = Field(data, begin, lengths, np.ones(len(at), bool)).binary().cast(pa.string())
            if not pc.any(pc.match_substring_regex(texts, _ESCAPED)).as_py():
                return pc.binary_join_element_wise('"', texts, '"', "")
        elif kind == 0x0F and follows and np.all(data[at] == _DECIMAL) and lengths.min() > 2:
            parts, rows = [], []
            for digits in np.unique(gathered(data, begin, "<u2")).tolist():
                chosen = np.flatnonzero(gathered(data, begin, "<u2") == digits)
                parts.append(_decimals(data, begin[chosen], lengths[chosen], digits & 0xFF, digits >> 8))
                rows.append(chosen)
            return _together(parts, rows)
    return _one_by_one(data, same, at, ends, depth)


def _containers(data: Bytes, kind: int, at: Ints, ends: Ints, depth: int) -> Any:
    """Objects or arrays: those with the same number of values and the same keys form one group."""
    size, is_array = 4 if kind & 1 else 2, kind >= 2
    wide = "<u4" if size == 4 else "<u2"
    if np.any(at + 2 * size > ends):
        raise DecodeError("a JSON container ends too early")
    counts = gathered(data, at, wide).astype(np.int64)
    left, parts, rows = np.arange(len(at)), list[Any](), list[Ints]()
    while len(left) >= _FEW and len(parts) < _MOST_GROUPS:
        first = left[0]
        count = int(counts[first])
        values_at = 2 * size + (0 if is_array else count * (size + 2))
        entry = 1 + size
        head = values_at + count * entry
        if at[first] + head > ends[first]:
            raise DecodeError("a JSON container ends too early")
        keys: list[str] = []
        is_same = (counts[left] == count) & (at[left] + head <= ends[left])
        if not is_array and count:
            # Offsets and lengths of the keys, and the keys themselves, which follow the entries of the values.
            entries = data[at[first] + 2 * size : at[first] + values_at].tobytes()
            offsets = [int.from_bytes(entries[i : i + size], "little") for i in range(0, len(entries), size + 2)]
            lengths = [
                int.from_bytes(entries[i - 2 : i], "little") for i in range(size + 2, len(entries) + 1, size + 2)
            ]
            start, stop = min(offsets), max(a + b for a, b in zip(offsets, lengths, strict=True))
            whole = data[at[first] : ends[first]].tobytes()
            if stop > len(whole):
                raise DecodeError("a JSON value ends too early")
            keys = [_quoted(whole[a : a + b].decode()) for a, b in zip(offsets, lengths, strict=True)]
            is_same &= at[left] + stop <= ends[left]
            for low, high in ((2 * size, values_at), (start, stop)):
                is_same[is_same] = begin_with(data, at[left[is_same]] + low, whole[low:high])
        chosen, left = left[is_same], left[~is_same]
        origin, texts = at[chosen], list[Any](["[" if is_array else "{"])
        for index in range(count):
            at_entry = origin + values_at + index * entry
            kinds = data[at_entry]
            is_inline = (kinds >= 4) & (kinds <= (8 if size == 4 else 6))
            begin = np.where(is_inline, at_entry + 1, origin + gathered(data, at_entry + 1, wide))
            comma = ", " if index else ""
            texts += [
                comma if is_array else f"{comma}{keys[index]}: ",
                _column(data, kinds, begin, ends[chosen], depth + 1),
            ]
        empty = pa.array([""] * len(chosen)) if not count else ""
        parts.append(pc.binary_join_element_wise(*texts, "]" if is_array else "}", empty, ""))
        rows.append(chosen)
    if len(left):
        parts.append(_one_by_one(data, np.full(len(left), kind, np.uint8), at[left], ends[left], depth))
        rows.append(left)
    return _together(parts, rows)


def _decimals(data: Bytes, at: Ints, lengths: Ints, precision: int, scale: int) -> Any:
    """Precision and scale in a byte each, then packed as in a row."""
    kind = Kind("decimal", False, precision, scale)
    if scale > precision or np.any(lengths - 2 != sum(width for _, width in decimal_groups(kind))):
        raise DecodeError("the length of a JSON decimal does not match its digits")
    found = packed_decimal(Field(data, at + 2, lengths - 2, np.ones(len(at), bool)), kind)
    if scale > 6 and found.type != pa.string():  # Arrow's cast, like Python's str, would print 1E-7
        return pa.array([format(one, "f") for one in found.to_pylist()], pa.string())
    return found.cast(pa.string())


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
_DTYPES = {5: "<i2", 6: "<u2", 7: "<i4", 8: "<u4", 9: "<i8", 10: "<u8"}
_DECIMAL = 246
_ESCAPED = r'["\\\x00-\x1f]'
"""Characters that must be escaped in a JSON string."""


def _bytes(data: bytes, at: int, length: int) -> bytes:
    found = data[at : at + length]
    if len(found) < length:
        raise DecodeError("a JSON value ends too early")
    return found


def _length(data: bytes, at: int) -> tuple[int, int]:
    """A variable-length number: seven bits per byte, the lowest first. Returns it and the offset after it."""
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
    """The shortest digits that identify the number; with an exponent if the point is more than 15 digits away."""
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
    if kind == _DECIMAL:
        return str(_decimals(padded(data), np.array([0]), np.array([len(data)]), data[0], data[1])[0].as_py())
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

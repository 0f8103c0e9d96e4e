"""Table maps and row events → columns. Pure.

A TableMap is the content of a TABLE_MAP event under ``binlog_row_metadata = FULL``. Each row event of a table is a
lane, and the j-th rows of all lanes are walked together, column by column: a column of variable length costs a few
array operations per step, however many lanes there are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pymysql.charset import charset_by_id

from lakefeed.capture.fit import REPLACED, MisfitError
from lakefeed.capture.log import Rows
from lakefeed.capture.mysql import columns as to_arrow
from lakefeed.capture.mysql.binary_json import json_texts
from lakefeed.capture.mysql.columns import (
    CODECS,
    INTEGERS,
    PAD,
    ByteReader,
    Bytes,
    Field,
    Ints,
    Kind,
    big_endian,
    gathered,
)  # fmt: skip
from lakefeed.change.batch import Operation, replaced_metadata
from lakefeed.change.table import Column, OutOfRange, TableId, TableSchema
from lakefeed.errors import DecodeError

_BINARY = 63
_NUMERIC = {1: "tinyint", 2: "smallint", 9: "mediumint", 3: "int", 8: "bigint", 246: "decimal", 4: "float", 5: "double"}
_WIDTHS = {1: 1, 2: 2, 9: 3, 3: 4, 8: 8, 4: 4, 5: 8, 13: 1, 10: 3}
_CHARACTER = (254, 253, 15, 252)
_META_BYTES = {246: 2, 254: 2, 253: 2, 15: 2, 252: 1, 245: 1, 255: 1, 242: 1, 16: 2, 4: 1, 5: 1, 17: 1, 18: 1, 19: 1}
_BLOBS = {252: "blob", 245: "json", 255: "geometry", 242: "vector"}
_FRACTIONS = {17: ("timestamp", 4), 18: ("datetime", 5), 19: ("time", 3)}
_YEAR = 13
_SIGNED = frozenset(_NUMERIC)
_SIGNED_OR_YEAR = _SIGNED | {_YEAR}


@dataclass(frozen=True, slots=True)
class WireColumn:
    """How a column is stored in a row: in ``width`` bytes, or after a length of ``prefix`` bytes. ``kind`` is None for
    an unknown type."""

    name: str
    kind: Kind | None
    nullable: bool
    width: int
    prefix: int


@dataclass(frozen=True, slots=True)
class TableMap:
    """``columns`` have empty names if the log does not name them."""

    table: TableId
    columns: tuple[WireColumn, ...]
    key: tuple[int, ...]


def counts_years(version: bytes) -> bool:
    """Whether a server of this version lists the sign of year columns, too. MariaDB and MySQL 8.0.33 do, MySQL 8.0.15
    does not. Versions in between were not tried; there ``read_table_map`` finds out."""
    numbers = tuple(int(one) for one in re.findall(rb"\d+", version)[:3])
    return b"MariaDB" in version or numbers >= (8, 0, 16)


def read_table_map(body: bytes, *, counts_years: bool = False) -> TableMap:
    """Parse the event, without its header and table id. DecodeError for anything else. ``counts_years``: the sign bits
    include year columns, provided that this reading is consistent: years are always unsigned."""
    reader = ByteReader(body)
    schema = reader.take(reader.take(1)[0] + 1)[:-1].decode(errors="replace")
    name = reader.take(reader.take(1)[0] + 1)[:-1].decode(errors="replace")
    count = reader.number()
    codes = list(reader.take(count))
    metas = ByteReader(reader.text())
    meta = [metas.take(_META_BYTES.get(code, 0)) for code in codes]
    nulls = reader.take((count + 7) // 8)
    extras: dict[int, bytes] = {}
    while not reader.is_over:
        field = reader.take(1)[0]
        extras[field] = reader.text()
    for index, code in enumerate(codes):
        if code == 254 and meta[index][0] in (247, 248):  # enum and set are logged as char
            codes[index] = meta[index][0]
    bits_of_signs = np.unpackbits(np.frombuffer(extras.get(1, b""), np.uint8)).tolist()
    for signed in (_SIGNED_OR_YEAR, _SIGNED) if counts_years else (_SIGNED,):
        signs = iter(bits_of_signs)
        unsigned = [bool(next(signs, 0)) if code in signed else False for code in codes]
        if signed is _SIGNED or all(one for one, code in zip(unsigned, codes, strict=True) if code == _YEAR):
            break
    charsets = _charsets(extras.get(2), extras.get(3), [code in _CHARACTER for code in codes])
    member_sets = _charsets(extras.get(10), extras.get(11), [code in (247, 248) for code in codes])
    members = {247: _members(extras.get(6, b"")), 248: _members(extras.get(5, b""))}
    names = ByteReader(extras.get(4, b""))
    columns = []
    for index, code in enumerate(codes):
        called = names.text().decode(errors="replace") if 4 in extras else ""
        collation = charsets[index] if charsets[index] is not None else member_sets[index]
        charset = charset_name(collation) if collation is not None else ""
        listed = members[code].pop(0) if members.get(code) else ()
        texts = tuple(one.decode(CODECS.get(charset, "latin1"), "replace") for one in listed)
        kind, width, prefix = _kind(code, meta[index], unsigned[index], collation, charset, texts)
        nullable = bool(nulls[index // 8] >> (index % 8) & 1)
        columns.append(WireColumn(called, kind, nullable, width, prefix))
    key = ByteReader(extras[8]).numbers() if 8 in extras else ByteReader(extras.get(9, b"")).numbers()[0::2]
    if any(index >= count for index in key) or not schema or not name or "." in schema:
        raise DecodeError("a table map has no table name, or a key with unknown columns")
    return TableMap(TableId(schema, name), tuple(columns), tuple(key))


def _kind(
    code: int, meta: bytes, unsigned: bool, collation: int | None, charset: str, members: tuple[str, ...]
) -> tuple[Kind | None, int, int]:
    """The kind, its width, and the size of its length prefix."""
    is_binary = collation == _BINARY
    if code == 246:
        if not 1 <= meta[0] <= 65 or meta[1] > meta[0]:
            raise DecodeError(f"a table map has the impossible type decimal({meta[0]},{meta[1]})")
        kind = Kind("decimal", False, meta[0], meta[1])
        return kind, sum(width for _, width in to_arrow.decimal_groups(kind)), 0
    if code in _NUMERIC:
        return Kind(_NUMERIC[code], unsigned and code not in (4, 5)), _WIDTHS[code], 0
    if code in (13, 10):
        return Kind("year" if code == 13 else "date"), _WIDTHS[code], 0
    if code in _FRACTIONS:
        name, width = _FRACTIONS[code]
        if meta[0] > 6:
            raise DecodeError(f"a table map has a time with {meta[0]} fractional digits; 6 is the maximum")
        return Kind(name, size=meta[0]), width + (meta[0] + 1) // 2, 0
    if code == 16:
        if not 1 <= meta[1] * 8 + meta[0] <= 64:
            raise DecodeError(f"a table map has the impossible type bit({meta[1] * 8 + meta[0]})")
        return Kind("bit", size=meta[1] * 8 + meta[0]), meta[1] + bool(meta[0]), 0
    if code in (247, 248):
        return Kind("enum" if code == 247 else "set", charset=charset, members=members), meta[1], 0
    if code == 15 or code == 253:
        longest = int.from_bytes(meta, "little")
        kind = Kind("varbinary", size=longest) if is_binary else Kind("varchar", size=longest, charset=charset)
        return kind, 0, 2 if longest > 255 else 1
    if code == 254:
        # Lengths above 255 store two of their bits, inverted, in the first byte.
        longest = ((meta[0] << 4 & 0x300) ^ 0x300) + meta[1]
        kind = Kind("binary", size=longest) if is_binary else Kind("char", size=longest, charset=charset)
        return kind, 0, 2 if longest > 255 else 1
    if code in _BLOBS:
        if not 1 <= meta[0] <= 4:
            raise DecodeError(f"a table map has a blob with a length prefix of {meta[0]} bytes; 4 is the maximum")
        longest = (1 << 8 * meta[0]) - 1
        if code == 252 and not is_binary:
            return Kind("text", size=longest, charset=charset), 0, meta[0]
        return Kind(_BLOBS[code], size=longest if code == 252 else 0), 0, meta[0]
    return None, 0, 0


def _charsets(default: bytes | None, each: bytes | None, chosen: list[bool]) -> list[int | None]:
    """The collation of each chosen column: from a list of all, or from a default and its exceptions."""
    if each is not None:
        given = ByteReader(each).numbers()
    else:
        usual, *pairs = ByteReader(default or b"").numbers() or [0]
        exceptions = dict(zip(pairs[0::2], pairs[1::2], strict=False))
        given = [exceptions.get(index, usual) for index in range(sum(chosen))]
    if len(given) < sum(chosen):
        raise DecodeError("a table map has too few collations")
    numbers = iter(given)
    return [next(numbers) if is_chosen else None for is_chosen in chosen]


def _members(data: bytes) -> list[tuple[bytes, ...]]:
    reader, found = ByteReader(data), []
    while not reader.is_over:
        found.append(tuple(reader.text() for _ in range(reader.number())))
    return found


@cache
def charset_name(collation: int) -> str:
    """The character set of a collation number; empty if the number is not known."""
    if 2048 <= collation <= 4096:  # MariaDB's uca1400 collations, by character set
        return {8: "utf8mb3", 9: "utf8mb4", 10: "ucs2", 11: "utf16", 12: "utf32"}.get(collation >> 8, "")
    try:
        found: Any = charset_by_id(collation)
        return str(found.name)
    except (KeyError, AttributeError):
        return ""


WRITE, UPDATE, DELETE = 0, 1, 2
_LENGTHS = {1: "<u1", 2: "<u2", 3: "<u4", 4: "<u4"}


@dataclass(frozen=True, slots=True)
class Layout:
    """A table as its rows are laid out in the log, and the schema they are delivered with."""

    schema: TableSchema
    columns: tuple[WireColumn, ...]
    kinds: tuple[Kind, ...]


@dataclass(slots=True)
class Lanes:
    """Row events of one layout, in log order. A row at byte ``origin`` gets the order number ``width``; later rows
    follow."""

    layout: Layout
    starts: Ints
    ends: Ints
    operations: Ints
    transactions: Ints
    origin: int
    width: int


def decode_lanes(data: Bytes, lanes: Lanes, *, before_images: bool) -> Rows:
    """MisfitError for a value that its column cannot hold."""
    layout = lanes.layout
    lane, at, fields = _walk(data, lanes.starts, lanes.ends, layout.columns)
    operation = lanes.operations[lane]
    first = np.ones(len(lane), np.int64)
    first[1:] = lane[1:] != lane[:-1]
    nth = np.arange(len(lane)) - np.maximum.accumulate(np.where(first, np.arange(len(lane)), 0))
    is_update = operation == UPDATE
    is_old, is_new = is_update & (nth % 2 == 0), is_update & (nth % 2 == 1)
    if is_old.sum() != is_new.sum():
        raise DecodeError("an update event has an old row without a new one")

    def array(index: int, rows: Field) -> Any:
        column, own = layout.columns[index], layout.schema.columns[index]
        try:
            found = _array(rows, layout.kinds[index], column, own)
            is_number = pa.types.is_integer(found.type) or pa.types.is_decimal(found.type)
            return found.cast(own.type) if is_number and pa.types.is_string(own.type) else found  # text by a rule
        except MisfitError as error:
            raise error.of(column.name) from error

    key = [layout.schema.names.index(name) for name in layout.schema.key]
    keys = {index: array(index, fields[index]) for index in key}
    moved = np.full(int(is_old.sum()), not key)
    olds, news = np.flatnonzero(is_old), np.flatnonzero(is_new)
    for index in key:
        same: Any = pc.equal(keys[index].take(pa.array(olds)), keys[index].take(pa.array(news)))
        moved |= ~same.fill_null(False).to_numpy(zero_copy_only=False)
    codes = np.select([operation == WRITE, operation == DELETE], [int(Operation.INSERT), int(Operation.DELETE)],
                      int(Operation.UPDATE)).astype(np.int8)  # fmt: skip
    keep = np.ones(len(lane), bool)
    codes[olds[moved]], codes[news[moved]] = int(Operation.DELETE), int(Operation.INSERT)
    keep[olds[~moved]] = False
    order = lanes.width + 2 * (at - lanes.origin) + 1
    transactions = lanes.transactions[lane]
    chosen = np.flatnonzero(keep)
    if before_images:
        whole = np.flatnonzero((codes == int(Operation.DELETE)) | ~keep)
        chosen = np.concatenate([chosen, whole])
        codes = np.concatenate([codes[keep], np.full(len(whole), int(Operation.BEFORE), np.int8)])
        order = np.concatenate([order[keep], order[whole] - 1])
        sorting = np.argsort(order, kind="stable")
        chosen, codes, order = chosen[sorting], codes[sorting], order[sorting]
    else:
        codes, order = codes[keep], order[keep]
    # A deleted row keeps only its key, and most old rows are dropped: values that are not needed are not decoded.
    stays = (codes != int(Operation.DELETE)) | (not key)
    arrays, replaced = [], dict[str, int]()
    for index, field in enumerate(fields):
        before = REPLACED.values
        if index in keys:
            arrays.append(keys[index].take(pa.array(chosen)))
        elif before_images:
            every = array(index, field).take(pa.array(chosen))
            arrays.append(pc.if_else(pa.array(stays), every, pa.scalar(None, every.type)))
        else:
            starts, valid = field.starts[chosen], field.valid[chosen] & stays
            lengths = field.lengths[chosen] if layout.columns[index].prefix else starts
            arrays.append(array(index, Field(data, starts, lengths, valid)))
        if REPLACED.values > before:
            replaced[layout.columns[index].name] = REPLACED.values - before
    found = Rows(layout.schema, arrays, codes, order, transactions[chosen])
    return replace(found, replaced=replaced_metadata(replaced)) if replaced else found


def _walk(data: Bytes, at: Ints, ends: Ints, columns: tuple[WireColumn, ...]) -> tuple[Ints, Ints, list[Field]]:
    """For every row, in log order: its lane, its offset, and the offsets of its columns. Columns of fixed width get no
    lengths."""
    if not columns:
        raise DecodeError("a table has no columns")
    bitmap, limit = (len(columns) + 7) // 8, len(data) - PAD
    lane = np.flatnonzero(at < ends)
    at = at[lane]
    lanes, begins = [], []
    parts: list[list[tuple[Any, Any, Any]]] = [[] for _ in columns]
    while len(lane):
        lanes.append(lane)
        begins.append(at)
        nulls, stop, every = at, ends[lane], np.ones(len(lane), bool)
        at = at + bitmap
        if np.any(at > stop):
            raise DecodeError("a row event ends too early")
        for index, column in enumerate(columns):
            if index % 8 == 0:
                bits = data[nulls + index // 8]
                some = int(np.bitwise_or.reduce(bits))
            valid = every if not some >> (index % 8) & 1 else (bits >> (index % 8)) & 1 == 0
            if column.prefix:
                # A damaged length may point anywhere in the buffer; the check below finds rows that exceed their event.
                size = gathered(data, np.minimum(at, limit), _LENGTHS[column.prefix]).astype(np.int64)
                size = size & 0xFFFFFF if column.prefix == 3 else size
                size, begin = (
                    (size, at + column.prefix) if valid is every else (size * valid, at + column.prefix * valid)
                )
                parts[index].append((begin, size, valid))
                at = begin + size
            else:
                parts[index].append((at, at, valid))
                at = at + (column.width if valid is every else column.width * valid)
        if np.any(at > stop):
            raise DecodeError("a row event ends too early")
        going = at < stop
        lane, at = lane[going], at[going]
    if not lanes:
        empty = np.empty(0, np.int64)
        return empty, empty, [Field(data, empty, empty, np.empty(0, bool)) for _ in columns]
    if len(lanes) == 1:
        return lanes[0], begins[0], [Field(data, *one[0]) for one in parts]
    all_lanes, all_begins = np.concatenate(lanes), np.concatenate(begins)
    sorting = np.argsort(all_begins, kind="stable")
    fields = [Field(data, *(np.concatenate(part)[sorting] for part in zip(*one, strict=True))) for one in parts]
    return all_lanes[sorting], all_begins[sorting], fields


def _array(field: Field, kind: Kind, column: WireColumn, own: Column) -> Any:
    data, at, name = field.data, field.starts, kind.name
    zero_dates = OutOfRange.TEXT if pa.types.is_string(own.type) else own.out_of_range
    if name in INTEGERS:
        return to_arrow.integers(field, kind, kind.arrow())
    if name == "decimal":
        return to_arrow.packed_decimal(field, kind)
    if name in ("float", "double"):
        return field.array(gathered(data, at, "<f4" if name == "float" else "<f8"), kind.arrow())
    if name == "bit":
        return to_arrow.bits(field, column.width, kind)
    if name == "year":
        found = data[at].astype(np.int16)
        return field.array(np.where(found == 0, 0, found + 1900).astype(np.int16), pa.int16())
    if name == "date":
        packed = gathered(data, at, "<u4").astype(np.int64) & 0xFFFFFF
        return to_arrow.dates(field, kind, (packed >> 9, packed >> 5 & 15, packed & 31), zero_dates)
    if name in ("datetime", "timestamp", "time"):
        digits = (kind.size + 1) // 2
        scale = 10 ** (6 - 2 * digits)
        if name == "timestamp":
            return to_arrow.instants(
                field, kind, big_endian(data, at, 4), big_endian(data, at + 4, digits) * scale, zero_dates
            )
        if name == "datetime":
            packed = big_endian(data, at, 5) - (1 << 39)
            months, rest = packed >> 22, packed & 0x3FFFFF
            parts = (months // 13, months % 13, rest >> 17, rest >> 12 & 31, rest >> 6 & 63, rest & 63)
            return to_arrow.dates(field, kind, (*parts, big_endian(data, at + 5, digits) * scale), zero_dates)
        packed = big_endian(data, at, 3 + digits) - (1 << (23 + 8 * digits))
        negative, packed = packed < 0, np.abs(packed)
        whole, fraction = packed >> 8 * digits, packed & ((1 << 8 * digits) - 1)
        clock = (whole >> 12 & 0x3FF, whole >> 6 & 63, whole & 63, fraction * scale)
        return to_arrow.times(field, kind, own.type, negative, *clock)
    if name == "enum":
        numbers = data[at] if column.width == 1 else gathered(data, at, "<u2")
        if np.any(numbers[field.valid] > len(kind.members)):
            raise DecodeError("an enum has a number beyond its members")
        return pa.array(["", *kind.members], pa.string()).take(field.array(numbers.astype(np.int32), pa.int32()))
    if name == "set":
        masks = np.zeros(len(at), np.uint64)
        for index in range(column.width):
            masks |= data[at + index].astype(np.uint64) << np.uint64(8 * index)
        masks = np.where(field.valid, masks, np.uint64(0))
        unique, inverse = np.unique(masks, return_inverse=True)
        texts = [",".join(one for i, one in enumerate(kind.members) if mask >> i & 1) for mask in unique.tolist()]
        return pa.array(texts, pa.string()).take(field.array(inverse.astype(np.int32), pa.int32()))
    if name == "binary":
        return to_arrow.padded_binary(field, kind.size)
    if name == "geometry":
        return to_arrow.without_srid(field)
    if name == "json":
        return json_texts(field)
    if name in ("uuid", "inet4", "inet6"):
        return to_arrow.addresses(field, name)
    raw = field.binary()
    return to_arrow.decoded_text(raw, kind.charset) if kind.charset else raw

"""Row events → columns. All row events of one table are lanes, and the j-th row of every lane is walked at once, column
by column: a column of variable length costs a few array operations for each step, however many rows there are. Pure.
"""

from __future__ import annotations

import ipaddress
import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.fit import MisfitError
from lakefeed.capture.log import Rows
from lakefeed.capture.mysql.binary_json import json_text
from lakefeed.capture.mysql.columns import (
    Bytes,
    Field,
    Ints,
    big_endian,
    bits,
    dates,
    decoded_text,
    gathered,
    instants,
    integers,
    packed_decimal,
    padded_binary,
    times,
    without_srid,
)
from lakefeed.capture.mysql.kind import INTEGERS, Kind, ZeroDates
from lakefeed.capture.mysql.table_map import WireColumn
from lakefeed.change.batch import Operation
from lakefeed.change.table import TableSchema
from lakefeed.errors import DecodeError

WRITE, UPDATE, DELETE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Layout:
    """A table as its rows stand in the log, and as they are delivered."""

    schema: TableSchema
    columns: tuple[WireColumn, ...]
    kinds: tuple[Kind, ...]


@dataclass(slots=True)
class Lanes:
    """Row events of one layout, in the order of the log. ``shifts`` turn an offset in the buffer into one of order."""

    layout: Layout
    starts: list[int]
    ends: list[int]
    operations: list[int]
    transactions: list[int]
    shifts: list[int]


def decode_lanes(data: Bytes, lanes: Lanes, zero_dates: ZeroDates, *, before_images: bool) -> Rows:
    """MisfitError for a value that its column cannot hold."""
    layout = lanes.layout
    lane, at, fields = _walk(data, np.array(lanes.starts, np.int64), np.array(lanes.ends, np.int64), layout.columns)
    operation = np.array(lanes.operations, np.int64)[lane]
    first = np.ones(len(lane), np.int64)
    first[1:] = lane[1:] != lane[:-1]
    nth = np.arange(len(lane)) - np.maximum.accumulate(np.where(first, np.arange(len(lane)), 0))
    is_update = operation == UPDATE
    is_old, is_new = is_update & (nth % 2 == 0), is_update & (nth % 2 == 1)
    if is_old.sum() != is_new.sum():
        raise DecodeError("an update has an old row and no new one")
    arrays = []
    for column, kind, field in zip(layout.columns, layout.kinds, fields, strict=True):
        try:
            arrays.append(_array(field, kind, column, zero_dates))
        except MisfitError as error:
            raise error.of(column.name) from error
    key = [layout.schema.names.index(name) for name in layout.schema.key]
    moved = np.full(int(is_old.sum()), not key)
    olds, news = np.flatnonzero(is_old), np.flatnonzero(is_new)
    for index in key:
        same: Any = pc.equal(arrays[index].take(pa.array(olds)), arrays[index].take(pa.array(news)))
        moved |= ~same.fill_null(False).to_numpy(zero_copy_only=False)
    codes = np.select([operation == WRITE, operation == DELETE], [int(Operation.INSERT), int(Operation.DELETE)],
                      int(Operation.UPDATE)).astype(np.int8)  # fmt: skip
    keep = np.ones(len(lane), bool)
    codes[olds[moved]], codes[news[moved]] = int(Operation.DELETE), int(Operation.INSERT)
    keep[olds[~moved]] = False
    order = 2 * (at + np.array(lanes.shifts, np.int64)[lane]) + 1
    transactions = np.array(lanes.transactions, np.int32)[lane]
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
    if len(chosen) != len(lane) or before_images:
        arrays = [one.take(pa.array(chosen)) for one in arrays]
    gone = codes == int(Operation.DELETE)
    if key and np.any(gone):
        stays: Any = pa.array(~gone)
        arrays = [
            one if index in key else pc.if_else(stays, one, pa.scalar(None, one.type))
            for index, one in enumerate(arrays)
        ]
    return Rows(layout.schema, arrays, codes, order, transactions[chosen])


def _walk(data: Bytes, at: Ints, ends: Ints, columns: tuple[WireColumn, ...]) -> tuple[Ints, Ints, list[Field]]:
    """Of every row, in the order of the log: its lane, where it begins, and where its columns are."""
    bitmap, limit = (len(columns) + 7) // 8, len(data) - 16
    lane = np.flatnonzero(at < ends)
    at = at[lane]
    lanes, begins = [], []
    starts: list[list[Any]] = [[] for _ in columns]
    lengths: list[list[Any]] = [[] for _ in columns]
    valids: list[list[Any]] = [[] for _ in columns]
    while len(lane):
        lanes.append(lane)
        begins.append(at)
        nulls, stop = at, ends[lane]
        at = at + bitmap
        if np.any(at > stop):
            raise DecodeError("a row event ends too early")
        for index, column in enumerate(columns):
            valid = (data[nulls + index // 8] >> (index % 8)) & 1 == 0
            if column.prefix:
                size = gathered(data, np.minimum(at, limit), "<u4").astype(np.int64)
                size = np.where(valid, size & ((1 << 8 * column.prefix) - 1), 0)
                begin = at + np.where(valid, column.prefix, 0)
            else:
                size, begin = np.where(valid, column.width, 0), at
            at = begin + size
            if np.any(at > stop):
                raise DecodeError("a row event ends too early")
            starts[index].append(begin)
            lengths[index].append(size)
            valids[index].append(valid)
        going = at < stop
        lane, at = lane[going], at[going]
    if not lanes:
        empty = np.empty(0, np.int64)
        return empty, empty, [Field(data, empty, empty, np.empty(0, bool)) for _ in columns]
    all_lanes, all_begins = np.concatenate(lanes), np.concatenate(begins)
    sorting = np.argsort(all_begins, kind="stable") if len(lanes) > 1 else slice(None)
    fields = [
        Field(data, np.concatenate(a)[sorting], np.concatenate(b)[sorting], np.concatenate(c)[sorting])
        for a, b, c in zip(starts, lengths, valids, strict=True)
    ]
    return all_lanes[sorting], all_begins[sorting], fields


def _array(field: Field, kind: Kind, column: WireColumn, zero_dates: ZeroDates) -> Any:
    data, at, name = field.data, field.starts, kind.name
    if name in INTEGERS:
        return integers(field, kind, kind.arrow(zero_dates))
    if name == "decimal":
        return packed_decimal(field, kind)
    if name in ("float", "double"):
        return field.array(gathered(data, at, "<f4" if name == "float" else "<f8"), kind.arrow(zero_dates))
    if name == "bit":
        return bits(field, column.width, kind)
    if name == "year":
        found = data[at].astype(np.int16)
        return field.array(np.where(found == 0, 0, found + 1900).astype(np.int16), pa.int16())
    if name == "date":
        packed = gathered(data, at, "<u4").astype(np.int64) & 0xFFFFFF
        return dates(field, kind, (packed >> 9, packed >> 5 & 15, packed & 31), zero_dates)
    if name in ("datetime", "timestamp", "time"):
        return _moments(field, kind, zero_dates)
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
        return padded_binary(field, kind.size)
    if name == "geometry":
        return without_srid(field)
    raw = field.binary()
    if name == "json":
        return pa.array([None if one is None else json_text(one) for one in raw.to_pylist()], pa.string())
    if name in _ADDRESSES:
        width = _ADDRESSES[name]
        values = [None if one is None else one.ljust(width, b"\0") for one in raw.to_pylist()]
        return pa.array([None if one is None else _address(name, one) for one in values], pa.string())
    return decoded_text(raw, kind.charset) if kind.charset else raw


_ADDRESSES = {"uuid": 16, "inet6": 16, "inet4": 4}


def _address(name: str, value: bytes) -> str:
    if len(value) != _ADDRESSES[name]:
        raise DecodeError(f"a value of type {name} has {len(value)} bytes")
    if name == "inet4":
        return str(ipaddress.IPv4Address(value))
    if name == "inet6":
        address = ipaddress.IPv6Address(value)
        return f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)
    return str(uuid.UUID(bytes=value))


def _moments(field: Field, kind: Kind, zero_dates: ZeroDates) -> Any:
    data, at = field.data, field.starts
    digits = (kind.size + 1) // 2
    scale = 10 ** (6 - 2 * digits)
    if kind.name == "timestamp":
        return instants(field, kind, big_endian(data, at, 4), big_endian(data, at + 4, digits) * scale, zero_dates)
    if kind.name == "datetime":
        packed = big_endian(data, at, 5) - (1 << 39)
        months, rest = packed >> 22, packed & 0x3FFFFF
        parts = (months // 13, months % 13, rest >> 17, rest >> 12 & 31, rest >> 6 & 63, rest & 63)
        return dates(field, kind, (*parts, big_endian(data, at + 5, digits) * scale), zero_dates)
    packed = big_endian(data, at, 3 + digits) - (1 << (23 + 8 * digits))
    negative, packed = packed < 0, np.abs(packed)
    whole, fraction = packed >> 8 * digits, packed & ((1 << 8 * digits) - 1)
    return times(field, kind, negative, whole >> 12 & 0x3FF, whole >> 6 & 63, whole & 63, fraction * scale)

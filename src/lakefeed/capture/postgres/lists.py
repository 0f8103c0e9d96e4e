"""PostgreSQL's arrays as Arrow lists, a whole column at a time, from both of their forms. Pure and total.

The log has them printed: ``{1,NULL,"a \\"b\\""}``, preceded by ``[0:1]=`` if the lower bound is not 1, and with nested
braces for more dimensions. A copy has the binary form if the elements have a fixed size: number of dimensions, a flag
for NULLs and the element type (int32 each), then size and lower bound of each dimension, then each element with its
length.

A list has neither bounds nor dimensions, so an array that needs them is treated by the column's rule: the nearest list
has the same elements in the order of ``unnest``. Elements are treated by the same rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from lakefeed.capture.fit import REPLACED, out_of_range
from lakefeed.capture.postgres.slices import Array, Ints, Mask, Slices, numbers
from lakefeed.change.table import OutOfRange
from lakefeed.errors import DecodeError

_OPEN, _CLOSE, _COMMA, _QUOTE, _ESCAPE, _BOUNDS = (ord(letter) for letter in '{},"\\[')
_NULL = int.from_bytes(b"NULL", "big")
_HEAD, _DIMENSION, _LENGTH, _MOST_DIMENSIONS = 12, 8, 4, 6

Element = Callable[[Array], Array]  # printed elements (binary) → Arrow
BinaryElement = Callable[[Slices], Array]


def printed_lists(texts: Array, kind: pa.DataType, rule: OutOfRange, element: Element) -> Array:
    """A column of printed arrays (binary) as lists. The structure of all rows is found at once: first quotes, then
    braces and commas outside of them; an element is whatever lies between two of these."""
    rows, valid = len(texts), ~np.asarray(texts.is_null())
    _, ends_buffer, data_buffer = texts.buffers()
    edges: Any = np.frombuffer(ends_buffer, np.int32)[texts.offset : texts.offset + rows + 1].astype(np.int64)
    data: Any = np.frombuffer(data_buffer or b"", np.uint8)[edges[0] : edges[-1]]
    edges -= edges[0]
    begins, ends = edges[:-1], edges[1:]
    if np.any(valid & (ends - begins < 2)) or np.any(data[ends[valid] - 1] != _CLOSE):
        raise DecodeError("an array does not end with a brace")
    # 1. Escaped bytes, and bytes inside quotes. Each value ends with a brace, so no run of escapes crosses its end.
    escape, index = data == _ESCAPE, np.arange(len(data))
    run = index - np.maximum.accumulate(np.where(escape, -1, index)) if escape.any() else np.zeros(len(data), np.int64)
    escaped = np.append(False, run[:-1] % 2 == 1) if len(data) else escape
    inside = np.cumsum((data == _QUOTE) & ~escaped) % 2 == 1
    if np.any(inside[ends[valid] - 1]):
        raise DecodeError("an array ends inside quotes")
    # 2. Elements: the spans between structural bytes of one row. The braces of an empty array enclose none.
    marks: Ints = np.flatnonzero(~inside & ((data == _OPEN) | (data == _CLOSE) | (data == _COMMA)))
    owner: Ints = np.searchsorted(ends, marks, side="right")
    begin, end, row = marks[:-1] + 1, marks[1:], owner[:-1]
    is_element = (row == owner[1:]) & (end > begin)
    begin, end, row = begin[is_element], end[is_element], row[is_element]
    has_bounds = np.zeros(rows, dtype=bool)
    has_bounds[valid] = data[begins[valid]] == _BOUNDS
    if np.any(valid & ~has_bounds & (_first(data, begins, valid) != _OPEN)):
        raise DecodeError("an array does not begin with a brace")
    is_odd = has_bounds | (np.bincount(owner[data[marks] == _OPEN], minlength=rows) > 1)
    valid, kept = _judged(is_odd, valid, rule, row)
    begin, end, row = begin[kept], end[kept], row[kept]
    # 3. Strip quotes, then escapes, of all elements at once. An unquoted NULL is a NULL.
    quoted = data[begin] == _QUOTE
    if np.any(quoted & ((data[end - 1] != _QUOTE) | (end - begin < 2))):
        raise DecodeError("an array has a partly quoted element")
    is_null = ~quoted & (end - begin == _LENGTH)
    is_null[is_null] = numbers(data, begin[is_null], ">u4") == _NULL if is_null.any() else False
    begin, end = begin + quoted, end - quoted
    if escape.any():
        stays = ~escape | escaped
        moved = np.append(0, np.cumsum(stays))
        data, begin, end = data[stays], moved[begin], moved[end]
    found = element(Slices(data, begin, end - begin, ~is_null).binary())
    return _lists(found, np.bincount(row, minlength=rows), valid, kind)


def binary_lists(values: Slices, kind: pa.DataType, width: int, element: BinaryElement, rule: OutOfRange) -> Array:
    """A column of arrays in binary form, with elements of ``width`` bytes, as lists."""
    data, some = values.data, values.valid
    starts, lengths = values.starts[some], values.lengths[some]
    if np.any(lengths < _HEAD):
        raise DecodeError("an array ends before its dimensions")
    dimensions, flags = numbers(data, starts, ">i4"), numbers(data, starts + 4, ">i4")
    if np.any((dimensions < 0) | (dimensions > _MOST_DIMENSIONS) | (flags < 0) | (flags > 1)):
        raise DecodeError("an array has impossible dimensions")
    at, ends = starts + _HEAD + _DIMENSION * dimensions, starts + lengths
    if np.any(at > ends):
        raise DecodeError("an array ends inside its dimensions")
    counts, is_odd = (dimensions > 0).astype(np.int64), dimensions > 1
    for number in range(int(dimensions.max(initial=0))):
        there = np.flatnonzero(dimensions > number)
        at_dimension = starts[there] + _HEAD + _DIMENSION * number
        sizes = numbers(data, at_dimension, ">i4")
        counts[there] *= np.clip(sizes, -1, lengths[there])  # each element has bytes, which limits it; no overflow
        is_odd[there] |= numbers(data, at_dimension + 4, ">i4") != 1
    if np.any(counts < 0) or np.any(counts * _LENGTH > lengths):
        raise DecodeError("an array has more elements than bytes")
    # Where each element, with its length, begins: at equal distances, unless some are NULL.
    first, row = np.cumsum(counts) - counts, np.repeat(np.arange(len(counts)), counts)
    begin = at[row] + (np.arange(len(row)) - first[row]) * (_LENGTH + width)
    with_nulls = np.flatnonzero(flags == 1)
    stops = at + counts * (_LENGTH + width)
    stops[with_nulls] = at[with_nulls]
    for number in range(int(counts[with_nulls].max(initial=0))):
        left = with_nulls[counts[with_nulls] > number]
        if np.any(stops[left] + _LENGTH > ends[left]):
            raise DecodeError("an array ends too early")
        begin[first[left] + number] = stops[left]
        stops[left] += _LENGTH + np.maximum(numbers(data, stops[left], ">i4"), 0)
    if np.any(stops != ends):
        raise DecodeError("an array ends too early, or has excess bytes")
    valid = some.copy()
    valid[some], kept = _judged(is_odd, np.ones(len(starts), dtype=bool), rule, row)
    sizes = numbers(data, begin[kept], ">i4")
    found = element(Slices(data, begin[kept] + _LENGTH, np.maximum(sizes, 0), sizes >= 0))
    of_row = np.zeros(len(some), np.int64)
    of_row[some] = np.bincount(row[kept], minlength=len(starts))
    return _lists(found, of_row, valid, kind)


def _first(data: Any, begins: Ints, valid: Mask) -> Any:
    found = np.zeros(len(begins), np.uint8)
    found[valid] = data[begins[valid]]
    return found


def _judged(is_odd: Mask, valid: Mask, rule: OutOfRange, row: Ints) -> tuple[Mask, Mask]:
    """Which rows have a value under the rule, and which elements, each belonging to a ``row``, are kept."""
    is_odd = is_odd & valid
    if is_odd.any() and rule not in (OutOfRange.CLAMP, OutOfRange.NULL):
        raise out_of_range("an array with more than one dimension, or with a lower bound other than 1")
    REPLACED.values += int(is_odd.sum())
    if not is_odd.any() or rule is OutOfRange.CLAMP:
        return valid, np.ones(len(row), dtype=bool)
    return valid & ~is_odd, ~is_odd[row]


def _lists(elements: Array, counts: Ints, valid: Mask, kind: pa.DataType) -> Array:
    offsets: Any = np.append(0, np.cumsum(counts)).astype(np.int32)
    mask = None if valid.all() else pa.array(~valid)
    found: Any = pa.ListArray.from_arrays(pa.array(offsets), elements, mask=mask)
    return found.cast(kind) if found.type != kind else found

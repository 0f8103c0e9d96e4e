"""Two tables of the same columns, as multisets of rows: what is only in one, exactly. Both are in memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

Row = tuple[Any, ...]


def different_rows(source: pa.Table, lake: pa.Table) -> tuple[Counter[Row], Counter[Row]]:
    """The rows that are only in the source, and those only in the lake. The common case, none, is cheap."""
    if source.num_rows == lake.num_rows and _comparable(source).equals(_comparable(lake)):
        return Counter(), Counter()
    left, right = Counter(rows_of(source)), Counter(rows_of(lake))
    return left - right, right - left


def rows_of(table: pa.Table) -> Iterator[Row]:
    """Values that have a hash and are equal if they are the same: lists as tuples, NaN and -0.0 as text."""
    columns = [[_hashable(value) for value in column.to_pylist()] for column in table.columns]
    return zip(*columns, strict=True)


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    if isinstance(value, float) and (math.isnan(value) or (value == 0 and math.copysign(1, value) < 0)):
        return repr(value)
    return value


def _comparable(table: pa.Table) -> pa.Table:
    """Sorted by every column; floating point as text, because NaN is not equal to itself, and lists, to be sorted."""
    for place, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pa.string()))
        elif pa.types.is_nested(field.type):
            texts = [None if value is None else repr(value) for value in table.column(place).to_pylist()]
            table = table.set_column(place, field.name, pa.array(texts, pa.string()))
    table = table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()
    return pa.Table.from_arrays(table.columns, names=table.column_names)  # whether it may be NULL is no value

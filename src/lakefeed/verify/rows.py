"""Rows of both sides in one form: a driver's values as Arrow of the lake's types, and tables as multisets of rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

Row = tuple[Any, ...]


class ValueDifferenceError(Exception):
    """The source has a value that the lake's column cannot hold. The text is the difference, for people."""


def exact_batch(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of the source as a batch of the lake's columns: exactly, or ValueDifferenceError.

    Only documented conversions: a text column holds the text form of whatever SQLite has, and a float column an integer
    that a double represents exactly. 1.0 is not the integer 1.
    """
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        try:
            if field.type == pa.string():
                arrays.append(pa.array([_text_form(value) for value in values], type=field.type))
                continue
            array = pa.array(values, type=field.type)
            wanted = {pa.int64(): (int,), pa.float64(): (float, int), pa.binary(): (bytes,)}.get(field.type, (object,))
            wrong = next((value for value in values if value is not None and not isinstance(value, wanted)), None)
            if wrong is not None:
                raise pa.ArrowTypeError(f"{wrong!r} is a {type(wrong).__name__}")
            arrays.append(array)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            text = f"column {field.name} holds values that the lake's {field.type} cannot: {error}"
            raise ValueDifferenceError(text) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def different_rows(source: pa.Table, lake: pa.Table) -> tuple[Counter[Row], Counter[Row]]:
    """The rows that only the source has, and those that only the lake has. The common case, none, is cheap."""
    if source.num_rows == lake.num_rows and _comparable(source).equals(_comparable(lake)):
        return Counter(), Counter()
    left, right = Counter(rows_of(source)), Counter(rows_of(lake))
    return left - right, right - left


def rows_of(table: pa.Table) -> Iterator[Row]:
    """Hashable values that are equal exactly if they are the same: lists as tuples, NaN and -0.0 as text."""
    columns = [[_hashable(value) for value in column.to_pylist()] for column in table.columns]
    return zip(*columns, strict=True)


def _text_form(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return f"X'{value.hex().upper()}'" if isinstance(value, bytes) else repr(value)


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    if isinstance(value, float) and (math.isnan(value) or (value == 0 and math.copysign(1, value) < 0)):
        return repr(value)
    return value


def _comparable(table: pa.Table) -> pa.Table:
    """Sorted by every column; floats as text, because NaN does not equal itself, and lists as text, to sort them."""
    for index, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(pa.string()))
        elif pa.types.is_nested(field.type):
            texts = [None if value is None else repr(value) for value in table.column(index).to_pylist()]
            table = table.set_column(index, field.name, pa.array(texts, pa.string()))
    table = table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()
    return pa.Table.from_arrays(table.columns, names=table.column_names)  # without nullability, which is not a value

"""Values of a source, as a driver gives them, as Arrow columns of the lake's types: exactly, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa


class ValueDifferenceError(Exception):
    """The source has a value that the lake's column cannot have. The text is the difference, for people."""


def exact_batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of the source as a batch of the lake's columns."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        try:
            arrays.append(_exact_array(values, field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            text = f"column {field.name} holds values that the lake's {field.type} cannot: {error}"
            raise ValueDifferenceError(text) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _exact_array(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array[Any]:
    """No conversion but the documented ones: a text column holds the text form of whatever SQLite has, and a float
    column an integer that has a double of its own. 1.0 is not the integer 1."""
    if kind == pa.string():
        return pa.array([_text_form(value) for value in values], type=kind)
    array = pa.array(values, type=kind)
    wanted = {pa.int64(): (int,), pa.float64(): (float, int), pa.binary(): (bytes,)}.get(kind, (object,))
    wrong = next((value for value in values if value is not None and not isinstance(value, wanted)), None)
    if wrong is not None:
        raise pa.ArrowTypeError(f"{wrong!r} is a {type(wrong).__name__}")
    return array


def _text_form(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return f"X'{value.hex().upper()}'" if isinstance(value, bytes) else repr(value)

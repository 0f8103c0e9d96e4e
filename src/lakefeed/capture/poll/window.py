"""Rows that were delivered before their time was settled: what a later poll finds unchanged is not delivered again.

The comparison is by content, column by column, and not by time stamp alone: a row that changed twice within one
stamp is delivered twice. Only rows after the mark are kept, so memory is bounded by some batches for each table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def unchanged(rows: pa.RecordBatch, before: pa.RecordBatch | None, key: Sequence[str]) -> Any:
    """A boolean array: which of ``rows`` are in ``before``, equal in every column."""
    if before is None or before.num_rows == 0 or not rows.schema.equals(before.schema):
        return pa.array([False] * rows.num_rows, pa.bool_())
    place: Any = pc.index_in(key_texts(rows, key), value_set=key_texts(before, key))
    same: Any = pc.is_valid(place)
    for mine, theirs in zip(rows.columns, before.columns, strict=True):
        other = theirs.take(place)
        equality: Any = pc.equal(mine, other)
        equal = pc.fill_null(equality, False)
        # NULL is NULL here, and NaN is NaN: a row that never equals itself would be delivered for ever.
        is_same = pc.or_(equal, pc.and_(_is_nothing(mine), _is_nothing(other)))
        same = pc.and_(same, is_same)
    return same


def _is_nothing(values: Any) -> Any:
    return pc.is_null(values, nan_is_null=True) if pa.types.is_floating(values.type) else pc.is_null(values)


def key_texts(rows: pa.RecordBatch, key: Sequence[str]) -> Any:
    """One value for each row that only an equal key has. A single column is its own."""
    if len(key) == 1:
        return rows.column(key[0])
    parts: list[Any] = []
    for name in key:
        value = rows.column(name)
        text: Any = value if pa.types.is_binary(value.type) else value.cast(pa.string()).cast(pa.binary())
        # The length goes before each part: ('a:b', 'c') and ('a', 'b:c') must not look alike.
        size = pc.binary_length(text).cast(pa.string()).cast(pa.binary())
        parts += [size, pa.scalar(b":"), text]
    return pc.binary_join_element_wise(*parts, pa.scalar(b""))


def without(rows: pa.RecordBatch | None, gone: pa.RecordBatch, key: Sequence[str]) -> pa.RecordBatch | None:
    """``rows`` without those whose key is in ``gone``."""
    if rows is None or rows.num_rows == 0 or gone.num_rows == 0:
        return rows
    known = pc.is_in(key_texts(rows, key), value_set=key_texts(gone, key))
    return rows.filter(pc.invert(known))

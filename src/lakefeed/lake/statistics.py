"""A Parquet file's footer as Delta's per-file statistics, which let readers and merges skip files.

Left out is what could mislead: floats (a footer ignores NaN, Spark orders it last), decimals (JSON numbers lose
digits), values no text can stand for. A missing bound only means that the file is read.
"""

from __future__ import annotations

import json
from datetime import date, datetime
from typing import Any

import pyarrow as pa

INDEXED_COLUMNS = 32
"""As Delta's own default."""

_PREFIX = 32
_LAST_CHAR = "\U0010ffff"


def file_statistics(metadata: Any, schema: pa.Schema) -> str:
    """The statistics of one file as the JSON text of an add action. ``metadata``: a pyarrow FileMetaData."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index, field in enumerate(schema):
        if index >= INDEXED_COLUMNS or pa.types.is_nested(field.type):
            break  # behind a nested column the footer's columns no longer count like the schema's
        groups = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if any(group is None for group in groups):
            continue
        if all(group.has_null_count for group in groups):
            nulls[field.name] = sum(group.null_count for group in groups)
        bounds = _bounds(groups, field.type)
        if bounds is not None:
            low[field.name], high[field.name] = bounds
    return json.dumps(
        {"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}, ensure_ascii=False
    )


def _bounds(groups: list[Any], kind: pa.DataType) -> tuple[Any, Any] | None:
    with_values = [group for group in groups if group.has_min_max]
    if not with_values or not _comparable(kind):
        return None
    if any(not group.has_min_max and group.num_values for group in groups):
        return None
    try:
        return (
            _text(min(group.min for group in with_values), upper=False),
            _text(max(group.max for group in with_values), upper=True),
        )
    except (OverflowError, ValueError):
        return None  # a date that Python cannot hold


def _comparable(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    )


def _text(value: Any, *, upper: bool) -> Any:
    if isinstance(value, str):
        return _shortened(value, upper=upper)
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value


def _shortened(value: str, *, upper: bool) -> str:
    if len(value) <= _PREFIX:
        return value
    if upper and value[_PREFIX] == _LAST_CHAR:
        raise ValueError("no short text is above this one")
    return value[:_PREFIX] + (_LAST_CHAR if upper else "")

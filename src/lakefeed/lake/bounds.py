"""The lowest and highest key of a window, from the footers of its segments: no Spark job, no rows read.

As literals in the merge condition they let Delta leave out files that cannot have a matching row. Only the first key
column is used, and only kinds that Parquet, Delta and Spark order alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakefeed.change.batch import TIME
from lakefeed.change.segment import Window
from lakefeed.lake.location import filesystem
from lakefeed.lake.projection import lineage, steps
from lakefeed.lake.sparktype import quoted

_MAX_FILES = 64
_LONGEST_TEXT = 200


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """The first key column and the values that all of it in a window lie between."""

    column: str
    low: Any
    high: Any

    def condition(self, alias: str) -> str | None:
        """As Spark SQL; None for values that no literal can stand for."""
        column = f"{alias}.{quoted(self.column)}"
        try:
            return f"{column} >= {_literal(self.low)} AND {column} <= {_literal(self.high)}"
        except (TypeError, ValueError):
            return None


def key_bounds(window: Window) -> KeyBounds | None:
    """What every first key column value of the window lies between; None if unknown."""
    key = window.target.key[0]
    if len(window.segments) > _MAX_FILES or not _orderable(window.target.column(key).type):
        return None
    found: list[tuple[Any, Any]] = []
    for segment in window.segments:
        was = lineage(steps(window.schemas, segment.schema_version, window.target.version))[key]
        bounds = _file_bounds(segment.path, was) if was is not None else None
        if bounds is None:
            return None
        found.append(bounds)
    if not found:
        return None
    try:
        return KeyBounds(key, min(low for low, _ in found), max(high for _, high in found))
    except TypeError:
        return None


def lowest_time(window: Window) -> str | None:
    """The earliest commit time of a window as a literal of Spark SQL; None if unknown, as where a change has none."""
    if not window.segments or len(window.segments) > _MAX_FILES:
        return None
    found = [_file_bounds(segment.path, TIME) for segment in window.segments]
    lows = [bounds[0] for bounds in found if bounds is not None]
    return _literal(min(lows)) if len(lows) == len(found) else None


def _orderable(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    )


def _file_bounds(path: str, column: str) -> tuple[Any, Any] | None:
    """The range of one column in one file; None if a value is NULL (bounds would hide it) or a footer is silent."""
    files, place = filesystem(path)
    footer = pq.read_metadata(place, filesystem=files)
    index = footer.schema.names.index(column)
    parts: list[Any] = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
    if not parts or any(part is None or not part.has_min_max or part.null_count for part in parts):
        return None
    try:
        return min(part.min for part in parts), max(part.max for part in parts)
    except (OverflowError, ValueError):
        return None


def _literal(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str | date):
        raise TypeError(f"no literal for {value!r}")
    if isinstance(value, int):
        return f"{value}L" if value > -(2**63) else "(-9223372036854775807L - 1L)"
    if isinstance(value, str):
        return _text_literal(value)
    if isinstance(value, datetime):
        kind = "TIMESTAMP" if value.tzinfo else "TIMESTAMP_NTZ"
        return f"{kind}'{value.isoformat(sep=' ', timespec='microseconds')}'"
    return f"DATE'{value.isoformat()}'"


def _text_literal(value: str) -> str:
    """Through hexadecimal, so that no quoting rule of any Spark setting can change the value."""
    if len(value) > _LONGEST_TEXT:
        raise ValueError("too long to be worth a literal")
    return f"decode(X'{value.encode().hex()}', 'UTF-8')"

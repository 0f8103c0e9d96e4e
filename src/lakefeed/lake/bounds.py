"""The lowest and highest key of a window, from the footers of its segments: no Spark job, no rows read.

As literals in the merge condition they let the table leave out files that cannot have a matching row. Only the first
key column is used, and only kinds that Parquet, the table formats and Spark order alike. A footer takes about a quarter
of a millisecond, so that a window of thousands of segments is asked like one of a few: a catch-up is where leaving
files out saves most.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    if not _orderable(window.target.column(key).type):
        return None
    versions = {segment.schema_version for segment in window.segments}
    names = {one: lineage(steps(window.schemas, one, window.target.version))[key] for one in versions}
    found = _range((segment.path, names[segment.schema_version]) for segment in window.segments)
    return KeyBounds(key, *found) if found is not None else None


def lowest_time(window: Window) -> str | None:
    """The earliest commit time of a window as a literal of Spark SQL; None if unknown, as where a change has none."""
    found = _range((segment.path, TIME) for segment in window.segments)
    return _literal(found[0]) if found is not None else None


def _range(columns: Iterable[tuple[str, str | None]]) -> tuple[Any, Any] | None:
    """Over one column of each file; None, at the first that does not tell it, or if there is no file."""
    low: Any = None
    high: Any = None
    for path, column in columns:
        bounds = _file_bounds(path, column) if column is not None else None
        if bounds is None:
            return None
        try:
            low = bounds[0] if low is None else min(low, bounds[0])
            high = bounds[1] if high is None else max(high, bounds[1])
        except TypeError:
            return None  # the column's type changed on the way
    return None if low is None else (low, high)


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

"""The lowest and highest key of a window, from the footers of its segments: no Spark job, no rows read.

As literals in the merge condition they let the table leave out files that cannot have a matching row. Only the first
key column is used, and only kinds that Parquet, the table formats and Spark order alike. A footer takes about a quarter
of a millisecond, so that a window of thousands of segments is asked like one of a few: a catch-up is where leaving
files out saves most.

Few keys all over a large table leave no file out. There the condition names every one of them, so that a row of another
key ends where it is read, and is neither sorted nor sent to another task: Iceberg's merge does that with all rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakefeed.change.batch import TIME
from lakefeed.change.segment import Window
from lakefeed.lake.location import filesystem
from lakefeed.lake.projection import lineage, steps
from lakefeed.lake.sparktype import quoted

_LONGEST_TEXT = 200
_LARGE_BYTES = 64 << 20
_MOST_VALUES, _MOST_SEGMENTS = 10_000, 200
"""Up to which to read the keys and to say them to Spark takes tenths of a second."""
_DENSE = 20
"""Keys that a range may have for each changed one, so that little is gained by naming them."""


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """The first key column and the values that all of it in a window lie between; maybe all its ``values``."""

    column: str
    low: Any
    high: Any
    values: tuple[int, ...] = ()

    def condition(self, alias: str) -> str | None:
        """As Spark SQL; None for values that no literal can stand for."""
        column = f"{alias}.{quoted(self.column)}"
        try:
            within = f"{column} >= {_literal(self.low)} AND {column} <= {_literal(self.high)}"
            return f"{within} AND {column} IN ({', '.join(map(_literal, self.values))})" if self.values else within
        except (TypeError, ValueError):
            return None


def key_bounds(window: Window) -> KeyBounds | None:
    """What every first key column value of the window lies between; None if unknown."""
    key = window.target.key[0]
    if not _orderable(window.target.column(key).type):
        return None
    found = _range(_columns(window, key))
    return KeyBounds(key, *found) if found is not None else None


def narrowed(bounds: KeyBounds | None, window: Window, table_bytes: int) -> KeyBounds | None:
    """With every value, where that is worth it: few whole numbers, for a large table."""
    count = window.counts.total
    few = count <= _MOST_VALUES and len(window.segments) <= _MOST_SEGMENTS
    if bounds is None or not isinstance(bounds.low, int) or not few or table_bytes < _LARGE_BYTES:
        return bounds
    if bounds.high - bounds.low < _DENSE * count:
        return bounds
    values: set[Any] = set()
    for path, column in _columns(window, bounds.column):
        files, place = filesystem(path)
        values |= set(pc.unique(pq.read_table(place, columns=[column], filesystem=files).column(0)).to_pylist())
    return replace(bounds, values=tuple(sorted(values)))


def lowest_time(window: Window) -> str | None:
    """The earliest commit time of a window as a literal of Spark SQL; None if unknown, as where a change has none."""
    found = _range((segment.path, TIME) for segment in window.segments)
    return _literal(found[0]) if found is not None else None


def _columns(window: Window, key: str) -> Iterator[tuple[str, str | None]]:
    """Each segment's file, and the name that a column of the target has in it."""
    versions = {segment.schema_version for segment in window.segments}
    names = {one: lineage(steps(window.schemas, one, window.target.version))[key] for one in versions}
    for segment in window.segments:
        yield segment.path, names[segment.schema_version]


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
    index = _leaf(footer.schema, column)
    if index is None:
        return None
    parts: list[Any] = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
    if not parts or any(part is None or not part.has_min_max or part.null_count for part in parts):
        return None
    try:
        return min(part.min for part in parts), max(part.max for part in parts)
    except (OverflowError, ValueError):
        return None


def _leaf(schema: Any, column: str) -> int | None:
    """Where a footer has a column of the table. Its own names are those of leaves: each list has one, ``element``."""
    leaves = (schema.column(index) for index in range(len(schema)))
    return next((index for index, leaf in enumerate(leaves) if leaf.path == leaf.name == column), None)


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

"""A window for Spark and for planning: its changes as rows of one schema, and the range of its keys.

Changes of any schema version become rows of the window's target schema: see ``schema.projection``. In older rows a
newer column reads as its default, as in the source.

The lowest and highest key come from the footers of the segments: no Spark job, no rows read. As literals in a merge
condition they let the table skip files that cannot have a matching row. Only the first key column counts, and only
types that Parquet, the table formats and Spark order alike. A footer takes about a quarter of a millisecond, so windows
of thousands of segments get bounds, too: in a catch-up, skipping files saves most.

Few keys all over a large table skip no file. There the condition lists every key, so that Spark drops other rows where
it reads them. Otherwise Iceberg's merge sorts and shuffles them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import lru_cache, partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakefeed.change.batch import ABSENT, OP, POSITION, SEQ, TIME, TXN, Operation
from lakefeed.change.segment import Segment, Window
from lakefeed.change.table import Column, TableSchema
from lakefeed.lake.kept import KEEPING
from lakefeed.lake.location import filesystem, spark_options, spark_path
from lakefeed.lake.schema.projection import lineage, projected, steps
from lakefeed.lake.spark.type import quoted, spark_columns, text_literal
from lakefeed.storage.copies import copied_from, original_of

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

    from lakefeed.lake.rule.resolve import Resolved

CARRIED = "_lakefeed_carried_"
"""Prefix of a boolean column: did this change carry that column? Only for columns that some change did not carry."""

ORDERED_ALIKE = (pa.types.is_integer, pa.types.is_string, pa.types.is_date, pa.types.is_timestamp)
"""The kinds of types whose values Parquet, the table formats and Spark order alike."""

_METADATA: dict[str, pa.DataType] = {
    OP: pa.int8(),
    SEQ: pa.int64(),
    ABSENT: pa.list_(pa.string()),
    POSITION: pa.string(),
    TIME: pa.timestamp("us", tz="UTC"),
    TXN: pa.string(),
}
_LONGEST_TEXT = 200
_LARGE_BYTES = 64 << 20
_MOST_VALUES, _MOST_SEGMENTS = 10_000, 200
"""Up to so many keys and segments, reading the keys and listing them to Spark takes tenths of a second."""
_DENSE = 20
"""If a range has fewer possible keys than this for each changed one, listing the keys gains little."""


@dataclass(frozen=True, slots=True)
class RuledWindow(Window):
    """The changes of ``inner`` under a rule: ``target`` has the lake table's columns, ``inner.target`` the source's.
    ``lake.rule.changes`` makes it, and its rows."""

    inner: Window = field(kw_only=True)
    ruled: Resolved = field(kw_only=True)


def incomplete_columns(window: Window) -> dict[str, str]:
    """Columns of the target that some change of the window did not carry, each with the name of its CARRIED column.

    A change carries a column that a rule makes of several if it carries all of them.
    """
    if not window.absent:
        return {}
    if isinstance(window, RuledWindow):
        lacking = incomplete_columns(window.inner).keys()
        made = [one.column.name for one in window.ruled.columns if lacking & set(one.inputs)]
        return {name: f"{CARRIED}by_rule_{index}" for index, name in enumerate(made)}
    found: set[str] = set()
    for segment in window.segments:
        origin = lineage(steps(window.schemas, segment.schema_version, window.target.version))
        found |= {name for name, was in origin.items() if was in segment.absent}
    named = [name for name in window.target.names if name in found]
    return {name: CARRIED + str(index) for index, name in enumerate(named)}


def read_changes(
    session: SparkSession, window: Window, metadata: Sequence[str] = (), *, before_images: bool = False
) -> DataFrame:
    """All changes of a window as rows of its target schema, with operation, seq and CARRIED columns.

    ``metadata`` are further metadata columns; ``_lakefeed_absent`` has the target's names. ``before_images`` adds these
    rows, for modes that keep changes. Modes read their changes through ``mode.changes``, which applies rules and
    completes moved rows. In a ``keeping`` block the rows come from memory, as far as they are kept there.
    """
    from pyspark.sql import functions as F  # noqa: N812

    incomplete = incomplete_columns(window)
    plain = [name for name in metadata if name != ABSENT]
    by_version: dict[int, list[Segment]] = {}
    for segment in window.segments:
        by_version.setdefault(segment.schema_version, []).append(segment)
    parts: list[DataFrame] = []
    for version, segments in by_version.items():
        path = steps(window.schemas, version, window.target.version)
        origin = lineage(path)
        names = (OP, SEQ, ABSENT, *plain)
        read = partial(read_segments, session, path[0], metadata=names)
        runs = KEEPING.get()
        changes = read(segments) if runs is None else runs.rows(session, path[0], segments, names, read)
        extra = [F.col(name) for name in plain]
        if ABSENT in metadata:  # under the columns' names now; NULL if the change carried all
            extra.append(absent_names({name: _carried(origin[name]) for name in incomplete}).alias(ABSENT))
        flags = [_carried(origin[name]).alias(flag) for name, flag in incomplete.items()]
        parts.append(changes.select(*projected(path), F.col(OP), F.col(SEQ), *extra, *flags))
    rows = reduce(lambda one, other: one.unionByName(other), parts)
    unwanted = window.has_before_images and not before_images
    return rows.where(f"{OP} <> {int(Operation.BEFORE)}") if unwanted else rows


def read_segments(
    session: SparkSession, schema: TableSchema, segments: Sequence[Segment], metadata: Sequence[str]
) -> DataFrame:
    """Changes of one schema, as in the journal, with some of the metadata columns.

    Gives Spark the schema, so that it opens no file to infer it.
    """
    own = [pa.field(column.name, column.type) for column in schema.columns]  # nullable: a delete has only the key
    added = [pa.field(name, _METADATA[name]) for name in metadata]
    paths = [one.path for one in segments]
    originals = [original_of(path) for path in paths] if copied_from else []
    if any(originals) and not str(session.conf.get("spark.master", "local")).startswith("local"):
        # The paths are local copies of objects: a cluster's workers read the objects themselves.
        paths = [original or path for original, path in zip(originals, paths, strict=True)]
        for name, value in spark_options(next(filter(None, originals))).items():
            session.conf.set(name, value)
    return session.read.schema(spark_columns(pa.schema([*own, *added]))).parquet(
        *(spark_path(path, as_glob=True) for path in paths)
    )


def _carried(name: str | None) -> SparkColumn:
    from pyspark.sql import functions as F  # noqa: N812

    if name is None:
        return F.lit(True)
    return ~F.coalesce(F.array_contains(F.col(ABSENT), name), F.lit(False))


def absent_names(carried: Mapping[str, SparkColumn]) -> SparkColumn:
    """The names of the columns that a change did not carry; NULL if it carried all of them."""
    from pyspark.sql import functions as F  # noqa: N812

    missing = [F.when(~flag, F.lit(name)) for name, flag in carried.items()]
    names = F.array_compact(F.array(*missing)) if missing else F.lit(None).cast("array<string>")
    return F.when(F.size(names) > 0, names)


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """The first key column, and its lowest and highest value in a window; maybe all its ``values``."""

    column: str
    low: Any
    high: Any
    values: tuple[int, ...] = ()

    def condition(self, alias: str) -> str | None:
        """The bounds as a Spark SQL condition; None for values that have no literal."""
        column = f"{alias}.{quoted(self.column)}"
        try:
            within = f"{column} >= {_literal(self.low)} AND {column} <= {_literal(self.high)}"
            return f"{within} AND {column} IN ({', '.join(map(_literal, self.values))})" if self.values else within
        except (TypeError, ValueError):
            return None


def key_bounds(window: Window, *, of_times: bool = False) -> KeyBounds | None:
    """The bounds of the first key column in a window, or of its commit times; None if unknown.

    They are unknown if a value is NULL, which bounds would hide, and for a key that a rule masks.
    """
    if isinstance(window, RuledWindow) and not of_times:
        inner, plain = key_bounds(window.inner), window.ruled.plain
        return replace(inner, column=plain[inner.column]) if inner is not None and inner.column in plain else None
    first = Column(TIME, _METADATA[TIME]) if of_times else window.target.key_columns[0]
    key = first.name
    if not any(is_kind(first.type) for is_kind in ORDERED_ALIKE):
        return None
    names: dict[int, str | None] = {}
    for version in {segment.schema_version for segment in window.segments}:
        is_own = of_times or version == window.target.version
        names[version] = key if is_own else lineage(steps(window.schemas, version, window.target.version))[key]
    low: Any = None
    high: Any = None
    for segment in window.segments:
        try:
            found = _segment_bounds(segment.path, names[segment.schema_version])
            if found is None:
                return None
            low = found[0] if low is None else min(low, found[0])
            high = found[1] if high is None else max(high, found[1])
        except (OverflowError, TypeError, ValueError):
            return None  # the column's type has changed, or Python cannot represent a date
    return None if low is None else KeyBounds(key, low, high)


@lru_cache(maxsize=20_000)
def _segment_bounds(path: str, name: str | None) -> tuple[Any, Any] | None:
    """The lowest and highest value of a column; None if unknown. Reads a footer once: a segment never changes."""
    files, place = filesystem(path)
    footer = pq.read_metadata(place, filesystem=files)
    # A footer names leaves: each list has one, ``element``.
    leaves: list[Any] = [footer.schema.column(index) for index in range(len(footer.schema))]
    index = next((number for number, leaf in enumerate(leaves) if leaf.path == leaf.name == name), None)
    if index is None:
        return None
    parts: list[Any] = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
    if not parts or any(part is None or not part.has_min_max or part.null_count for part in parts):
        return None
    return min(part.min for part in parts), max(part.max for part in parts)


def narrowed(bounds: KeyBounds | None, window: Window, table_bytes: int) -> KeyBounds | None:
    """The bounds with every value, if that pays: for few integers in a large table."""
    if isinstance(window, RuledWindow) and bounds is not None:
        names = {lake: source for source, lake in window.ruled.plain.items()}
        found = narrowed(replace(bounds, column=names[bounds.column]), window.inner, table_bytes)
        return replace(found, column=bounds.column) if found is not None else None
    count = window.counts.total
    few = count <= _MOST_VALUES and len(window.segments) <= _MOST_SEGMENTS
    if bounds is None or not isinstance(bounds.low, int) or not few or table_bytes < _LARGE_BYTES:
        return bounds
    if bounds.high - bounds.low < _DENSE * count:
        return bounds
    values: set[Any] = set()
    for segment in window.segments:
        column = lineage(steps(window.schemas, segment.schema_version, window.target.version))[bounds.column]
        files, place = filesystem(segment.path)
        values |= set(pc.unique(pq.read_table(place, columns=[column], filesystem=files).column(0)).to_pylist())
    return replace(bounds, values=tuple(sorted(values)))


def last_time(segment: Segment) -> datetime | None:
    """The latest commit time in a segment, by its footer; None if no change in it has one."""
    return _last_time(segment.path)


@lru_cache(maxsize=100_000)
def _last_time(path: str) -> datetime | None:
    """Reads a footer once: a segment never changes."""
    files, place = filesystem(path)
    footer = pq.read_metadata(place, filesystem=files)
    leaves: list[Any] = [footer.schema.column(index) for index in range(len(footer.schema))]
    index = next(number for number, leaf in enumerate(leaves) if leaf.path == TIME)
    parts: list[Any] = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
    return max((part.max for part in parts if part is not None and part.has_min_max), default=None)


def first_time(window: Window) -> datetime | None:
    """The earliest commit time of a window; None if unknown, because a change has none for example."""
    found = key_bounds(window, of_times=True)
    return found.low if found is not None else None


def lowest_time(window: Window) -> str | None:
    """``first_time`` as a literal of Spark SQL."""
    first = first_time(window)
    return _literal(first) if first is not None else None


def _literal(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str | date):
        raise TypeError(f"no literal for {value!r}")
    if isinstance(value, int):
        return f"{value}L" if value > -(2**63) else "(-9223372036854775807L - 1L)"
    if isinstance(value, str):
        if len(value) > _LONGEST_TEXT:
            raise ValueError("too long to be worth a literal")
        return text_literal(value)
    if isinstance(value, datetime):
        kind = "TIMESTAMP" if value.tzinfo else "TIMESTAMP_NTZ"
        return f"{kind}'{value.isoformat(sep=' ', timespec='microseconds')}'"
    return f"DATE'{value.isoformat()}'"

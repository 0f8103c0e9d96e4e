"""Compares two tables with the same columns on Spark: digests first, rows only where these differ.

  1 digest    each row becomes two 64-bit numbers for its key and two for its values, by hashes with different seeds;
              rows are distributed over buckets by their key, and for each bucket the number of rows and the sums of
              their digests are compared. Only these sums come to the driver
  2 drill     in the buckets that differ, find the keys whose rows are not the same multiset on both sides: a row that
              occurs twice is a difference
  3 show      for those, up to a limit, get the values: which columns differ

A value is hashed in a form that distinguishes what SQL's own equality does not: -0.0 from 0.0, NULL from everything,
lists with NULL in different positions. Keys that ``moved`` are left out of steps 1 and 2 and compared separately: a
difference there may only mean that the row was read at another time than the lake's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakefeed.capture.dialect import Key, key_array, key_rows
from lakefeed.change.batch import SEQ
from lakefeed.change.segment import Window
from lakefeed.change.table import TableSchema
from lakefeed.lake.base import ChunkSource
from lakefeed.lake.loader import ChunkFile, attempt_chunk, written_chunks
from lakefeed.lake.location import spark_path
from lakefeed.lake.mode import Mode
from lakefeed.lake.mode.check import PROBLEM, temporal_violations
from lakefeed.lake.rule.copy import ruled_rows
from lakefeed.lake.rule.resolve import Resolved
from lakefeed.lake.schema.mapping import ColumnMapping
from lakefeed.lake.spark.type import lake_arrow, quoted
from lakefeed.lake.window import read_changes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BUCKETS = 1024
MOST_MOVED = 200_000
"""How many keys are looked at again one by one; if there are more, the whole table is."""

_SEEDS = (0x5EED, 0xD16E57)
_KEY, _ROW = ("_lakefeed_k1", "_lakefeed_k2"), ("_lakefeed_h1", "_lakefeed_h2")
_MOVED, _MARK = "_lakefeed_moved", "_lakefeed_mark"
_BUCKET, _SIDE, _SOURCE, _LAKE = "_lakefeed_bucket", "_lakefeed_side", "_lakefeed_in_source", "_lakefeed_in_lake"
_LOSSY = ("float", "double")


@dataclass(frozen=True, slots=True)
class RowDifference:
    """One key whose rows differ. ``source`` and ``lake`` are the values of ``columns``, if both have the row once.

    ``in_source`` and ``in_lake`` are how many rows with the key each side has."""

    key: Mapping[str, Any]
    in_source: int
    in_lake: int
    columns: tuple[str, ...] = ()
    source: Mapping[str, Any] = field(default_factory=dict)
    lake: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        key = ", ".join(f"{name}={value!r}" for name, value in self.key.items())
        if self.in_lake == 0:
            return f"missing in the lake: {key}"
        if self.in_source == 0:
            return f"only in the lake: {key}" + (f", {self.in_lake} times" if self.in_lake > 1 else "")
        if self.in_lake != self.in_source:
            return f"{self.in_lake} times in the lake and {self.in_source} times in the source: {key}"
        named = (f"{one} is {self.source[one]!r} in the source, {self.lake[one]!r} in the lake" for one in self.columns)
        return f"{key}: {'; '.join(named)}"


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look at two tables found. ``keys`` are those of ``differences`` and of the other ``differing`` rows, up
    to the given limit; ``moved`` are those of rows that differ and had moved; both with the source's values. None means
    more than can be looked at one by one. ``faults`` are versions that violate an invariant of history."""

    source_rows: int
    lake_rows: int
    differing: int = 0
    differences: tuple[RowDifference, ...] = ()
    keys: tuple[Key, ...] = ()
    moved: tuple[Key, ...] | None = ()
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class AsInLake:
    """How rows of the source, as the journal has them, become rows of a lake table, with its columns ``names`` and its
    types. ``key`` are columns of the lake table in the order of the source's key; () for a table without one.
    ``key_is_plain``: they have the source's values."""

    mode: Mode
    names: tuple[str, ...]
    key: tuple[str, ...]
    mapping: ColumnMapping
    schema: TableSchema
    ruled: Resolved | None = None

    @property
    def key_is_plain(self) -> bool:
        return self.ruled is None or self.ruled.key_is_plain

    def rows(self, source: DataFrame, types: Mapping[str, Any], *, only_key: bool = False) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        there = set(source.columns)
        given = []
        for one in self.mapping.columns:
            if one.is_live and not one.since and one.source in there:
                given.append(F.col(quoted(one.source)).alias(one.column.name))
            else:
                given.append(F.lit(None).alias(one.column.name))
        rows = source.select(*given)
        if self.ruled is not None:
            if only_key and self.key:
                known = {one.column.name: one for one in self.ruled.columns}
                rows = rows.select(*(F.expr(known[name].value).alias(name) for name in self.key))
            else:
                rows = ruled_rows(rows, self.ruled)
        names = self.key if only_key and self.key else self.names
        return rows.select(*(F.col(quoted(name)).cast(types[name]).alias(name) for name in names))

    def current(self, table: DataFrame) -> DataFrame:
        """The rows of the lake table that should be the source's."""
        from pyspark.sql import functions as F  # noqa: N812

        which = self.mode.current_rows()
        if which is None:
            rows = left_by_changes(table, self.key, self.names)
        elif which.column is not None:
            column = F.col(quoted(which.column))
            rows = table.where(column.isNull() if which.null else column)
        else:
            rows = table
        return rows.select(*map(quoted, self.names))


@dataclass(frozen=True, slots=True)
class PacedChunk:
    """A chunk that is read no faster than this many rows per second. Picklable."""

    chunk: ChunkSource
    rows_per_second: float

    @property
    def table(self) -> Any:
        return self.chunk.table

    def open(self) -> Any:
        return _PacedRows(self.chunk.open(), self.rows_per_second)


class _PacedRows:
    def __init__(self, reader: Any, rows_per_second: float) -> None:
        self._reader = reader
        self._rate = rows_per_second

    def __enter__(self) -> _PacedRows:
        self._reader.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._reader.__exit__(*error)

    def __iter__(self) -> Any:
        import time

        began, rows = time.monotonic(), 0
        for batch in self._reader:
            yield batch
            rows += batch.num_rows
            time.sleep(max(0.0, rows / self._rate - (time.monotonic() - began)))

    @property
    def low(self) -> Any:
        return self._reader.low

    @property
    def high(self) -> Any:
        return self._reader.high


def stage_chunks(
    spark: SparkSession, chunks: Sequence[ChunkSource], schema: TableSchema, place: str
) -> list[ChunkFile]:
    """Read chunks of the source as Spark tasks, each into a Parquet file below ``place``. Errors as for a copy."""
    write = partial(attempt_chunk, directory=place, schema=lake_arrow(schema))
    return written_chunks(chunks, write, schema.table, lambda: spark)


def staged_rows(spark: SparkSession, files: Sequence[str], schema: TableSchema) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = from_arrow_schema(lake_arrow(schema), prefer_timestamp_ntz=True)
    if not files:
        return spark.createDataFrame([], columns)
    return spark.read.schema(columns).parquet(*(spark_path(one, as_glob=True) for one in files))


def look(
    spark: SparkSession,
    shape: AsInLake,
    source: DataFrame,
    table: DataFrame,
    window: Window,
    *,
    keys: Sequence[Key] | None = None,
    most: int,
    shown: int,
) -> Looked:
    """Compare rows of the source, as the journal has them, with ``table``, all rows of the lake table.

    ``window`` has the changes of the source table that one side may include and the other not: their keys have moved.
    ``keys``: compare only these, on both sides. Returns up to ``most`` keys of differences, ``shown`` of them with
    their values.
    """
    from pyspark.sql import functions as F  # noqa: N812

    types = {one.name: one.dataType for one in table.schema.fields}
    key = shape.key or shape.names
    theirs, mine = shape.rows(source, types), shape.current(table)
    if keys is not None:
        wanted = _digested(_keys_frame(spark, shape, keys, types), key, ()).select(*_KEY).distinct()
        mine = (
            _digested(mine, key, ())
            .join(F.broadcast(wanted), list(_KEY), "left_semi")
            .select(*map(quoted, shape.names))
        )
    both = _signed(theirs, mine, key, shape.names).withColumn(_MOVED, F.lit(False))
    if window.segments:
        changed = shape.rows(read_changes(spark, window), types, only_key=True)
        marks = _digested(changed, key, ()).select(*_KEY, F.lit(True).alias(_MARK)).distinct()
        both = both.join(F.broadcast(marks), list(_KEY), "left")
        both = both.withColumn(_MOVED, F.coalesce(F.col(_MARK), F.lit(False)))

    bucket, moved = F.pmod(F.col(_KEY[0]), F.lit(BUCKETS)), F.col(_MOVED)  # 1
    exact = [F.col(name).cast("decimal(38,0)") * F.col(_SIDE) for name in _ROW]
    sums = both.groupBy(bucket.alias(_BUCKET), moved).agg(
        F.sum(F.when(F.col(_SIDE) > 0, 1).otherwise(0)).alias(_SOURCE),
        F.sum(F.when(F.col(_SIDE) < 0, 1).otherwise(0)).alias(_LAKE),
        *(F.sum(one).alias(name) for one, name in zip(exact, _ROW, strict=True)),
    )
    rows = {_SOURCE: 0, _LAKE: 0}
    different: dict[bool, list[int]] = {False: [], True: []}
    for found in sums.collect():
        for side in rows:
            rows[side] += int(found[side])
        if found[_SOURCE] != found[_LAKE] or any(found[name] for name in _ROW):
            different[bool(found[_MOVED])].append(int(found[_BUCKET]))
    differing = 0
    shown_rows: tuple[RowDifference, ...] = ()
    found_keys: tuple[Key, ...] = ()
    moved_keys: tuple[Key, ...] | None = ()
    if different[False]:  # 2
        apart = _apart(both.where(~moved & bucket.isin(different[False]))).cache()
        try:
            differing = apart.count()
            found_keys = _source_keys(shape, apart.limit(most), mine, theirs)
            shown_rows = _shown(apart.limit(shown), theirs, mine, key, shape.names)  # 3
        finally:
            apart.unpersist()
    if different[True]:
        moved_keys = None
        if shape.key and shape.key_is_plain:
            unsettled = _apart(both.where(moved & bucket.isin(different[True])))
            moved_keys = _source_keys(shape, unsettled.limit(MOST_MOVED + 1), mine, theirs)
            moved_keys = moved_keys if len(moved_keys) <= MOST_MOVED else None
    return Looked(
        rows[_SOURCE], rows[_LAKE], differing, shown_rows, found_keys, moved_keys,
        history_faults(shape, table, shown) if keys is None else (),
    )  # fmt: skip


def sampled_keys(shape: AsInLake, table: DataFrame, rows: int, seed: int) -> tuple[Key, ...]:
    """The keys of about ``rows`` rows of the lake table, chosen by a hash with ``seed``."""
    from pyspark.sql import functions as F  # noqa: N812

    current = shape.current(table)
    chosen = current.orderBy(F.xxhash64(F.lit(seed), *(F.col(quoted(name)) for name in shape.key))).limit(rows)
    return _as_keys(shape, chosen)


def staged_keys(shape: AsInLake, source: DataFrame, table: DataFrame) -> tuple[Key, ...]:
    """The keys of rows that were read from the source, or of changes in the journal."""
    types = {one.name: one.dataType for one in table.schema.fields}
    return _as_keys(shape, shape.rows(source, types, only_key=True))


def changed_rows(spark: SparkSession, window: Window) -> DataFrame:
    """The changes of a window, which must have some, as rows of the source table."""
    return read_changes(spark, window)


def history_faults(shape: AsInLake, table: DataFrame, most: int) -> tuple[str, ...]:
    """Versions of a history table that violate an invariant, as sentences with their keys."""
    interval = shape.mode.interval()
    if interval is None or not shape.key:
        return ()
    broken = temporal_violations(table, shape.key, interval)
    rows = broken.limit(most + 1).collect()
    if not rows:
        return ()
    total = len(rows) if len(rows) <= most else broken.count()
    found = []
    for row in rows[:most]:
        key = ", ".join(f"{name}={row[name]!r}" for name in shape.key)
        found.append(f"a version of {key} (from {row[interval.valid_from]}, seq {row[SEQ]}): {row[PROBLEM]}")
    return (f"{total:,} versions break an invariant of history", *found)


def left_by_changes(changes: DataFrame, key: Sequence[str], names: Sequence[str]) -> DataFrame:
    """The rows that result from a table of changes (mode append); ``verify.mode`` has the rules."""
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as F  # noqa: N812

    from lakefeed.change.batch import ABSENT
    from lakefeed.lake.mode.base import OPERATION

    operation, seq = F.col(OPERATION), F.col(SEQ)
    truncated = changes.where(operation == "truncate").agg(F.coalesce(F.max(seq), F.lit(-1)).alias("_lakefeed_cut"))
    rows = changes.where(~operation.isin("truncate", "before")).crossJoin(F.broadcast(truncated))
    rows = rows.where(seq > F.col("_lakefeed_cut"))
    if not key:  # whole rows, counted: inserts minus deletes
        sign = F.when(operation == "delete", -1).otherwise(1)
        digested = _digested(rows.withColumn(_SIDE, sign), names, ())
        left = digested.groupBy(*_KEY).agg(
            F.sum(_SIDE).alias("_lakefeed_left"), *(F.first(quoted(name)).alias(name) for name in names)
        )
        times = F.expr("sequence(1, CAST(_lakefeed_left AS INT))")
        return (
            left.where("_lakefeed_left > 0").withColumn("_lakefeed_one", F.explode(times)).select(*map(quoted, names))
        )
    order = Over.partitionBy(*map(quoted, key)).orderBy(SEQ)
    so_far = order.rowsBetween(Over.unboundedPreceding, Over.currentRow)
    reset = F.max(F.when(operation.isin("insert", "read", "delete"), seq)).over(so_far)
    values = []
    for name in names:
        sent = ~F.coalesce(F.array_contains(F.col(ABSENT), name), F.lit(False)) & (operation != "delete")
        newest = F.last(F.when(sent, F.struct(F.col(quoted(name)).alias("v"), seq.alias("s"))), ignorenulls=True)
        newest = newest.over(so_far)
        values.append(F.when(newest["s"] >= F.coalesce(reset, F.lit(-1)), newest["v"]).alias(name))
    last = F.lead(seq).over(order).isNull()
    kept = rows.select(*values, operation.alias("_lakefeed_was"), last.alias("_lakefeed_is_last"))
    return kept.where("_lakefeed_is_last AND _lakefeed_was <> 'delete'").select(*map(quoted, names))


def _canonical(rows: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    kind, column = rows.schema[name].dataType, F.col(quoted(name))
    if kind.typeName() in _LOSSY:
        return column.cast("string")
    if kind.typeName() in ("array", "map", "struct"):
        return F.to_json(F.struct(column), {"ignoreNullFields": "false"})
    return column


def _digested(rows: DataFrame, key: Sequence[str], names: Sequence[str]) -> DataFrame:
    """With digests of the key and of all of ``names``, two hashes each."""
    from pyspark.sql import functions as F  # noqa: N812

    def digest(of: Sequence[str], seed: int) -> Column:
        values = [_canonical(rows, name) for name in of]
        # The hash ignores NULLs, so their positions are included.
        return F.xxhash64(F.lit(seed), *values, *(value.isNull() for value in values))

    made = {name: digest(key, seed) for name, seed in zip(_KEY, _SEEDS, strict=True)}
    if names:
        made |= {name: digest(names, seed) for name, seed in zip(_ROW, _SEEDS, strict=True)}
    return rows.select("*", *(value.alias(name) for name, value in made.items()))


def _signed(theirs: DataFrame, mine: DataFrame, key: Sequence[str], names: Sequence[str]) -> DataFrame:
    """The digests of both sides: with 1 for the source, with -1 for the lake."""
    from pyspark.sql import functions as F  # noqa: N812

    parts = [
        _digested(rows, key, names).select(*_KEY, *_ROW, F.lit(sign).alias(_SIDE))
        for rows, sign in ((theirs, 1), (mine, -1))
    ]
    return parts[0].union(parts[1])


def _apart(both: DataFrame) -> DataFrame:
    """The keys whose rows are not the same multiset on both sides, and how many rows each side has."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = both.groupBy(*_KEY, *_ROW).agg(
        F.sum(_SIDE).alias(_SIDE),
        F.sum(F.when(F.col(_SIDE) > 0, 1).otherwise(0)).alias(_SOURCE),
        F.sum(F.when(F.col(_SIDE) < 0, 1).otherwise(0)).alias(_LAKE),
    )
    keys = rows.groupBy(*_KEY).agg(
        F.max(F.abs(F.col(_SIDE))).alias(_SIDE), F.sum(_SOURCE).alias(_SOURCE), F.sum(_LAKE).alias(_LAKE)
    )
    return keys.where(F.col(_SIDE) != 0).drop(_SIDE)


def _of_keys(rows: DataFrame, keys: DataFrame, key: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return _digested(rows, key, ()).join(F.broadcast(keys), list(_KEY))


def _shown(
    keys: DataFrame, theirs: DataFrame, mine: DataFrame, key: Sequence[str], names: Sequence[str]
) -> tuple[RowDifference, ...]:
    """Differences with their values, by key."""
    sides: list[dict[tuple[int, int], dict[str, Any]]] = []
    counts: dict[tuple[int, int], tuple[int, int]] = {}
    for rows in (theirs, mine):
        side: dict[tuple[int, int], dict[str, Any]] = {}
        for row in _of_keys(rows, keys, key).collect():
            of = (row[_KEY[0]], row[_KEY[1]])
            counts[of] = (int(row[_SOURCE]), int(row[_LAKE]))
            side.setdefault(of, {name: row[name] for name in names})
        sides.append(side)
    found = []
    for of, (in_source, in_lake) in counts.items():
        source, lake = (side.get(of) for side in sides)
        values = source or lake or {}
        columns: tuple[str, ...] = ()
        if source is not None and lake is not None and (in_source, in_lake) == (1, 1):
            columns = tuple(name for name in names if repr(source[name]) != repr(lake[name]))
        found.append(
            RowDifference(
                {name: values[name] for name in key},
                in_source,
                in_lake,
                columns,
                {name: (source or {}).get(name) for name in columns},
                {name: (lake or {}).get(name) for name in columns},
            )
        )
    return tuple(sorted(found, key=lambda one: [repr(value) for value in one.key.values()]))


def _source_keys(shape: AsInLake, keys: DataFrame, *sides: DataFrame) -> tuple[Key, ...]:
    """The keys with the source's values, for reads by key; none if the lake has other values for them."""
    if not shape.key or not shape.key_is_plain:
        return ()
    parts = [_of_keys(rows, keys, shape.key).select(*map(quoted, shape.key)) for rows in sides]
    return _as_keys(shape, parts[0].union(parts[1]))


def _as_keys(shape: AsInLake, rows: DataFrame) -> tuple[Key, ...]:
    """The distinct keys of rows with the lake's columns, with the source's values."""
    found: Any = rows.select(*map(quoted, shape.key)).distinct().limit(2 * MOST_MOVED).toArrow()
    columns = [shape.schema.column(name) for name in shape.schema.key]
    kinds = pa.schema([pa.field(one.name, one.type) for one in columns])
    arrays = [found.column(own).cast(one.type) for own, one in zip(shape.key, columns, strict=True)]
    return tuple(
        one for batch in pa.Table.from_arrays(arrays, schema=kinds).to_batches() for one in key_rows(batch, kinds.names)
    )


def _keys_frame(spark: SparkSession, shape: AsInLake, keys: Sequence[Key], types: Mapping[str, Any]) -> DataFrame:
    """Keys of the source as a table with the lake's columns and types."""
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = [shape.schema.column(name) for name in shape.schema.key]
    arrays = [key_array([key[index] for key in keys], one.type) for index, one in enumerate(columns)]
    kinds = pa.schema([pa.field(own, one.type) for own, one in zip(shape.key, columns, strict=True)])
    table = pa.Table.from_arrays(arrays, schema=kinds)
    frame = spark.createDataFrame(table, schema=from_arrow_schema(kinds, prefer_timestamp_ntz=True))
    return frame.select(*(frame[quoted(name)].cast(types[name]).alias(name) for name in shape.key))

"""Changes of any schema version as rows of one target schema: renamed columns follow, dropped ones go, types widen.

A column that was added later reads as its default in rows from before: that is what the source shows for them too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING

from lakefeed.change.batch import ABSENT, OP, POSITION, SEQ, TIME, TXN, Operation
from lakefeed.change.schema_change import origins
from lakefeed.change.segment import Segment, Window
from lakefeed.change.table import Column, TableSchema
from lakefeed.errors import LakeError
from lakefeed.lake.location import spark_glob
from lakefeed.lake.sparktype import quoted, spark_columns, spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

CARRIED = "_lakefeed_carried_"
"""Prefix of a boolean column: did this change carry that column? Only for columns that some change did not."""

_TOLD = {POSITION: "string", TIME: "timestamp", TXN: "string"}


def steps(schemas: Mapping[int, TableSchema], start: int, end: int) -> list[TableSchema]:
    """The schemas from version ``start`` to version ``end``, each one step after the other."""
    if start > end:
        raise LakeError(f"schema version {start} is newer than {end}")
    found = [schemas[version] for version in sorted(schemas) if start <= version <= end]
    if not found or found[0].version != start or found[-1].version != end:
        known = ", ".join(map(str, sorted(schemas)))
        raise LakeError(f"the journal gave the schema versions {known}; {start} to {end} are needed")
    return found


def lineage(path: Sequence[TableSchema]) -> dict[str, str | None]:
    """For each column of the last schema its name in the first, or None if it was added on the way.

    Followed step by step: a column dropped and added again under its old name is a new one.
    """
    names: dict[str, str | None] = {name: name for name in path[0].names}
    for before, after in pairwise(path):
        came_from = origins(before, after)
        names = {name: names[was] if was is not None else None for name, was in came_from.items()}
    return names


def projected(path: Sequence[TableSchema]) -> list[SparkColumn]:
    """Expressions that turn a row of the first schema into a row of the last."""
    from pyspark.sql import functions as F  # noqa: N812

    first, target = path[0], path[-1]
    columns = []
    for name, was in lineage(path).items():
        if was is None:
            columns.append(default(target.column(name)))
            continue
        column, kind = F.col(quoted(was)), target.column(name).type
        widened = column if first.column(was).type == kind else column.cast(spark_type(kind) or "string")
        columns.append(widened.alias(name))
    return columns


def default(column: Column) -> SparkColumn:
    from pyspark.sql import functions as F  # noqa: N812

    return F.lit(column.default).cast(spark_type(column.type) or "string").alias(column.name)


def incomplete_columns(window: Window) -> tuple[str, ...]:
    """Columns of the target that some change of the window did not carry, in the target's order."""
    found: set[str] = set()
    for segment in window.segments:
        origin = lineage(steps(window.schemas, segment.schema_version, window.target.version))
        found |= {name for name, was in origin.items() if was in segment.absent}
    return tuple(name for name in window.target.names if name in found)


def read_changes(
    session: SparkSession, window: Window, told: Sequence[str] = (), *, before_images: bool = False
) -> DataFrame:
    """All changes of a window as rows of its target schema, with operation, seq and what they carried.

    ``told`` are further metadata columns. ``_lakefeed_absent`` among them has the target's names. With
    ``before_images`` those are among the rows, which is for modes that keep rows as they were told.
    """
    by_version: dict[int, list[Segment]] = {}
    for segment in window.segments:
        by_version.setdefault(segment.schema_version, []).append(segment)
    parts = [_read_version(session, window, segments, told) for segments in by_version.values()]
    changes = reduce(lambda one, other: one.unionByName(other), parts)
    unwanted = window.has_before_images and not before_images
    return changes.where(f"{OP} <> {int(Operation.BEFORE)}") if unwanted else changes


def _read_version(session: SparkSession, window: Window, segments: Sequence[Segment], told: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    incomplete = incomplete_columns(window)
    path = steps(window.schemas, segments[0].schema_version, window.target.version)
    plain = [name for name in told if name != ABSENT]
    more = "".join(f", {name} {_TOLD[name]}" for name in plain)
    columns = f"{spark_columns(path[0])}, {OP} tinyint, {SEQ} bigint, {ABSENT} array<string>{more}"
    # The schema is given, so that Spark does not open a file to guess it.
    changes = session.read.schema(columns).parquet(*(spark_glob(segment.path) for segment in segments))
    origin = lineage(path)
    extra = [F.col(name) for name in plain]
    if ABSENT in told:
        extra.append(_absent({name: origin[name] for name in incomplete}).alias(ABSENT))
    flags = [_carried(origin[name]).alias(CARRIED + str(index)) for index, name in enumerate(incomplete)]
    return changes.select(*projected(path), F.col(OP), F.col(SEQ), *extra, *flags)


def _absent(origin: Mapping[str, str | None]) -> SparkColumn:
    """The columns that a change did not carry, under the names that they have now; NULL if there are none."""
    from pyspark.sql import functions as F  # noqa: N812

    if not origin:
        return F.lit(None).cast("array<string>")
    names = F.array_compact(F.array(*(F.when(~_carried(was), F.lit(name)) for name, was in origin.items())))
    return F.when(F.size(names) > 0, names)


def _carried(name: str | None) -> SparkColumn:
    from pyspark.sql import functions as F  # noqa: N812

    if name is None:
        return F.lit(True)
    return ~F.coalesce(F.array_contains(F.col(ABSENT), name), F.lit(False))

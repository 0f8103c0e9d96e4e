"""Rows of one schema version as rows of another: renamed columns keep their values, dropped ones go, types widen.

In older rows a newer column reads as its default, as in the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from lakefeed.change.schema_change import origins
from lakefeed.change.table import TableSchema
from lakefeed.errors import LakeError
from lakefeed.lake.spark.type import quoted, spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn


def steps(schemas: Mapping[int, TableSchema], start: int, end: int) -> list[TableSchema]:
    """The schemas from version ``start`` to version ``end``, in order."""
    if start > end:
        raise LakeError(f"schema version {start} is newer than {end}")
    found = [schemas[version] for version in sorted(schemas) if start <= version <= end]
    if not found or found[0].version != start or found[-1].version != end:
        known = ", ".join(map(str, sorted(schemas)))
        raise LakeError(f"the journal gave the schema versions {known}; the lake needs {start} to {end}")
    return found


def lineage(path: Sequence[TableSchema]) -> dict[str, str | None]:
    """For each column of the last schema its name in the first, or None if the path added it.

    Goes version by version: a column dropped and added again under its old name is a new one.
    """
    names: dict[str, str | None] = {name: name for name in path[0].names}
    for before, after in pairwise(path):
        came_from = origins(before, after)
        names = {name: names[was] if was is not None else None for name, was in came_from.items()}
    return names


def projected(path: Sequence[TableSchema]) -> list[SparkColumn]:
    """Expressions that turn a row of the first schema into a row of the last."""
    from pyspark.sql import functions as F  # noqa: N812

    came_from, given = lineage(path), {column.name: column.type for column in path[0].columns}
    columns = []
    for wanted in path[-1].columns:
        was = came_from[wanted.name]
        column = F.lit(wanted.default) if was is None else F.col(quoted(was))
        if was is None or given[was] != wanted.type:
            column = column.cast(spark_type(wanted.type) or "string")
        columns.append(column.alias(wanted.name))
    return columns

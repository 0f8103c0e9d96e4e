"""Evolve: a lake table's columns follow the source's. One atomic, idempotent commit per step to a newer version.

- Added columns without a default: only the table's metadata changes.
- Columns added with a default, dropped or renamed: the table is rewritten in one commit. Delta could do the last two
  in metadata alone with column mapping, but that is a table feature some readers do not have; every reader can
  read what this makes. The price is one rewrite per such change.
- A changed type or key is not followed in place: the table stops until it is copied anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from lakefeed.change.schema_change import ChangeKey, RetypeColumn, SchemaChange, diff
from lakefeed.change.table import TableSchema
from lakefeed.errors import TableStoppedError
from lakefeed.lake.location import spark_path
from lakefeed.lake.projection import lineage, projected
from lakefeed.lake.sparktype import refuse_unstorable, spark_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def refuse_unfollowed(path: Sequence[TableSchema]) -> None:
    """TableStoppedError if a step on the way cannot be followed in place."""
    target = path[-1]
    refuse_unstorable(target)
    for before, after in pairwise(path):
        for change in diff(before, after):
            if isinstance(change, RetypeColumn | ChangeKey):
                raise TableStoppedError(
                    f"table {target.table}: {_said(change)}, which its lake table cannot follow in place",
                    remedy=f"Remove the lake table and start the pipeline again: {target.table} is then copied anew.",
                    table=str(target.table),
                )


def is_only_metadata(path: Sequence[TableSchema]) -> bool:
    """Does the last schema only add columns that read as NULL, behind those of the first?"""
    first, last = path[0], path[-1]
    came_from = lineage(path)
    kept = [name for name, was in came_from.items() if was == name]
    added = [last.column(name) for name, was in came_from.items() if was is None]
    return tuple(kept) == first.names and all(column.default is None for column in added)


def evolve_table(session: SparkSession, path: Sequence[TableSchema], location: str) -> None:
    """Bring the table at ``location`` from the first schema of ``path`` to the last. The session is stamped."""
    place = spark_path(location)
    if is_only_metadata(path):
        nothing = session.createDataFrame([], spark_columns(path[-1]))
        nothing.write.format("delta").mode("append").option("mergeSchema", "true").save(place)
        return
    rows = session.read.format("delta").load(place).select(*projected(path))
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(place)


def _said(change: SchemaChange) -> str:
    if isinstance(change, RetypeColumn):
        return f"column '{change.name}' changed from {change.old} to {change.new}"
    if isinstance(change, ChangeKey):
        return f"the key changed from ({', '.join(change.old)}) to ({', '.join(change.new)})"
    return str(change)

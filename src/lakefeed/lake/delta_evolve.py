"""A Delta table's columns from one schema to a later one, in one commit. See ``evolve`` for the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from lakefeed.change.table import TableSchema
from lakefeed.lake.evolve import is_only_metadata
from lakefeed.lake.location import spark_path
from lakefeed.lake.projection import projected
from lakefeed.lake.sparktype import quoted, spark_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCAL_TIME = pa.timestamp("us")


def evolve_table(session: SparkSession, path: Sequence[TableSchema], location: str) -> None:
    """Bring the table at ``location`` from the first schema of ``path`` to the last. The session is stamped."""
    place = spark_path(location)
    if _LOCAL_TIME in path[-1].arrow.types and _LOCAL_TIME not in path[0].arrow.types:
        _enable_local_time(session, place)
    if is_only_metadata(path):
        nothing = session.createDataFrame([], spark_columns(path[-1]))
        nothing.write.format("delta").mode("append").option("mergeSchema", "true").save(place)
        return
    rows = session.read.format("delta").load(place).select(*projected(path))
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(place)


def _enable_local_time(session: SparkSession, place: str) -> None:
    """A table made without a timestamp column that has no zone must be told first that it may have one.

    A commit of its own, harmless to repeat, in a session without the stamp: it must not be taken for the evolution.
    """
    session.newSession().sql(
        f"ALTER TABLE delta.{quoted(place)} SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')"
    )

"""Lake tables as they are now: as a DataFrame, as Arrow without Spark, and by name in a session's catalog."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from lakefeed.change.table import TableId
from lakefeed.errors import LakeError
from lakefeed.lake.delta import Delta
from lakefeed.lake.formats import FORMATS, format_at, history_at
from lakefeed.lake.history import TableHistory
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.location import lake_root, spark_path, table_path
from lakefeed.lake.reader import rows_at
from lakefeed.lake.spark.type import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LakeOrPath = str | Path | Delta | Iceberg
"""A lake's path, whatever the format of its tables; or the lake itself, for tables of an Iceberg catalog."""


def table(spark: SparkSession, lake: LakeOrPath, name: str) -> DataFrame:
    """A lake table as it is now: ``lakefeed.table(spark, "lake", "public.orders")``. LakeError if it is not there."""
    wanted = TableId.parse(name)
    if isinstance(lake, Delta | Iceberg):
        history: TableHistory = lake.history(wanted)
    else:
        root = lake_root(lake)
        if format_at(table_path(root, wanted)) is None:
            raise _missing(wanted, root)
        history = history_at(spark, root, table_path(root, wanted), wanted)
    commits = history.commits()
    if not commits:
        raise _missing(wanted, str(lake))
    return history.read(spark, commits[-1].version)


def to_arrow(lake: LakeOrPath, name: str) -> pa.Table:
    """The rows of a lake table as one Arrow table, by a reader that is not Spark: ``.to_pandas()``, DuckDB and polars
    take it as it is. All of it is in memory. LakeError if the table is not there."""
    wanted = TableId.parse(name)
    found = lake.rows(wanted) if isinstance(lake, Delta | Iceberg) else rows_at(table_path(lake_root(lake), wanted))
    if found is None:
        raise _missing(wanted, str(getattr(lake, "path", lake)))
    return pa.Table.from_batches(list(found.batches()), found.schema)


def register_tables(spark: SparkSession, lake: str | Path, *, schema: str, database: str | None = None) -> list[str]:
    """Name the Delta tables of one source schema in the session's catalog: ``SELECT * FROM shop.orders``.

    ``database`` is made if it is not there; without one it is called as the schema. A name that is registered already
    is pointed to this lake. Returns the names. Iceberg tables have a catalog of their own; they are left out.
    """
    root, into = lake_root(lake), database or schema
    found = []
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {quoted(into)}")
    for directory in sorted(Path(table_path(root, TableId(schema, "x"))).parent.glob("*")):
        if FORMATS["delta"].is_at(str(directory)):
            name = f"{quoted(into)}.{quoted(directory.name)}"
            location = spark_path(str(directory)).replace("'", "\\'")
            spark.sql(f"DROP TABLE IF EXISTS {name}")  # of the catalog alone: an external table keeps its files
            spark.sql(f"CREATE TABLE {name} USING delta LOCATION '{location}'")
            found.append(f"{into}.{directory.name}")
    if not found:
        raise LakeError(f"there is no Delta table of {schema} in {root}", remedy="Check the path, or sync first.")
    return found


def _missing(wanted: TableId, lake: str) -> LakeError:
    return LakeError(
        f"there is no table {wanted} in {lake}", remedy="Check the lake's path and the table's name; or sync first."
    )

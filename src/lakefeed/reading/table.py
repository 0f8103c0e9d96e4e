"""Lake tables as they are now: as a DataFrame, as Arrow without Spark, and by name in a session's catalog."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from lakefeed.change.table import TableId
from lakefeed.errors import LakeError
from lakefeed.lake.delta import Delta
from lakefeed.lake.formats import format_at, history_at
from lakefeed.lake.history import TableHistory
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.iceberg.catalog import IcebergCatalog
from lakefeed.lake.location import lake_root, spark_path, table_path
from lakefeed.lake.reader import rows_at
from lakefeed.lake.spark.session import checked_session
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
    """Name the tables of one source schema in the session's catalog: ``SELECT * FROM shop.orders``.

    ``database`` is made if it is not there; without one it is called as the schema. A name that is registered already
    is pointed to this lake. Returns the names. Delta tables become external tables. Iceberg tables become views over a
    catalog of the lake's path, which is a setting of this session: another one registers them again. Tables of an
    Iceberg catalog of your own have their names there.
    """
    root, into = lake_root(lake), database or schema
    found = []
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {quoted(into)}")
    for directory in sorted(Path(table_path(root, TableId(schema, "x"))).parent.glob("*")):
        kind = format_at(str(directory))
        if kind is None:
            continue
        name = f"{quoted(into)}.{quoted(directory.name)}"
        is_view = spark.catalog.tableExists(name) and spark.catalog.getTable(name).tableType == "VIEW"
        spark.sql(f"DROP {'VIEW' if is_view else 'TABLE'} IF EXISTS {name}")  # an external table keeps its files
        if kind == "delta":
            location = spark_path(str(directory)).replace("'", "\\'")
            spark.sql(f"CREATE TABLE {name} USING delta LOCATION '{location}'")
        else:
            full = ".".join(map(quoted, (_path_catalog(spark, root), directory.parent.name, directory.name)))
            spark.sql(f"CREATE VIEW {name} WITH SCHEMA EVOLUTION AS SELECT * FROM {full}")  # noqa: S608  # quoted
        found.append(f"{into}.{directory.name}")
    if not found:
        raise LakeError(f"there is no table of {schema} in {root}", remedy="Check the path, or sync first.")
    return found


def _path_catalog(spark: SparkSession, root: str) -> str:
    """The name of an Iceberg catalog of a path in this session. A session keeps a catalog once it has used it, so
    each path has a name of its own."""
    name = f"lakefeed_{hashlib.sha256(root.encode()).hexdigest()[:12]}"
    session = checked_session(spark, formats=("iceberg",))
    for key, value in IcebergCatalog.of({"name": name}, root, "{schema}").settings().items():
        session.conf.set(key, value)
    return name


def _missing(wanted: TableId, lake: str) -> LakeError:
    return LakeError(
        f"there is no table {wanted} in {lake}", remedy="Check the lake's path and the table's name; or sync first."
    )

"""Lake tables as they are now: as a DataFrame, as Arrow without Spark, and by name in a session's catalog."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import fs

from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, LakeError
from lakefeed.lake.delta import Delta
from lakefeed.lake.formats import format_at, history_at
from lakefeed.lake.history import TableHistory
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.iceberg.catalog import IcebergCatalog
from lakefeed.lake.location import filesystem, lake_root, spark_path, table_path
from lakefeed.lake.reader import rows_at
from lakefeed.lake.spark.session import checked_session
from lakefeed.lake.spark.type import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LakeOrPath = str | Path | Delta | Iceberg
"""A lake's path, whatever the format of its tables; or the lake itself, for tables in an Iceberg catalog."""


def table(spark: SparkSession, lake: LakeOrPath, name: str) -> DataFrame:
    """A lake table as it is now: ``lakefeed.table(spark, "lake", "public.orders")``. LakeError if it does not exist."""
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
    """The rows of a lake table as one Arrow table, read without Spark: ``.to_pandas()``, DuckDB and polars accept it as
    it is. All of it is in memory. LakeError if the table does not exist."""
    wanted = TableId.parse(name)
    found = lake.rows(wanted) if isinstance(lake, Delta | Iceberg) else rows_at(table_path(lake_root(lake), wanted))
    if found is None:
        raise _missing(wanted, str(getattr(lake, "path", lake)))
    return pa.Table.from_batches(list(found.batches()), found.schema)


def register_tables(
    spark: SparkSession, lake: str | Path, *, schema: str, database: str | None = None, catalog: str | None = None
) -> list[str]:
    """Name the tables of one source schema in a catalog of the session: ``SELECT * FROM shop.orders``, and with a
    ``catalog`` under three-level names, ``SELECT * FROM unity.shop.orders``.

    ``database`` is created if it does not exist; by default it has the name of the schema. A name that is registered
    already is pointed to this lake. Returns the names.

    Delta tables become external tables of the session's catalog with this name, by default ``spark_catalog``. Iceberg
    tables become views over a catalog of the lake's path, which is a setting of this session: another session registers
    them again. With ``catalog``, that catalog itself has this name, and its databases are the lake's schemas. Tables in
    an Iceberg catalog of your own have their names there.
    """
    root, into = lake_root(lake), database or schema
    parent = table_path(root, TableId(schema, "x")).rpartition("/")[0]
    files, place = filesystem(parent)
    listed = sorted(info.base_name for info in files.get_file_info(fs.FileSelector(place, allow_not_found=True)))
    kinds = {name: kind for name in listed if (kind := format_at(f"{parent}/{name}")) is not None}
    if not kinds:
        raise LakeError(f"there is no table of {schema} in {root}", remedy="Check the path, or sync first.")
    levels = (into,) if catalog is None else (catalog, into)
    if catalog is None or "delta" in kinds.values():
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {'.'.join(map(quoted, levels))}")
    for table_name, kind in kinds.items():
        if kind == "iceberg" and catalog is not None:
            if into != schema:
                raise ConfigError(
                    f"the Iceberg table {schema}.{table_name} is {catalog}.{schema}.{table_name} in a catalog of its "
                    f"lake, and cannot be in {into} there",
                    remedy=f"Leave database out; or write namespace: {into} into the table's rule and copy it again.",
                )
            _path_catalog(spark, root, catalog)
            continue
        name = ".".join(map(quoted, (*levels, table_name)))
        is_view = spark.catalog.tableExists(name) and spark.catalog.getTable(name).tableType == "VIEW"
        spark.sql(f"DROP {'VIEW' if is_view else 'TABLE'} IF EXISTS {name}")  # an external table keeps its files
        if kind == "delta":
            location = spark_path(f"{parent}/{table_name}").replace("'", "\\'")
            spark.sql(f"CREATE TABLE {name} USING delta LOCATION '{location}'")
        else:
            own = f"lakefeed_{hashlib.sha256(root.encode()).hexdigest()[:12]}"
            _path_catalog(spark, root, own)
            full = ".".join(map(quoted, (own, parent.rpartition("/")[2], table_name)))
            spark.sql(f"CREATE VIEW {name} WITH SCHEMA EVOLUTION AS SELECT * FROM {full}")  # noqa: S608  # quoted
    return [".".join((*levels, name)) for name in kinds]


def _path_catalog(spark: SparkSession, root: str, name: str) -> None:
    """Configure the Iceberg catalog of a path under this name in the session. A session keeps a catalog once it has
    used it, so a name that it has for another one is refused."""
    session = checked_session(spark, formats=("iceberg",))
    wanted = IcebergCatalog.of({"name": name}, root, "{schema}").settings()
    for key, value in wanted.items():
        if (session.conf.get(key, None) or value) != value:
            raise ConfigError(
                f"the session has another catalog called {name}: {key} is {session.conf.get(key, None)}",
                remedy=f"Choose another name than {name} for the catalog of {root}.",
            )
    for key, value in wanted.items():
        session.conf.set(key, value)


def _missing(wanted: TableId, lake: str) -> LakeError:
    """Includes the names of the existing tables, if the lake is a directory."""
    place = Path(lake)
    tables = sorted(f"{one.parent.name}.{one.name}" for one in place.glob("[!_]*/*") if format_at(str(one)) is not None)
    some = ", ".join(tables[:10]) + (" and others" if len(tables) > 10 else "")
    remedy = f"The tables there are {some}." if tables else "Correct the lake's path, or sync first."
    return LakeError(f"there is no table {wanted} in {lake}", remedy=remedy)

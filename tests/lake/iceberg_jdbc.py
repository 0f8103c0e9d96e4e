"""A process of its own with the driver of a SQL catalog: copies, applies, evolves, and looks as a new process does.

Run by test_iceberg_catalog with two arguments: a directory to work in, and the coordinates of the SQLite driver.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
from tests.lake.test_delta import copy_of

from lakefeed.change.table import Column, TableSchema
from lakefeed.lake.base import Applied
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.route import Rule
from lakefeed.lake.spark.jars import coordinates_of
from lakefeed.lake.spark.session import spark_session
from lakefeed.testing.builders import batch, table
from lakefeed.testing.format_contract import one
from lakefeed.testing.scripted_log import ScriptedLog


def main(root: Path, driver: str) -> None:
    # Catalog and driver must come from one class loader, so both are left to Spark's resolver here.
    settings = {"spark.driver.extraClassPath": "", "spark.jars.packages": f"{coordinates_of(('iceberg',))},{driver}"}
    spark = spark_session("lakefeed-jdbc", settings=settings, formats=("iceberg",))
    (root / "segments").mkdir()
    log = ScriptedLog(root / "segments")
    schema = log.schema_of(table("main.t", {"id": pa.int64(), "v": pa.string()}, key=("id",)))
    catalog = {"name": "prod", "type": "jdbc", "uri": f"jdbc:sqlite:{root}/catalog.db"}
    lake = Iceberg(spark, root / "lake", catalog=catalog, namespace="raw.{schema}")
    found = one(lake.bind("shop"), schema)
    assert found.location == "prod.raw.main.t"
    assert found.applied(1) is None
    found.load(copy_of(schema, [{"id": 1, "v": "0"}, {"id": 2, "v": "0"}], root), lambda _: None)
    noted = log.schema_of(TableSchema(schema.table, (*schema.columns, Column("note", pa.string())), schema.key))
    log.add(batch(noted, [("update", {"id": 1, "v": "1", "note": "n"}), ("delete", {"id": 2})]))
    found.apply(log.window(schema.table, 0, 1), 1)
    again = one(lake.bind("shop"), schema)
    assert again.applied(1) == Applied(number=1, schema_version=2, rows=1)
    again.apply(log.window(schema.table, 0, 1), 1)
    session = found._sessions.child()  # type: ignore[attr-defined]
    rows = session.table("prod.raw.main.t").toArrow().to_pylist()
    assert rows == [{"id": 1, "v": "1", "note": "n"}], rows

    # Names of three levels: the catalog, and what a rule says; read by the catalog's name in a session of anybody's.
    rules = [Rule("t", name="{table}_eu", namespace="sales", only=True)]
    lake = Iceberg(spark, root / "lake", catalog=catalog, rules=rules)
    (route,) = lake.bind("three").routes(schema.table)
    found = lake.bind("three").table(route)
    assert found.location == "prod.sales.t_eu"
    found.load(copy_of(schema, [{"id": 1, "v": "0"}], root), lambda _: None)
    own = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "jdbc", ".uri": catalog["uri"]}
    for name, value in {**own, ".warehouse": f"file://{root}/lake", ".jdbc.schema-version": "V1"}.items():
        spark.conf.set(f"spark.sql.catalog.prod{name}", value)
    assert [tuple(row) for row in spark.sql("SELECT id, v FROM prod.sales.t_eu").collect()] == [(1, "0")]
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

"""A process of its own with the driver of a SQL catalog: copies, applies, evolves, and looks as a new process does.

Run by test_iceberg_catalog with four arguments: a directory to work in, the coordinates of the SQLite driver, and an
address in an object store with its options: tables in the directory first, then the same there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from tests.lake.test_delta import copy_of

from lakefeed.change.table import Column, TableSchema
from lakefeed.lake.base import Applied
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.maintenance import MaintenanceOptions
from lakefeed.lake.route import Rule
from lakefeed.lake.spark.jars import coordinates_of, excludes_of
from lakefeed.lake.spark.session import spark_session
from lakefeed.testing.builders import batch, table
from lakefeed.testing.format_contract import one
from lakefeed.testing.scripted_log import ScriptedLog


def main(root: Path, driver: str, store: str, options: str) -> None:
    # Catalog and driver must come from one class loader, so both are left to Spark's resolver here.
    packages = f"{coordinates_of(('iceberg',), ('s3',))},{driver}"
    settings = {
        "spark.driver.extraClassPath": "", "spark.jars.packages": packages, "spark.jars.excludes": excludes_of(("s3",)),
    }  # fmt: skip
    spark = spark_session("lakefeed-jdbc", settings=settings, formats=("iceberg",))
    for name, path, storage in (("disk", str(root / "lake"), {}), ("store", store, json.loads(options))):
        (root / name).mkdir()
        log = ScriptedLog(root / name)
        schema = log.schema_of(table("main.t", {"id": pa.int64(), "v": pa.string()}, key=("id",)))
        catalog = {"name": "prod", "type": "jdbc", "uri": f"jdbc:sqlite:{root}/{name}.db"}
        lake = Iceberg(spark, path, catalog=catalog, namespace="raw.{schema}", storage_options=storage)
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
        rows = again.maintain(MaintenanceOptions(most_files=0, keep_hours=0.0), schema.key)
        assert rows.packed, rows
        assert read(f"sqlite:///{root}/{name}.db", path, storage) == [{"id": 1, "v": "1", "note": "n"}]

    # Names of three levels: the catalog, and what a rule says; read by the catalog's name in a session of anybody's.
    rules = [Rule("t", name="{table}_eu", namespace="sales", only=True)]
    catalog = {"name": "prod", "type": "jdbc", "uri": f"jdbc:sqlite:{root}/disk.db"}
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


def read(catalog: str, warehouse: str, storage: dict[str, str]) -> list[dict[str, str]]:
    """By a client that has nothing of ours."""
    reaching = {f"s3.{name.replace('_', '-')}": value for name, value in storage.items()}
    found = load_catalog("prod", type="sql", uri=catalog, warehouse=warehouse, **reaching).load_table("raw.main.t")
    assert found.metadata_location.startswith(f"{warehouse if storage else f'file:{warehouse}'}/"), found
    rows: list[dict[str, str]] = found.scan().to_arrow().to_pylist()
    return rows


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

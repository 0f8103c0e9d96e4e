"""An Iceberg pipeline in an object store, for each kind of store."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import load_catalog

from lakefeed import Iceberg, Pipeline, Sqlite, current, read_at
from lakefeed.flow.options import PipelineOptions
from lakefeed.lake.location import file_io
from lakefeed.lake.maintenance import MaintenanceOptions
from lakefeed.storage.location import storage_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EAGER = PipelineOptions(maintenance=MaintenanceOptions(most_files=0, keep_hours=0.0))


def theirs(address: str, reaching: Mapping[str, str]) -> Any:
    """A client of the catalog by itself; ``reaching`` are its properties for the store."""
    return load_catalog("theirs", type="rest", uri=address, **reaching)


class Shop:
    """A SQLite database, and a pipeline whose journal is in a store, and whose tables are in the catalog's."""

    def __init__(self, directory: Path, spark: SparkSession, address: str, rest: str, options: dict[str, str]) -> None:
        self.spark, self.address, self.database, self.rest = spark, address, directory / "shop.db", rest
        self.options = options
        self.sql("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, price INTEGER)")
        self.namespace = f"n{address.rpartition('/')[2]}"
        self.lake = Iceberg(
            spark,
            address,
            catalog={"type": "rest", "uri": rest},
            namespace=self.namespace,
            storage_options=options,
        )
        self.pipeline = Pipeline(Sqlite(self.database), self.lake, name="shop", storage_options=options, options=EAGER)

    def sql(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.database, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    def table(self) -> Any:
        return theirs(self.rest, file_io(self.address)).load_table((self.namespace, "item"))

    def sync(self) -> None:
        result = self.pipeline.sync_once()
        assert not result.errors, result.errors
        self.require_equal()

    def require_equal(self) -> None:
        with closing(sqlite3.connect(self.database)) as connection:
            connection.row_factory = sqlite3.Row
            source = [dict(row) for row in connection.execute("SELECT * FROM item ORDER BY id")]
        assert sorted(self.table().scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == source


def require_every_step(shop: Shop, warehouse: str, secret: str) -> None:
    """Each step of a pipeline gives equal tables, and no credential is written down."""
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
    shop.sql(f"{many} INSERT INTO item SELECT i, 'item ' || i, i FROM n")
    with shop.pipeline:
        shop.sync()
        shop.sql("UPDATE item SET price = -price WHERE id % 100 = 0", "DELETE FROM item WHERE id % 333 = 0")
        shop.sync()
        assert shop.table().current_snapshot().summary["total-delete-files"] != "0", "rows are marked"
        shop.sql("INSERT INTO item VALUES (5000, 'new', NULL)")  # no file can have it: appended
        shop.sync()
        shop.sql("ALTER TABLE item ADD COLUMN note TEXT DEFAULT 'x'", "UPDATE item SET note = 'n' WHERE id = 5")
        shop.sync()
        shop.sql("ALTER TABLE item RENAME COLUMN name TO title", "DELETE FROM item WHERE id = 6")
        shop.sync()
        before = shop.table().metadata
        packed = shop.pipeline.maintain()
        assert all(one.packed for one in packed.values()), packed
        assert shop.table().current_snapshot().summary["total-delete-files"] == "0"
        shop.require_equal()
        shop.sql("DELETE FROM item", f"{many} INSERT INTO item SELECT i, 'again', i, 'y' FROM n WHERE i > 1000")
        shop.sync()
        for from_source in (False, True):
            shop.pipeline.rebuild("main.item", from_source=from_source)
            shop.sync()
        assert current(shop.spark, shop.lake, "main.item").toArrow().num_rows == 1000
        applied = int(shop.table().current_snapshot().summary["lakefeed.applied"])
        assert read_at(shop.spark, shop.lake, "main.item", change_set=applied).count() == 1000
    assert before.location.startswith(f"{warehouse}/")
    files = [task.file.file_path for task in shop.table().scan().plan_files()]
    assert all(file.startswith(f"{warehouse}/") for file in files), "by the name that every reader knows"
    for place in (shop.address, f"{warehouse}/{shop.namespace}"):
        storage = storage_at(place, shop.options)
        names = storage.names()
        assert names
        assert [name for name in names if secret.encode() in storage.read(name)] == []

"""Iceberg tables in a REST catalog: written by a pipeline through Spark, read by pyiceberg's own client."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog
from tests.lake.iceberg_rest import rest_catalog

from lakefeed import Iceberg, Pipeline, PipelineOptions, Rule, Sqlite, Temporal, read_at
from lakefeed.app.command.verify import verify
from lakefeed.journal.journal import Journal
from lakefeed.lake.maintenance import MaintenanceOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]  # the server's jars may have to be fetched first
EAGER = PipelineOptions(maintenance=MaintenanceOptions(most_files=0, keep_hours=0.0))
HISTORY = Rule("orders", Temporal(), "{table}_history")
Rows = list[tuple[int, str | None]]


class Shop:
    """A SQLite table that is kept twice, as a mirror and as history, in the catalog at ``address``."""

    def __init__(self, spark: SparkSession, place: Path, address: str) -> None:
        self.place, self._spark = place, spark
        self.catalog = {"name": "prod", "type": "rest", "uri": address}

    def lake(self) -> Iceberg:
        return Iceberg(
            self._spark, self.place / "lake", rules=[HISTORY], catalog=self.catalog, namespace="raw.{schema}"
        )

    def sync(self, *steps: str, maintenance: bool = False) -> dict[int, Rows]:
        """What a new process does; each step is one change set. Returns what the source had at each of them."""
        seen = {}
        with Pipeline(Sqlite(self.place / "shop.db"), self.lake(), name="shop", options=EAGER) as pipeline:
            for step in steps or ("",):
                self.execute(step)
                result = pipeline.sync_once()
                assert all(table.error is None for table in result.tables.values()), result
                seen[Journal.read(self.place / "lake" / "_lakefeed" / "shop").head] = self.source()
            if maintenance:
                assert all(one.packed for one in pipeline.maintain().values())
        return seen

    def execute(self, script: str) -> None:
        with closing(sqlite3.connect(self.place / "shop.db")) as connection, connection:
            connection.executescript(script)

    def table(self, name: str) -> Any:
        """By a client that has nothing of ours."""
        return load_catalog("theirs", type="rest", uri=self.catalog["uri"]).load_table(("raw", "main", name))

    def applied(self, name: str) -> int:
        return int(self.table(name).current_snapshot().summary["lakefeed.applied"])

    def mirror(self) -> Rows:
        rows = self.table("orders").scan().to_arrow().to_pylist()
        return sorted((row["id"], row["v"]) for row in rows)

    def current(self) -> Rows:
        rows = self.table("orders_history").scan(row_filter="is_current = true").to_arrow().to_pylist()
        return sorted((row["id"], row["v"]) for row in rows)

    def source(self) -> Rows:
        with closing(sqlite3.connect(self.place / "shop.db")) as connection:
            return list(connection.execute("SELECT id, v FROM orders ORDER BY id"))


@pytest.mark.slow  # a catalog of another kind, with a process of its own, is in make test: test_iceberg_catalog
def test_a_mirror_and_a_history_live_in_a_rest_catalog_through_restarts_maintenance_and_expiry(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "server").mkdir()
    with rest_catalog(tmp_path / "server") as address:
        shop = Shop(spark, tmp_path, address)
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, v TEXT); INSERT INTO orders VALUES (1,'a'), (2,'b')")
        shop.sync()
        both = "BEGIN; INSERT INTO orders VALUES ({0}, 'n'); UPDATE orders SET v = '{0}' WHERE id < 3; COMMIT"
        seen = shop.sync(*(both.format(number) for number in range(3, 14)))
        head = max(seen)
        assert shop.mirror() == shop.current() == shop.source()
        assert shop.table("orders_history").scan().count() == 2 * 12 + 11, "every version"
        for number in (head - 1, head):
            found = read_at(spark, shop.lake(), "main.orders", change_set=number).orderBy("id").collect()
            assert [(row.id, row.v) for row in found] == seen[number]
        snapshots = len(shop.table("orders").metadata.snapshots)
        assert max(shop.sync(maintenance=True)) == head
        assert len(shop.table("orders").metadata.snapshots) < snapshots
        assert shop.applied("orders") == shop.applied("orders_history") == head
    with rest_catalog(tmp_path / "server") as address:  # the server, too, starts again
        shop = Shop(spark, tmp_path, address)
        assert max(shop.sync()) == head, "nothing is copied or applied again"
        last = max(shop.sync("DELETE FROM orders WHERE id = 5; ALTER TABLE orders ADD note TEXT DEFAULT 'x'"))
        assert shop.applied("orders") == shop.applied("orders_history") == last > head
        assert shop.mirror() == shop.current() == shop.source()
        assert_verified(shop)


def assert_verified(shop: Shop) -> None:
    """`lakefeed verify`, from a configuration file."""
    lake = {
        "path": str(shop.place / "lake"),
        "format": "iceberg",
        "catalog": shop.catalog,
        "namespace": "raw.{schema}",
        "tables": [{"match": "orders", "mode": "temporal", "name": "{table}_history"}],
    }
    source = {"kind": "sqlite", "path": str(shop.place / "shop.db")}
    file = shop.place / "shop.yaml"
    file.write_text(json.dumps({"pipeline": "shop", "source": source, "lake": lake}))
    assert verify(file, as_json=True) == 0
    shop.execute("UPDATE orders SET v = 'unseen' WHERE id = 7")
    assert verify(file, as_json=True) == 1

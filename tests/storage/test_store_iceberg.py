"""Iceberg tables in an object store, through a REST catalog: the contract of every table format, each step of a
pipeline, and where credentials do not get to. A SQL catalog does the same in tests/lake/test_iceberg_catalog.py.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog
from tests.lake.iceberg_rest import rest_catalog

from lakefeed import Iceberg, Pipeline, Sqlite, current, read_at
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError
from lakefeed.flow.options import PipelineOptions
from lakefeed.lake.base import TableFormat
from lakefeed.lake.iceberg.catalog import IcebergCatalog
from lakefeed.lake.location import file_io
from lakefeed.lake.maintenance import MaintenanceOptions
from lakefeed.lake.mode import Mirror, Mode
from lakefeed.storage.location import give_options, storage_at
from lakefeed.testing.format_contract import TableFormatContract
from lakefeed.testing.mode_contract import KeylessContract, MirrorContract
from lakefeed.testing.server.object_store import OPTIONS, Seaweed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]  # the server's jars may have to be fetched first
EAGER = PipelineOptions(maintenance=MaintenanceOptions(most_files=0, keep_hours=0.0))


@pytest.fixture(scope="session")
def rest(seaweed: Seaweed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose tables are in the store."""
    place = tmp_path_factory.mktemp("rest")
    give_options("s3://lakefeed", seaweed.options)
    with rest_catalog(place, "s3://lakefeed/warehouse", file_io("s3://lakefeed")) as address:
        yield address


def theirs(address: str, seaweed: Seaweed) -> Any:
    """A client that has nothing of ours."""
    return load_catalog(
        "theirs",
        type="rest",
        uri=address,
        **{
            "s3.endpoint": seaweed.endpoint,
            "s3.region": OPTIONS["region"],
            "s3.access-key-id": OPTIONS["access_key_id"],
            "s3.secret-access-key": OPTIONS["secret_access_key"],
        },
    )


class InACatalog:
    """Each test has a namespace of its own, as it has a directory elsewhere."""

    @pytest.fixture(autouse=True)
    def _store(self, spark: SparkSession, seaweed: Seaweed, address: str, rest: str) -> None:
        self.spark, self.seaweed, self.address, self.rest = spark, seaweed, address, rest

    def make_format(self, root: Path, mode: Mode = Mirror()) -> TableFormat:  # noqa: B008
        lake = Iceberg(
            self.spark,
            f"{self.address}/{root.parent.name}/{root.name}",
            mode=mode,
            catalog={"type": "rest", "uri": self.rest},
            namespace=f"n{self.address.rpartition('/')[2]}{root.parent.name}.{{schema}}",
            storage_options=self.seaweed.options,
        )
        return lake.bind("contract")

    def read_rows(self, tables: TableFormat, table: TableId) -> list[dict[str, Any]]:
        name = tables.table(tables.routes(table)[0]).location.partition(".")[2]
        rows: list[dict[str, Any]] = theirs(self.rest, self.seaweed).load_table(name).scan().to_arrow().to_pylist()
        return rows


@pytest.mark.slow
class TestIcebergInAStore(InACatalog, TableFormatContract):
    pass


@pytest.mark.slow
class TestMirrorInAStore(InACatalog, MirrorContract):
    pass


@pytest.mark.slow
class TestKeylessInAStore(InACatalog, KeylessContract):
    pass


class Shop:
    """A SQLite database, and a pipeline whose journal is in a store, and whose tables are in the catalog's."""

    def __init__(self, directory: Path, spark: SparkSession, address: str, rest: str, seaweed: Seaweed) -> None:
        self.database, self.rest, self.seaweed = directory / "shop.db", rest, seaweed
        self.sql("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, price INTEGER)")
        self.namespace = f"n{address.rpartition('/')[2]}"
        self.lake = Iceberg(
            spark,
            address,
            catalog={"type": "rest", "uri": rest},
            namespace=self.namespace,
            storage_options=seaweed.options,
        )
        self.pipeline = Pipeline(
            Sqlite(self.database), self.lake, name="shop", storage_options=seaweed.options, options=EAGER
        )

    def sql(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.database, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    def table(self) -> Any:
        return theirs(self.rest, self.seaweed).load_table((self.namespace, "item"))

    def sync(self) -> None:
        result = self.pipeline.sync_once()
        assert not result.errors, result.errors
        self.require_equal()

    def require_equal(self) -> None:
        with closing(sqlite3.connect(self.database)) as connection:
            connection.row_factory = sqlite3.Row
            source = [dict(row) for row in connection.execute("SELECT * FROM item ORDER BY id")]
        assert sorted(self.table().scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == source


@pytest.mark.slow
def test_every_step_of_a_pipeline_and_no_credential_is_written_down(
    spark: SparkSession, seaweed: Seaweed, address: str, rest: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, spark, address, rest, seaweed)
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
        assert current(spark, shop.lake, "main.item").toArrow().num_rows == 1000
        applied = int(shop.table().current_snapshot().summary["lakefeed.applied"])
        assert read_at(spark, shop.lake, "main.item", change_set=applied).count() == 1000
    assert before.location.startswith("s3://lakefeed/warehouse/")
    files = [task.file.file_path for task in shop.table().scan().plan_files()]
    assert all(file.startswith("s3://") for file in files), "by the name that every reader of S3 knows"
    secret = OPTIONS["secret_access_key"].encode()
    for place in (address, f"s3://lakefeed/warehouse/{shop.namespace}"):
        storage = storage_at(place, seaweed.options)
        names = storage.names()
        assert names
        assert [name for name in names if secret in storage.read(name)] == []


def test_a_hadoop_catalog_in_a_store_is_refused_with_the_reason(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match=r"commits by a rename, which is not atomic in an object store") as refused:
        Iceberg(spark, "s3://lakefeed/lake")
    assert "type: rest" in refused.value.remedy


def test_credentials_are_not_shown_with_a_catalog(seaweed: Seaweed) -> None:
    give_options("s3://lakefeed", seaweed.options)
    catalog = IcebergCatalog.of({"type": "rest", "uri": "http://c"}, "s3://lakefeed/lake", "{schema}")
    assert catalog.properties["s3.secret-access-key"] == OPTIONS["secret_access_key"]
    assert OPTIONS["secret_access_key"] not in repr(catalog)

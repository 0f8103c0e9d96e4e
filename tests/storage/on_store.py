"""Delta tables in an object store: for contract suites, and what a pipeline does there, for each kind of store."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from lakefeed import Delta, Pipeline, Rule, Sqlite, current
from lakefeed.change.table import TableId
from lakefeed.flow.options import PipelineOptions
from lakefeed.lake.base import TableFormat
from lakefeed.lake.layout import Layout
from lakefeed.lake.location import spark_options, spark_path
from lakefeed.lake.maintenance import MaintenanceOptions
from lakefeed.lake.mode import Mirror, Mode
from lakefeed.lake.route import Origin
from lakefeed.lake.spark.log_store import commits_if_absent
from lakefeed.storage.location import give_options, storage_at
from lakefeed.testing.server.object_store import Seaweed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read_store(location: str, options: dict[str, str]) -> list[dict[str, Any]]:
    """By deltalake's query engine, which also knows deletion vectors."""
    table = DeltaTable(location, storage_options=options)
    found: Any = QueryBuilder().register("t", table).execute("SELECT * FROM t")
    rows: list[dict[str, Any]] = pa.RecordBatchReader.from_stream(found).read_all().to_pylist()
    return rows


class OnStore:
    """Mixed in before the suite."""

    deletion_vectors = False

    @pytest.fixture(autouse=True)
    def _store(self, spark: SparkSession, seaweed: Seaweed, address: str) -> None:
        self.spark, self.options, self.address = spark, seaweed.options, address

    def make_format(self, root: Path, mode: Mode = Mirror()) -> TableFormat:  # noqa: B008
        lake = Delta(
            self.spark,
            f"{self.address}/{root.parent.name}/{root.name}",
            mode=mode,
            deletion_vectors=self.deletion_vectors,
            storage_options=self.options,
        )
        return lake.bind("contract")

    def read_rows(self, tables: TableFormat, table: TableId) -> list[dict[str, Any]]:
        return read_store(tables.table(tables.routes(table)[0]).location, self.options)


class Shop:
    """A SQLite database, and a pipeline whose tables and journal are in a store."""

    def __init__(
        self, directory: Path, spark: SparkSession, address: str, options: dict[str, str], **lake: Any
    ) -> None:
        self.database, self.address, self.options = directory / "shop.db", address, options
        self.sql("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, price INTEGER)")
        self.lake = Delta(spark, address, storage_options=options, **lake)
        small = PipelineOptions(maintenance=MaintenanceOptions(file_bytes=1 << 20))
        self.pipeline = Pipeline(Sqlite(self.database), self.lake, name="shop", storage_options=options, options=small)

    def sql(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.database, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    def sync(self) -> None:
        result = self.pipeline.sync_once()
        assert not result.errors, result.errors
        self.require_equal()

    def require_equal(self) -> None:
        with closing(sqlite3.connect(self.database)) as connection:
            connection.row_factory = sqlite3.Row
            source = [dict(row) for row in connection.execute("SELECT * FROM item ORDER BY id")]
        assert sorted(read_store(f"{self.address}/main/item", self.options), key=lambda row: row["id"]) == source

    def entries(self) -> list[dict[str, Any]]:
        """What each commit of the table's log says of itself."""
        storage = storage_at(f"{self.address}/main/item", self.options)
        names = [name for name in storage.names("_delta_log") if name.endswith(".json")]
        lines = [json.loads(line) for name in names for line in storage.read(name).splitlines()]
        return [line["commitInfo"] for line in lines if "commitInfo" in line]


def require_every_step(
    spark: SparkSession, address: str, options: dict[str, str], directory: Path, marks: bool
) -> None:
    """Every step of a pipeline on a plain table is a commit that Lakefeed puts if absent."""
    shop = Shop(directory, spark, address, options, deletion_vectors=marks)
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
    shop.sql(f"{many} INSERT INTO item SELECT i, 'item ' || i, i FROM n")
    with shop.pipeline:
        shop.sync()
        shop.sql("UPDATE item SET price = -price WHERE id % 100 = 0", "DELETE FROM item WHERE id % 333 = 0")
        shop.sync()
        shop.sql("INSERT INTO item VALUES (5000, 'new', NULL)")  # no file can have it: appended
        shop.sync()
        shop.sql("ALTER TABLE item ADD COLUMN note TEXT", "UPDATE item SET note = 'n' WHERE id = 5")
        shop.sync()
        shop.sql("ALTER TABLE item ADD COLUMN rank INTEGER DEFAULT 7", "DELETE FROM item WHERE id = 6")
        shop.sync()
        shop.sql("UPDATE item SET name = 'x' WHERE id < 30")
        shop.sync()
        packed = shop.pipeline.maintain()
        assert not marks or all(one.files_after < one.files_before for one in packed.values()), packed
        shop.require_equal()
        fresh = current(spark, shop.lake, "main.item").toArrow().num_rows
        assert fresh == len(read_store(f"{address}/main/item", options))
    engines = {str(entry.get("engineInfo", "")).partition(":")[0] for entry in shop.entries()}
    assert engines <= {"lakefeed", "delta-rs"}, engines  # and not Spark's


RULES = [
    Rule("item", layout=Layout(partition_by=("kind",))),
    Rule("fed", layout=Layout(properties=(("delta.enableChangeDataFeed", "true"),))),
    Rule("part_*", name="whole", only=True, union=Origin("shard", "{table}")),
]


def require_sparks_commits(spark: SparkSession, address: str, options: dict[str, str], directory: Path) -> None:
    """Spark commits to these, and each entry that it puts is put if absent."""
    database = directory / "shop.db"
    lake = Delta(spark, address, storage_options=options, rules=RULES)
    session = lake.bind("shop")._sessions.child()
    tables = {name: f"{address}/main/{name}" for name in ("item", "fed", "odd", "whole")}

    def execute(script: str) -> None:
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.executescript(script)

    def require_equal() -> None:
        with closing(sqlite3.connect(database)) as connection:
            questions = {name: f"SELECT * FROM {name}" for name in ("item", "fed", "odd")}
            union = "SELECT id, v, '{0}' AS shard FROM {0}"
            questions["whole"] = " UNION ALL ".join(union.format(name) for name in ("part_a", "part_b"))
            for name, question in questions.items():
                connection.row_factory = sqlite3.Row
                source = Counter(tuple(sorted(dict(row).items())) for row in connection.execute(question))
                if name == "odd":  # deltalake does not read mapped columns
                    found = session.read.format("delta").load(spark_path(tables[name])).toArrow().to_pylist()
                else:
                    found = read_store(tables[name], options)
                assert Counter(tuple(sorted(row.items())) for row in found) == source, name

    execute(
        "CREATE TABLE item (id INTEGER PRIMARY KEY, kind TEXT, n INTEGER);"
        "INSERT INTO item VALUES (1,'a',1), (2,'b',2);"
        "CREATE TABLE fed (id INTEGER PRIMARY KEY, v TEXT); INSERT INTO fed VALUES (1,'a'), (2,'b');"
        "CREATE TABLE odd (id INTEGER PRIMARY KEY, \"Order ID\" TEXT); INSERT INTO odd VALUES (1,'a'), (2,'b');"
        "CREATE TABLE part_a (id INTEGER PRIMARY KEY, v TEXT); INSERT INTO part_a VALUES (1,'a'), (2,'b');"
        "CREATE TABLE part_b (id INTEGER PRIMARY KEY, v TEXT); INSERT INTO part_b VALUES (1,'x'), (3,'y');"
    )
    small = PipelineOptions(maintenance=MaintenanceOptions(most_files=0))
    with Pipeline(Sqlite(database), lake, name="shop", storage_options=options, options=small) as pipeline:
        assert not pipeline.sync_once().errors
        require_equal()
        session.sql(f"ALTER TABLE delta.`{spark_path(tables['item'])}` ADD CONSTRAINT positive CHECK (n > 0)")
        fed = session.read.format("delta").option("readChangeFeed", "true")
        before = read_version(tables["fed"], options)
        execute(
            "UPDATE item SET n = 5, kind = 'b' WHERE id = 1; INSERT INTO item VALUES (3, 'c', 3);"
            "UPDATE fed SET v = 'z' WHERE id = 1; DELETE FROM fed WHERE id = 2;"
            'UPDATE odd SET "Order ID" = \'z\' WHERE id = 1; ALTER TABLE odd ADD COLUMN "a b" TEXT;'
            "DELETE FROM part_a WHERE id = 1; UPDATE part_b SET v = 'q' WHERE id = 1;"
        )
        assert not pipeline.sync_once().errors
        require_equal()
        changes = fed.option("startingVersion", before + 1).load(spark_path(tables["fed"]))
        kinds = Counter(row["_change_type"] for row in changes.collect())
        assert kinds == {"update_preimage": 1, "update_postimage": 1, "delete": 1}
        execute("UPDATE item SET n = -1 WHERE id = 1")
        assert "positive" in " ".join(map(str, pipeline.sync_once().errors.values()))
        execute("UPDATE item SET n = 1 WHERE id = 1")
        deadline = time.monotonic() + 60
        while pipeline.sync_once().errors:  # a table that failed is tried again after a while
            assert time.monotonic() < deadline
            time.sleep(0.5)
        pipeline.maintain()
        require_equal()


def require_none_replaced(spark: SparkSession, location: str, options: dict[str, str]) -> None:
    """Of Spark's commits that meet. Nothing in this JVM keeps four threads apart, only the store does."""
    give_options(location, options)
    session = spark.newSession()
    for name, value in spark_options(location).items():
        session.conf.set(name, value)
    assert commits_if_absent(session, spark_path(location))
    session.range(1).write.format("delta").save(spark_path(location))

    def append(number: int) -> None:
        for _ in range(3):
            session.range(number, number + 1).write.format("delta").mode("append").save(spark_path(location))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(1, 5)))
    rows = Counter(row["id"] for row in read_store(location, options))
    assert rows == {0: 1, 1: 3, 2: 3, 3: 3, 4: 3}
    assert read_version(location, options) == 12


def read_version(location: str, options: dict[str, str]) -> int:
    return DeltaTable(location, storage_options=options).version()

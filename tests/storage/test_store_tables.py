"""Delta tables in an object store: the contract of every table format, each step of a pipeline, two writers."""

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
from deltalake import DeltaTable, write_deltalake
from tests.storage.on_store import OnStore, read_store

from lakefeed import Delta, Pipeline, Rule, Sqlite, current
from lakefeed.change.table import TableId
from lakefeed.errors import SparkSetupError
from lakefeed.flow.options import PipelineOptions
from lakefeed.lake.delta.log import put_commit
from lakefeed.lake.delta.remote import packable
from lakefeed.lake.iceberg.catalog import IcebergCatalog
from lakefeed.lake.iceberg.format import refuse_without_java
from lakefeed.lake.layout import Layout
from lakefeed.lake.location import spark_options, spark_path
from lakefeed.lake.maintenance import MaintenanceOptions
from lakefeed.lake.route import Origin, Route
from lakefeed.lake.spark.error import ConcurrentModification
from lakefeed.lake.spark.log_store import commits_if_absent
from lakefeed.lake.spark.session import spark_session
from lakefeed.storage.location import give_options, storage_at
from lakefeed.testing.format_contract import TableFormatContract
from lakefeed.testing.mode_contract import KeylessContract, MirrorContract
from lakefeed.testing.server.object_store import Moto, Seaweed
from lakefeed.testing.server.proxy import HttpProxy, ProxyProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.slow
class TestDeltaInAStore(OnStore, TableFormatContract):
    pass


@pytest.mark.slow
class TestMarkedDeltaInAStore(OnStore, TableFormatContract):
    deletion_vectors = True


@pytest.mark.slow
class TestMirrorInAStore(OnStore, MirrorContract):
    pass


@pytest.mark.slow
class TestKeylessInAStore(OnStore, KeylessContract):
    pass


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


@pytest.mark.parametrize("marks", [pytest.param(False, marks=pytest.mark.slow), True], ids=["files", "marks"])
def test_every_step_of_a_pipeline_is_a_commit_that_is_put_if_absent(
    spark: SparkSession, seaweed: Seaweed, address: str, tmp_path: Path, marks: bool
) -> None:
    shop = Shop(tmp_path, spark, address, seaweed.options, deletion_vectors=marks)
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
        assert fresh == len(read_store(f"{address}/main/item", seaweed.options))
    engines = {str(entry.get("engineInfo", "")).partition(":")[0] for entry in shop.entries()}
    assert engines <= {"lakefeed", "delta-rs"}, engines  # and not Spark's


@pytest.mark.slow
def test_truncated_and_rebuilt_tables(spark: SparkSession, seaweed: Seaweed, address: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path, spark, address, seaweed.options)
    shop.sql("INSERT INTO item VALUES (1, 'a', 1), (2, 'b', 2)")
    with shop.pipeline:
        shop.sync()
        shop.sql("DELETE FROM item", "INSERT INTO item VALUES (3, 'c', 3)")
        shop.sync()
        for from_source in (False, True):
            shop.pipeline.rebuild("main.item", from_source=from_source)
            shop.sync()


@pytest.mark.parametrize("kind", ["seaweed", "moto"])
def test_of_two_writers_of_one_version_one_comes_through(kind: str, request: pytest.FixtureRequest) -> None:
    server: Seaweed | Moto = request.getfixturevalue(kind)
    location = f"s3://lakefeed/{kind}-two-writers"
    give_options(location, server.options)
    put_commit(location, 3, [{"add": {"path": "one"}}], {"app": 1}, "{}")
    with pytest.raises(ConcurrentModification, match="version 3"):
        put_commit(location, 3, [{"add": {"path": "two"}}], {"app": 1}, "{}")
    written = storage_at(location, server.options).read(f"_delta_log/{3:020d}.json")
    assert b'"one"' in written
    assert b'"two"' not in written


@pytest.mark.slow
@pytest.mark.parametrize("marks", [False, True], ids=["files", "marks"])
def test_requests_of_tables(
    spark: SparkSession, seaweed: Seaweed, tmp_path: Path, marks: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prints what docs/object-stores.md has; journal and tables together."""
    bucket = f"counted-{'marks' if marks else 'files'}"  # of its own: Hadoop keeps a client for each
    with ProxyProcess(seaweed.port) as proxy:
        options = {**seaweed.options, "endpoint": proxy.endpoint}
        shop = Shop(tmp_path, spark, f"{seaweed.bucket(bucket)}/shop", options, deletion_vectors=marks)
        shop.sql("INSERT INTO item VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")

        def counted(what: str) -> Counter[str]:
            before = proxy.requests
            result = shop.pipeline.sync_once()
            assert not result.errors, result.errors
            found = proxy.requests - before
            with capsys.disabled():
                print(f"\n{bucket} {what}: {dict(found)}")
            return found

        with shop.pipeline:
            counted("first copy")
            for number in range(4):
                shop.sql(f"UPDATE item SET price = price + 1 WHERE id = {number % 3 + 1}")
                busy = counted("a window of one change")
            idle = counted("nothing new")
    assert sum(busy.values()) <= 60, busy
    assert sum(idle.values()) <= 10, idle


RULES = [
    Rule("item", layout=Layout(partition_by=("kind",))),
    Rule("fed", layout=Layout(properties=(("delta.enableChangeDataFeed", "true"),))),
    Rule("part_*", name="whole", only=True, union=Origin("shard", "{table}")),
]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_partitions_mapped_columns_constraints_change_feeds_and_unions(
    spark: SparkSession, seaweed: Seaweed, address: str, tmp_path: Path
) -> None:
    """Spark commits to these, and each entry that it puts is put if absent."""
    database = tmp_path / "shop.db"
    lake = Delta(spark, address, storage_options=seaweed.options, rules=RULES)
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
                    found = read_store(tables[name], seaweed.options)
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
    with Pipeline(Sqlite(database), lake, name="shop", storage_options=seaweed.options, options=small) as pipeline:
        assert not pipeline.sync_once().errors
        require_equal()
        session.sql(f"ALTER TABLE delta.`{spark_path(tables['item'])}` ADD CONSTRAINT positive CHECK (n > 0)")
        fed = session.read.format("delta").option("readChangeFeed", "true")
        before = read_version(tables["fed"], seaweed.options)
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


def read_version(location: str, options: dict[str, str]) -> int:
    return DeltaTable(location, storage_options=options).version()


@pytest.mark.parametrize("kind", ["seaweed", pytest.param("moto", marks=pytest.mark.slow)])
def test_of_sparks_commits_that_meet_none_is_replaced(
    spark: SparkSession, kind: str, request: pytest.FixtureRequest
) -> None:
    """Appends of four threads at once: nothing in this JVM keeps them apart, only the store does."""
    server: Seaweed | Moto = request.getfixturevalue(kind)
    location = f"{server.bucket(f'spark-{kind}')}/meeting"  # of its own: Hadoop keeps a client for each
    give_options(location, server.options)
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
    rows = Counter(row["id"] for row in read_store(location, server.options))
    assert rows == {0: 1, 1: 3, 2: 3, 3: 3, 4: 3}
    assert read_version(location, server.options) == 12


def test_other_threads_go_on_while_a_table_waits_for_the_store(seaweed: Seaweed, address: str) -> None:
    """The lease is renewed by one of them."""
    with HttpProxy(seaweed.port) as proxy:  # a thread, too: without Python's lock it would not answer
        options = {**seaweed.options, "endpoint": proxy.endpoint}
        write_deltalake(f"{address}/main/t", pa.table({"id": [1]}), storage_options=seaweed.options)
        lake = Delta(spark_session, address, storage_options=options).bind("p")
        began = time.monotonic()
        assert lake.table(Route.same(TableId("main", "t"))).applied(1) is None
        assert time.monotonic() - began < 10


def test_iceberg_on_spark_connect_is_refused_in_one_sentence_without_a_rest_catalog() -> None:
    session: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(SparkSetupError, match="type hadoop are committed through the JVM of a classic") as caught:
        refuse_without_java(session, IcebergCatalog.of({}, "/lake", "{schema}"))
    assert "type: rest" in str(caught.value.remedy)
    refuse_without_java(session, IcebergCatalog.of({"type": "rest", "uri": "http://x"}, "/lake", "{schema}"))


def entry(size: int, rows: int = 100, marked: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {"size": size, "stats": json.dumps({"numRecords": rows})}
    return found | ({"deletionVector": {"cardinality": marked}} if marked else {})


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        ({"a": entry(10), "b": entry(20)}, ["a", "b"]),
        ({"a": entry(10), "b": entry(900)}, []),  # one small file is as good as any
        ({"a": entry(900, marked=60), "b": entry(900)}, ["a"]),
        ({"a": entry(900, marked=60), "b": entry(10)}, ["a", "b"]),
        (
            {str(number): entry(400) for number in range(30)},
            [str(number) for number in sorted(range(30), key=str)][:20],
        ),
    ],
)
def test_files_that_are_packed_together(entries: dict[str, dict[str, Any]], wanted: list[str]) -> None:
    assert packable(entries, 1000, 0.5) == wanted

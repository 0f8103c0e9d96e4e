"""Pipelines on a real Spark Connect server, a process of its own.

So is each command: pyspark has classic sessions or those of Spark Connect in one process, not both. Lake tables are
read by deltalake, which is not Spark.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from tests.postgres.conftest import new_database

from lakefeed.testing.server.object_store import Seaweed
from lakefeed.testing.server.postgres import PostgresServer, find_binaries
from lakefeed.testing.server.spark_connect import SparkConnect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

CONFIG = """
pipeline: shop
source: {source}
lake:
  path: ./lake
  deletion_vectors: [marked]
  tables:
    - {{match: account}}
    - {{match: account, name: marked}}
    - {{match: account, name: history, mode: temporal}}
    - {{match: account, name: log, mode: append}}
    - {{match: account, name: even, where: "id % 2 = 0", transform: {{twice: "balance * 2"}}}}
spark: {{remote: "{remote}"}}
"""
SQLITE = "{kind: sqlite, path: shop.db}"
MANY = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) {what}"
FILL = "INSERT INTO account SELECT i, i FROM n"
CHUNK = 250_000


@pytest.fixture(scope="module")
def server() -> Iterator[SparkConnect]:
    with SparkConnect.start() as started:
        yield started


class Shop:
    """A source with a table account, and a configuration that feeds five lake tables from it."""

    schema = "main"

    def __init__(self, directory: Path, server: SparkConnect, source: str = SQLITE, config: str = CONFIG) -> None:
        self.directory = directory
        (directory / "shop.yaml").write_text(config.format(source=source, remote=server.remote))

    def sql(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.directory / "shop.db", isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    def query(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.directory / "shop.db")) as connection:
            return connection.execute(statement).fetchall()

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *command], cwd=self.directory, env={**os.environ, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def python(self, *command: str, expected: int = 0, **environment: str) -> str:
        process = self.start(*command, **environment)
        said, _ = process.communicate(timeout=600)
        assert process.returncode == expected, said
        return said

    def lakefeed(self, *command: str, expected: int = 0, **environment: str) -> str:
        return self.python("-m", "lakefeed", *command, expected=expected, **environment)

    def sync(self) -> str:
        return self.lakefeed("sync", "shop.yaml")

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Of a lake table, by Python's deltalake or, where rows are marked as deleted, by its query engine."""
        path = str(self.directory / "lake" / self.schema / table)
        if table != "marked":
            return DeltaTable(path).to_pyarrow_table().to_pylist()
        import pyarrow as pa
        from deltalake import QueryBuilder

        found: Any = QueryBuilder().register("t", DeltaTable(path)).execute("SELECT * FROM t")
        return pa.RecordBatchReader.from_stream(found).read_all().to_pylist()

    def require_equal(self, *names: str) -> None:
        """All five tables show the source, each in its way; the mirrors with ``names`` besides."""

        def source(*names: str) -> list[Any]:
            return sorted(map(tuple, self.query(f"SELECT {', '.join(names)} FROM account")))

        def shown(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
            return sorted(tuple(row[name] for name in names) for row in rows)

        keys = ("id", "balance")
        assert shown(self.rows("account"), *keys, *names) == source(*keys, *names)
        assert shown(self.rows("marked"), *keys, *names) == source(*keys, *names)
        assert shown([row for row in self.rows("history") if row["is_current"]], *keys) == source(*keys)
        newest: dict[int, dict[str, Any]] = {}
        for row in sorted(self.rows("log"), key=lambda row: int(row["_lakefeed_seq"])):
            newest[row["id"]] = row
        left = [row for row in newest.values() if row["_lakefeed_operation"] != "delete"]
        assert shown(left, *keys) == source(*keys)
        even = self.rows("even")
        assert shown(even, *keys) == [row for row in source(*keys) if row[0] % 2 == 0]
        assert all(row["twice"] == row["balance"] * 2 for row in even)


class PostgresShop(Shop):
    schema = "public"

    def __init__(self, directory: Path, server: SparkConnect, dsn: str) -> None:
        super().__init__(directory, server, f'{{kind: postgres, dsn: "{dsn}", tables: ["public.account"]}}')
        self.dsn = dsn

    def sql(self, *statements: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def query(self, statement: str) -> list[Any]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(statement).fetchall()


def test_a_copy_and_a_merge(server: SparkConnect, tmp_path: Path) -> None:
    config = "pipeline: shop\nsource: {source}\nlake: {{path: ./lake}}\nspark: {{remote: '{remote}'}}\n"
    shop = shop_with_rows(Shop(tmp_path, server, config=config))  # two chunks: tasks of the server read and write them
    for change in ("UPDATE account SET balance = -balance WHERE id % 1000 = 0", "DELETE FROM account WHERE id = 7"):
        shop.sync()
        rows = sorted((row["id"], row["balance"]) for row in shop.rows("account"))
        assert rows == shop.query("SELECT id, balance FROM account ORDER BY id")
        shop.sql(change)


def test_evolution_maintenance_verify_and_rebuild(server: SparkConnect, tmp_path: Path) -> None:
    shop = Shop(tmp_path, server)
    assert "ready" in shop_with_rows(shop, 5000).lakefeed("check", "shop.yaml").lower()
    shop.sync()
    change_everything(shop)
    shop.lakefeed("maintain", "shop.yaml")
    shop.require_equal("remark")
    shop.lakefeed("verify", "shop.yaml")
    shop.lakefeed("rebuild", "shop.yaml", "main.account", "--from-source")
    shop.sync()
    shop.require_equal("remark")


def test_postgres(server: SparkConnect, tmp_path: Path) -> None:
    with PostgresServer.start(max(find_binaries().items())[1]) as postgres, new_database(postgres) as dsn:
        shop = PostgresShop(tmp_path, server, dsn)
        shop.sql("CREATE TABLE account (id bigint PRIMARY KEY, balance bigint)")
        shop.sql(f"INSERT INTO account SELECT i, i FROM generate_series(1, {CHUNK + 10}) AS i")
        shop.sync()
        shop.require_equal()
        change_everything(shop)
        shop.lakefeed("maintain", "shop.yaml")
        shop.lakefeed("verify", "shop.yaml")
        shop.require_equal("remark")


def shop_with_rows(shop: Shop, rows: int = CHUNK + 10) -> Shop:
    shop.sql("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)", MANY.format(rows=rows, what=FILL))
    return shop


def change_everything(shop: Shop) -> None:
    """Rows, then columns: added, added with a default, renamed, dropped; each in a sync of its own."""
    shop.sql("UPDATE account SET balance = -balance WHERE id % 1000 = 0", "DELETE FROM account WHERE id % 1777 = 0")
    shop.sync()
    shop.require_equal()
    shop.sql("ALTER TABLE account ADD COLUMN note TEXT DEFAULT 'x'", "UPDATE account SET note = 'y' WHERE id < 10")
    shop.sync()
    shop.require_equal("note")
    shop.sql("ALTER TABLE account RENAME COLUMN note TO remark", "UPDATE account SET remark = 'z' WHERE id < 5")
    shop.sync()
    shop.require_equal("remark")
    shop.sql("ALTER TABLE account ADD COLUMN short INTEGER", "INSERT INTO account VALUES (-2, 3, 'new', 4)")
    shop.sync()
    shop.sql("ALTER TABLE account DROP COLUMN short", "UPDATE account SET balance = 7 WHERE id = 8")
    shop.sync()
    shop.require_equal("remark")


@pytest.mark.parametrize("moment", ["lake.during_load=kill@1", "lake.during_commit=kill@1", "lake.after_commit=kill@1"])
def test_a_client_that_is_killed(server: SparkConnect, tmp_path: Path, moment: str) -> None:
    """What it asked of the server may go on there: no change is applied twice."""
    shop = shop_with_rows(Shop(tmp_path, server), CHUNK + 10 if "load" in moment else 5000)
    if "load" not in moment:
        shop.sync()
        shop.sql("UPDATE account SET balance = -balance WHERE id % 3 = 0", "DELETE FROM account WHERE id % 7 = 0")
    shop.lakefeed("sync", "shop.yaml", expected=-signal.SIGKILL, LAKEFEED_FAILPOINTS=moment)
    shop.sync()
    shop.require_equal()


def test_a_server_that_is_killed_and_started_again(tmp_path: Path) -> None:
    with SparkConnect.start() as server:
        shop = shop_with_rows(Shop(tmp_path, server), 5000)
        shop.sync()
        process = shop.start("-m", "lakefeed", "run", "shop.yaml", "--for", "200")
        shop.sql("UPDATE account SET balance = -balance WHERE id % 3 = 0")
        time.sleep(10)
        server.halt(immediate=True)
        shop.sql("DELETE FROM account WHERE id % 7 = 0")
        said = shop.lakefeed("sync", "shop.yaml", expected=3)  # the other process has the lease
        assert "is written by process" in said
        time.sleep(30)
        server.resume()
        said, _ = process.communicate(timeout=500)
        assert "the Spark Connect server does not answer" in said, said
        assert process.returncode == 0, said
        shop.require_equal()
        server.halt(immediate=True)
        shop.sql("UPDATE account SET balance = 1 WHERE id = 1")
        said = shop.lakefeed("sync", "shop.yaml", expected=3)
        assert "the Spark Connect server does not answer" in said
        assert "Traceback" not in said
        assert "no server answers at" in shop.lakefeed("check", "shop.yaml", expected=3)


def test_workers_without_lakefeed_are_named_before_anything_is_copied(tmp_path: Path) -> None:
    with SparkConnect.start(python="/usr/bin/python3", python_path="") as server:
        shop = shop_with_rows(Shop(tmp_path, server))
        said = shop.lakefeed("sync", "shop.yaml", expected=3)
        assert "a first job on sc://127.0.0.1" in said or "the workers of sc://127.0.0.1" in said, said
        assert "Remedy: Install" in said


STORE = """
pipeline: shop
source: {source}
lake: {{path: s3://lakefeed/lake}}
storage:
  endpoint: {endpoint}
  region: us-east-1
  access_key_id: lakefeed
  secret_access_key: ${{STORE_SECRET}}
  allow_http: true
spark: {{remote: "{remote}"}}
"""


def test_journal_and_tables_in_an_object_store(tmp_path: Path) -> None:
    with Seaweed.start() as store, SparkConnect.start(stores=("s3",)) as server:
        store.bucket("lakefeed")
        shop = shop_with_rows(Shop(tmp_path, server, config=STORE.replace("{endpoint}", store.options["endpoint"])))
        for change in (
            "UPDATE account SET balance = -balance WHERE id % 1000 = 0",
            "ALTER TABLE account ADD COLUMN note TEXT DEFAULT 'x'",
            "DELETE FROM account WHERE id % 1777 = 0",
        ):
            shop.lakefeed("sync", "shop.yaml", STORE_SECRET="lakefeed-secret")
            table = DeltaTable("s3://lakefeed/lake/main/account", storage_options=store.options)
            rows = sorted(tuple(row.values()) for row in table.to_pyarrow_table().to_pylist())
            assert rows == shop.query("SELECT * FROM account ORDER BY id")
            shop.sql(change, "UPDATE account SET balance = 1 WHERE id = 3")
        shop.lakefeed("maintain", "shop.yaml", STORE_SECRET="lakefeed-secret")


PYTHON = """
import sqlite3, sys, time
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as Remote
import lakefeed
from lakefeed import Delta, FullDiff, Pipeline, RowOptions, Rule, Sqlite, SqlitePolling, TableRule
from lakefeed.lake.rule.expression import analyzed

remote = sys.argv[1]
database = sqlite3.connect("shop.db", isolation_level=None)

def write(*statements):
    for statement in statements:
        database.execute(statement)

def source(table):
    return sorted(database.execute(f"SELECT id, balance FROM {table}").fetchall())

def rows(frame):
    return sorted((row["id"], row["balance"]) for row in frame.select("id", "balance").collect())

children, clone = [], Remote.cloneSession

def recorded(session, *given):
    children.append(clone(session, *given))
    return children[-1]

def forget(*sessions):
    # The server then says what it says of sessions that were idle for too long.
    for one in [*sessions, *children]:
        one.client.release_session()
    children.clear()

Remote.cloneSession = recorded
write("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, updated_at TEXT)")
write("INSERT INTO account VALUES (1, 1, '2026-01-01 00:00:00'), (2, 2, '2026-01-01 00:00:00')")
spark = SparkSession.builder.remote(remote).getOrCreate()
before = source("account")
with Pipeline(Sqlite("shop.db"), Delta(spark, "lake"), name="shop") as pipeline:
    pipeline.sync_once()
    first = pipeline.status().tables["main.account"].applied
    write("UPDATE account SET balance = 10 WHERE id = 1", "INSERT INTO account VALUES (3, 3, '2026-01-02 00:00:00')")
    pipeline.sync_once()
    assert rows(lakefeed.table(spark, "lake", "main.account")) == source("account")
    assert rows(lakefeed.current(spark, "lake", "main.account")) == source("account")
    assert rows(lakefeed.snapshot(spark, "lake")["main.account"]) == source("account")
    assert rows(lakefeed.read_at(spark, "lake", "main.account", change_set=first)) == before
    lakefeed.register_source(spark)
    changes = spark.read.format("lakefeed").option("path", str(Path("lake").absolute())).option("pipeline", "shop")
    changes = changes.option("table", "main.account").load()
    assert changes.count() >= 2
    forget(spark)
    other = SparkSession.builder.remote(remote).create()
    write("UPDATE account SET balance = 11 WHERE id = 1")
    result = pipeline.sync_once()
    assert result.errors and "Spark Connect server does not have the session" in str(result.errors), result
print("said what to do about a session that is gone")

made = []
def session():
    made.append(SparkSession.builder.remote(remote).create())
    return made[-1]

with Pipeline(Sqlite("shop.db"), Delta(session, "lake"), name="shop") as pipeline:
    pipeline.sync_once()
    forget(*made)
    write("UPDATE account SET balance = 12 WHERE id = 1")
    write("CREATE TABLE other (id INTEGER PRIMARY KEY, balance INTEGER)", "INSERT INTO other VALUES (1, 2)")
    pipeline.sync_once()
    pipeline.sync_once()
    for name in ("account", "other"):
        assert rows(lakefeed.table(other, "lake", f"main.{name}")) == source(name), name
    assert len(made) == 2
print("made another session")

rule = TableRule(deletes=FullDiff(max_deleted_share=1.0), safety_lag_seconds=0.05)
polled = SqlitePolling("shop.db", tables=["account"], rules={"account": rule})
with Pipeline(polled, Delta(other, "polled"), name="polled") as pipeline:
    pipeline.sync_once()
    write("DELETE FROM account WHERE id = 2")
    found = list(pipeline.full_diff().values())
    assert [one.deleted for one in found] == [1], found
    pipeline.sync_once()
    assert rows(lakefeed.table(other, "polled", "main.account")) == source("account")
print("compared all keys")

from lakefeed import Column, TableId, TableSchema
import pyarrow as pa
schema = TableSchema(TableId("main", "t"), (Column("id", pa.int64()), Column("name", pa.string())), key=("id",))
for sql, expected in {
    "upper(name)": ("name",), "concat(`NAME`, id)": ("id", "name"), "transform(array(1), id -> id + 1)[0]": (),
    "1": (), "max(id)": "is not about one row", "explode(array(id))": "is not about one row",
    "row_number() OVER (ORDER BY id)": "is not about one row", "rand() + id": "gives another value",
    "uuid()": "gives another value", "unix_timestamp()": "depends on more than the row: current_timestamp",
    "now()": "depends on more than the row", "(SELECT max(1))": "depends on more than the row",
    "id +": "does not parse", "nothing + 1": "does not fit the table's columns",
}.items():
    said = analyzed(other, schema, sql)
    answer = said if isinstance(said, str) else said.inputs
    assert answer.startswith(expected) if isinstance(expected, str) else answer == expected, (sql, said)
print("analyzed expressions")
"""


def test_a_session_that_python_hands_in(server: SparkConnect, tmp_path: Path) -> None:
    """Pipelines, reads, a session that the server let go, a comparison of all keys, and expressions of rules."""
    (tmp_path / "main.py").write_text(PYTHON)
    said = Shop(tmp_path, server).python("main.py", server.remote)
    for line in ("a session that is gone", "made another session", "compared all keys", "analyzed expressions"):
        assert line in said

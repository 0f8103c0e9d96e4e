"""Pipelines on a real Spark Connect server, a process of its own.

So is each command: pyspark has classic sessions or those of Spark Connect in one process, not both. Lake tables are
read by deltalake, which is not Spark.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.cluster.connect_shop import CHUNK, PostgresShop, Shop, change_everything, shop_with_rows
from tests.postgres.conftest import new_database

from lakefeed.lake.spark.driver import in_tasks
from lakefeed.lake.spark.progress import Reports, job_progress
from lakefeed.lake.spark.session import Sessions, connect_session
from lakefeed.testing.server.object_store import Seaweed
from lakefeed.testing.server.postgres import PostgresServer, find_binaries
from lakefeed.testing.server.spark_connect import SparkConnect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def server() -> Iterator[SparkConnect]:
    with SparkConnect.start() as started:
        yield started


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
        said = shop.lakefeed("check", "shop.yaml", expected=1)  # which asks Spark about the rule's expressions, too
        assert "no server answers at" in said


def test_a_task_that_hangs_is_told_from_tasks_that_end(server: SparkConnect) -> None:
    sessions = Sessions(lambda: connect_session(server.remote), {})
    sessions.reports = reports = Reports(task_seconds=10)
    session = sessions.child()

    def answers(*seconds: float) -> list[bool]:
        """Whether Spark goes on, asked from the first report on, while tasks of so many seconds each run."""
        found: list[bool] = []
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(in_tasks, session, lambda one: time.sleep(one), seconds)
            while not running.done():
                goes_on = job_progress(session, "", reports) != job_progress(session, "", reports)
                found += [goes_on] if found or goes_on else []
                time.sleep(0.1)
            running.result()
        return found

    ending = answers(*[2.0] * 8)
    assert ending
    assert all(ending)
    hanging = answers(25)
    assert hanging.count(True) > 10, "a task may take its time"
    assert hanging.count(False) > 10, "and not for ever"


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

"""PostgreSQL into Delta and Iceberg tables in an object store, by a standalone cluster. Run by make cluster.

Journal and tables are in SeaweedFS; workers read segments and write files there. Driver, worker, executor and store are
killed in the middle of copies and merges; at the end lake and source are equal, by a reader that is not Spark.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.catalog import load_catalog
from tests.lake.iceberg_rest import rest_catalog

from lakefeed.lake.location import file_io
from lakefeed.storage.location import give_options
from lakefeed.testing.server.object_store import Seaweed
from lakefeed.testing.server.postgres import PostgresServer, find_binaries
from lakefeed.testing.server.proxy import HttpProxy
from lakefeed.testing.server.spark_cluster import SparkCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CONFIG = """
pipeline: shop
source: {{kind: postgres, dsn: "{dsn}", tables: ["public.account"]}}
lake: {{path: s3://lakefeed/{name}}}
journal: {{lease_seconds: 5}}
storage:
  endpoint: {endpoint}
  region: us-east-1
  access_key_id: lakefeed
  secret_access_key: ${{STORE_SECRET}}
  allow_http: true
spark:
  master: {master}
  app_name: shop
  conf:
    spark.driver.host: 127.0.0.1
    spark.executor.memory: 600m
    spark.cores.max: "2"
"""
ROWS = 600_000  # three chunks


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster.start(workers=2) as started:
        yield started


@pytest.fixture(scope="module")
def seaweed() -> Iterator[Seaweed]:
    with Seaweed.start() as server:
        server.bucket("lakefeed")
        yield server


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer.start(list(find_binaries().values())[-1]) as server:
        yield server


class Shop:
    def __init__(self, directory: Path, cluster: SparkCluster, seaweed: Seaweed, postgres: PostgresServer) -> None:
        self.directory, self.cluster, self.seaweed, self.postgres = directory, cluster, seaweed, postgres
        self.name = f"shop-{time.time_ns()}"
        self.proxy = HttpProxy(seaweed.port)
        config = CONFIG.format(dsn=postgres.dsn, name=self.name, endpoint=self.proxy.endpoint, master=cluster.master)
        (directory / "shop.yaml").write_text(config)
        self.sql("DROP TABLE IF EXISTS account", "CREATE TABLE account (id bigint PRIMARY KEY, balance bigint)")
        self.sql(f"INSERT INTO account SELECT i, i FROM generate_series(1, {ROWS}) AS i")

    def sql(self, *statements: str) -> None:
        with psycopg.connect(self.postgres.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "lakefeed", *command], cwd=self.directory,
            env={**os.environ, "STORE_SECRET": "lakefeed-secret", **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def lakefeed(self, *command: str, **environment: str) -> str:
        process = self.start(*command, **environment)
        said, _ = process.communicate(timeout=600)
        assert process.returncode == 0, said
        return said

    def sync(self) -> None:
        self.lakefeed("sync", "shop.yaml")

    def change(self) -> None:
        self.sql("UPDATE account SET balance = -balance WHERE id % 1000 = 0", "DELETE FROM account WHERE id % 1777 = 0")

    def require_equal(self) -> None:
        table = DeltaTable(f"s3://lakefeed/{self.name}/public/account", storage_options=self.seaweed.options)
        question = "SELECT count(*) AS n, sum(id) AS ids, sum(balance) AS balances, count(DISTINCT id) AS keys FROM t"
        found: Any = QueryBuilder().register("t", table).execute(question)
        lake = pa.RecordBatchReader.from_stream(found).read_all().to_pylist()[0]
        with psycopg.connect(self.postgres.dsn) as connection:
            source = connection.execute("SELECT count(*), sum(id), sum(balance), count(id) FROM account").fetchone()
        assert source is not None
        assert [lake[name] for name in ("n", "ids", "balances", "keys")] == [int(one) for one in source]


@pytest.fixture
def shop(tmp_path: Path, cluster: SparkCluster, seaweed: Seaweed, postgres: PostgresServer) -> Iterator[Shop]:
    made = Shop(tmp_path, cluster, seaweed, postgres)
    yield made
    made.proxy.close()
    made.sql(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active",
        "DROP PUBLICATION IF EXISTS lakefeed_shop",
    )


def test_copies_and_merges_by_workers_that_read_and_write_the_store(shop: Shop) -> None:
    shop.sync()
    shop.require_equal()
    shop.change()
    shop.sync()
    shop.require_equal()
    shop.lakefeed("verify", "shop.yaml")


@pytest.mark.parametrize("moment", ["lake.during_load=kill@1", "lake.during_commit=kill@1", "lake.after_commit=kill@1"])
def test_a_driver_that_is_killed(shop: Shop, moment: str) -> None:
    if "load" not in moment:
        shop.sync()
        shop.change()
    process = shop.start("sync", "shop.yaml", LAKEFEED_FAILPOINTS=moment)
    process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL
    shop.sync()
    shop.require_equal()


def test_iceberg_tables_in_the_store_by_workers(shop: Shop, tmp_path: Path) -> None:
    """Through a REST catalog; workers write by S3FileIO, and copies by pyarrow."""
    give_options("s3://lakefeed", shop.seaweed.options)
    reached = file_io("s3://lakefeed")
    with rest_catalog(tmp_path, f"s3://lakefeed/{shop.name}/tables", reached) as address:
        file = tmp_path / "shop.yaml"
        lake = f"s3://lakefeed/{shop.name}, format: iceberg, catalog: {{type: rest, uri: '{address}'}}"
        file.write_text(file.read_text().replace(f"s3://lakefeed/{shop.name}", lake))
        table = load_catalog("theirs", type="rest", uri=address, **reached)
        for _ in range(2):
            shop.sync()
            rows = table.load_table("public.account").scan().to_arrow()
            with psycopg.connect(shop.postgres.dsn) as connection:
                source = connection.execute("SELECT count(*), sum(id), sum(balance) FROM account").fetchone()
            assert source is not None
            found = (rows.num_rows, *(pc.sum(rows.column(name)).as_py() for name in ("id", "balance")))
            assert found == tuple(map(int, source))
            shop.change()


def executors(cluster: SparkCluster) -> list[int]:
    """The processes of executors, which are in the groups of their workers."""
    groups, found = {process.pid for process in cluster.processes}, []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words, fields = (directory / "cmdline").read_bytes(), (directory / "stat").read_text().rpartition(")")[2]
            if b"CoarseGrainedExecutorBackend" in words and int(fields.split()[2]) in groups:
                found.append(int(directory.name))
    return found


@pytest.mark.parametrize("victim", ["worker", "executor"])
@pytest.mark.parametrize("step", ["copy", "merge"])
def test_a_worker_or_executor_that_is_killed_costs_time_and_no_row(shop: Shop, step: str, victim: str) -> None:
    if step == "merge":
        shop.sync()
        shop.sql("UPDATE account SET balance = -balance")  # of all rows, so that it takes a while
    process = shop.start("sync", "shop.yaml")
    until = time.monotonic() + 120
    while len(executors(shop.cluster)) < 2:
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(6)  # the first job asks what is installed; the next ones copy, or merge
    assert process.poll() is None, "it was over before anything was killed"
    if victim == "worker":
        os.killpg(shop.cluster.processes[-1].pid, signal.SIGKILL)
        shop.cluster.add_worker()
    else:
        os.kill(executors(shop.cluster)[0], signal.SIGKILL)
    process.communicate(timeout=600)
    if process.returncode != 0:
        shop.sync()
    shop.require_equal()
    shop.cluster.wait_for_workers(2)


def test_a_store_that_is_slow_and_then_gone_for_a_while(shop: Shop) -> None:
    shop.sync()
    shop.change()
    shop.proxy.delay_seconds = 0.2
    process = shop.start("run", "shop.yaml", "--for", "60")
    time.sleep(20)
    shop.seaweed.halt(immediate=True)
    time.sleep(5)
    shop.seaweed.resume()
    shop.proxy.delay_seconds = 0.0
    process.communicate(timeout=600)
    shop.sync()
    shop.require_equal()

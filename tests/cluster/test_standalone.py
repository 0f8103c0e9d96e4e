"""A pipeline on a real standalone cluster: master and two workers as processes of their own. Run by make cluster."""

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

import pyspark
import pytest
from deltalake import DeltaTable

from lakefeed.lake.formats import FORMATS
from lakefeed.lake.spark.java import find_java
from lakefeed.testing.server.spark_cluster import SparkCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CONFIG = """
pipeline: shop
source: {{kind: sqlite, path: shop.db}}
lake: {{path: ./lake}}
spark:
  master: {master}
  app_name: shop
  conf:
    spark.driver.host: 127.0.0.1
    spark.executor.memory: 600m
    spark.cores.max: "2"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster.start(workers=2) as started:
        yield started


class Shop:
    def __init__(self, directory: Path, master: str) -> None:
        self.directory = directory
        (directory / "shop.yaml").write_text(CONFIG.format(master=master))
        self.sql("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)")

    def sql(self, statement: str) -> None:
        with closing(sqlite3.connect(self.directory / "shop.db", isolation_level=None)) as connection:
            connection.execute(statement)

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "lakefeed", *command], cwd=self.directory, env={**os.environ, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def lakefeed(self, *command: str, expected: int = 0, **environment: str) -> str:
        process = self.start(*command, **environment)
        said, _ = process.communicate(timeout=600)
        assert process.returncode == expected, said
        return said

    def require_equal(self) -> None:
        with closing(sqlite3.connect(self.directory / "shop.db")) as connection:
            source = connection.execute("SELECT id, balance FROM account ORDER BY id").fetchall()
        rows = DeltaTable(str(self.directory / "lake" / "main" / "account")).to_pyarrow_table().to_pylist()
        assert sorted((row["id"], row["balance"]) for row in rows) == source


MANY = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) {what}"


def test_copies_and_merges_run_on_the_workers(cluster: SparkCluster, tmp_path: Path) -> None:
    shop = Shop(tmp_path, cluster.master)
    shop.sql(MANY.format(rows=600_000, what="INSERT INTO account SELECT i, i FROM n"))  # three chunks
    shop.lakefeed("sync", "shop.yaml")
    shop.require_equal()
    shop.sql("UPDATE account SET balance = -balance WHERE id % 1000 = 0")
    shop.sql("DELETE FROM account WHERE id % 1777 = 0")
    shop.lakefeed("sync", "shop.yaml")
    shop.require_equal()
    shop.lakefeed("verify", "shop.yaml")


def test_a_worker_that_is_killed_in_a_copy_costs_time_and_no_row(cluster: SparkCluster, tmp_path: Path) -> None:
    shop = Shop(tmp_path, cluster.master)
    shop.sql(MANY.format(rows=600_000, what="INSERT INTO account SELECT i, i FROM n"))
    process = shop.start("sync", "shop.yaml")
    until = time.monotonic() + 120
    while not (tmp_path / "lake" / "_lakefeed" / "shop" / "tables").exists():
        assert time.monotonic() < until
        time.sleep(0.1)
    time.sleep(2)
    victim = cluster.processes[-1]
    os.killpg(victim.pid, signal.SIGKILL)
    cluster.add_worker()
    process.communicate(timeout=600)
    if process.returncode != 0:
        shop.lakefeed("sync", "shop.yaml")
    shop.require_equal()
    cluster.wait_for_workers(2)


def test_the_command_runs_under_spark_submit(cluster: SparkCluster, tmp_path: Path) -> None:
    shop = Shop(tmp_path, cluster.master)
    (tmp_path / "shop.yaml").write_text(CONFIG.format(master="none").partition("spark:")[0])
    (tmp_path / "main.py").write_text("from lakefeed.app.cli import main; main()")
    shop.sql(MANY.format(rows=600_000, what="INSERT INTO account SELECT i, i FROM n"))
    home = Path(pyspark.__file__).parent
    known = FORMATS["delta"]
    command = [str(home / "bin" / "spark-submit"), "--master", cluster.master, "--packages", known.coordinates]
    settings = {"spark.sql.extensions": known.extension, **known.settings, "spark.executor.memory": "600m"}
    settings |= {"spark.cores.max": "2", "spark.driver.host": "127.0.0.1"}
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    environment = {"SPARK_HOME": str(home), "JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [*command, "main.py", "sync", "shop.yaml"], cwd=tmp_path, capture_output=True, text=True, timeout=600,
        env={**os.environ, **environment}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    shop.require_equal()


def test_executors_without_lakefeed_are_named_before_anything_is_copied(cluster: SparkCluster, tmp_path: Path) -> None:
    shop = Shop(tmp_path, cluster.master)
    text = (
        (tmp_path / "shop.yaml")
        .read_text()
        .replace("  conf:\n", "  conf:\n    spark.pyspark.python: /usr/bin/python3\n")
    )
    (tmp_path / "shop.yaml").write_text(text)
    shop.sql(MANY.format(rows=600_000, what="INSERT INTO account SELECT i, i FROM n"))
    said = shop.lakefeed("sync", "shop.yaml", expected=3)
    assert "a first job on spark://" in said or "the executors have lakefeed" in said
    assert "Remedy: Install" in said

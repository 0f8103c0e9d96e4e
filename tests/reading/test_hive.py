"""A lake's tables in a Hive metastore: another process finds them there by name. The metastore is Hive's own on Derby,
embedded in Spark; each process has a session of its own."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SECONDS = 300
SESSION = """
import json, sys
from pathlib import Path
from lakefeed.lake.spark.session import spark_session
place = Path(sys.argv[1])
spark = spark_session("hive", log_dir=place, settings={
    "spark.sql.catalogImplementation": "hive",
    "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={place}/metastore;create=true",
    "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
    "spark.hadoop.hive.metastore.schema.verification": "false",
    "spark.sql.warehouse.dir": str(place / "warehouse"),
})
"""
REGISTERS = """
from lakefeed import Delta, Pipeline, Sqlite, register_tables
with Pipeline(Sqlite(place / "s.db"), Delta(spark, place / "lake"), name="p") as pipeline:
    assert not pipeline.sync_once().errors
print(json.dumps(register_tables(spark, place / "lake", schema="main", database="shop", catalog="spark_catalog")))
"""
READS = """
rows = spark.sql("SELECT id, item FROM spark_catalog.shop.orders ORDER BY id").collect()
print(json.dumps([[row["id"], row["item"]] for row in rows]))
"""


def run(script: str, place: Path) -> object:
    done = subprocess.run(  # this test's own script
        [sys.executable, "-c", SESSION + script, str(place)],
        capture_output=True, text=True, timeout=SECONDS, env=dict(os.environ), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_tables_are_registered_in_a_hive_metastore_and_read_by_name_in_another_process(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as connection:
        connection.executescript(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT); INSERT INTO orders VALUES (1, 'a'), (2, 'b')"
        )
        assert run(REGISTERS, tmp_path) == ["spark_catalog.shop.orders"]
        connection.execute("UPDATE orders SET item = 'B' WHERE id = 2")
        assert run(REGISTERS, tmp_path) == ["spark_catalog.shop.orders"]
    assert run(READS, tmp_path) == [[1, "a"], [2, "B"]]

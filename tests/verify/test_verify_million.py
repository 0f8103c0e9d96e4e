"""A million rows under 2,000 changes a second: a hundred faults are all found, and runs without a fault tell none.

``make trust`` runs it and prints what it measured.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres.conftest import dsn, server, servers  # noqa: F401  # fixtures
from tests.verify.shop import Shop, writing

CONFIG = """
pipeline: shop
source: {{kind: postgres, dsn: "{dsn}"}}
lake: {{path: ./lake, deletion_vectors: ["*"]}}
sync: {{interval_seconds: 1}}
"""
RATE = 2_000
"""Changes a second."""


def damage(spark: Any, statement: str) -> None:
    for _ in range(20):
        try:
            spark.sql(statement)
            return
        except Exception as error:
            if "DELTA_CONCURRENT" not in str(error):
                raise
    raise AssertionError(f"others commit all the time: {statement[:100]}")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(3000)
def test_a_hundred_faults_in_a_million_rows_are_found_and_repaired(tmp_path: Path, spark: Any, dsn: str) -> None:  # noqa: F811
    rows, runs = int(os.environ.get("LAKEFEED_TRUST_ROWS", "1000000")), int(os.environ.get("LAKEFEED_TRUST_RUNS", "20"))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(12,2), at timestamptz)")
        connection.execute(
            "INSERT INTO items SELECT n, 'item ' || n, n / 7.0, now() FROM generate_series(1, %s) AS n", (rows,)
        )
    shop = Shop(tmp_path, spark, CONFIG.format(dsn=dsn))
    shop.sync()
    connection = psycopg.connect(dsn, autocommit=True)
    quiet = rows // 2  # faults are planted above: a change to a damaged row repairs it by itself
    changed, due = 0, time.monotonic()
    chance = random.Random(1)

    def write(_number: int) -> None:
        """A hundred changes, or, after a pause, as many as there should have been by now, a second's at most."""
        nonlocal changed, due
        due = max(due, time.monotonic() - 1.0)
        while due <= time.monotonic():
            keys = chance.sample(range(1, quiet), 100)
            connection.execute("UPDATE items SET price = price + 1, at = clock_timestamp() WHERE id = ANY(%s)", (keys,))
            changed += 100
            due += 100 / RATE

    chosen = random.Random(7).sample(range(quiet, rows), 100)
    parts = [chosen[start : start + 20] for start in range(0, 100, 20)]
    place = tmp_path / "lake" / "public" / "items"
    with shop.running(), writing(write, 0.02):
        began, before, took = time.monotonic(), changed, []
        for _ in range(runs):
            started = time.monotonic()
            found = shop.compared("public.items")
            took.append(time.monotonic() - started)
            assert found.equal, found.differences
            print(f"run {len(took)}: no difference told, {took[-1]:.1f} s", flush=True)
        rate = (changed - before) / (time.monotonic() - began)
    # The pipeline has stopped: Delta refuses a damage that meets a merge. A packing of files may not have ended yet.
    table = f"delta.`{place}`"
    listed = [", ".join(map(str, part)) for part in parts]
    for statement in (
        f"DELETE FROM {table} WHERE id IN ({listed[0]})",
        f"UPDATE {table} SET name = NULL WHERE id IN ({listed[1]})",
        f"UPDATE {table} SET price = price + 0.01 WHERE id IN ({listed[2]})",
        f"UPDATE {table} SET at = TIMESTAMP'2001-01-01 00:00:00' WHERE id IN ({listed[3]})",
        f"INSERT INTO {table} SELECT id + 10000000, name, price, at FROM {table} WHERE id IN ({listed[4]})",
    ):
        damage(spark, statement)
    with shop.running(), writing(write, 0.02):
        expected = {(key,) for part in parts[:4] for key in part} | {(key + 10_000_000,) for key in parts[4]}
        started = time.monotonic()
        found = shop.compared("public.items")
        seconds = time.monotonic() - started
        assert (found.differing, set(found.keys)) == (100, expected)
        started = time.monotonic()
        done = shop.repair("public.items")
        repaired = time.monotonic() - started
        assert done.is_equal, done
        assert shop.compared("public.items").equal
    connection.close()
    print(
        f"\n{rows:,} rows, {rate:,.0f} changes/s: {runs} runs without a fault, "
        f"each {min(took):.1f} to {max(took):.1f} s, "
        f"none told; 100 of 100 faults found in {seconds:.1f} s; "
        f"verified, repaired and compared again in {repaired:.1f} s"
    )

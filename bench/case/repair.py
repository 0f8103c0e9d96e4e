"""A thousand damaged rows all over a large table: how long they take to be found, and to be repaired."""

from __future__ import annotations

import os
import random
import threading
import time
from typing import TYPE_CHECKING

from bench.bench import Bench, timed
from bench.pipeline import FORMATS
from bench.postgres import binaries
from bench.report import Measure, Report, Verdict, speed_ratio
from lakefeed.app.build import build_pipeline, build_verification
from lakefeed.app.config import load_config
from lakefeed.change.table import TableId
from lakefeed.flow.table_state import Phase, TableStates
from lakefeed.lake.spark.session import spark_session
from lakefeed.testing.server.postgres import PostgresServer
from lakefeed.verify.repair import repair_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONGEST_SECONDS = 60.0
_CONFIG = """
pipeline: bench
source: {{kind: postgres, dsn: "{dsn}"}}
lake: {{path: ./lake, deletion_vectors: ["*"]}}
sync: {{interval_seconds: 0.5, warm_up: false}}
"""
_TABLE = """
CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(12,2), at timestamptz);
INSERT INTO items SELECT n, 'item ' || n, n / 7.0, now() FROM generate_series(1, {rows}) AS n"""


def run(bench: Bench) -> Report:
    import psycopg

    rows = bench.size(full=int(os.environ.get("LAKEFEED_BENCH_ROWS", "10_000_000")), quick=4_000)
    damaged = bench.size(full=1_000, quick=100)
    spark = spark_session("lakefeed-bench", formats=FORMATS)
    with PostgresServer.start(binaries(), {"shared_buffers": "1GB", "max_wal_size": "8GB"}) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            for statement in _TABLE.format(rows=rows).split(";"):
                connection.execute(statement.encode())
        file = bench.scratch / "bench.yaml"
        file.write_text(_CONFIG.format(dsn=server.dsn))
        config = load_config(file)
        with build_pipeline(config, spark=spark) as pipeline:
            copied = timed(pipeline.sync_once)
            bench.say(f"copied in {copied:.1f} s")
            _damage(bench, spark, rows, damaged)
            thread = threading.Thread(target=pipeline.run, daemon=True)
            thread.start()
            try:
                work = build_verification(config, "lakefeed sync", spark=spark)
                record = TableStates(config.state()).all()[TableId("public", "items")]
                started = time.perf_counter()
                found = work.live_table(record).compare(lambda _side, _rows: None)
                compared = time.perf_counter() - started
                bench.say(f"compared in {compared:.1f} s: {found.differing} rows differ")
                assert found.differing == damaged, found.differences
                started = time.perf_counter()
                done = repair_table(work.live_table(record), lambda _side, _rows: None, bench.say, found)
                repaired = time.perf_counter() - started
                bench.say(f"repaired in {repaired:.1f} s")
                assert (done.left, done.is_equal) == (0, True), done
                after = TableStates(config.state()).all()[TableId("public", "items")]
                assert (after.phase, after.generation) == (Phase.LIVE, record.generation), "the table was copied again"
            finally:
                pipeline.stop()
                thread.join(60)
    return Report(
        what=f"{damaged:,} rows of a lake table (Delta with deletion vectors) of {rows:,} rows are damaged: "
        "deleted, or another value in one column. A live comparison beside the running pipeline finds them, and a "
        "repair has PostgreSQL's rows written through the journal and compares them again, all without a copy.",
        measures=(
            Measure("compare", "s", (round(compared, 1),), ours=True),
            Measure("repair", "s", (round(repaired, 1),), ours=True),
            Measure("copy, for comparison", "s", (round(copied, 1),), charted=False),
        ),
        ratios=(speed_ratio("repair / copy", [repaired], [copied]),),
        verdicts=(
            Verdict(
                f"{damaged:,} of {rows:,} rows repaired within {LONGEST_SECONDS:.0f} s, without a copy",
                f"{repaired:.1f} s; found in {compared:.1f} s",
                repaired <= LONGEST_SECONDS,
            ),
        ),
        notes=("Server, pipeline and comparison share the machine's cores.",),
    )


def _damage(bench: Bench, spark: SparkSession, rows: int, damaged: int) -> None:
    """Half of them deleted, half with another price, by Delta's own SQL."""
    chosen = random.Random(7).sample(range(1, rows + 1), damaged)
    table = f"delta.`{bench.scratch / 'lake' / 'public' / 'items'}`"
    half = damaged // 2
    spark.sql(f"DELETE FROM {table} WHERE id IN ({', '.join(map(str, chosen[:half]))})")
    spark.sql(f"UPDATE {table} SET price = price + 0.01 WHERE id IN ({', '.join(map(str, chosen[half:]))})")

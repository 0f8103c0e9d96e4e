"""W2 to the end: a log of changes out of PostgreSQL into a mirror, on both formats."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from bench.bench import Bench, timed
from bench.pipeline import FORMATS, PIPELINE, lake_of
from bench.postgres import CHANGED, COLUMNS, TRANSACTION, Workload, workload
from bench.report import Ratio, Report, rates
from lakefeed.capture.postgres.source import Postgres
from lakefeed.flow.pipeline import Pipeline
from lakefeed.lake.reader import read_table
from lakefeed.lake.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(bench: Bench) -> Report:
    rows, changes = bench.size(full=1_000_000, quick=2_000), bench.size(full=500_000, quick=1_000)
    repetitions = bench.size(full=3, quick=1)
    spark = spark_session("lakefeed-bench", formats=FORMATS)
    seconds: dict[str, list[float]] = {fmt: [] for fmt in FORMATS}
    with workload(rows) as source:
        for fmt in FORMATS:
            source.make_copy()
            seconds[fmt] = _drained(bench, spark, source, fmt, (changes, repetitions))
        versions = source.versions
    median = {fmt: statistics.median(taken) for fmt, taken in seconds.items()}
    return Report(
        what=f"{changes:,} changes (60 % updates, 30 % inserts, 10 % deletes, {TRANSACTION} in a transaction) of a "
        f"table of {rows:,} rows and {COLUMNS} columns wait behind a replication slot, and a mirror of the table is in "
        "the lake. Time until the mirror has all of them: `sync_once`, that is decoding, journal, merge and "
        "confirmation. At the end each mirror is compared with the table, by count and sums.",
        measures=tuple(rates(fmt, "changes/s", changes, taken, ours=True) for fmt, taken in seconds.items()),
        ratios=(Ratio("iceberg / delta", (round(median["delta"] / median["iceberg"], 3),)),),
        notes=("Server, capture and Spark share the machine's cores.", versions),
    )


def _drained(bench: Bench, spark: SparkSession, source: Workload, fmt: str, sizes: tuple[int, int]) -> list[float]:
    changes, repetitions = sizes
    path = bench.scratch / f"lake-{fmt}"
    lake = lake_of(spark, fmt, path)
    taken = []
    with Pipeline(Postgres(source.dsn, tables=[CHANGED]), lake, name=PIPELINE) as pipeline:
        pipeline.sync_once()
        for repetition in range(repetitions + (0 if bench.quick else 1)):
            source.change_on(changes, repetition * changes, source.rows // 2)
            taken.append(timed(pipeline.sync_once))
            bench.say(f"{fmt}: {taken[-1]:.2f} s")
        _compare(source, path)
        pipeline.uninstall()
    return taken[-repetitions:]


def _compare(source: Workload, lake: Path) -> None:
    """By the database and by a reader that is not Spark."""
    import pyarrow.compute as pc

    found: Any = read_table(lake / "public" / CHANGED)
    theirs = tuple(pc.sum(found[name]).as_py() for name in ("id", "i1", "amount"))
    with psycopg.connect(source.dsn) as connection:
        ours = connection.execute(f"SELECT count(*), sum(id), sum(i1), sum(amount) FROM {CHANGED}".encode()).fetchone()
    assert ours == (found.num_rows, *theirs), (ours, found.num_rows, theirs)

"""How a cycle grows with the number of tables that have changes."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from bench.bench import Bench, timed
from bench.pipeline import FORMATS, PIPELINE, lake_of
from bench.report import Curve, Measure, Plot, Ratio, Report, Verdict
from bench.workload import Mix, connected, create, transaction
from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.flow.pipeline import Pipeline
from lakefeed.lake.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGES = 1_000
"""In each table, between two cycles."""
MOST_SECONDS = 6.0
"""For a cycle of the most tables."""
WARM = 3
"""Cycles that are not counted: a JVM that has just started compiles more than it works."""


def run(bench: Bench) -> Report:
    counts = (1, 2) if bench.quick else (1, 10, 50)
    rows, repetitions = bench.size(full=10_000, quick=200), bench.size(full=2, quick=1)
    spark = spark_session("lakefeed-bench", formats=FORMATS)
    seconds = {
        (fmt, count): _cycles(bench, spark, (fmt, count), rows, repetitions) for fmt in FORMATS for count in counts
    }
    median = {key: statistics.median(taken) for key, taken in seconds.items()}
    changes, warm = bench.size(full=CHANGES, quick=20), bench.size(full=WARM, quick=1)
    return Report(
        what=f"One cycle (`sync_once`: capture, journal, merge) after {changes:,} changes in each of so many SQLite "
        f"tables of {rows:,} rows, after {warm} such cycles to warm up. Tables are merged side by side, as many as "
        "there are cores.",
        measures=tuple(
            Measure(f"{fmt}, {count} tables", "s", tuple(round(one, 2) for one in taken), ours=True)
            for (fmt, count), taken in seconds.items()
        ),
        ratios=tuple(
            Ratio(
                f"{fmt}: {count} times one table / {count} tables",
                (round(median[fmt, 1] * count / median[fmt, count], 2),),
            )
            for fmt in FORMATS
            for count in counts[1:]
        ),
        verdicts=tuple(
            Verdict(
                f"{fmt}: {counts[-1]} tables with {changes:,} changes each in at most {MOST_SECONDS:g} s",
                f"{median[fmt, counts[-1]]:.1f} s",
                median[fmt, counts[-1]] <= MOST_SECONDS,
            )
            for fmt in FORMATS
        ),
        plot=Plot(
            "tables",
            "seconds for a cycle",
            tuple(Curve(fmt, tuple((count, round(median[fmt, count], 3)) for count in counts)) for fmt in FORMATS),
        ),
    )


def _cycles(bench: Bench, spark: SparkSession, what: tuple[str, int], rows: int, repetitions: int) -> list[float]:
    fmt, count = what
    place = bench.scratch / f"{fmt}-{count}"
    place.mkdir()
    names = [f"t{number:02}" for number in range(count)]
    database = create(place / "shop.db", rows, names)
    lake = lake_of(spark, fmt, place / "lake")
    mixes = [Mix(rows, name, seed) for seed, name in enumerate(names)]
    taken, warm = [], bench.size(full=WARM, quick=1)
    with Pipeline(Sqlite(database), lake, name=PIPELINE) as pipeline:
        pipeline.sync_once()
        for repetition in range(warm + repetitions):
            with connected(database) as connection:
                for mix in mixes:
                    with transaction(connection):
                        mix.change(connection, bench.size(full=CHANGES, quick=20), repetition)
            taken.append(timed(pipeline.sync_once))
            bench.say(f"{fmt}, {count} tables: {taken[-1]:.2f} s")
    return taken[warm:]

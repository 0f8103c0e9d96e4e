"""How long after its commit in the source a change can be read in the lake."""

from __future__ import annotations

import json
import statistics
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.backlog import table_in
from bench.bench import Bench
from bench.load import writing
from bench.pipeline import PIPELINE, Progress, lake_of
from bench.report import Curve, Measure, Plot, Ratio, Report, Verdict
from bench.visible import Versions
from bench.workload import connected, create
from lakefeed.capture.trigger.source import Sqlite
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.pipeline import Pipeline
from lakefeed.lake.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATE, SIZE = 1_000, 50
WARM = 10
"""Merges before the clock starts: a JVM that has just started is slower than one that runs for months."""
TARGETS = {"delta": 4.0, "iceberg": 2.0}
"""The median, in seconds, at most."""
_LIMIT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Followed:
    """Seconds that each transaction waited, in order of length; the median cycle of the lake side, and how many."""

    waits: list[float]
    cycle: float
    cycles: int

    def at(self, percent: int) -> float:
        return self.waits[min(len(self.waits) - 1, len(self.waits) * percent // 100)]


def run(bench: Bench) -> Report:
    spark = spark_session("lakefeed-bench", formats=tuple(TARGETS))
    rows = bench.size(full=100_000, quick=1_000)
    found = {fmt: _followed(bench, spark, fmt, rows) for fmt in TARGETS}
    counts = "; ".join(f"{fmt}: {len(one.waits):,} in {one.cycles} cycles" for fmt, one in found.items())
    return Report(
        what=f"A writer makes {RATE:,} changes a second ({SIZE} in a transaction) to a table of {rows:,} rows while "
        "`Pipeline.run()` follows it with an interval of 1 s, after "
        f"{WARM} merges to warm up. For each transaction: seconds from its commit in SQLite "
        "until the lake table shows it.",
        measures=tuple(measure for fmt, one in found.items() for measure in _measures(fmt, one)),
        verdicts=tuple(
            Verdict(f"{fmt}: p50 at most {most:.0f} s", f"{found[fmt].at(50):.2f} s", found[fmt].at(50) <= most)
            for fmt, most in TARGETS.items()
        ),
        ratios=tuple(
            Ratio(f"{fmt}: the target / p50", (round(most / found[fmt].at(50), 3),)) for fmt, most in TARGETS.items()
        ),
        plot=Plot(
            "percent of the transactions",
            "seconds from commit to lake, at most",
            tuple(
                Curve(fmt, tuple((percent, round(one.at(percent), 3)) for percent in range(101)))
                for fmt, one in found.items()
            ),
        ),
        notes=(
            f"Transactions counted: {counts}. Writer, capture and Spark share the cores.",
            "A change waits for the cycle that is under way, on average half of one, and then for its own.",
        ),
    )


def _measures(fmt: str, found: Followed) -> tuple[Measure, ...]:
    values = {
        "p50": found.at(50),
        "p99": found.at(99),
        "longest": found.waits[-1],
        "one cycle of the lake side, median": found.cycle,
    }
    return tuple(Measure(f"{fmt}: {name}", "s", (round(value, 2),), ours=True) for name, value in values.items())


def _followed(bench: Bench, spark: SparkSession, fmt: str, rows: int) -> Followed:
    seconds, warm = bench.size(full=45, quick=2), bench.size(full=5, quick=1)
    changes = (seconds + warm) * RATE
    place = bench.scratch / fmt
    place.mkdir()
    database = create(place / "shop.db", rows)
    lake = lake_of(spark, fmt, place / "lake")
    versions = Versions(fmt, table_in(place / "lake"))
    progress = Progress()
    options = PipelineOptions(interval_seconds=1.0)
    bench.say(f"{fmt}: {RATE:,} changes a second for {seconds + warm} s, the first {warm} s not counted")
    with Pipeline(Sqlite(database), lake, name=PIPELINE, options=options, listener=progress) as pipeline:
        _warm_up(pipeline, database, bench.size(full=WARM, quick=1))
        wanted = progress.applied_rows + changes
        progress.cycles.clear()
        with (
            writing(database, place / "ticks", rows=rows, changes=changes, size=SIZE, rate=RATE),
            versions.watched(),
        ):
            _run(pipeline, progress, wanted)
    commits = json.loads((place / "ticks").read_text())
    waits = sorted(_waits(commits, versions.visible(), warm * RATE // SIZE))
    cycle = statistics.median(result.seconds for result in progress.cycles)
    return Followed(waits, cycle, len(progress.cycles))


def _warm_up(pipeline: Pipeline, database: Path, merges: int) -> None:
    """Copy the table, then merge a few times."""
    pipeline.sync_once()
    for merge in range(merges):
        with connected(database) as connection:
            connection.execute("UPDATE account SET score = ? WHERE id <= 500", (merge,))
        pipeline.sync_once()


def _run(pipeline: Pipeline, progress: Progress, wanted: int) -> None:
    """Until everything is in the lake."""
    running = threading.Thread(target=pipeline.run, args=(_LIMIT_SECONDS,))
    running.start()
    while running.is_alive() and progress.applied_rows < wanted:
        running.join(0.05)
    pipeline.stop()
    running.join()
    assert progress.applied_rows >= wanted, "the lake did not catch up"


def _waits(commits: list[float], visible: list[tuple[float, int]], skipped: int) -> list[float]:
    waits = []
    for tick, committed in enumerate(commits, start=1):
        if tick > skipped:
            shown = next(when for when, newest in visible if newest >= tick)
            waits.append(shown - committed)
    return waits

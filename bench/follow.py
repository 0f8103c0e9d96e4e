"""A table that changes at a steady rate, followed by a running pipeline: how long each transaction waited."""

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
from bench.visible import Versions
from bench.workload import connected, create
from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATE, SIZE = 1_000, 50
INTERVAL = 0.2
"""Seconds between two merges, at least: a merge takes longer than that, so that one follows the other."""
WARM = 10
"""Merges before the clock starts: a JVM that has just started is slower than one that runs for months."""
_LIMIT_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Followed:
    """Seconds that each transaction waited, in the order of commits; the median cycle of the lake side; how many."""

    waits: list[float]
    cycle: float
    cycles: int

    def at(self, percent: int) -> float:
        return quantile(self.waits, percent)


def quantile(values: list[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def followed(bench: Bench, spark: SparkSession, fmt: str, rows: int, seconds: int) -> Followed:
    """Into a mirror of ``rows`` rows, at RATE changes a second for so long."""
    warm = bench.size(full=5, quick=1)
    changes = (seconds + warm) * RATE
    place = bench.scratch / fmt
    place.mkdir()
    database = create(place / "shop.db", rows)
    lake = lake_of(spark, fmt, place / "lake")
    versions = Versions(fmt, table_in(place / "lake"))
    progress = Progress()
    options = PipelineOptions(interval_seconds=INTERVAL)
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
    waits = _waits(commits, versions.visible(), warm * RATE // SIZE)
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

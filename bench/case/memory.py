"""The driver's memory while millions of changes pass."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from bench.bench import Bench
from bench.load import writing
from bench.pipeline import PIPELINE, Progress
from bench.report import Curve, Measure, Plot, Ratio, Report, Verdict, number
from bench.workload import create
from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.pipeline import Pipeline
from lakefeed.flow.run_loop import OpenPipeline
from lakefeed.lake.delta import Delta
from lakefeed.lake.spark.session import spark_session
from lakefeed.testing.memory_lake import MemoryLake

ALLOWED = 1.2
_MIB = 1024**2
_TRANSACTION = 1_000
_OPTIONS = PipelineOptions(interval_seconds=20.0)
"""On two cores merges would otherwise take the writer's time, and ten million changes three times as long."""
_LIMIT_SECONDS = 1_200.0
Sample = tuple[float, float, int]
"""Seconds, MiB resident, changes captured."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the writer is to do."""

    database: Path
    ticks: Path
    rows: int
    changes: int

    def writer(self) -> AbstractContextManager[Popen[bytes]]:
        return writing(self.database, self.ticks, rows=self.rows, changes=self.changes, size=_TRANSACTION)


class Sampler:
    """Reads this process's resident memory at an interval, while the block runs."""

    def __init__(self, progress: Progress, interval_seconds: float) -> None:
        self._progress = progress
        self._interval = interval_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.samples: list[Sample] = []

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        started = time.monotonic()
        while True:
            seconds = round(time.monotonic() - started, 2)
            self.samples.append((seconds, round(resident_bytes() / _MIB, 1), self._progress.captured_rows))
            if self._over.wait(self._interval):
                return


def resident_bytes() -> int:
    """As Linux tells it: the second number counts pages."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run(bench: Bench) -> Report:
    changes, rows = bench.size(full=10_000_000, quick=50_000), bench.size(full=100_000, quick=10_000)
    database = create(bench.scratch / "shop.db", rows)
    progress = Progress()
    follow = _journal_only if bench.quick else _into_the_lake
    bench.say(f"{changes:,} changes, {'into the journal' if bench.quick else 'into the lake'}")
    samples = follow(bench, progress, Load(database, bench.scratch / "ticks", rows, changes))
    tenth = next(sample for sample in samples if sample[2] >= changes // 10)
    start, peak, end = samples[0][1], max(sample[1] for sample in samples), samples[-1][1]
    grown = end / tenth[1]
    return Report(
        what=f"A writer makes {changes:,} changes as fast as it can, {_TRANSACTION:,} in a transaction; at the same "
        f"time a pipeline follows it from the trigger log through the journal"
        f"{'' if bench.quick else ' into a Delta table'}. "
        "The resident memory of the pipeline's Python process, every second.",
        measures=(
            Measure("start", "MiB", (start,), ours=True),
            Measure(f"after {changes // 10:,} changes", "MiB", (tenth[1],), ours=True),
            Measure("peak", "MiB", (peak,), ours=True),
            Measure("end", "MiB", (end,), ours=True),
            Measure("captured on the way", "changes/s", (round(changes / samples[-1][0]),), True, charted=False),
        ),
        ratios=(Ratio(f"level after {changes // 10:,} changes / level at the end", (round(1 / grown, 3),)),),
        verdicts=(
            Verdict(
                f"memory at the end at most {ALLOWED} × the level after {changes // 10:,} of {changes:,} changes",
                f"{number(end)} MiB, {number(grown)} ×; peak {number(peak)} MiB",
                grown <= ALLOWED,
            ),
        ),
        plot=Plot(
            "seconds", "MiB resident", (Curve("Python process", tuple((sample[0], sample[1]) for sample in samples)),)
        ),
        notes=("The JVM is a process of its own with a fixed maximum heap, and is not counted here.",),
    )


def _into_the_lake(bench: Bench, progress: Progress, load: Load) -> list[Sample]:
    """A whole pipeline, as ``run`` runs it, until the last change is in the lake."""
    delta = Delta(spark_session("lakefeed-bench"), bench.scratch / "lake")
    with Pipeline(Sqlite(load.database), delta, name=PIPELINE, options=_OPTIONS, listener=progress) as pipeline:
        pipeline.sync_once()
        wanted = progress.applied_rows + load.changes
        with load.writer(), Sampler(progress, 1.0) as sampler:
            stopper = threading.Thread(target=_stop_when, args=(pipeline, lambda: progress.applied_rows >= wanted))
            stopper.start()
            pipeline.run(_LIMIT_SECONDS)
            stopper.join()
    assert progress.applied_rows >= wanted, "the lake did not catch up"
    return sampler.samples


def _stop_when(pipeline: Pipeline, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LIMIT_SECONDS
    while not done() and time.monotonic() < deadline:
        time.sleep(0.2)
    pipeline.stop()


def _journal_only(bench: Bench, progress: Progress, load: Load) -> list[Sample]:
    """The capture side alone: no Spark."""
    lake = MemoryLake(str(bench.scratch / "lake"))
    root = bench.scratch / "state"
    opened = OpenPipeline(Sqlite(load.database).bind(PIPELINE), lake, root, PipelineOptions(), progress)
    try:
        with load.writer(), Sampler(progress, 0.05) as sampler:
            deadline = time.monotonic() + _LIMIT_SECONDS
            while progress.captured_rows < load.changes and time.monotonic() < deadline:
                opened.capture.drain()
                time.sleep(0.1)
    finally:
        opened.close()
    assert progress.captured_rows == load.changes, "not everything was captured"
    return sampler.samples

"""How long after its commit in the source a change can be read in the lake."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
from deltalake import DeltaTable

from bench.backlog import read, table_in
from bench.bench import Bench
from bench.load import writing
from bench.pipeline import PIPELINE, Progress
from bench.report import Curve, Measure, Plot, Ratio, Report
from bench.workload import connected, create
from lakefeed.capture.trigger.source import Sqlite
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.pipeline import Pipeline
from lakefeed.lake.delta import Delta
from lakefeed.lake.session import spark_session

RATE, SIZE = 1_000, 50
_LOOK_SECONDS = 0.02
_LIMIT_SECONDS = 300.0


def run(bench: Bench) -> Report:
    seconds, warm = bench.size(full=45, quick=2), bench.size(full=5, quick=1)
    rows = bench.size(full=100_000, quick=1_000)
    changes = (seconds + warm) * RATE
    database = create(bench.scratch / "shop.db", rows)
    lake = bench.scratch / "lake"
    progress = Progress()
    delta = Delta(spark_session("lakefeed-bench"), lake)
    options = PipelineOptions(interval_seconds=1.0)
    bench.say(f"{RATE:,} changes a second for {seconds + warm} s, the first {warm} s not counted")
    with Pipeline(Sqlite(database), delta, name=PIPELINE, options=options, listener=progress) as pipeline:
        _warm_up(pipeline, database, bench.size(full=3, quick=1))
        wanted = progress.applied_rows + changes
        progress.cycles.clear()
        with writing(database, bench.scratch / "ticks", rows=rows, changes=changes, size=SIZE, rate=RATE):
            seen = _watch(pipeline, table_in(lake), lambda: progress.applied_rows >= wanted)
    commits = json.loads((bench.scratch / "ticks").read_text())
    waits = sorted(_waits(commits, _visible(table_in(lake), seen), warm * RATE // SIZE))
    p50, p99 = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
    cycle = statistics.median(result.seconds for result in progress.cycles)
    return Report(
        what=f"A writer makes {RATE:,} changes a second ({SIZE} in a transaction) to a table of {rows:,} rows while "
        "`Pipeline.run()` follows it with an interval of 1 s. For each transaction: seconds from its commit in SQLite "
        "until the Delta table shows it.",
        measures=(
            Measure("p50", "s", (round(p50, 2),), ours=True),
            Measure("p99", "s", (round(p99, 2),), ours=True),
            Measure("longest", "s", (round(waits[-1], 2),), ours=True),
            Measure("one cycle of the lake side, median", "s", (round(cycle, 2),), ours=True),
        ),
        ratios=(Ratio("one cycle of the lake side / p50", (round(cycle / p50, 3),)),),
        plot=Plot(
            "percent of the transactions",
            "seconds from commit to lake, at most",
            (Curve("freshness", tuple((percent, round(_at(waits, percent), 3)) for percent in range(101))),),
        ),
        notes=(
            f"{len(waits):,} transactions, {len(progress.cycles)} cycles of the lake side; all share the cores.",
            (
                "A change waits for the cycle that is under way, on average half of one, and then for its own: Delta's "
                "MERGE has a floor of a few seconds on a small machine."
            ),
        ),
    )


def _warm_up(pipeline: Pipeline, database: Path, merges: int) -> None:
    """Copy the table, then merge a few times: a JVM that has just started is slower than one that runs for months."""
    pipeline.sync_once()
    for merge in range(merges):
        with connected(database) as connection:
            connection.execute("UPDATE account SET score = ? WHERE id <= 500", (merge,))
        pipeline.sync_once()


def _watch(pipeline: Pipeline, table: Path, done: Callable[[], bool]) -> dict[int, float]:
    """Run the pipeline until everything is in the lake. Returns when each version of the table was first seen."""
    seen: dict[int, float] = {}
    deadline = time.monotonic() + _LIMIT_SECONDS

    def look() -> None:
        while not done() and time.monotonic() < deadline:
            now = time.time()
            for path in (table / "_delta_log").glob("*.json"):
                if path.stem.isdigit():
                    seen.setdefault(int(path.stem), now)
            time.sleep(_LOOK_SECONDS)
        pipeline.stop()

    watcher = threading.Thread(target=look)
    watcher.start()
    pipeline.run(_LIMIT_SECONDS)
    watcher.join()
    assert done(), "the lake did not catch up"
    return seen


def _visible(table: Path, seen: dict[int, float]) -> list[tuple[float, int]]:
    """(when, newest tick in the table) for each version."""
    return [(when, _newest_tick(DeltaTable(str(table), version=version))) for version, when in sorted(seen.items())]


def _newest_tick(table: DeltaTable) -> int:
    return int(pc.max(read(table, ["tick"])["tick"]).as_py())


def _waits(commits: list[float], visible: list[tuple[float, int]], skipped: int) -> list[float]:
    waits = []
    for tick, committed in enumerate(commits, start=1):
        if tick > skipped:
            shown = next(when for when, newest in visible if newest >= tick)
            waits.append(shown - committed)
    return waits


def _at(waits: list[float], percent: int) -> float:
    return waits[min(len(waits) - 1, len(waits) * percent // 100)]

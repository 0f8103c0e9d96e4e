"""Nothing new: what a cycle costs that finds nothing to do, and that it leaves Spark alone."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.bench import Bench, Contestant, in_turns, timed
from bench.pipeline import PIPELINE
from bench.report import Measure, Ratio, Report, Verdict, number, speed_ratio
from bench.workload import create
from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.flow.pipeline import Pipeline
from lakefeed.lake.delta import Delta
from lakefeed.lake.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_MS = 50.0
_TABLES = ("account", "branch", "card", "deal")
_CONFIG = """pipeline: {pipeline}
source: {{kind: sqlite, path: shop.db, capture: trigger, tables: ["*"]}}
lake: {{path: ./lake, format: delta, mode: mirror}}
"""
_SYNC, _STATUS, _BARE = "lakefeed sync, whole process", "lakefeed status, whole process", "python -c pass"


def run(bench: Bench) -> Report:
    calls, rounds = bench.size(full=200, quick=20), bench.size(full=5, quick=3)
    spark = spark_session("lakefeed-bench")
    place = _synced(bench, spark)
    bench.say(f"{rounds} times {calls} calls, without and with a session")
    without = _calls(place, _refuse, calls, rounds)
    before = _job_number(spark)
    with_session = _calls(place, lambda: spark, calls, rounds)
    jobs = _job_number(spark) - before - 1
    processes, started_java = _processes(bench, place)
    middle = [statistics.median(one) for one in without]
    worst = [statistics.quantiles(one, n=100)[98] for one in without]
    measures = (
        Measure("sync_once, no session: p50", "ms", _rounded(middle), ours=True),
        Measure("sync_once, no session: p99", "ms", _rounded(worst), ours=True),
        Measure("sync_once, open session: p50", "ms", _rounded([statistics.median(one) for one in with_session]), True),
        Measure("Spark jobs of all calls", "jobs", (float(jobs),), ours=True, charted=False),
        *(
            Measure(name, "ms", _rounded([second * 1000 for second in seconds]), ours=name != _BARE, charted=False)
            for name, seconds in processes.items()
        ),
    )
    p50, p99 = statistics.median(middle), statistics.median(worst)
    return Report(
        what=f"A pipeline of {len(_TABLES)} tables with nothing new: `Pipeline.sync_once()`, {calls} calls each time, "
        "and the commands as whole processes.",
        measures=measures,
        ratios=(
            Ratio("the target of 50 ms / sync_once p50", _rounded([TARGET_MS / value for value in middle])),
            speed_ratio("lakefeed sync / bare interpreter", processes[_SYNC], processes[_BARE]),
            speed_ratio("lakefeed status / bare interpreter", processes[_STATUS], processes[_BARE]),
        ),
        verdicts=(
            Verdict(
                "sync with nothing new: under 50 ms", f"p50 {number(p50)} ms, p99 {number(p99)} ms", p99 < TARGET_MS
            ),
            Verdict("sync with nothing new: no Spark job", f"{jobs} jobs", jobs == 0),
            Verdict(
                "`lakefeed sync` and `status` with nothing new: no JVM",
                "java was called" if started_java else "java was never called",
                not started_java,
            ),
        ),
        notes=(
            "No session: the pipeline is given a function that raises when it is asked for one.",
            "Jobs: Spark numbers all jobs of a context; the difference between one before and one after is counted.",
            "No JVM: the commands find a `java` that only leaves a mark.",
        ),
    )


def _synced(bench: Bench, spark: SparkSession) -> Path:
    """A directory with a database, a lake that is equal to it, and the configuration of both."""
    create(bench.scratch / "shop.db", bench.size(full=10_000, quick=100), _TABLES)
    (bench.scratch / "shop.yaml").write_text(_CONFIG.format(pipeline=PIPELINE))
    with _pipeline(bench.scratch, lambda: spark) as pipeline:
        assert not pipeline.sync_once().errors
    return bench.scratch


def _pipeline(place: Path, session: Callable[[], SparkSession]) -> Pipeline:
    return Pipeline(Sqlite(place / "shop.db"), Delta(session, place / "lake"), name=PIPELINE)


def _refuse() -> SparkSession:
    raise AssertionError("a sync with nothing new asked for a Spark session")


def _calls(place: Path, session: Callable[[], SparkSession], calls: int, rounds: int) -> list[list[float]]:
    """Milliseconds of each call. The first, which opens journal and source, is not among them."""
    with _pipeline(place, session) as pipeline:
        assert pipeline.sync_once().counts.total == 0
        return [[timed(pipeline.sync_once) * 1000 for _ in range(calls)] for _ in range(rounds)]


def _job_number(spark: SparkSession) -> int:
    """Run one job and return its number: Spark counts all jobs of a context."""
    context = spark.sparkContext
    context.setJobGroup("bench-idle", "counts jobs")
    try:
        context.parallelize([0], 1).count()
        return int(max(context.statusTracker().getJobIdsForGroup("bench-idle")))
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None unsets it


def _processes(bench: Bench, place: Path) -> tuple[dict[str, list[float]], bool]:
    """Seconds of the commands, and whether any of them called java."""
    mark = place / "java-was-called"
    java = place / "java-home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\ntouch "{mark}"\nexit 1\n')
    java.chmod(0o755)
    environment = {**os.environ, "JAVA_HOME": str(java.parent.parent), "PATH": f"{java.parent}:{os.environ['PATH']}"}

    def process(*arguments: str) -> float:
        command = [sys.executable, *arguments]
        return timed(
            partial(subprocess.run, command, cwd=place, env=environment, check=True, stdout=subprocess.DEVNULL)
        )

    contestants: dict[str, Contestant] = {
        _SYNC: lambda: process("-m", "lakefeed", "sync", "shop.yaml", "--json"),
        _STATUS: lambda: process("-m", "lakefeed", "status", "shop.yaml", "--json"),
        _BARE: lambda: process("-c", "pass"),
    }
    return in_turns(bench, contestants, bench.size(full=5, quick=1)), mark.exists()


def _rounded(values: list[float]) -> tuple[float, ...]:
    return tuple(round(value, 3) for value in values)

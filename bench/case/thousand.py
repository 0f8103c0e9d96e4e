"""A thousand small PostgreSQL tables in one pipeline: their copies, a start, a cycle with a change for each, status."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg

from bench.bench import Bench, timed
from bench.pipeline import PIPELINE
from bench.postgres import binaries
from bench.report import Measure, Report, Verdict
from lakefeed.capture.postgres.source import Postgres
from lakefeed.flow.pipeline import Pipeline
from lakefeed.lake.delta import Delta
from lakefeed.testing.server.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakefeed.capture.base import Source

ROWS = 100
STATUS_SECONDS = 2.0
"""What the status of a pipeline may take, however many tables it has; the start of Python comes on top."""
_TABLES = """
DO $$ BEGIN FOR i IN 1..{count} LOOP
  EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, a text NOT NULL, b numeric(12,2), c timestamptz, d bool)', i);
  EXECUTE format('INSERT INTO t%s SELECT n, ''a'', 1.5, now(), true FROM generate_series(1, {rows}) n', i);
END LOOP; END $$"""
_CONFIG = """pipeline: {pipeline}
source: {source}
lake: {{path: ./lake}}
"""


def run(bench: Bench) -> Report:
    count = table_count(bench)
    with PostgresServer.start(binaries()) as server:
        with psycopg.connect(server.dsn, autocommit=True) as writer:
            writer.execute(_TABLES.format(count=count, rows=ROWS).encode())
        source = f'{{kind: postgres, dsn: "{server.dsn}", tables: ["public.*"]}}'
        return measured(bench, "PostgreSQL", source, lambda: Postgres(server.dsn, tables=["public.*"]), count)


def table_count(bench: Bench) -> int:
    return bench.size(full=int(os.environ.get("LAKEFEED_BENCH_TABLES", "1000")), quick=5)


def measured(bench: Bench, database: str, section: str, source: Callable[[], Source], count: int) -> Report:
    """``section`` is the source in YAML, for commands; ``source`` makes the same for a pipeline of this process."""
    idle_seconds = bench.size(full=30, quick=2)
    (bench.scratch / "shop.yaml").write_text(_CONFIG.format(pipeline=PIPELINE, source=section))

    def pipeline() -> Pipeline:
        return Pipeline(source(), Delta(_refuse, bench.scratch / "lake"), name=PIPELINE)

    with pipeline() as first:
        copied, copy_cpu = _with_cpu(lambda: _synced(first))
        bench.say(f"copied in {copied:.1f} s, {copy_cpu:.1f} s of CPU")
    stopped, stopped_cpu, unanswered = _status(bench, count)
    with pipeline() as again:
        started, start_cpu = _with_cpu(lambda: _synced(again))
        nothing = timed(again.sync_once)
        bench.say(f"started in {started:.1f} s, nothing new in {nothing * 1000:.0f} ms")
        running = threading.Thread(target=again.run)
        running.start()
        time.sleep(bench.size(full=10, quick=1))
        _, idle_cpu = _with_cpu(lambda: time.sleep(idle_seconds))
        memory = max_resident_mib()
        beside, beside_cpu, silent = _status(bench, count)
        bench.say(f"idle {idle_cpu:.2f} s of CPU; status {stopped} and {beside} s")
        again.stop()
        running.join()
        again.uninstall()
    unanswered = max(unanswered, silent)
    return Report(
        what=f"One pipeline of {count:,} {database} tables of {ROWS} rows and five columns, into Delta: the copies, "
        "which need no Spark for tables this small; a start that finds all of them; a sync with nothing new; what "
        "`run` costs while nothing happens; `lakefeed status --json` as a process of its own, beside it and alone.",
        measures=(
            Measure("copied", "s", (round(copied, 1),), ours=True),
            Measure("copied: CPU of the pipeline", "s", (round(copy_cpu, 1),), ours=True, charted=False),
            Measure("a start, with its first sync", "s", (round(started, 2),), ours=True),
            Measure("a start: CPU", "s", (round(start_cpu, 2),), ours=True, charted=False),
            Measure("a sync with nothing new", "s", (round(nothing, 3),), ours=True, charted=False),
            Measure("idle: CPU in a minute", "s", (round(idle_cpu * 60 / idle_seconds, 2),), ours=True, charted=False),
            Measure("most memory of the pipeline", "MiB", (round(memory),), ours=True, charted=False),
            Measure("lakefeed status beside it, whole process", "s", beside, ours=True),
            Measure("lakefeed status beside it: CPU", "s", beside_cpu, ours=True, charted=False),
            Measure("lakefeed status, nothing runs, whole process", "s", stopped, ours=True),
            Measure("lakefeed status, nothing runs: CPU", "s", stopped_cpu, ours=True, charted=False),
        ),
        verdicts=(
            Verdict(
                f"every one of {count:,} tables answers `status`, which waits for {STATUS_SECONDS:g} s at most",
                f"{unanswered} did not answer" if unanswered else "all answered",
                not unanswered,
            ),
        ),
    )


def _refuse() -> SparkSession:
    raise AssertionError("tables this small need no Spark")


def _synced(pipeline: Pipeline) -> None:
    assert not pipeline.sync_once().errors


def _with_cpu(work: Callable[[], object]) -> tuple[float, float]:
    """The seconds that the work takes, and the processor time of this process meanwhile."""
    before = time.process_time()
    return timed(work), time.process_time() - before


def _status(bench: Bench, count: int) -> tuple[tuple[float, ...], tuple[float, ...], int]:
    """The seconds and the processor time of the command, three times; how many tables did not answer it in time."""
    command = [sys.executable, "-m", "lakefeed", "status", "shop.yaml", "--json"]
    seconds, cpu, unanswered = list[float](), list[float](), 0
    for _ in range(3):
        started, before = time.perf_counter(), _children_cpu()
        done = subprocess.run(command, cwd=bench.scratch, check=True, capture_output=True)
        seconds.append(round(time.perf_counter() - started, 2))
        cpu.append(round(_children_cpu() - before, 2))
        found = json.loads(done.stdout)
        lost = count if "state directory" in found["unanswered"] else len(found["unanswered"])
        assert lost or len(found["tables"]) == count
        unanswered = max(unanswered, lost)
    return tuple(seconds), tuple(cpu), unanswered


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def max_resident_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

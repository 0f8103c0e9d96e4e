"""A thousand small PostgreSQL tables in one pipeline: their copies, a start, a cycle with a change for each, status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
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

STATUS_SECONDS = 2.0
"""What the status of a pipeline may take, however many tables it has; the start of Python comes on top."""
_TABLES = """
DO $$ BEGIN FOR i IN 1..{count} LOOP
  EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, a text NOT NULL, b numeric(12,2), c timestamptz, d bool)', i);
  EXECUTE format('INSERT INTO t%s SELECT n, ''a'', 1.5, now(), true FROM generate_series(1, {rows}) n', i);
END LOOP; END $$"""
_CONFIG = """pipeline: {pipeline}
source: {{kind: postgres, dsn: "{dsn}", tables: ["public.*"]}}
lake: {{path: ./lake}}
"""


def run(bench: Bench) -> Report:
    count, rows = bench.size(full=int(os.environ.get("LAKEFEED_BENCH_TABLES", "1000")), quick=5), 100
    idle_seconds = bench.size(full=60, quick=2)
    with PostgresServer.start(binaries()) as server:
        with psycopg.connect(server.dsn, autocommit=True) as writer:
            writer.execute(_TABLES.format(count=count, rows=rows).encode())
        (bench.scratch / "shop.yaml").write_text(_CONFIG.format(pipeline=PIPELINE, dsn=server.dsn))
        with _pipeline(server.dsn, bench.scratch) as pipeline:
            copied, copy_cpu = _with_cpu(lambda: _synced(pipeline))
            bench.say(f"copied in {copied:.1f} s, {copy_cpu:.1f} s of CPU")
        with _pipeline(server.dsn, bench.scratch) as pipeline:
            started, _ = _with_cpu(lambda: _synced(pipeline))
            nothing = timed(pipeline.sync_once)
            bench.say(f"started in {started:.1f} s, nothing new in {nothing * 1000:.0f} ms")
            running = threading.Thread(target=pipeline.run)
            running.start()
            time.sleep(bench.size(full=15, quick=1))
            _, idle_cpu = _with_cpu(lambda: time.sleep(idle_seconds))
            status = [_status(bench.scratch, count) for _ in range(3)]
            bench.say(f"idle {idle_cpu:.2f} s of CPU; status {', '.join(f'{one:.2f}' for one, _ in status)} s")
            pipeline.stop()
            running.join()
            pipeline.uninstall()
    unanswered = max(number for _, number in status)
    return Report(
        what=f"One pipeline of {count:,} PostgreSQL tables of {rows} rows and five columns, into Delta: the copies, "
        "which need no Spark for tables this small; a start that finds all of them; a sync with nothing new; what "
        "`run` costs while nothing happens; `lakefeed status --json` as a process of its own beside it.",
        measures=(
            Measure("copied", "s", (round(copied, 1),), ours=True),
            Measure("copied: CPU of the pipeline", "s", (round(copy_cpu, 1),), ours=True, charted=False),
            Measure("a start, with its first sync", "s", (round(started, 2),), ours=True),
            Measure("a sync with nothing new", "s", (round(nothing, 3),), ours=True, charted=False),
            Measure("idle: CPU in a minute", "s", (round(idle_cpu * 60 / idle_seconds, 2),), ours=True, charted=False),
            Measure("lakefeed status, whole process", "s", tuple(round(one, 2) for one, _ in status), ours=True),
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


def _pipeline(dsn: str, place: Path) -> Pipeline:
    return Pipeline(Postgres(dsn, tables=["public.*"]), Delta(_refuse, place / "lake"), name=PIPELINE)


def _synced(pipeline: Pipeline) -> None:
    assert not pipeline.sync_once().errors


def _with_cpu(work: Callable[[], object]) -> tuple[float, float]:
    """The seconds that the work takes, and the processor time of this process meanwhile."""
    before = time.process_time()
    return timed(work), time.process_time() - before


def _status(place: Path, count: int) -> tuple[float, int]:
    """The seconds of the command, and how many tables did not answer it in time."""
    command = [sys.executable, "-m", "lakefeed", "status", "shop.yaml", "--json"]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=place, check=True, capture_output=True)
    seconds, found = time.perf_counter() - started, json.loads(done.stdout)
    assert len(found["tables"]) == count
    return seconds, len(found["unanswered"])

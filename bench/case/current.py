"""How long after its commit in PostgreSQL a change is in a query's answer, with one merge a minute."""

from __future__ import annotations

import contextlib
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.bench import Bench
from bench.follow import RATE, SIZE, quantile
from bench.pg_load import TABLE, create, writing
from bench.pipeline import FORMATS, PIPELINE
from bench.postgres import binaries
from bench.report import Curve, Measure, Plot, Ratio, Report, Verdict
from lakefeed.lake.spark.session import spark_session
from lakefeed.reading.fresh import current
from lakefeed.testing.server.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

P50, P99 = 0.5, 1.0
_MERGE_SECONDS = 60
_WARM_SECONDS = 60
"""In which both processes compile what they do all the time; there is one merge in it."""
_STOP_SECONDS = 60
_NICE = "10"
"""The pipeline's: a merge uses all cores for seconds, and a query that somebody waits for goes before it."""
_CONFIG = """pipeline: {pipeline}
source: {{kind: postgres, dsn: "{dsn}", tables: [public.{table}]}}
lake: {{path: ./lake, format: {format}}}
sync: {{interval_seconds: {interval}}}
"""


@dataclass(frozen=True, slots=True)
class Queried:
    """Seconds from each commit to the end of the first query that shows it; what the queries took, and plain ones."""

    waits: list[float]
    fresh: list[float]
    plain: list[float]


def run(bench: Bench) -> Report:
    spark = spark_session("lakefeed-bench", formats=FORMATS)
    rows, seconds = bench.size(full=100_000, quick=1_000), bench.size(full=100, quick=3)
    found = {}
    for fmt in FORMATS:
        with PostgresServer.start(binaries()) as server:
            found[fmt] = _queried(bench, spark, fmt, server.dsn, (rows, seconds))
    waits = {fmt: (quantile(one.waits, 50), quantile(one.waits, 99)) for fmt, one in found.items()}
    return Report(
        what=f"A writer makes {RATE:,} changes a second ({SIZE} in a transaction) to a PostgreSQL table of {rows:,} "
        f"rows for {seconds} s, after {_WARM_SECONDS} s to warm up. `lakefeed run` merges once a minute. In another "
        "process `lakefeed.current` is asked for the count of rows and the newest change, query after query. For each "
        "transaction: seconds from its commit until the end of the first query that shows it.",
        measures=tuple(
            Measure(f"{fmt}: {name}", "s", (round(value, 3),), ours=name != "a plain read of the lake table, median")
            for fmt, one in found.items()
            for name, value in (
                ("p50", waits[fmt][0]),
                ("p99", waits[fmt][1]),
                ("one query by `current`, median", statistics.median(one.fresh)),
                ("a plain read of the lake table, median", statistics.median(one.plain)),
            )
        ),
        ratios=tuple(
            Ratio(
                f"{fmt}: a plain read of the lake table / a read by `current`",
                (round(statistics.median(one.plain) / statistics.median(one.fresh), 3),),
            )
            for fmt, one in found.items()
        ),
        verdicts=tuple(
            Verdict(f"{fmt}: {name} at most {most} s", f"{value:.2f} s", value <= most)
            for fmt in FORMATS
            for name, most, value in (("p50", P50, waits[fmt][0]), ("p99", P99, waits[fmt][1]))
        ),
        plot=Plot(
            "percent of the transactions",
            "seconds from commit to a query's answer, at most",
            tuple(
                Curve(fmt, tuple((percent, round(quantile(one.waits, percent), 3)) for percent in range(101)))
                for fmt, one in found.items()
            ),
        ),
        notes=(
            "Server, writer, capture, merges and queries share the cores. The wait has the query's own time in it.",
            f"`lakefeed run` was started with `nice -n {_NICE}`, so that queries go before merges.",
            f"Queries: {', '.join(f'{fmt} {len(one.fresh)}' for fmt, one in found.items())}.",
        ),
    )


def _queried(bench: Bench, spark: SparkSession, fmt: str, dsn: str, sizes: tuple[int, int]) -> Queried:
    rows, seconds = sizes
    place = bench.scratch / fmt
    place.mkdir()
    create(dsn, rows)
    (place / "shop.yaml").write_text(
        _CONFIG.format(pipeline=PIPELINE, dsn=dsn, table=TABLE, format=fmt, interval=_MERGE_SECONDS)
    )
    lake, warm = place / "lake", bench.size(full=_WARM_SECONDS, quick=1)
    asked: list[tuple[float, float, int]] = []
    plain: list[float] = []

    def ask() -> None:
        started = time.time()
        newest = _newest(current(spark, lake, f"public.{TABLE}"))
        asked.append((started, time.time(), newest))

    subprocess.run([sys.executable, "-m", "lakefeed", "sync", "shop.yaml"], cwd=place, check=True, stdout=2)
    with _running(place):
        with writing(dsn, place / "ticks", rows=rows, seconds=seconds + warm, size=SIZE, rate=RATE):
            deadline = time.monotonic() + seconds + warm + 60
            while not (place / "ticks").exists() and time.monotonic() < deadline:
                ask()
                if len(asked) % 10 == 1:  # the first one, too: a slow machine asks few
                    started = time.time()
                    _newest(spark.read.format(fmt).load(str(lake / "public" / TABLE)))
                    plain.append(time.time() - started)
        commits = json.loads((place / "ticks").read_text())
        while not asked or asked[-1][2] < len(commits):  # the last transactions may not be in the journal yet
            ask()
            assert time.monotonic() < deadline, f"only {asked[-1][2]} of {len(commits)} transactions are shown"
    skipped = warm * RATE // SIZE
    waits = [
        next(ended for _, ended, newest in asked if newest >= tick) - committed
        for tick, committed in enumerate(commits, start=1)
        if tick > skipped
    ]
    begun = commits[skipped] if skipped < len(commits) else 0.0
    fresh = [ended - started for started, ended, _ in asked if started >= begun]
    bench.say(f"{fmt}: {len(asked)} queries, p50 {quantile(waits, 50):.2f} s, p99 {quantile(waits, 99):.2f} s")
    return Queried(waits, fresh, plain)


def _newest(rows: DataFrame) -> int:
    found = rows.selectExpr("max(tick)", "count(*)").collect()[0]
    return int(found[0] or 0)


@contextlib.contextmanager
def _running(place: Path) -> Iterator[None]:
    """``lakefeed run``, stopped at the end of the block as Ctrl-C stops it."""
    command = ["nice", "-n", _NICE, sys.executable, "-m", "lakefeed", "run", "shop.yaml"]
    process = subprocess.Popen(command, cwd=place, stdout=2)
    try:
        yield
        assert process.poll() is None, "the pipeline has ended"
        process.send_signal(signal.SIGINT)
        process.wait(_STOP_SECONDS)
    finally:
        process.kill()
        process.wait()

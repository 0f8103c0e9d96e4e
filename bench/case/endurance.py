"""Does freshness last? Every commit leaves a file, a version, a log entry: maintenance has to keep pace."""

from __future__ import annotations

from bench.bench import Bench
from bench.follow import RATE, SIZE, followed, quantile
from bench.pipeline import FORMATS
from bench.report import Curve, Measure, Plot, Ratio, Report, Verdict
from lakefeed.lake.spark.session import spark_session

MOST = 1.5
PARTS = 10


def run(bench: Bench) -> Report:
    spark = spark_session("lakefeed-bench", formats=FORMATS)
    rows, seconds = bench.size(full=100_000, quick=1_000), bench.size(full=300, quick=4)
    medians = {fmt: _medians(followed(bench, spark, fmt, rows, seconds).waits) for fmt in FORMATS}
    grown = {fmt: found[-1] / found[0] for fmt, found in medians.items()}
    return Report(
        what=f"As above, {RATE:,} changes a second ({SIZE} in a transaction) to a table of {rows:,} rows, but for "
        f"{seconds} s. The time is cut in {PARTS} parts: the median of each.",
        measures=tuple(
            Measure(f"{fmt}: p50 of the {which} {seconds // PARTS} s", "s", (round(found[at], 2),), ours=True)
            for fmt, found in medians.items()
            for which, at in (("first", 0), ("last", -1))
        ),
        ratios=tuple(Ratio(f"{fmt}: first / last", (round(1 / one, 3),)) for fmt, one in grown.items()),
        verdicts=tuple(
            Verdict(
                f"{fmt}: at the end at most {MOST} times as long as at the beginning", f"{one:.2f} times", one <= MOST
            )
            for fmt, one in grown.items()
        ),
        plot=Plot(
            "seconds since the beginning",
            "seconds from commit to lake, median",
            tuple(
                Curve(fmt, tuple(((part + 1) * seconds // PARTS, round(one, 3)) for part, one in enumerate(found)))
                for fmt, found in medians.items()
            ),
        ),
    )


def _medians(waits: list[float]) -> list[float]:
    """Of the parts of the run, in order."""
    size = len(waits) // PARTS
    return [quantile(waits[part * size : (part + 1) * size], 50) for part in range(PARTS)]

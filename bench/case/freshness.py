"""How long after its commit in the source a change can be read in the lake."""

from __future__ import annotations

from bench.bench import Bench
from bench.follow import INTERVAL, RATE, SIZE, WARM, Followed, followed
from bench.report import Curve, Measure, Plot, Ratio, Report, Verdict
from lakefeed.lake.spark.session import spark_session

TARGETS = {"delta": 1.0, "iceberg": 1.0}
"""The median, in seconds, at most."""


def run(bench: Bench) -> Report:
    spark = spark_session("lakefeed-bench", formats=tuple(TARGETS))
    rows = bench.size(full=100_000, quick=1_000)
    found = {fmt: followed(bench, spark, fmt, rows, bench.size(full=45, quick=2)) for fmt in TARGETS}
    counts = "; ".join(f"{fmt}: {len(one.waits):,} in {one.cycles} cycles" for fmt, one in found.items())
    return Report(
        what=f"A writer makes {RATE:,} changes a second ({SIZE} in a transaction) to a table of {rows:,} rows while "
        f"`Pipeline.run()` follows it with an interval of {INTERVAL} s, after "
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
        "longest": max(found.waits),
        "one cycle of the lake side, median": found.cycle,
    }
    return tuple(Measure(f"{fmt}: {name}", "s", (round(value, 2),), ours=True) for name, value in values.items())

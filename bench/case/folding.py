"""Does a table under steady random updates stay as fast to read? Marked rows are read, too, until they are folded."""

from __future__ import annotations

import statistics
from functools import partial

from bench.bench import Bench, timed
from bench.case.marks import LAKES, rounded
from bench.pipeline import FORMATS
from bench.report import Curve, Measure, Plot, Report, Verdict
from bench.synthetic import Changing
from lakefeed.lake.maintenance import MaintenanceOptions
from lakefeed.lake.mode import Mirror
from lakefeed.lake.spark.session import spark_session

MOST = 2.0
EVERY = 5
"""Windows between two checks by maintenance."""


def run(bench: Bench) -> Report:
    spark = spark_session("lakefeed-bench", formats=FORMATS)
    rows, changes = bench.size(full=1_000_000, quick=2_000), bench.size(full=20_000, quick=200)
    windows = bench.size(full=60, quick=6)
    reads: dict[str, list[float]] = {}
    paused: dict[str, list[float]] = {}
    measures: list[Measure] = []
    for fmt in FORMATS:
        bench.say(f"{fmt}, {rows:,} rows")
        made = Changing(spark, bench.scratch / fmt, LAKES[fmt], Mirror(), rows)
        applied: list[float] = []
        reads[fmt], paused[fmt] = [_read(made)], []
        for number in range(1, windows + 1):
            made.add(changes)
            applied.append(made.apply())
            if number % EVERY == 0:
                check = partial(made.table.maintain, MaintenanceOptions().in_between(), ("id",))
                paused[fmt].append(timed(check))
                reads[fmt].append(_read(made))
                bench.say(
                    f"  {number}: {applied[-1]:.2f} s, check {paused[fmt][-1]:.2f} s, read {reads[fmt][-1]:.2f} s"
                )
        measures += [
            Measure(f"{fmt}: read at the beginning", "s", rounded(reads[fmt][:1]), ours=True),
            Measure(f"{fmt}: read at the end", "s", rounded(reads[fmt][-3:]), ours=True),
            Measure(f"{fmt}: longest check by maintenance", "s", rounded([max(paused[fmt])]), ours=True),
            Measure(f"{fmt}: a window, in the first half", "s", rounded(applied[: windows // 2]), ours=True),
            Measure(f"{fmt}: a window, in the second half", "s", rounded(applied[windows // 2 :]), ours=True),
        ]
    grown = {fmt: statistics.median(found[-3:]) / found[0] for fmt, found in reads.items()}
    return Report(
        what=f"{windows} windows of {changes:,} changes with random keys into a mirror of {rows:,} rows: "
        f"{windows * changes / rows:.1f} times as many changes as rows. After every {EVERY} windows maintenance checks "
        "the table, as `lakefeed run` does every 30 s, and a query reads all columns of it.",
        measures=tuple(measures),
        verdicts=tuple(
            Verdict(
                f"{fmt}: at the end a read takes at most {MOST:g} times as long as at the beginning",
                f"{one:.2f} times",
                one <= MOST,
            )
            for fmt, one in grown.items()
        ),
        plot=Plot(
            "windows",
            "seconds to read the table",
            tuple(
                Curve(fmt, tuple((index * EVERY, round(one, 3)) for index, one in enumerate(found)))
                for fmt, found in reads.items()
            ),
        ),
    )


def _read(made: Changing) -> float:
    """All columns of all rows, the better of two. Delta gives a table with deletion vectors to no ``noop`` writer."""
    rows = made.table.current(made.schema, 1)
    return min(timed(lambda: rows.selectExpr("max(xxhash64(*))").collect()) for _ in range(2))

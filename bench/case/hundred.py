"""A thousand and ten thousand random keys in a hundred million rows: what is left that grows with the table."""

from __future__ import annotations

from bench.bench import Bench
from bench.case.marks import LAKES, measured, of_batch
from bench.pipeline import FORMATS
from bench.report import Measure, Report
from lakefeed.lake.mode import Mirror
from lakefeed.lake.spark.session import spark_session


def run(bench: Bench) -> Report:
    spark = spark_session("lakefeed-bench", formats=FORMATS)
    rows = bench.size(full=100_000_000, quick=4_000)
    sizes = (100,) if bench.quick else (1_000, 10_000)
    measures: list[Measure] = []
    for fmt in FORMATS:
        found = measured(bench, spark, LAKES[fmt], Mirror(), rows, sizes, bench.size(full=2, quick=1))
        for size, (seconds, written) in found.items():
            measures += of_batch(f"{fmt}, mirror, {rows:,} rows: {size:,} changes", seconds, written)
    return Report(
        what=f"As above, a mirror of {rows:,} rows. What grows with the table is finding the rows: all keys are read.",
        measures=tuple(measures),
    )

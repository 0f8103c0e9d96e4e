"""How the cost of a batch grows with the table, and what inserts cost that cannot collide."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from bench.bench import Bench, timed
from bench.pipeline import FORMATS
from bench.report import Measure, Ratio, Report, Verdict, rates
from bench.synthetic import SCHEMA, Changing, Keys, rows_of
from lakefeed.lake.mode import Mirror
from lakefeed.lake.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROWTH, INSERTS = 1.5, 0.5
REPETITIONS = 3


def run(bench: Bench) -> Report:
    small, large = bench.size(full=1_000_000, quick=2_000), bench.size(full=10_000_000, quick=4_000)
    changes, inserts = bench.size(full=10_000, quick=100), bench.size(full=1_000_000, quick=1_000)
    spark = spark_session("lakefeed-bench", formats=FORMATS)
    measures: list[Measure] = []
    ratios: list[Ratio] = []
    verdicts: list[Verdict] = []
    appended = _plain_append(spark, bench.scratch, inserts)
    measures.append(rates(f"Spark's plain append of {inserts:,} rows", "rows/s", inserts, appended))
    for fmt in FORMATS:
        taken: dict[tuple[int, Keys], list[float]] = {}
        for rows in (small, large):
            bench.say(f"{fmt}: {rows:,} rows")
            made = Changing(spark, bench.scratch / f"{fmt}-{rows}", fmt, Mirror(), rows)
            for keys in ("recent", "random"):
                taken[rows, keys] = _applied(bench, made, changes, keys)
            if rows == small:
                measures.append(_inserts(bench, made, fmt, inserts))
        measures += [
            Measure(
                f"{fmt}: {changes:,} changes, {keys} keys, {rows:,} rows", "s", tuple(round(one, 2) for one in found)
            )
            for (rows, keys), found in taken.items()
        ]
        grown = statistics.median(taken[large, "recent"]) / statistics.median(taken[small, "recent"])
        verdicts.append(
            Verdict(
                f"{fmt}: {changes:,} changes with recent keys cost at most {GROWTH} times as much on {large:,} rows as "
                f"on {small:,}",
                f"{grown:.2f} times",
                grown <= GROWTH,
            )
        )
        share = measures_of(measures, fmt) * statistics.median(appended) / inserts
        ratios.append(Ratio(f"{fmt}: inserts / Spark's plain append", (round(share, 3),)))
        verdicts.append(
            Verdict(
                f"{fmt}: {inserts:,} inserts at no less than half of a plain append", f"{share:.2f}", share >= INSERTS
            )
        )
    return Report(
        what=f"{changes:,} mixed changes into mirrors of {small:,} and {large:,} rows, with keys among the newest "
        f"{3 * changes:,} and with random ones; then {inserts:,} inserts of new keys, beside an append of the same "
        "rows by `df.write.mode('append')` from Parquet into Delta.",
        measures=tuple(measures),
        ratios=tuple(ratios),
        verdicts=tuple(verdicts),
    )


def measures_of(measures: list[Measure], fmt: str) -> float:
    """Rows a second of the format's inserts."""
    return next(one.median for one in measures if one.name.startswith(f"{fmt}: inserts"))


def _applied(bench: Bench, made: Changing, changes: int, keys: Keys) -> list[float]:
    taken = []
    for repetition in range(REPETITIONS + 1):
        made.add(changes, keys)
        seconds = made.apply()
        if repetition:
            taken.append(seconds)
            bench.say(f"  {keys}: {seconds:.2f} s")
    return taken


def _inserts(bench: Bench, made: Changing, fmt: str, inserts: int) -> Measure:
    taken = []
    for repetition in range(REPETITIONS):
        made.add(inserts, inserts_only=True)
        seconds = made.apply()
        if repetition:
            taken.append(seconds)
            bench.say(f"  inserts: {seconds:.2f} s")
    return rates(f"{fmt}: inserts of new keys", "rows/s", inserts, taken, ours=True)


def _plain_append(spark: SparkSession, scratch: Path, rows: int) -> list[float]:
    import numpy as np

    source = scratch / "append.parquet"
    table = pa.Table.from_arrays(rows_of(np.arange(rows, dtype=np.int64), 1), schema=SCHEMA.arrow)
    pq.write_table(table, source, compression="zstd", coerce_timestamps="us")

    def append() -> None:
        spark.read.parquet(str(source)).write.format("delta").mode("append").save(str(scratch / "appended"))

    return [timed(append) for _ in range(REPETITIONS)][1:]

"""A thousand and ten thousand random keys in a million and ten million rows, where rows are marked as deleted."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bench.bench import Bench
from bench.case.cost import plain_way
from bench.pipeline import FORMATS, MASKED
from bench.report import Measure, Ratio, Report, Verdict
from bench.synthetic import ID, Changing
from lakefeed.lake.location import table_path
from lakefeed.lake.mode import Mirror, Mode, Temporal
from lakefeed.lake.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROWTH = 2.0
FASTER = {"delta": 5.0, "iceberg": 2.0}
LAKES = {"delta": MASKED, "iceberg": "iceberg"}
REPETITIONS = 3


def run(bench: Bench) -> Report:
    spark = spark_session("lakefeed-bench", formats=FORMATS)
    large = bench.size(full=int(os.environ.get("LAKEFEED_BENCH_ROWS", "10_000_000")), quick=4_000)
    small = bench.size(full=large // 10, quick=2_000)
    sizes = (100,) if bench.quick else (1_000, 10_000)
    repetitions = bench.size(full=REPETITIONS, quick=1)
    measures: list[Measure] = []
    ratios: list[Ratio] = []
    verdicts: list[Verdict] = []
    for fmt in FORMATS:
        taken: dict[tuple[str, int, int], list[float]] = {}
        for rows in (small, large):
            for mode in (Mirror(), Temporal()):
                found = measured(bench, spark, LAKES[fmt], mode, rows, sizes, repetitions)
                for size, (seconds, written) in found.items():
                    taken[mode.name, rows, size] = seconds
                    measures += of_batch(f"{fmt}, {mode.name}, {rows:,} rows: {size:,} changes", seconds, written)
        bench.say(f"{fmt}, plain MERGE, {large:,} rows")
        plain = plain_way(bench, spark, fmt, large)
        plain(min(sizes))  # warms up
        for size in sizes:
            theirs = [plain(size) for _ in range(min(2, repetitions))]
            measures.append(
                Measure(f"{fmt}, plain MERGE, {large:,} rows: {size:,} changes", "s", rounded(theirs), charted=False)
            )
            for name in ("mirror", "temporal"):
                ours = statistics.median(taken[name, large, size])
                faster, grown = statistics.median(theirs) / ours, ours / statistics.median(taken[name, small, size])
                ratios.append(Ratio(f"{fmt}, {size:,} changes: plain MERGE / {name}", (round(faster, 3),)))
                if name == "mirror":
                    verdicts += [
                        Verdict(
                            f"{fmt}: {size:,} random keys in {large:,} rows at least {FASTER[fmt]:g} times as fast as "
                            "the plain MERGE",
                            f"{faster:.1f} times",
                            faster >= FASTER[fmt],
                        ),
                        Verdict(
                            f"{fmt}: {size:,} random keys cost at most {GROWTH:g} times as much in {large:,} rows as "
                            f"in {small:,}",
                            f"{grown:.2f} times",
                            grown <= GROWTH,
                        ),
                    ]
    return Report(
        what=f"Batches of {' and '.join(f'{size:,}' for size in sizes)} changes (60 % updates, 30 % inserts, 10 % "
        f"deletes, random keys) into tables of {small:,} and {large:,} rows and 6 columns, whose rows are marked as "
        "deleted (deletion vectors), and by a plain MERGE into a table with the same properties: on Delta without "
        "deletion vectors, which is its default. One warm JVM. Bytes written are those of all new files of the table, "
        "its log and metadata among them, for each byte of the changes in the journal.",
        measures=tuple(measures),
        ratios=tuple(ratios),
        verdicts=tuple(verdicts),
    )


def measured(
    bench: Bench,
    spark: SparkSession,
    fmt: str,
    mode: Mode,
    rows: int,
    sizes: tuple[int, ...],
    repetitions: int,
) -> dict[int, tuple[list[float], list[float]]]:
    """For each size of a batch: the seconds of each, and the bytes written for each byte of changes."""
    place = bench.scratch / f"{fmt}-{mode.name}-{rows}"
    bench.say(f"{fmt}, {mode.name}, {rows:,} rows")
    made = Changing(spark, place, fmt, mode, rows)
    found: dict[int, tuple[list[float], list[float]]] = {}
    made.add(min(sizes))
    made.apply()  # warms up
    for size in sizes:
        seconds, written = [], []
        for _ in range(repetitions):
            before, journal = total_bytes(table_of(place)), total_bytes(place / "segments")
            made.add(size)
            changed = total_bytes(place / "segments") - journal
            seconds.append(made.apply())
            written.append((total_bytes(table_of(place)) - before) / changed)
        bench.say(f"  {size:,}: {', '.join(f'{one:.2f}' for one in seconds)} s; {written[-1]:.1f} bytes/byte")
        found[size] = seconds, written
    return found


def of_batch(name: str, seconds: list[float], written: list[float]) -> Iterator[Measure]:
    yield Measure(name, "s", rounded(seconds), ours=True)
    yield Measure(f"{name}: bytes written for each changed byte", "bytes/byte", rounded(written), True, False)


def rounded(values: list[float]) -> tuple[float, ...]:
    return tuple(round(one, 2) for one in values)


def table_of(place: Path) -> Path:
    return Path(table_path(str(place / "lake"), ID))


def total_bytes(place: Path) -> int:
    """Nothing is removed while it is measured, so that what there is more was written."""
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())

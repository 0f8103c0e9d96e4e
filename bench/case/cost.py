"""What a batch of changes costs, by mode, format and size, beside the MERGE that people write."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.bench import Bench, timed
from bench.case.merge import plain_merge
from bench.report import Curve, Measure, Plot, Ratio, Report
from bench.synthetic import ID, Changing
from lakefeed.change.batch import OP, SEQ, ChangeBatch, Operation
from lakefeed.lake.location import table_path
from lakefeed.lake.mode import Append, Mirror, Mode, Temporal, mode_name
from lakefeed.lake.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODES: tuple[Mode, ...] = (Mirror(), Temporal(), Append())
FORMATS = ("delta", "iceberg")
REPETITIONS = 3


def run(bench: Bench) -> Report:
    rows = bench.size(full=1_000_000, quick=2_000)
    sizes = (1_000, 10_000, 100_000) if not bench.quick else (100, 200)
    spark = spark_session("lakefeed-bench", formats=FORMATS)
    seconds: dict[str, list[tuple[int, list[float]]]] = {}
    for fmt in FORMATS:
        for mode in MODES:
            name = f"{fmt}, {mode_name(mode)}"
            bench.say(name)
            made = Changing(spark, bench.scratch / name.replace(", ", "-"), fmt, mode, rows)
            seconds[name] = [(size, _applied(bench, made, size)) for size in sizes]
    bench.say("delta, plain MERGE")
    seconds[_PLAIN] = _plain(bench, spark, rows, sizes)
    pairs = [(name, taken) for name, taken in seconds.items() if name != _PLAIN]
    return Report(
        what=f"Batches of mixed changes (60 % updates, 30 % inserts, 10 % deletes, random keys) into a table of "
        f"{rows:,} rows and 6 columns, for each mode and format, and by a plain MERGE into Delta without any record of "
        f"what was applied. One warm JVM; medians of {REPETITIONS}.",
        measures=tuple(
            Measure(
                f"{name}: {size:,} changes",
                "s",
                tuple(round(one, 2) for one in taken),
                ours=name != _PLAIN,
                charted=size == sizes[-1],
            )
            for name, sized in seconds.items()
            for size, taken in sized
        ),
        ratios=tuple(
            Ratio(f"plain MERGE into Delta / {name}, {size:,} changes", (round(_median(plain) / _median(taken), 3),))
            for name, sized in pairs
            for (size, taken), (_, plain) in zip(sized, seconds[_PLAIN], strict=True)
            if "mirror" in name
        ),
        plot=Plot(
            "changes in the batch",
            "seconds",
            tuple(
                Curve(name, tuple((size, round(_median(taken), 3)) for size, taken in sized))
                for name, sized in seconds.items()
            ),
        ),
    )


_PLAIN = "delta, plain MERGE"


def _median(values: list[float]) -> float:
    return statistics.median(values)


def _applied(bench: Bench, made: Changing, size: int) -> list[float]:
    taken = []
    for repetition in range(REPETITIONS + 1):
        made.add(size)
        seconds = made.apply()
        if repetition:  # the first one warms up
            taken.append(seconds)
            bench.say(f"  {size:,}: {seconds:.2f} s")
    return taken


def _plain(bench: Bench, spark: SparkSession, rows: int, sizes: tuple[int, ...]) -> list[tuple[int, list[float]]]:
    place = bench.scratch / "plain"
    made = Changing(spark, place, "delta", Mirror(), rows)
    table = Path(table_path(str(place / "lake"), ID))
    found = []
    for size in sizes:
        taken = []
        for repetition in range(REPETITIONS + 1):
            batch = as_parquet(made.batch(size, "random"), place / f"{size}-{repetition}.parquet")
            seconds = timed(partial(plain_merge, spark.newSession(), batch, table))
            if repetition:
                taken.append(seconds)
                bench.say(f"  {size:,}: {seconds:.2f} s")
        found.append((size, taken))
    return found


def as_parquet(batch: ChangeBatch, path: Path) -> Path:
    """The changes as a streaming batch would have them: an operation and an order."""
    data = pa.Table.from_batches([batch.data])
    deleted = pc.equal(data[OP], pa.scalar(int(Operation.DELETE), pa.int8()))
    own = data.select(list(batch.schema.names))
    pq.write_table(own.append_column("deleted", deleted).append_column("seq", data[SEQ]), path)
    return path

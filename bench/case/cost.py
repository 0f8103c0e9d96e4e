"""What a batch of changes costs, by mode, format, size of the batch and of the table, beside the MERGE people write."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.bench import Bench, timed
from bench.case.merge import plain_merge
from bench.pipeline import FORMATS, MASKED
from bench.report import Curve, Measure, Plot, Ratio, Report, Verdict
from bench.synthetic import ID, Changing
from lakefeed.change.batch import OP, SEQ, ChangeBatch, Operation
from lakefeed.lake.iceberg.store import PROPERTIES
from lakefeed.lake.location import table_path
from lakefeed.lake.mode import Append, Mirror, Mode, Temporal
from lakefeed.lake.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODES: tuple[Mode, ...] = (Mirror(), Temporal(), Append())
WAYS: dict[str, tuple[tuple[str, Mode], ...]] = {
    "delta": (*(("delta", mode) for mode in MODES), (MASKED, Mirror())),
    "iceberg": tuple(("iceberg", mode) for mode in MODES),
}
"""By the format whose plain MERGE is measured behind them."""
FULL = {1_000: 2, 10_000: 2, 100_000: 2, 1_000_000: 1}
QUICK = {100: 1}
"""Changes in a batch, and how many such batches are measured."""
_PLAIN = "plain MERGE"
_CATALOG = "plain"

Taken = dict[tuple[str, int, int], list[float]]
"""(way, rows of the table, changes of the batch) → seconds."""


def run(bench: Bench) -> Report:
    batches = QUICK if bench.quick else FULL
    tables = (2_000,) if bench.quick else (1_000_000, 10_000_000)
    spark = spark_session("lakefeed-bench", formats=FORMATS)
    taken: Taken = {}
    for rows in tables:
        for plain, ways in WAYS.items():
            for fmt, mode in ways:
                name = f"{fmt}, {mode.name}"
                made = Changing(spark, bench.scratch / f"{name}-{rows}", fmt, mode, rows)
                _measured(bench, (name, rows), batches, partial(_applied, made), taken)
            _measured(bench, (f"{plain}, {_PLAIN}", rows), batches, plain_way(bench, spark, plain, rows), taken)
    return _report(tables, batches, taken)


def _measured(
    bench: Bench, what: tuple[str, int], batches: Mapping[int, int], once: Callable[[int], float], taken: Taken
) -> None:
    name, rows = what
    bench.say(f"{name}, {rows:,} rows")
    once(min(batches))  # warms up
    for size, repetitions in batches.items():
        taken[name, rows, size] = [once(size) for _ in range(repetitions)]
        bench.say(f"  {size:,}: {', '.join(f'{one:.2f}' for one in taken[name, rows, size])} s")


def _applied(made: Changing, size: int) -> float:
    made.add(size)
    return made.apply()


def plain_way(bench: Bench, spark: SparkSession, fmt: str, rows: int) -> Callable[[int], float]:
    """The same table, and the MERGE that people write: no record of what was applied."""
    place = bench.scratch / f"{fmt}-plain-{rows}"
    made = Changing(spark, place, "delta", Mirror(), rows)
    table = f"delta.`{Path(table_path(str(place / 'lake'), ID))}`"
    session = spark.newSession()
    if fmt == "iceberg":
        session.conf.set(f"spark.sql.catalog.{_CATALOG}", "org.apache.iceberg.spark.SparkCatalog")
        session.conf.set(f"spark.sql.catalog.{_CATALOG}.type", "hadoop")
        session.conf.set(f"spark.sql.catalog.{_CATALOG}.warehouse", str(place / "warehouse"))
        own = f"{_CATALOG}.main.account_{rows}"
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in PROPERTIES.items())
        session.sql(f"CREATE TABLE {own} USING iceberg TBLPROPERTIES ({properties}) AS SELECT * FROM {table}")
        table = own

    def once(size: int) -> float:
        batch = as_parquet(made.batch(size, "random"), place / "batch.parquet")
        return timed(partial(plain_merge, session, batch, table))

    return once


def _report(tables: tuple[int, ...], batches: Mapping[int, int], taken: Taken) -> Report:
    seconds = {key: statistics.median(found) for key, found in taken.items()}
    ways = list(dict.fromkeys(name for name, _, _ in taken))
    ratios = tuple(
        Ratio(
            f"{fmt}, {rows:,} rows, {size:,} changes: plain MERGE / mirror",
            (round(seconds[f"{plain}, {_PLAIN}", rows, size] / seconds[f"{fmt}, mirror", rows, size], 3),),
        )
        for rows in tables
        for plain, ways in WAYS.items()
        for fmt in dict.fromkeys(fmt for fmt, _ in ways)
        for size in batches
    )
    return Report(
        what="Batches of mixed changes (60 % updates, 30 % inserts, 10 % deletes, random keys) into tables of "
        f"{' and '.join(f'{rows:,}' for rows in tables)} rows and 6 columns, for each mode and format, and by a plain "
        "MERGE into a table with the same properties, without any record of what was applied. One warm JVM. The chart "
        f"is that of {tables[0]:,} rows.",
        measures=tuple(
            Measure(
                f"{name}, {rows:,} rows: {size:,} changes",
                "s",
                tuple(round(one, 2) for one in found),
                ours=_PLAIN not in name,
            )
            for (name, rows, size), found in taken.items()
        ),
        ratios=ratios,
        verdicts=tuple(
            Verdict(
                f"{fmt}: a mirror is never slower than the plain MERGE, whatever the batch and the table",
                f"{lowest:.2f} times as fast, at the least",
                lowest >= 1,
            )
            for fmt in dict.fromkeys(fmt for ways in WAYS.values() for fmt, _ in ways)
            for lowest in [
                min(
                    min(one.values) for one in ratios for rows in tables if one.name.startswith(f"{fmt}, {rows:,} rows")
                )
            ]
        ),
        plot=Plot(
            "changes in the batch",
            "seconds",
            tuple(
                Curve(name, tuple((size, round(seconds[name, tables[0], size], 3)) for size in batches))
                for name in ways
            ),
            logarithmic=True,
        ),
    )


def as_parquet(batch: ChangeBatch, path: Path) -> Path:
    """The changes as a streaming batch would have them: an operation and an order."""
    data = pa.Table.from_batches([batch.data])
    deleted = pc.equal(data[OP], pa.scalar(int(Operation.DELETE), pa.int8()))
    own = data.select(list(batch.schema.names))
    pq.write_table(own.append_column("deleted", deleted).append_column("seq", data[SEQ]), path)
    return path

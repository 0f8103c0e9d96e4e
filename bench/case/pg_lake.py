"""W2 to the end: a log of changes out of PostgreSQL into a mirror, on both formats."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.bench import Bench, timed
from bench.case.merge import plain_merge
from bench.pipeline import FORMATS, PIPELINE, lake_of
from bench.postgres import CHANGED, COLUMNS, TRANSACTION, Workload, workload
from bench.report import Report, Verdict, rates, speed_ratio
from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.batch import OP, SEQ, Operation
from lakefeed.change.table import TableId
from lakefeed.flow.pipeline import Pipeline
from lakefeed.journal.journal import Journal
from lakefeed.lake.iceberg.store import PROPERTIES
from lakefeed.lake.reader import read_table
from lakefeed.lake.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGETS = {"delta": 60_000, "iceberg": 70_000}
"""Changes a second, at least."""


def run(bench: Bench) -> Report:
    rows, changes = bench.size(full=1_000_000, quick=2_000), bench.size(full=500_000, quick=1_000)
    repetitions = bench.size(full=3, quick=1)
    spark = spark_session("lakefeed-bench", formats=FORMATS)
    seconds: dict[str, list[float]] = {}
    with workload(rows) as source:
        for fmt in FORMATS:
            source.make_copy()
            seconds |= _drained(bench, spark, source, fmt, (changes, repetitions))
        versions = source.versions
    measures = {name: rates(name, "changes/s", changes, taken, ours=name in FORMATS) for name, taken in seconds.items()}
    return Report(
        what=f"{changes:,} changes (60 % updates, 30 % inserts, 10 % deletes, {TRANSACTION} in a transaction) of a "
        f"table of {rows:,} rows and {COLUMNS} columns wait behind a replication slot, and a mirror of the table is in "
        "the lake. Time until the mirror has all of them: `sync_once`, that is decoding, journal, merge and "
        "confirmation. The plain way is what a foreachBatch function does with the same changes, which it gets as one "
        "Parquet file: row_number over the key, MERGE into a table with the same properties; capture and a record of "
        "what was applied are not in its time. At the end each mirror is compared with the table, by count and sums.",
        measures=tuple(measures.values()),
        ratios=tuple(
            speed_ratio(f"{fmt}: Lakefeed, all of it / {_plain_name(fmt)}", seconds[fmt], seconds[_plain_name(fmt)])
            for fmt in FORMATS
        ),
        verdicts=tuple(
            Verdict(
                f"{fmt}: at least {least:,} changes/s",
                f"{measures[fmt].median:,.0f} changes/s",
                measures[fmt].median >= least,
            )
            for fmt, least in TARGETS.items()
        ),
        notes=("Server, capture and Spark share the machine's cores.", versions),
    )


def _plain_name(fmt: str) -> str:
    return f"{fmt}: the plain MERGE alone"


def _drained(
    bench: Bench, spark: SparkSession, source: Workload, fmt: str, sizes: tuple[int, int]
) -> dict[str, list[float]]:
    changes, repetitions = sizes
    path = bench.scratch / f"lake-{fmt}"
    lake = lake_of(spark, fmt, path)
    taken: dict[str, list[float]] = {fmt: [], _plain_name(fmt): []}
    with Pipeline(Postgres(source.dsn, tables=[CHANGED]), lake, name=PIPELINE) as pipeline:
        pipeline.sync_once()
        session, table = _plain_table(spark, fmt, path / "public" / CHANGED, bench.scratch / f"plain-{fmt}")
        for repetition in range(repetitions + (0 if bench.quick else 1)):
            before = Journal.read(pipeline.root).head
            source.change_on(changes, repetition * changes, source.rows // 2)
            taken[fmt].append(timed(pipeline.sync_once))
            batch = _batch(Journal.read(pipeline.root), before, bench.scratch / "batch.parquet")
            taken[_plain_name(fmt)].append(timed(partial(plain_merge, session, batch, table)))
            bench.say(f"{fmt}: {taken[fmt][-1]:.2f} s, plain MERGE {taken[_plain_name(fmt)][-1]:.2f} s")
        _compare(source, path)
        stored = read_table(path / "public" / CHANGED)
        assert stored is not None
        assert session.table(table).count() == stored.num_rows, "the two ways disagree"
        pipeline.uninstall()
    return {name: seconds[-repetitions:] for name, seconds in taken.items()}


def _plain_table(spark: SparkSession, fmt: str, mirror: Path, place: Path) -> tuple[SparkSession, str]:
    """A second table of the mirror's rows, with the mirror's properties, and its name in a session."""
    session = spark.newSession()
    if fmt == "delta":
        session.read.format("delta").load(str(mirror)).write.format("delta").save(str(place))
        return session, f"delta.`{place}`"
    session.conf.set("spark.sql.catalog.plain", "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set("spark.sql.catalog.plain.type", "hadoop")
    session.conf.set("spark.sql.catalog.plain.warehouse", str(place))
    session.read.format("iceberg").load(str(mirror)).createOrReplaceTempView("mirror")
    properties = ", ".join(f"'{name}' = '{value}'" for name, value in PROPERTIES.items())
    session.sql(f"CREATE TABLE plain.public.{CHANGED} USING iceberg TBLPROPERTIES ({properties}) AS TABLE mirror")
    return session, f"plain.public.{CHANGED}"


def _batch(journal: Journal, after: int, path: Path) -> Path:
    """The journal's changes as a streaming batch would have them: one Parquet file with an operation and an order."""
    segments = journal.window(TableId("public", CHANGED), after, journal.head).segments
    found = pa.concat_tables([pq.read_table(segment.path, partitioning=None) for segment in segments])
    deleted = pc.equal(found[OP], pa.scalar(int(Operation.DELETE), pa.int8()))
    own = found.select([name for name in found.column_names if not name.startswith("_lakefeed_")])
    pq.write_table(own.append_column("deleted", deleted).append_column("seq", found[SEQ]), path)
    return path


def _compare(source: Workload, lake: Path) -> None:
    """By the database and by a reader that is not Spark."""
    found: Any = read_table(lake / "public" / CHANGED)
    theirs = tuple(pc.sum(found[name]).as_py() for name in ("id", "i1", "amount"))
    with psycopg.connect(source.dsn) as connection:
        ours = connection.execute(f"SELECT count(*), sum(id), sum(i1), sum(amount) FROM {CHANGED}".encode()).fetchone()
    assert ours == (found.num_rows, *theirs), (ours, found.num_rows, theirs)

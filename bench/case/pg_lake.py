"""W2 to the end: a log of changes out of PostgreSQL into a mirror, on both formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.bench import Bench, timed
from bench.case.merge import plain_merge
from bench.peer import flink_cdc
from bench.pipeline import FORMATS, PIPELINE, lake_of
from bench.postgres import CHANGED, COLUMNS, TRANSACTION, Workload, workload
from bench.report import Measure, Report, Verdict, number, rates, speed_ratio
from lakefeed.capture.postgres.database import Names
from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.batch import OP, SEQ, Operation
from lakefeed.change.table import TableId
from lakefeed.flow.pipeline import Pipeline
from lakefeed.journal.journal import Journal
from lakefeed.lake.iceberg.store import PROPERTIES
from lakefeed.lake.reader import read_table
from lakefeed.lake.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TARGETS = {"delta": 60_000, "iceberg": 70_000}
"""Changes a second, at least."""
_PEER, _PEER_SLOT = "iceberg: Flink CDC", "bench_flink"
_PEER_PROPERTIES = {"format-version": "2"}
"""The version that Iceberg gives a table which Flink creates."""
_SUMMED = ("id", "i1", "amount")


@dataclass(slots=True)
class Taken:
    """Seconds of each way, and those of Spark to read the two Iceberg tables as they were left."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    reads: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Peer:
    """Flink CDC with a slot and a table of its own, which has the rows of the mirror."""

    source: Workload
    session: SparkSession
    table: str
    cluster: flink_cdc.Cluster

    @classmethod
    @contextmanager
    def ready(cls, engine: flink_cdc.FlinkCdc, source: Workload, spark: SparkSession, mirror: Path) -> Iterator[Peer]:
        place = engine.place / "lake"
        session, table = _copy(spark, "iceberg", mirror, place, "peer", _PEER_PROPERTIES)
        source.execute(f"SELECT pg_create_logical_replication_slot('{_PEER_SLOT}', 'pgoutput')")
        names = (_PEER_SLOT, Names(PIPELINE).publication)
        with engine.cluster(source.server.port, *names, table=CHANGED, location=place / "public" / CHANGED) as cluster:
            yield cls(source, session, table, cluster)

    def skip(self) -> None:
        """What comes from now on waits behind the slot, and nothing else. The last job may still be leaving it."""
        connected = f"FROM pg_replication_slots WHERE slot_name = '{_PEER_SLOT}' AND active"
        self.source.execute(f"SELECT pg_terminate_backend(active_pid, 10000) {connected}")
        self.source.execute(f"SELECT pg_replication_slot_advance('{_PEER_SLOT}', pg_current_wal_lsn())")

    def left(self, changes: int, cold: float) -> str:
        """For the report, after so many changes. ``cold``: the seconds of the first job."""
        query = f"SELECT count(*), sum(record_count) FROM {self.table}.delete_files WHERE content = 2"
        [(files, deletes)] = self.session.sql(query).collect()
        return (
            f"{flink_cdc.VERSIONS}, in a JVM of its own: a checkpoint every 5 s, and one when the last change has left "
            "the source. Timed from the first change to the commit that has the last, so the start of the job does not "
            f"count, nor does the first job, which took {number(cold)} s in the cold JVM. It looks nothing up, so its "
            f"readers have to: after {changes:,} changes its table has {number(deletes)} equality deletes in "
            f"{number(files)} files."
        )


def run(bench: Bench) -> Report:
    rows, changes = bench.size(full=1_000_000, quick=2_000), bench.size(full=500_000, quick=1_000)
    repetitions = bench.size(full=3, quick=1)
    engine = "only full runs fetch it" if bench.quick else flink_cdc.fetch(bench.scratch / "flink")
    spark = spark_session("lakefeed-bench", formats=FORMATS)
    with workload(rows) as source:
        delta = _drained(bench, spark, source, "delta", changes, None)
        iceberg = _drained(bench, spark, source, "iceberg", changes, engine)
        versions = source.versions
    seconds = {name: taken[-repetitions:] for name, taken in (delta.seconds | iceberg.seconds).items()}
    measures = {name: rates(name, "changes/s", changes, taken, ours=name in FORMATS) for name, taken in seconds.items()}
    reads = [Measure(name, "s", tuple(taken), charted=False) for name, taken in iceberg.reads.items()]
    ratios = [
        speed_ratio(f"{fmt}: Lakefeed, all of it / {_plain_name(fmt)}", seconds[fmt], seconds[_plain_name(fmt)])
        for fmt in FORMATS
    ]
    if _PEER in seconds:
        ratios.append(speed_ratio("iceberg: Lakefeed / Flink CDC", seconds["iceberg"], seconds[_PEER]))
    return Report(
        what=f"{changes:,} changes (60 % updates, 30 % inserts, 10 % deletes, {TRANSACTION} in a transaction) of a "
        f"table of {rows:,} rows and {COLUMNS} columns wait behind a replication slot, and a mirror of the table is in "
        "the lake. Time until the mirror has all of them: `sync_once`, that is decoding, journal, merge and "
        "confirmation. The plain way is what a foreachBatch function does with the same changes, which it gets as one "
        "Parquet file: row_number over the key, MERGE into a table with the same properties; capture and a record of "
        "what was applied are not in its time. Flink CDC gets the same changes behind a slot of its own, and upserts "
        "them into an Iceberg table that had the same rows. At the end each table is compared with the database's, by "
        "count and sums.",
        measures=(*measures.values(), *reads),
        ratios=tuple(ratios),
        verdicts=tuple(
            Verdict(
                f"{fmt}: at least {least:,} changes/s",
                f"{measures[fmt].median:,.0f} changes/s",
                measures[fmt].median >= least,
            )
            for fmt, least in TARGETS.items()
        ),
        notes=("Server, capture and Spark share the machine's cores.", *iceberg.notes, versions),
    )


def _plain_name(fmt: str) -> str:
    return f"{fmt}: the plain MERGE alone"


def _drained(
    bench: Bench,
    spark: SparkSession,
    source: Workload,
    fmt: str,
    changes: int,
    engine: flink_cdc.FlinkCdc | str | None,
) -> Taken:
    """Each way in turns; in a full run once more, which comes first. ``engine``: the peer, or why there is none."""
    path, taken = bench.scratch / f"lake-{fmt}", Taken()
    mirror = path / "public" / CHANGED
    repetitions = bench.size(full=4, quick=1)
    source.make_copy()
    with ExitStack() as stack:
        lake = lake_of(spark, fmt, path)
        pipeline = stack.enter_context(Pipeline(Postgres(source.dsn, tables=[CHANGED]), lake, name=PIPELINE))
        pipeline.sync_once()
        session, table = _copy(spark, fmt, mirror, bench.scratch / f"plain-{fmt}", "plain", PROPERTIES)

        def add(name: str, seconds: float) -> None:
            taken.seconds.setdefault(name, []).append(seconds)
            bench.say(f"{name}: {seconds:.2f} s")

        def ours() -> None:
            before = Journal.read(pipeline.root).head
            add(fmt, timed(pipeline.sync_once))
            batch = _batch(Journal.read(pipeline.root), before, bench.scratch / "batch.parquet")
            add(_plain_name(fmt), timed(partial(plain_merge, session, batch, table)))

        peer = None
        if isinstance(engine, flink_cdc.FlinkCdc):
            peer = stack.enter_context(Peer.ready(engine, source, spark, mirror))
        elif engine:
            taken.notes.append(f"Flink CDC was not measured: {engine}.")
        for repetition in range(repetitions):
            if peer:
                peer.skip()
            source.change_on(changes, repetition * changes, source.rows // 2)
            if peer and repetition % 2:
                add(_PEER, peer.cluster.drain(changes))
            ours()
            if peer and not repetition % 2:
                add(_PEER, peer.cluster.drain(changes))
        expected = _content(source)
        stored: Any = read_table(mirror)  # by a reader that is not Spark
        assert expected == (stored.num_rows, *(pc.sum(stored[name]).as_py() for name in _SUMMED)), "the mirror differs"
        assert session.table(table).count() == stored.num_rows, "the two ways disagree"
        if peer:
            frames = {
                "count and sums of Lakefeed's Iceberg table, by Spark": spark.read.format("iceberg").load(str(mirror)),
                "count and sums of Flink CDC's table, by Spark": peer.session.table(peer.table),
            }
            taken.reads = {name: [round(_read(frame, expected), 3) for _ in range(3)] for name, frame in frames.items()}
            taken.notes.append(peer.left(repetitions * changes, taken.seconds[_PEER][0]))
        pipeline.uninstall()
    return taken


def _copy(
    spark: SparkSession, fmt: str, mirror: Path, place: Path, catalog: str, properties: Mapping[str, str]
) -> tuple[SparkSession, str]:
    """A second table of the mirror's rows, and its name in a session. ``catalog`` and ``properties``: Iceberg's."""
    session = spark.newSession()
    if fmt == "delta":
        session.read.format("delta").load(str(mirror)).write.format("delta").save(str(place))
        return session, f"delta.`{place}`"
    session.conf.set(f"spark.sql.catalog.{catalog}", "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set(f"spark.sql.catalog.{catalog}.type", "hadoop")
    session.conf.set(f"spark.sql.catalog.{catalog}.warehouse", str(place))
    session.conf.set(f"spark.sql.catalog.{catalog}.cache-enabled", "false")  # others write there
    session.read.format("iceberg").load(str(mirror)).createOrReplaceTempView("mirror")
    given = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    session.sql(f"CREATE TABLE {catalog}.public.{CHANGED} USING iceberg TBLPROPERTIES ({given}) AS TABLE mirror")
    return session, f"{catalog}.public.{CHANGED}"


def _batch(journal: Journal, after: int, path: Path) -> Path:
    """The journal's changes as a streaming batch would have them: one Parquet file with an operation and an order."""
    segments = journal.window(TableId("public", CHANGED), after, journal.head).segments
    found = pa.concat_tables([pq.read_table(segment.path, partitioning=None) for segment in segments])
    deleted = pc.equal(found[OP], pa.scalar(int(Operation.DELETE), pa.int8()))
    own = found.select([name for name in found.column_names if not name.startswith("_lakefeed_")])
    pq.write_table(own.append_column("deleted", deleted).append_column("seq", found[SEQ]), path)
    return path


def _content(source: Workload) -> tuple[Any, ...]:
    """The table's count and sums in the database."""
    query = f"SELECT count(*), {', '.join(f'sum({name})' for name in _SUMMED)} FROM {CHANGED}"
    with psycopg.connect(source.dsn) as connection:
        [found] = connection.execute(query.encode()).fetchall()
    return found


def _read(frame: DataFrame, expected: tuple[Any, ...]) -> float:
    """The seconds that Spark takes for the same."""
    found: list[Any] = []
    sums = frame.selectExpr("count(*)", *(f"sum({name})" for name in _SUMMED))
    seconds = timed(lambda: found.extend(sums.collect()))
    assert expected == tuple(found[0]), (expected, found)
    return seconds

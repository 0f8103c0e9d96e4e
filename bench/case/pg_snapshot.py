"""W1: the first copy of a PostgreSQL table into Delta, against Spark's JDBC reader and dlt."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
from deltalake import DeltaTable

from bench.backlog import read
from bench.bench import Bench, Contestant, in_turns, timed
from bench.peer import dlt_peer
from bench.pipeline import PIPELINE
from bench.postgres import COLUMNS, WIDE, Workload, workload
from bench.report import Report, Verdict, rates, speed_ratio, spread
from bench.usage import Meter
from lakefeed.capture.postgres.source import Postgres
from lakefeed.flow.listener import Listener
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.run_loop import OpenPipeline
from lakefeed.lake.delta import Delta
from lakefeed.lake.spark.jars import remembered_jars
from lakefeed.lake.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER = "org.postgresql:postgresql:42.7.7"
LEAST = 1.8
_OURS, _JDBC, _DLT, _COPY = "Lakefeed", "plain Spark JDBC", "dlt, connectorx", "COPY binary to nowhere, one connection"
_FETCH, _PARTITIONS = 10_000, 8
_FIRST_SESSION = "from lakefeed.lake.spark.session import spark_session; spark_session().stop()"


@dataclass(frozen=True, slots=True)
class Snapshot:
    spark: SparkSession
    source: Workload
    scratch: Path
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def place(self, name: str) -> Path:
        """An empty lake; the last of that name goes."""
        for old in self.scratch.glob(f"{name}-*"):
            shutil.rmtree(old)
        return self.scratch / f"{name}-{next(self.numbers)}"

    def ours(self) -> float:
        """Everything: publication and slot, plan, Spark tasks, commits."""
        lake = Delta(self.spark, self.place("ours"))
        source = Postgres(self.source.dsn, tables=[WIDE])
        capture = source.bind(PIPELINE)
        capture.open()
        capture.uninstall()
        capture.close()

        def work() -> None:
            root = Path(lake.path) / "_lakefeed" / PIPELINE
            session = OpenPipeline(source.bind(PIPELINE), lake.bind(PIPELINE), root, PipelineOptions(), Listener())
            try:
                session.copies.load()
            finally:
                session.close()

        return timed(work)

    def jdbc(self) -> float:
        root = self.place("jdbc")
        options = {
            "url": f"jdbc:postgresql://127.0.0.1:{self.source.server.port}/postgres",
            "user": "postgres",
            "driver": "org.postgresql.Driver",
            "dbtable": WIDE,
            "fetchsize": str(_FETCH),
            "partitionColumn": "id",
            "lowerBound": "1",
            "upperBound": str(self.source.rows),
            "numPartitions": str(_PARTITIONS),
        }

        def work() -> None:
            rows = self.spark.read.format("jdbc").options(**options).load()
            rows.write.format("delta").mode("append").save(str(root))

        return timed(work)

    def copy(self) -> float:
        """A limit: the server's binary rows, thrown away."""
        with psycopg.connect(self.source.dsn, autocommit=True) as connection, connection.cursor() as cursor:

            def work() -> None:
                with cursor.copy(f"COPY {WIDE} TO STDOUT (FORMAT binary)".encode()) as copy:
                    while copy.read():
                        pass

            return timed(work)

    def equal(self) -> bool:
        """The two copies, row by row."""
        ours, theirs = (_content(next(self.scratch.glob(f"{name}-*"))) for name in ("ours", "jdbc"))
        return bool(ours.equals(theirs))


def run(bench: Bench) -> Report:
    rows = bench.size(full=1_000_000, quick=3_000)
    if not remembered_jars():  # else Spark would be asked for the driver's jar instead of Delta's
        subprocess.run([sys.executable, "-c", _FIRST_SESSION], check=True)
    spark = spark_session("lakefeed-bench", settings={"spark.jars.packages": DRIVER})
    peer = dlt_peer.find()
    with workload(rows) as source:
        snapshot = Snapshot(spark, source, bench.scratch)
        meter = Meter(source.server.pid)
        contestants: dict[str, Contestant] = {_OURS: snapshot.ours, _JDBC: snapshot.jdbc, _COPY: snapshot.copy}
        if isinstance(peer, dlt_peer.Dlt):
            contestants[_DLT] = lambda: peer.copy(source.server.port, WIDE, bench.scratch / "dlt")
        watched = {name: meter.on(name, one, alone=name == _DLT) for name, one in contestants.items()}
        bench.say("warm-up")
        in_turns(bench, {name: contestants[name] for name in (_OURS, _JDBC)}, bench.size(full=2, quick=0))
        seconds = in_turns(bench, watched, bench.size(full=5, quick=1))
        assert snapshot.equal(), "the two copies differ"
        report = _report(rows, seconds, meter, None if isinstance(peer, dlt_peer.Dlt) else peer)
        return replace(report, notes=(*report.notes, source.versions))


def _report(rows: int, seconds: dict[str, list[float]], meter: Meter, missing: str | None) -> Report:
    ratios = [speed_ratio("Lakefeed / plain Spark JDBC", seconds[_OURS], seconds[_JDBC])]
    note = f"dlt was not measured: {missing}."
    if missing is None:
        ratios.append(speed_ratio("Lakefeed / dlt", seconds[_OURS], seconds[_DLT]))
        note = (
            "dlt: sql_database with connectorx into a Delta table, in a process of its own whose start is not counted."
        )
    ratios.append(speed_ratio("Lakefeed / COPY alone, one connection", seconds[_OURS], seconds[_COPY]))
    verdict = Verdict(
        f"at least {LEAST} times as fast as plain Spark JDBC",
        f"{spread(ratios[0].values)} ×",
        ratios[0].median >= LEAST,
    )
    return Report(
        what=f"A PostgreSQL table of {rows:,} rows and {COLUMNS} columns of mixed types into a new Delta table: "
        "Lakefeed's load, with everything that belongs to it (publication, slot, plan, Spark tasks that read chunks "
        "and write files, commits); against `spark.read.format('jdbc')` with a partition column, appended to Delta, in "
        "the same warm session. The two copies are compared row by row. Server and contestants share the machine's "
        "cores.",
        measures=(
            *(rates(name, "rows/s", rows, taken, ours=name == _OURS) for name, taken in seconds.items()),
            *meter.measures((_OURS,)),
        ),
        ratios=tuple(ratios),
        verdicts=(verdict,),
        notes=(
            f"JDBC: {DRIVER}, {_PARTITIONS} partitions by key range, fetchsize {_FETCH:,}; {os.cpu_count()} cores.",
            note,
            "CPU is that of all processes but the server's. Memory has the JVM in it, which both ways share.",
        ),
    )


def _content(root: Path) -> pa.Table:
    place = next(root.rglob("_delta_log")).parent
    rows = read(DeltaTable(str(place))).sort_by("id").combine_chunks().replace_schema_metadata(None)
    # Spark writes instants as INT96, which Arrow reads with nanoseconds and without a zone: the same instants.
    plain = pa.timestamp("us")
    return rows.cast(
        pa.schema([field.with_type(plain) if pa.types.is_timestamp(field.type) else field for field in rows.schema])
    )

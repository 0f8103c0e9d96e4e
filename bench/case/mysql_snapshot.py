"""W1: the first copy of a MySQL table into Delta, against Spark's JDBC reader."""

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

import pyarrow as pa
from deltalake import DeltaTable

from bench.backlog import read
from bench.bench import Bench, Contestant, in_turns, timed
from bench.mysql import COLUMNS, SCHEMA, VERSIONS, WIDE, Workload, workload
from bench.pipeline import PIPELINE
from bench.report import Report, Verdict, rates, speed_ratio, spread
from bench.usage import Meter
from lakefeed.capture.mysql.source import Mysql
from lakefeed.flow.listener import Listener
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.run_loop import OpenPipeline
from lakefeed.lake.delta import Delta
from lakefeed.lake.spark.jars import remembered_jars
from lakefeed.lake.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER = "com.mysql:mysql-connector-j:9.4.0"
LEAST = 2.0
_OURS, _JDBC, _READ = "Lakefeed", "plain Spark JDBC", "SELECT to nowhere, one connection"
_PARTITIONS = 8
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
        """Everything: resume point, plan, Spark tasks, commits."""
        lake = Delta(self.spark, self.place("ours"))
        root = Path(lake.path) / "_lakefeed" / PIPELINE
        source = Mysql(self.source.server.dsn, tables=[f"{SCHEMA}.{WIDE}"], state=root)

        def work() -> None:
            session = OpenPipeline(source.bind(PIPELINE), lake.bind(PIPELINE), root, PipelineOptions(), Listener())
            try:
                session.copies.load()
            finally:
                session.close()

        return timed(work)

    def jdbc(self) -> float:
        root = self.place("jdbc")
        options = {
            # Without a fetch size the driver takes a partition's rows into memory at once, which is its quickest way.
            "url": f"jdbc:mysql://127.0.0.1:{self.source.server.port}/{SCHEMA}"
            "?sslMode=DISABLED&allowPublicKeyRetrieval=true&connectionTimeZone=UTC",
            "user": "root",
            "driver": "com.mysql.cj.jdbc.Driver",
            "dbtable": WIDE,
            "partitionColumn": "id",
            "lowerBound": "1",
            "upperBound": str(self.source.rows),
            "numPartitions": str(_PARTITIONS),
        }

        def work() -> None:
            rows = self.spark.read.format("jdbc").options(**options).load()
            rows.write.format("delta").mode("append").save(str(root))

        return timed(work)

    def read(self) -> float:
        """A limit: the server's rows as text, thrown away."""
        with self.source.server.connect(database=SCHEMA) as connection:

            def work() -> None:
                connection._execute_command(3, f"SELECT * FROM {WIDE}")  # type: ignore[attr-defined]  # COM_QUERY
                end, buffer = b"", bytearray(4 << 20)
                while not (end[:3] == b"\5\0\0" and end[4:5] == b"\xfe"):  # the last packet
                    count = connection._sock.recv_into(buffer)  # type: ignore[attr-defined]
                    end = (end + buffer[max(0, count - 9) : count])[-9:]

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
    with workload("mysql", rows, version="" if bench.quick else VERSIONS["mysql"]) as source:
        snapshot = Snapshot(spark, source, bench.scratch)
        meter = Meter(source.server.pid)
        contestants: dict[str, Contestant] = {_OURS: snapshot.ours, _JDBC: snapshot.jdbc, _READ: snapshot.read}
        watched = {name: meter.on(name, one) for name, one in contestants.items()}
        bench.say("warm-up")
        in_turns(bench, {name: contestants[name] for name in (_OURS, _JDBC)}, bench.size(full=2, quick=0))
        seconds = in_turns(bench, watched, bench.size(full=5, quick=1))
        assert snapshot.equal(), "the two copies differ"
        report = _report(rows, seconds, meter)
        return replace(report, notes=(*report.notes, source.versions))


def _report(rows: int, seconds: dict[str, list[float]], meter: Meter) -> Report:
    jdbc = speed_ratio("Lakefeed / plain Spark JDBC", seconds[_OURS], seconds[_JDBC])
    verdict = Verdict(
        f"at least {LEAST:.0f} times as fast as plain Spark JDBC", f"{spread(jdbc.values)} ×", jdbc.median >= LEAST
    )
    return Report(
        what=f"A MySQL table of {rows:,} rows and {COLUMNS} columns of mixed types into a new Delta table: Lakefeed's "
        "load, with everything that belongs to it (resume point, plan, Spark tasks that read chunks and write files, "
        "commits); against `spark.read.format('jdbc')` with a partition column, appended to Delta, in the same warm "
        "session. The two copies are compared row by row. Server and contestants share the machine's cores.",
        measures=(
            *(rates(name, "rows/s", rows, taken, ours=name == _OURS) for name, taken in seconds.items()),
            *meter.measures((_OURS,)),
        ),
        ratios=(jdbc, speed_ratio("Lakefeed / SELECT alone, one connection", seconds[_OURS], seconds[_READ])),
        verdicts=(verdict,),
        notes=(
            f"JDBC: {DRIVER}, {_PARTITIONS} partitions by key range, no fetch size; {os.cpu_count()} cores.",
            "CPU is that of all processes but the server's. Memory has the JVM in it, which both ways share.",
        ),
    )


def _content(root: Path) -> pa.Table:
    place = next(root.rglob("_delta_log")).parent
    rows = read(DeltaTable(str(place))).sort_by("id").combine_chunks().replace_schema_metadata(None)
    # Spark writes instants as INT96, which Arrow reads with nanoseconds and without a zone; tinyint(1) is its boolean.
    wanted: dict[str, pa.DataType] = {
        "created": pa.timestamp("us"),
        "updated": pa.timestamp("us"),
        "active": pa.bool_(),
    }
    return rows.cast(pa.schema([(one.name, wanted.get(one.name, one.type)) for one in rows.schema]))

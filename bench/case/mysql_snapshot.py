"""W1: the first copy of a MySQL table into Delta, against Spark's JDBC reader."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import pyarrow as pa

from bench.bench import Bench, Contestant, in_turns, timed
from bench.copying import Copying
from bench.mysql import COLUMNS, SCHEMA, VERSIONS, WIDE, Workload, workload
from bench.report import Report, Verdict, rates, speed_ratio, spread
from bench.usage import Meter
from lakefeed.capture.mysql.source import Mysql

DRIVER = "com.mysql:mysql-connector-j:9.4.0"
LEAST = 2.0
_OURS, _JDBC, _READ = "Lakefeed", "plain Spark JDBC", "SELECT to nowhere, one connection"
_PARTITIONS = 8
# Spark writes instants as INT96, which Arrow reads with nanoseconds and without a zone; tinyint(1) is its boolean.
_TYPES: dict[str, pa.DataType] = {"created": pa.timestamp("us"), "updated": pa.timestamp("us"), "active": pa.bool_()}


@dataclass(frozen=True, slots=True)
class Snapshot:
    copying: Copying
    source: Workload

    def ours(self) -> float:
        return self.copying.ours(Mysql(self.source.server.dsn, tables=[f"{SCHEMA}.{WIDE}"]))

    def jdbc(self) -> float:
        options = {
            # Without a fetch size the driver takes a partition's rows into memory at once, which is its quickest way.
            "url": f"jdbc:mysql://127.0.0.1:{self.source.server.port}/{SCHEMA}"
            "?sslMode=DISABLED&allowPublicKeyRetrieval=true&connectionTimeZone=UTC",
            "user": "root", "driver": "com.mysql.cj.jdbc.Driver", "dbtable": WIDE,
        }  # fmt: skip
        return self.copying.jdbc(options, self.source.rows, _PARTITIONS)

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


def run(bench: Bench) -> Report:
    rows = bench.size(full=1_000_000, quick=3_000)
    copying = Copying.start(bench.scratch, DRIVER)
    with workload("mysql", rows, version="" if bench.quick else VERSIONS["mysql"]) as source:
        snapshot = Snapshot(copying, source)
        meter = Meter(source.server.pid)
        contestants: dict[str, Contestant] = {_OURS: snapshot.ours, _JDBC: snapshot.jdbc, _READ: snapshot.read}
        watched = {name: meter.on(name, one) for name, one in contestants.items()}
        bench.say("warm-up")
        in_turns(bench, {name: contestants[name] for name in (_OURS, _JDBC)}, bench.size(full=2, quick=0))
        seconds = in_turns(bench, watched, bench.size(full=5, quick=1))
        assert copying.equal(_TYPES), "the two copies differ"
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

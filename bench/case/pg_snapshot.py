"""W1: the first copy of a PostgreSQL table into Delta, against Spark's JDBC reader and dlt."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import psycopg
import pyarrow as pa

from bench.bench import Bench, Contestant, in_turns, timed
from bench.copying import Copying
from bench.peer import dlt_peer
from bench.pipeline import PIPELINE
from bench.postgres import COLUMNS, WIDE, Workload, workload
from bench.report import Report, Verdict, rates, speed_ratio, spread
from bench.usage import Meter
from lakefeed.capture.postgres.source import Postgres

DRIVER = "org.postgresql:postgresql:42.7.7"
LEAST = 1.8
_OURS, _JDBC, _DLT, _COPY = "Lakefeed", "plain Spark JDBC", "dlt, connectorx", "COPY binary to nowhere, one connection"
_FETCH, _PARTITIONS = 10_000, 8
# Spark writes instants as INT96, which Arrow reads with nanoseconds and without a zone: the same instants.
_TYPES = dict.fromkeys(("created", "updated"), pa.timestamp("us"))


@dataclass(frozen=True, slots=True)
class Snapshot:
    copying: Copying
    source: Workload

    def ours(self) -> float:
        """Publication and slot are made anew each time."""
        source = Postgres(self.source.dsn, tables=[WIDE])
        capture = source.bind(PIPELINE)
        capture.open()
        capture.uninstall()
        capture.close()
        return self.copying.ours(source)

    def jdbc(self) -> float:
        options = {
            "url": f"jdbc:postgresql://127.0.0.1:{self.source.server.port}/postgres",
            "user": "postgres", "driver": "org.postgresql.Driver", "dbtable": WIDE, "fetchsize": str(_FETCH),
        }  # fmt: skip
        return self.copying.jdbc(options, self.source.rows, _PARTITIONS)

    def copy(self) -> float:
        """A limit: the server's binary rows, thrown away."""
        with psycopg.connect(self.source.dsn, autocommit=True) as connection, connection.cursor() as cursor:

            def work() -> None:
                with cursor.copy(f"COPY {WIDE} TO STDOUT (FORMAT binary)".encode()) as copy:
                    while copy.read():
                        pass

            return timed(work)


def run(bench: Bench) -> Report:
    rows = bench.size(full=1_000_000, quick=3_000)
    copying = Copying.start(bench.scratch, DRIVER)
    peer = dlt_peer.find()
    with workload(rows) as source:
        snapshot = Snapshot(copying, source)
        meter = Meter(source.server.pid)
        contestants: dict[str, Contestant] = {_OURS: snapshot.ours, _JDBC: snapshot.jdbc, _COPY: snapshot.copy}
        if isinstance(peer, dlt_peer.Dlt):
            contestants[_DLT] = lambda: peer.copy(source.server.port, WIDE, bench.scratch / "dlt")
        watched = {name: meter.on(name, one, alone=name == _DLT) for name, one in contestants.items()}
        bench.say("warm-up")
        in_turns(bench, {name: contestants[name] for name in (_OURS, _JDBC)}, bench.size(full=2, quick=0))
        seconds = in_turns(bench, watched, bench.size(full=5, quick=1))
        assert copying.equal(_TYPES), "the two copies differ"
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

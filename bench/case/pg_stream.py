"""W2: a log of changes out of PostgreSQL into the durable journal, against those who write nothing."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from bench.bench import Bench, Contestant, in_turns, timed
from bench.peer import debezium
from bench.pipeline import PIPELINE
from bench.postgres import CHANGED, COLUMNS, TRANSACTION, Workload, workload
from bench.report import Ratio, Report, Verdict, number, rates, speed_ratio, spread
from bench.usage import Meter
from lakefeed.capture.postgres.database import Names
from lakefeed.capture.postgres.source import Postgres
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.run_loop import OpenPipeline
from lakefeed.testing.memory_lake import MemoryLake
from lakefeed.testing.server.postgres import find_binaries

AIM = 200_000
_OURS = "Lakefeed, into the journal"
_RECEIVE, _DEBEZIUM = "pg_recvlogical over TCP, to nowhere", "Debezium embedded, counted"
_NAMES = Names(PIPELINE)


@dataclass(frozen=True, slots=True)
class Drain:
    """The changes wait behind a slot; each contestant gets it as it was before them."""

    source: Workload
    scratch: Path
    changes: int
    end: str

    def ours(self) -> float:
        """Decoded and appended, with every fsync, and confirmed to the server."""
        self.source.renew(_NAMES.slot)
        copy = self.scratch / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.scratch / "template", copy)
        session = _session(self.source, copy)

        def work() -> None:
            while session.journal.committed_rows < self.changes:
                session.capture.drain()

        try:
            seconds = timed(work)
            assert session.journal.committed_rows == self.changes
            return seconds
        finally:
            session.close()

    def receive(self) -> float:
        self.source.renew("bench_receive")
        found = [place / "pg_recvlogical" for place in find_binaries().values() if (place / "pg_recvlogical").exists()]
        server = self.source.server
        place = ["-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres", "-d", "postgres", "-S", "bench_receive"]
        options = ["-o", "proto_version=1", "-o", f"publication_names={_NAMES.publication}"]
        command = [str(found[-1]), *place, "--start", *options, f"--endpos={self.end}", "--no-loop", "-f", "-"]
        return timed(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True))

    def peer(self, engine: debezium.Debezium) -> float:
        self.source.renew("bench_debezium")
        port = self.source.server.port
        return engine.drain_postgres(port, "bench_debezium", _NAMES.publication, table=CHANGED, changes=self.changes)


def run(bench: Bench) -> Report:
    rows, changes = bench.size(full=1_000_000, quick=2_000), bench.size(full=500_000, quick=1_000)
    engine = "only full runs fetch it" if bench.quick else debezium.fetch(bench.scratch / "debezium", "postgres")
    with workload(rows, copy=True) as source:
        _session(source, bench.scratch / "template").close()  # makes publication and slot
        bench.say(f"{changes:,} changes into the log")
        drain = Drain(source, bench.scratch, changes, source.change(changes, _NAMES.slot))
        contestants: dict[str, Contestant] = {
            _OURS: drain.ours,
            _RECEIVE: drain.receive,
        }
        if isinstance(engine, debezium.Debezium):
            contestants[_DEBEZIUM] = lambda: drain.peer(engine)
        meter = Meter(source.server.pid)
        watched = {name: meter.on(name, one, alone=name in (_RECEIVE, _DEBEZIUM)) for name, one in contestants.items()}
        drain.ours()  # warm-up; the others are processes of their own
        seconds = in_turns(bench, watched, bench.size(full=3, quick=1))
        report = _report(rows, changes, seconds, meter, None if isinstance(engine, debezium.Debezium) else engine)
        return replace(report, notes=(*report.notes, source.versions))


def _report(rows: int, changes: int, seconds: dict[str, list[float]], meter: Meter, missing: str | None) -> Report:
    ours = (_OURS,)
    measures = [rates(name, "changes/s", changes, taken, ours=name in ours) for name, taken in seconds.items()]
    received = speed_ratio("Lakefeed / pg_recvlogical over TCP", seconds[_OURS], seconds[_RECEIVE])
    ratios = [received]
    verdicts = [
        _verdict("at least as fast as pg_recvlogical over TCP to nowhere", received, 1.0),
        Verdict(f"the aim: {AIM:,} changes/s", f"{number(measures[0].median)} changes/s", measures[0].median >= AIM),
    ]
    version = debezium.VERSIONS["postgres"]
    peers = f"Debezium {version} decodes to Connect records and writes nothing; timed from its first record on."
    if missing is None:
        ratios.append(speed_ratio("Lakefeed / Debezium", seconds[_OURS], seconds[_DEBEZIUM]))
        verdicts.insert(1, _verdict("at least 3 times as fast as Debezium's embedded engine", ratios[-1], 3.0))
    else:
        peers = f"Debezium was not measured: {missing}."
    return Report(
        what=f"{changes:,} changes (60 % updates, 30 % inserts, 10 % deletes, {TRANSACTION} in a transaction) of a "
        f"table of {rows:,} rows and {COLUMNS} columns wait behind a replication slot. Lakefeed decodes them into "
        "Arrow, appends them to the journal with every fsync, and confirms them to the server; the others write "
        "nothing. Server and contestants share the machine's cores.",
        measures=(*measures, *meter.measures(ours)),
        ratios=tuple(ratios),
        verdicts=tuple(verdicts),
        notes=(
            peers,
            "CPU is that of all processes but the server's, which has a line of its own; the JVM's start is in it.",
        ),
    )


def _verdict(target: str, ratio: Ratio, least: float) -> Verdict:
    return Verdict(target, f"{spread(ratio.values)} ×", ratio.median >= least)


def _session(source: Workload, place: Path) -> OpenPipeline:
    lake = MemoryLake(str(place / "lake"))
    capture = Postgres(source.dsn, tables=[CHANGED]).bind(PIPELINE)
    return OpenPipeline(
        capture, lake.bind(PIPELINE), Path(lake.path) / "_lakefeed" / PIPELINE, PipelineOptions(), Listener()
    )

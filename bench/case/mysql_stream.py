"""W2: a binlog of changes out of MySQL into the durable journal, against those who write nothing."""

from __future__ import annotations

import contextlib
import shutil
import struct
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.bench import Bench, Contestant, in_turns, timed
from bench.mysql import CHANGED, COLUMNS, SCHEMA, TRANSACTION, VERSIONS, Workload, workload
from bench.peer import debezium, mysql_replication
from bench.pipeline import PIPELINE
from bench.report import Ratio, Report, Verdict, rates, speed_ratio, spread
from bench.usage import Meter
from lakefeed.capture.mysql.source import Mysql
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.run_loop import OpenPipeline
from lakefeed.testing.memory_lake import MemoryLake
from lakefeed.testing.server.mysql import Flavour

_OURS, _RAW = "Lakefeed, into the journal", "the raw binlog over a socket, to nowhere"
_REPLICATION, _DEBEZIUM = "mysql-replication, counted", "Debezium embedded, counted"
_LEAST = {_REPLICATION: 5.0, _DEBEZIUM: 3.0}
_PART = 10
_COM_BINLOG_DUMP = 0x12
_SILENCE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Drain:
    """The changes are in the binlog; each contestant reads it from before them."""

    source: Workload
    scratch: Path
    changes: int

    @property
    def flavour(self) -> Flavour:
        return self.source.server.flavour

    def session(self, place: Path) -> OpenPipeline:
        lake = MemoryLake(str(place / "lake"))
        root = Path(lake.path) / "_lakefeed" / PIPELINE
        tables = [f"{SCHEMA}.{CHANGED}"]
        capture = Mysql(self.source.server.dsn, kind=self.flavour, tables=tables, state=root).bind(PIPELINE)
        return OpenPipeline(capture, lake.bind(PIPELINE), root, PipelineOptions(), Listener())

    def ours(self) -> float:
        """Decoded and appended, with every fsync."""
        copy = self.scratch / f"{self.flavour}-copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.scratch / f"{self.flavour}-template", copy)
        session = self.session(copy)

        def work() -> None:
            while session.journal.committed_rows < self.changes:
                session.capture.drain()

        try:
            seconds = timed(work)
            assert session.journal.committed_rows == self.changes
            return seconds
        finally:
            session.close()

    def raw(self, size: int | None = None) -> float:
        """A limit: every byte that the server sends, thrown away. Without ``size``: how many come until it falls
        silent."""
        with self.source.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET @master_binlog_checksum = 'CRC32'")
            if self.flavour == "mariadb":
                cursor.execute("SET @mariadb_slave_capability = 4")
            driver: Any = connection
            ask = struct.pack("<IHI", 4, 0, 4713) + self.file().encode()
            buffer, total = bytearray(4 << 20), 0

            def work() -> None:
                nonlocal total
                driver._execute_command(_COM_BINLOG_DUMP, ask)
                driver._sock.settimeout(_SILENCE_SECONDS)
                with contextlib.suppress(TimeoutError):
                    while size is None or total < size:
                        total += driver._sock.recv_into(buffer)

            seconds = timed(work)
            assert size is None or total == size, f"the server sent {total} bytes of {size}"
            return total if size is None else seconds

    def file(self) -> str:
        """The first file of the binlog."""
        return self.source.execute("SHOW BINARY LOGS")

    def replication(self, peer: mysql_replication.MysqlReplication) -> float:
        """Its first part of the changes alone: with all of them a run would take half an hour."""
        port, part = self.source.server.port, self.changes // _PART
        return _PART * peer.drain(self.flavour, port, file=self.file(), table=CHANGED, changes=part)

    def debezium(self, engine: debezium.Debezium) -> float:
        port = self.source.server.port
        return engine.drain_mysql(self.flavour, port, schema=SCHEMA, table=CHANGED, changes=self.changes)


def run(bench: Bench) -> Report:
    return measured(bench, "mysql", "MySQL")


def measured(bench: Bench, flavour: Flavour, title: str) -> Report:
    rows, changes = bench.size(full=1_000_000, quick=2_000), bench.size(full=500_000, quick=1_000)
    engine: debezium.Debezium | str = "only full runs fetch it"
    peer: mysql_replication.MysqlReplication | str = "only full runs fetch it"
    if not bench.quick:
        engine = debezium.fetch(bench.scratch / "debezium", flavour)
        peer = mysql_replication.fetch(bench.scratch / "mysql_replication")
    notes = [
        f"Debezium {debezium.VERSIONS[flavour]} decodes to Connect records, writes nothing; timed from the first one.",
        f"mysql-replication {mysql_replication.VERSION} decodes to dictionaries and writes nothing; timed alike.",
        f"mysql-replication reads the first {changes // _PART:,} changes; its time is multiplied by {_PART}.",
        "CPU is that of all processes but the server's, which has a line of its own; the JVM's start is in it.",
    ]
    with workload(flavour, rows, copy=True, version="" if bench.quick else VERSIONS[flavour]) as source:
        drain = Drain(source, bench.scratch, changes)
        drain.session(bench.scratch / f"{flavour}-template").close()  # makes the resume point
        bench.say(f"{changes:,} changes into the log of {title}")
        source.change(changes)
        contestants: dict[str, Contestant] = {_OURS: drain.ours, _RAW: partial(drain.raw, int(drain.raw()))}
        if isinstance(peer, mysql_replication.MysqlReplication):
            contestants[_REPLICATION] = partial(drain.replication, peer)
        else:
            notes.append(f"mysql-replication was not measured: {peer}.")
        if isinstance(engine, debezium.Debezium):
            contestants[_DEBEZIUM] = partial(drain.debezium, engine)
        else:
            notes.append(f"Debezium was not measured: {engine}.")
        meter = Meter(source.server.pid)
        watched = {name: meter.on(name, one, alone=name in _LEAST) for name, one in contestants.items()}
        drain.ours()  # warm-up; the others are processes of their own
        seconds = in_turns(bench, watched, bench.size(full=3, quick=1))
        notes.append(source.versions)
    measures = [rates(name, "changes/s", changes, taken, ours=name == _OURS) for name, taken in seconds.items()]
    ratios: list[Ratio] = []
    verdicts: list[Verdict] = []
    for name in contestants:
        if name != _OURS:
            short = name.split(",")[0]
            ratios.append(speed_ratio(f"Lakefeed / {short}", seconds[_OURS], seconds[name]))
            if name in _LEAST:
                target, values = f"at least {_LEAST[name]:.0f} times as fast as {short}", spread(ratios[-1].values)
                verdicts.append(Verdict(target, f"{values} ×", ratios[-1].median >= _LEAST[name]))
    return Report(
        what=f"{changes:,} changes (60 % updates, 30 % inserts, 10 % deletes, {TRANSACTION} in a transaction, one in "
        f"an event) of a table of {rows:,} rows and {COLUMNS} columns wait in the binlog. Lakefeed decodes them into "
        "Arrow and appends them to the journal with every fsync; the others write nothing. Server and contestants "
        "share the machine's cores.",
        measures=(*measures, *meter.measures((_OURS,))),
        ratios=tuple(ratios),
        verdicts=tuple(verdicts),
        notes=tuple(notes),
    )

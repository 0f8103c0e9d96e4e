"""The first copy by polling, of a SQLite table and of the wide PostgreSQL table, against dlt."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.bench import Bench, Contestant, in_turns, timed
from bench.peer import dlt_peer
from bench.pipeline import PIPELINE
from bench.postgres import COLUMNS, WIDE, workload
from bench.report import Report, Verdict, rates, speed_ratio, spread
from bench.workload import TABLE, connected, create
from lakefeed.capture.base import Source
from lakefeed.capture.poll.source import NullPolicy, PostgresPolling, SqlitePolling, TableRule
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.run_loop import OpenPipeline
from lakefeed.lake.delta import Delta
from lakefeed.lake.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SQLITE, _SELECT = "Lakefeed, SQLite", "SQLite: SELECT * to nowhere"
_POSTGRES = "Lakefeed, PostgreSQL"
_DLT_SQLITE, _DLT_POSTGRES = "dlt, SQLite, connectorx", "dlt, PostgreSQL, connectorx"
_FETCH = 10_000
_STAMP = "2024-01-01 00:00:00.000000"


@dataclass(frozen=True, slots=True)
class Copies:
    spark: SparkSession
    scratch: Path
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def of(self, make: Callable[[], Source]) -> float:
        """Everything: plan, Spark tasks, commits, into a lake of its own."""
        for old in self.scratch.glob("lake-*"):
            shutil.rmtree(old)
        lake = Delta(self.spark, self.scratch / f"lake-{next(self.numbers)}")
        source = make()

        def work() -> None:
            root = Path(lake.path) / "_lakefeed" / PIPELINE
            session = OpenPipeline(source.bind(PIPELINE), lake.bind(PIPELINE), root, PipelineOptions(), Listener())
            try:
                (result,) = session.copies.load().tables.values()
                assert result.error is None, result.error
            finally:
                session.close()

        return timed(work)


def run(bench: Bench) -> Report:
    rows = bench.size(full=1_000_000, quick=3_000)
    spark = spark_session("lakefeed-bench")
    copies = Copies(spark, bench.scratch)
    database = _stamped(create(bench.scratch / "shop.db", rows))
    peer = dlt_peer.find()
    with workload(rows) as server:
        # W1 leaves a quarter of ``updated`` NULL; those rows count as changed when they were created.
        wide = TableRule(updated_at="updated", created_at="created", null_updated_at=NullPolicy.CREATED_AT)
        contestants: dict[str, Contestant] = {
            _SQLITE: lambda: copies.of(lambda: SqlitePolling(database)),
            _SELECT: lambda: _select(database),
            _POSTGRES: lambda: copies.of(lambda: PostgresPolling(server.dsn, tables=[WIDE], rules={WIDE: wide})),
        }
        if isinstance(peer, dlt_peer.Dlt):
            contestants[_DLT_SQLITE] = lambda: peer.copy_sqlite(database, TABLE, bench.scratch / "dlt")
            contestants[_DLT_POSTGRES] = lambda: peer.copy(server.server.port, WIDE, bench.scratch / "dlt")
        bench.say("warm-up")
        in_turns(bench, {name: contestants[name] for name in (_SQLITE, _POSTGRES)}, bench.size(full=1, quick=0))
        seconds = in_turns(bench, contestants, bench.size(full=3, quick=1))
        return _report(rows, seconds, server.versions, None if isinstance(peer, dlt_peer.Dlt) else peer)


def _report(rows: int, seconds: dict[str, list[float]], versions: str, missing: str | None) -> Report:
    ratios = [speed_ratio("Lakefeed / SELECT alone, SQLite", seconds[_SQLITE], seconds[_SELECT])]
    verdicts: tuple[Verdict, ...] = ()
    note = f"dlt was not measured: {missing}."
    if missing is None:
        against = [
            speed_ratio("Lakefeed / dlt, SQLite", seconds[_SQLITE], seconds[_DLT_SQLITE]),
            speed_ratio("Lakefeed / dlt, PostgreSQL", seconds[_POSTGRES], seconds[_DLT_POSTGRES]),
        ]
        verdicts = tuple(
            Verdict(f"no slower than dlt, {name}", f"{spread(ratio.values)} ×", ratio.median >= 1.0)
            for name, ratio in zip(("SQLite", "PostgreSQL"), against, strict=True)
        )
        ratios += against
        note = (
            "dlt: sql_database with connectorx into a Delta table, in a process of its own whose start is not counted."
        )
    return Report(
        what=f"A table of {rows:,} rows into a new Delta table by polling, with everything that belongs to it (plan, "
        f"Spark tasks that read chunks and write files, commits): one of SQLite with 7 columns, one of PostgreSQL with "
        f"{COLUMNS} columns of mixed types. Nothing is created in the source.",
        measures=tuple(
            rates(name, "rows/s", rows, taken, ours=name in (_SQLITE, _POSTGRES)) for name, taken in seconds.items()
        ),
        ratios=tuple(ratios),
        verdicts=verdicts,
        notes=(note, versions),
    )


def _stamped(database: Path) -> Path:
    """The table of the other benchmarks, with the time that polling needs."""
    with connected(database) as connection:
        connection.execute(f"ALTER TABLE {TABLE} ADD COLUMN updated_at TEXT NOT NULL DEFAULT '{_STAMP}'")
        connection.execute(f"CREATE INDEX account_updated ON {TABLE} (updated_at, id)")
    return database


def _select(database: Path) -> float:
    with connected(database) as connection:

        def work() -> None:
            cursor = connection.execute(f"SELECT * FROM {TABLE}")
            while cursor.fetchmany(_FETCH):
                pass

        return timed(work)

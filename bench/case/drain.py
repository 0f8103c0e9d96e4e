"""SQLite's trigger log into the journal, on one core, with every fsync."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.bench import Bench, in_turns, timed
from bench.pipeline import PIPELINE, open_session
from bench.report import Measure, Ratio, Report, Verdict, number, rates, speed_ratio
from bench.workload import connected, create, write_changes
from lakefeed.capture.sqlite.installation import Installation
from lakefeed.change.table import TableId
from lakefeed.flow.run_loop import OpenPipeline
from lakefeed.journal.journal import Journal
from lakefeed.testing.memory_lake import MemoryLake

TARGET = 100_000
_TABLES = {"one table": ("account",), "four tables": ("account", "branch", "card", "deal")}
_ROWS = 5_000
_FETCH = 10_000


class Drain:
    """One database with a full log; copies of it are drained."""

    def __init__(self, bench: Bench, changes: int, tables: tuple[str, ...]) -> None:
        self._changes = changes
        self._tables = tables
        self._template = bench.scratch / f"template-{len(tables)}"
        self._copy = bench.scratch / f"copy-{len(tables)}"
        self._template.mkdir()
        database = create(self._template / "shop.db", _ROWS, tables)
        _session(self._template).close()  # installs the triggers
        write_changes(database, changes, _ROWS, tables)

    def ours(self) -> float:
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._template, self._copy)
        session = _session(self._copy)
        try:
            seconds = timed(session.capture.drain)
            assert session.journal.committed_rows == self._changes
            return seconds
        finally:
            session.close()

    def select(self) -> float:
        """A limit: the log read row by row, and thrown away."""
        with connected(self._template / "shop.db") as connection:

            def read() -> None:
                cursor = connection.execute(f"SELECT * FROM {Installation(PIPELINE).log}")
                while cursor.fetchmany(_FETCH):
                    pass

            return timed(read)

    def drained(self) -> list[pa.Table]:
        """What the last ``ours`` has written, table by table, in memory."""
        journal = Journal.read(self._copy / "lake" / "_lakefeed" / PIPELINE)
        windows = [journal.window(TableId("main", name), 0, journal.head) for name in self._tables]
        paths = [segment.path for window in windows for segment in window.segments]
        return [pq.read_table(path, partitioning=None) for path in paths]

    def write(self, tables: list[Any]) -> float:
        """A limit: the same rows, already in Arrow, into one Parquet file for each table."""

        def store() -> None:
            for index, table in enumerate(tables):
                path = self._copy / f"limit-{index}.parquet"
                pq.write_table(table, path, compression="zstd")
                _sync(path)

        return timed(store)


def run(bench: Bench) -> Report:
    changes = bench.size(full=1_000_000, quick=5_000)
    repetitions = 3
    measures: list[Measure] = []
    ratios: list[Ratio] = []
    verdicts: list[Verdict] = []
    for label, names in _TABLES.items():
        bench.say(f"{label}: {changes:,} changes into the log")
        drain = Drain(bench, changes, names)
        drain.ours()
        rows = drain.drained()
        contestants = {
            "Lakefeed": drain.ours,
            "SELECT": drain.select,
            "Parquet": lambda drain=drain, rows=rows: drain.write(rows),  # type: ignore[misc]
        }
        seconds = in_turns(bench, contestants, repetitions)
        mine = rates(f"{label}: log to journal", "changes/s", changes, seconds["Lakefeed"], ours=True)
        both = [read + write for read, write in zip(seconds["SELECT"], seconds["Parquet"], strict=True)]
        measures += [
            mine,
            rates(f"{label}: SELECT * to nowhere", "changes/s", changes, seconds["SELECT"]),
            rates(f"{label}: Arrow to Parquet, fsync", "changes/s", changes, seconds["Parquet"]),
        ]
        ratios.append(speed_ratio(f"{label}: Lakefeed / SELECT alone", seconds["Lakefeed"], seconds["SELECT"]))
        ratios.append(speed_ratio(f"{label}: Lakefeed / SELECT then Parquet", seconds["Lakefeed"], both))
        target = f"{label}, one core: {TARGET:,} changes/s or better"
        verdicts.append(Verdict(target, f"{number(mine.median)} changes/s", mine.median >= TARGET))
    return Report(
        what=f"{changes:,} changes (60 % updates, 30 % inserts, 10 % deletes, 100 in a transaction) wait in the log of "
        "a database whose tables have 6 columns. They are cut, checked, decoded and appended to the journal, with "
        "every fsync, in a process that is held to one core.",
        measures=tuple(measures),
        ratios=tuple(ratios),
        verdicts=tuple(verdicts),
        notes=(
            (
                "The limits do less: the first reads the log and decodes nothing, the second gets rows that are in "
                "Arrow already. The sum of both is what reading and writing alone cost."
            ),
            "The time includes confirming to the source and the pruning that goes with it.",
        ),
    )


def _session(place: Path) -> OpenPipeline:
    return open_session(place / "shop.db", MemoryLake(str(place / "lake")))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""What the triggers cost the application that writes."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.bench import Bench, Contestant, in_turns, timed
from bench.pipeline import open_session
from bench.report import Report, rates, speed_ratio
from bench.workload import TABLE, connected, create, transaction
from lakefeed.testing.memory_lake import MemoryLake

_PER_TRANSACTION = 100
Statement = tuple[str, Callable[[int], tuple[Any, ...]]]
STATEMENTS: dict[str, Statement] = {
    "insert": (f"INSERT INTO {TABLE} VALUES (?, ?, ?, ?, ?, ?)", lambda i: (-i, f"owner {i}", i, i / 3, "new", 1)),
    "update": (f"UPDATE {TABLE} SET balance = ?, note = ? WHERE id = ?", lambda i: (i, "changed", i)),
    "delete": (f"DELETE FROM {TABLE} WHERE id = ?", lambda i: (i,)),
}


def run(bench: Bench) -> Report:
    rows = bench.size(full=100_000, quick=1_000)
    single = bench.size(full=500, quick=10)
    plain, captured = _databases(bench.scratch, rows)
    contestants: dict[str, Contestant] = {}
    counts: dict[str, int] = {}
    for name, statement in STATEMENTS.items():
        for label, count, size in ((f"{name}s", rows, _PER_TRANSACTION), (f"{name}s, one per commit", single, 1)):
            counts[label] = count
            contestants[f"{label}, no capture"] = partial(_write, plain, statement, count, size)
            contestants[f"{label}, captured"] = partial(_write, captured, statement, count, size)
    seconds = in_turns(bench, contestants, bench.size(full=5, quick=3))
    return Report(
        what=f"Inserts, updates and deletes of {rows:,} rows of 6 columns, {_PER_TRANSACTION} in a transaction, and of "
        f"{single:,} rows in a transaction each, from Python, WAL mode, SQLite's default fsyncs; with Lakefeed's "
        "triggers in the database and without.",
        measures=tuple(
            rates(contestant, "rows/s", counts[contestant.rsplit(", ", 1)[0]], taken, ours="captured" in contestant)
            for contestant, taken in seconds.items()
        ),
        ratios=tuple(
            speed_ratio(
                f"{label}: captured / no capture", seconds[f"{label}, captured"], seconds[f"{label}, no capture"]
            )
            for label in counts
        ),
        notes=("The triggers write each change a second time, into the log, in the writer's own transaction.",),
    )


def _databases(scratch: Path, rows: int) -> tuple[Path, Path]:
    plain, captured = scratch / "plain", scratch / "captured"
    plain.mkdir()
    create(plain / "shop.db", rows)
    shutil.copytree(plain, captured)
    open_session(captured / "shop.db", MemoryLake(str(scratch / "lake"))).close()  # installs the triggers
    return plain, captured


def _write(template: Path, statement: Statement, count: int, size: int) -> float:
    place = template.with_name("work")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(template, place)
    text, values = statement
    rows = [values(i) for i in range(1, count + 1)]
    with connected(place / "shop.db") as connection:
        return timed(partial(_transactions, connection, text, [rows[i : i + size] for i in range(0, count, size)]))


def _transactions(connection: sqlite3.Connection, text: str, pieces: Sequence[Sequence[tuple[Any, ...]]]) -> None:
    for piece in pieces:
        with transaction(connection):
            connection.executemany(text, piece)

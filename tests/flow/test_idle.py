"""A pipeline with nothing to do does next to nothing, and is there at once when something comes."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from lakefeed import Pipeline, PipelineOptions, Sqlite
from lakefeed.capture.sqlite.database import OpenedFile
from lakefeed.capture.sqlite.log import SqliteLogReader
from lakefeed.change.table import TableId
from lakefeed.flow import maintenance
from lakefeed.flow.maintenance import MaintenanceThread
from lakefeed.flow.status import Liveness
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.lake.maintenance import MaintenanceOptions, MaintenanceResult
from lakefeed.lake.route import Route
from lakefeed.testing.memory_lake import MemoryLake, MemoryLakeTable

LONG_AGO = 60.0


class Counts:
    """How often a method was called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.calls = 0
        method = getattr(owner, name)

        def counted(*given: object, **named: object) -> object:
            self.calls += 1
            return method(*given, **named)

        monkeypatch.setattr(owner, name, counted)


def shop(directory: Path, *, wal: bool) -> Path:
    path = directory / "shop.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        if wal:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE a (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO a VALUES (1)")
    return path


def rows(lake: MemoryLake) -> int:
    return len(lake.rows("main.a")) if TableId("main", "a") in lake.tables else 0


def until(lake: MemoryLake, count: int) -> float:
    began = time.monotonic()
    while rows(lake) < count:
        assert time.monotonic() - began < 20
        time.sleep(0.005)
    return time.monotonic() - began


@contextmanager
def running(pipeline: Pipeline) -> Iterator[None]:
    thread = threading.Thread(target=pipeline.run)
    thread.start()
    try:
        yield
    finally:
        began = time.monotonic()
        pipeline.stop()
        thread.join(10)
        assert time.monotonic() - began < 3


@pytest.mark.parametrize("wal", [True, False])
def test_an_idle_source_is_asked_once_a_second_and_a_change_is_seen_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wal: bool
) -> None:
    path, lake = shop(tmp_path, wal=wal), MemoryLake(str(tmp_path / "lake"))
    asked = Counts(monkeypatch, SqliteLogReader, "_next_range")
    looked = Counts(monkeypatch, OpenedFile, "stamp")
    reported = Counts(monkeypatch, Liveness, "write")
    options = PipelineOptions(maintenance_seconds=0)
    with (
        Pipeline(Sqlite(str(path)), lake, options=options) as pipeline,
        closing(sqlite3.connect(path, isolation_level=None)) as writer,
        running(pipeline),
    ):
        until(lake, 1)
        time.sleep(1.5)  # its confirmation is written
        for file in (path, path.with_name("shop.db-wal")):
            if file.exists():
                os.utime(file, (time.time() - LONG_AGO,) * 2)
        time.sleep(0.2)
        asked.calls = looked.calls = reported.calls = 0
        time.sleep(2.2)
        assert 1 <= asked.calls <= 5, "a transaction in the source about once a second"
        assert 10 <= looked.calls <= 2.2 / 0.05 + 10, "looked at, without a busy wait"
        assert reported.calls <= 1, "a report without news is rare"
        writer.execute("INSERT INTO a VALUES (2)")
        assert until(lake, 2) < 0.9, "not only when it is asked for anyway"


def test_a_file_that_was_just_written_to_is_asked_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second write within one step of the file system's clock leaves size and time as they are."""
    path, lake = shop(tmp_path, wal=False), MemoryLake(str(tmp_path / "lake"))
    asked = Counts(monkeypatch, SqliteLogReader, "_next_range")
    with (
        Pipeline(Sqlite(str(path)), lake, options=PipelineOptions(maintenance_seconds=0)) as pipeline,
        running(pipeline),
    ):
        until(lake, 1)
        os.utime(path)
        asked.calls = 0
        time.sleep(1.0)
        assert asked.calls > 5


class KeptLake(MemoryLake):
    """Counts how often each table is maintained."""

    def __init__(self) -> None:
        super().__init__("lake")
        self.kept: list[str] = []

    def table(self, route: Route) -> MemoryLakeTable:
        return KeptTable(self, route)


class KeptTable(MemoryLakeTable):
    _lake: KeptLake

    def maintain(self, options: MaintenanceOptions, key: object) -> MaintenanceResult:
        self._lake.kept.append(str(self.route.table))
        return MaintenanceResult()


def test_maintenance_does_not_open_a_table_again_that_has_had_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_CHECK_SECONDS", 0.02)
    states, lake, number = TableStates(tmp_path), KeptLake(), {"main.idle": 7, "main.busy": 1}
    for name in number:
        states.stage(Route.same(TableId.parse(name)), reason="new")
        states.update(TableId.parse(name), phase=Phase.LIVE)

    def recorded(state: TableState) -> int:
        number["main.busy"] += 1
        return number[str(state.table)]

    thread = MaintenanceThread(states, lake, MaintenanceOptions(), 3600.0, recorded)
    thread.start()
    end = time.monotonic() + 20
    while lake.kept.count("main.busy") < 5:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert thread.stop(20)
    assert lake.kept.count("main.idle") == 1

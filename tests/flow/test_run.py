"""A pipeline that runs: its threads do not wait for each other, it stops soon, what fails is reported and retried."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lakefeed import Listener, Pipeline, PipelineOptions, Sqlite
from lakefeed.capture.base import ChangeCapture, Lag, SnapshotPlan
from lakefeed.change.change_set import ChangeSet, RecopyNeeded, TableBlocked
from lakefeed.change.position import Position
from lakefeed.change.segment import Window
from lakefeed.change.table import TableId
from lakefeed.errors import (
    CommitFailedError,
    CommitUnknownError,
    JournalError,
    LakeError,
    LakefeedError,
    RebuildCause,
    RebuildNeededError,
    SourceSetupError,
    SourceUnavailableError,
    StateError,
    TableStoppedError,
)
from lakefeed.flow import capture_side, lake_side, retry
from lakefeed.flow.lake_side import LakeSide
from lakefeed.flow.result import CycleResult
from lakefeed.flow.retry import Backoff
from lakefeed.flow.table_state import Phase, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.base import Applied, TableCopy
from lakefeed.testing.builders import table
from lakefeed.testing.faulty import HELD, Fault, Faults, FaultyCapture
from lakefeed.testing.memory_lake import MemoryLake, MemoryLakeTable
from lakefeed.testing.scripted import COMMIT, ScriptedCapture, insert

A = table("main.a", {"id": pa.int64(), "v": pa.string()}, key=("id",))
B = table("main.b", {"id": pa.int64(), "v": pa.string()}, key=("id",))
QUICK = PipelineOptions(interval_seconds=0.02, enrol_seconds=0.05, journal=JournalOptions(fsync=False))


@dataclass(frozen=True)
class Scripted:
    """A Source around a capture that keeps what a server keeps."""

    capture: ChangeCapture

    def bind(self, pipeline: str) -> ChangeCapture:
        return self.capture


@pytest.fixture
def lake(tmp_path: Path) -> MemoryLake:
    return MemoryLake(str(tmp_path / "lake"))


def scripted(**rows: int) -> ScriptedCapture:
    """Tables by name with so many rows."""
    found = {
        one: [{"id": n, "v": "copied"} for n in range(rows[one.table.name])]
        for one in (A, B)
        if rows.get(one.table.name)
    }
    return ScriptedCapture(snapshot=found, waits=True)


def add_table_b(capture: ScriptedCapture, rows: int) -> None:
    capture.content.rows[B.table] = [{"id": n, "v": "copied"} for n in range(rows)]
    capture.content.schemas[B.table] = B


def pipeline_of(
    capture: ChangeCapture, lake: MemoryLake, options: PipelineOptions = QUICK, listener: Listener | None = None
) -> Pipeline:
    return Pipeline(Scripted(capture), lake, name="p", options=options, listener=listener)


def ids(lake: MemoryLake, name: str) -> set[int]:
    return {row["id"] for row in lake.rows(name)} if TableId.parse(name) in lake.tables else set()


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@contextmanager
def running(pipeline: Pipeline) -> Iterator[None]:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            pipeline.run()
        except BaseException as error:  # noqa: BLE001  # asserted below
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        pipeline.stop()
        thread.join(30)
        assert not thread.is_alive()
    assert not raised


class HeldLoads:
    """Copies of one table begin, and wait until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, held: TableId) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        load = MemoryLakeTable.load

        def hold(lake_table: MemoryLakeTable, copy: TableCopy, progress: Any) -> Any:
            if copy.table == held:
                self.begun.set()
                assert self.go_on.wait(30)
            return load(lake_table, copy, progress)

        monkeypatch.setattr(MemoryLakeTable, "load", hold)


def test_while_one_table_is_copied_the_changes_of_the_others_reach_the_lake(
    lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = scripted(a=1)
    pipeline = pipeline_of(capture, lake)
    pipeline.sync_once()
    held = HeldLoads(monkeypatch, B.table)
    add_table_b(capture, 2)
    with running(pipeline):
        assert held.begun.wait(30)
        capture.append(insert(A, id=10, v="live"), COMMIT)
        until(lambda: 10 in ids(lake, "main.a"))
        assert not held.go_on.is_set()
        held.go_on.set()
        until(lambda: ids(lake, "main.b") == {0, 1})


@pytest.mark.parametrize("call", ["discover", "prepare", "snapshot"])
def test_a_source_that_takes_long_to_prepare_a_table_delivers_the_changes_of_the_others(
    lake: MemoryLake, call: str
) -> None:
    capture, faults = scripted(a=1), Faults()
    pipeline = pipeline_of(FaultyCapture(capture, faults), lake)
    pipeline.sync_once()
    with running(pipeline):
        until(lambda: pipeline.status().verdict == "idle")
        faults.add(Fault(call, when=HELD))
        add_table_b(capture, 2)
        assert faults.reached.wait(30)
        capture.append(insert(A, id=10, v="live"), COMMIT)
        until(lambda: 10 in ids(lake, "main.a"))
        faults.release()
        until(lambda: ids(lake, "main.b") == {0, 1})


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("prepare", SourceSetupError("there is no table main.b")),
        ("snapshot", SourceSetupError("there is no table main.b")),
        ("snapshot", StateError("main.b is copied before it is prepared")),
    ],
)
def test_a_table_that_changes_while_it_is_prepared_is_tried_again_before_it_is_blocked(
    lake: MemoryLake, call: str, error: LakefeedError
) -> None:
    capture, faults = scripted(a=1), Faults()
    with pipeline_of(FaultyCapture(capture, faults), lake) as pipeline:
        pipeline.sync_once()
        add_table_b(capture, 2)
        faults.add(Fault(call, error=lambda: error))
        pipeline.sync_once()
        assert ids(lake, "main.b") == {0, 1}
        assert pipeline.status().tables[B.table].state == "live"


def test_a_lock_on_a_new_table_does_not_interrupt_the_stream_of_the_others(lake: MemoryLake) -> None:
    capture, faults = scripted(a=1), Faults()
    pipeline = pipeline_of(FaultyCapture(capture, faults), lake)
    pipeline.sync_once()
    with running(pipeline):
        until(lambda: pipeline.status().verdict == "idle")
        opened = faults.counts["open"]
        faults.add(Fault("prepare", nth=None))
        add_table_b(capture, 2)
        until(lambda: pipeline.status().verdict == "stalled")
        assert pipeline.status().reason == "a fault that the test asked for"
        capture.append(insert(A, id=10, v="live"), COMMIT)
        until(lambda: 10 in ids(lake, "main.a"))
        faults.clear()
        until(lambda: ids(lake, "main.b") == {0, 1})
        until(lambda: pipeline.status().verdict == "idle")
        assert faults.counts["open"] == opened


def test_changes_that_are_captured_between_plan_and_copy_are_applied_on_top(lake: MemoryLake) -> None:
    """The chunks are as old as the plan: if the base were taken after it, row 7 would be lost."""
    capture, faults = scripted(a=1), Faults()
    pipeline = pipeline_of(FaultyCapture(capture, faults), lake)
    pipeline.sync_once()
    with running(pipeline):
        until(lambda: pipeline.status().verdict == "idle")
        faults.add(Fault("snapshot", when=HELD))
        add_table_b(capture, 2)
        assert faults.reached.wait(30)
        base = pipeline.status().journal_head
        capture.append(insert(B, id=7, v="between"), COMMIT)
        until(lambda: pipeline.status().journal_head == base + 1)
        faults.release()
        until(lambda: ids(lake, "main.b") == {0, 1, 7})
        state = TableStates(pipeline.root).get(B.table)
        assert state is not None
        assert state.base == base


def test_nothing_is_trimmed_between_the_base_of_a_copy_and_its_plan(
    lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_side, "TRIM_EVERY", 1)
    capture, faults = scripted(a=1), Faults()
    options = replace(QUICK, journal=JournalOptions(keep_seconds=0, keep_change_sets=1, fsync=False))
    pipeline = pipeline_of(FaultyCapture(capture, faults), lake, options)
    pipeline.sync_once()
    with running(pipeline):
        until(lambda: pipeline.status().verdict == "idle")
        faults.add(Fault("snapshot", when=HELD))
        add_table_b(capture, 1)
        assert faults.reached.wait(30)
        capture.append(insert(B, id=7, v="between"), COMMIT)
        for number in range(10, 15):
            capture.append(insert(A, id=number, v="live"), COMMIT)
            until(lambda number=number: number in ids(lake, "main.a"))  # type: ignore[misc]
        faults.release()
        until(lambda: ids(lake, "main.b") == {0, 7})
        until(lambda: Journal.read(pipeline.root).trimmed > 1)


def test_the_journal_is_trimmed_to_what_the_slowest_table_has(
    lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_side, "TRIM_EVERY", 1)
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)
    capture = scripted(a=1, b=1)
    options = replace(QUICK, journal=JournalOptions(keep_seconds=0, keep_change_sets=1, fsync=False))
    with pipeline_of(capture, lake, options) as pipeline:
        pipeline.sync_once()
        head = pipeline.status().journal_head
        with monkeypatch.context() as broken:
            failing(broken, B.table)
            for number in range(10, 15):
                capture.append(insert(A, id=number, v="x"), insert(B, id=number, v="x"), COMMIT)
                pipeline.sync_once()
            assert len(ids(lake, "main.a")) == 6
            with Journal.read(pipeline.root) as journal:
                assert journal.trimmed <= head
        pipeline.sync_once()
        assert len(ids(lake, "main.b")) == 6
        with Journal.read(pipeline.root) as journal:
            assert journal.trimmed > head


def failing(monkeypatch: pytest.MonkeyPatch, broken: TableId) -> list[float]:
    """Merges of one table fail. Returns the times at which they are tried."""
    tried: list[float] = []
    apply = MemoryLakeTable.apply

    def fail(lake_table: MemoryLakeTable, window: Window, generation: int) -> Applied:
        if window.table == broken:
            tried.append(time.monotonic())
            raise CommitFailedError("the table is locked")
        return apply(lake_table, window, generation)

    monkeypatch.setattr(MemoryLakeTable, "apply", fail)
    return tried


def test_stop_ends_a_copy_after_the_chunk_group_under_way_and_the_next_run_reads_the_rest(lake: MemoryLake) -> None:
    class SmallChunks(ScriptedCapture):
        def snapshot(self, table: TableId, *, chunk_rows: int = 1) -> SnapshotPlan:
            return super().snapshot(table, chunk_rows=1)

    class StopsOnce(Listener):
        def snapshot_progress(self, table: TableId, rows: int) -> None:
            if not stopped:
                stopped.append(table)
                pipeline.stop()

    stopped: list[TableId] = []
    rows = [{"id": n, "v": "copied"} for n in range(5)]
    capture = SmallChunks(snapshot={A: rows, B: rows}, waits=True)
    pipeline = pipeline_of(capture, lake, listener=StopsOnce())
    pipeline.run(for_seconds=60)
    assert [(one.copied, len(one.rows)) for one in lake.tables.values()] == [(1, 1)]
    assert {state.phase for state in TableStates(pipeline.root).all().values()} == {Phase.COPYING}
    with pipeline:
        pipeline.sync_once()
    assert ids(lake, "main.a") == ids(lake, "main.b") == set(range(5))


def test_stop_before_run_is_not_forgotten(lake: MemoryLake) -> None:
    pipeline = pipeline_of(scripted(a=1), lake)
    pipeline.stop()
    started = time.monotonic()
    pipeline.run(for_seconds=60)
    assert time.monotonic() - started < 30
    deadline = time.monotonic() + 30
    while ids(lake, "main.a") != {0}:
        assert time.monotonic() < deadline, "the second run was not stopped"
        pipeline.run(for_seconds=0.3)


def test_stop_returns_although_the_source_does_not_answer(lake: MemoryLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """``close`` makes every call of a capture return: that is how a hanging one is left."""
    monkeypatch.setattr("lakefeed.flow.run_loop._STOP_SECONDS", 0.5)
    closed = threading.Event()

    class Hangs(ScriptedCapture):
        def prepare(self, tables: Any) -> Position:
            if B.table in tables:
                hanging.set()
                assert closed.wait(30)
            return super().prepare(tables)

        def close(self) -> None:
            closed.set()
            super().close()

    hanging = threading.Event()
    capture = Hangs(snapshot={A: [{"id": 0, "v": "x"}]}, waits=True)
    pipeline = pipeline_of(capture, lake)
    pipeline.sync_once()
    add_table_b(capture, 1)
    thread = threading.Thread(target=lambda: pipeline.run(60))
    thread.start()
    assert hanging.wait(30)
    closed.clear()
    pipeline.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert pipeline.hanging == (), "the call that hung has ended: nothing is left behind"


def test_a_copy_waits_for_the_merge_of_the_same_lake_table(lake: MemoryLake, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = scripted(a=1)
    pipeline = pipeline_of(capture, lake)
    pipeline.sync_once()
    merging, go_on, loads = threading.Event(), threading.Event(), []
    apply, load = MemoryLakeTable.apply, MemoryLakeTable.load

    def held(lake_table: MemoryLakeTable, window: Window, generation: int) -> Applied:
        merging.set()
        assert go_on.wait(30)
        return apply(lake_table, window, generation)

    def noted(lake_table: MemoryLakeTable, copy: TableCopy, progress: Any) -> Any:
        loads.append(go_on.is_set())
        return load(lake_table, copy, progress)

    monkeypatch.setattr(MemoryLakeTable, "apply", held)
    monkeypatch.setattr(MemoryLakeTable, "load", noted)
    with running(pipeline):
        capture.append(insert(A, id=1, v="x"), COMMIT)
        assert merging.wait(30)
        capture.content.rows[A.table] = [{"id": n, "v": "again"} for n in range(3)]
        capture.append(TableBlocked(A.table, "bad", "mend it"), COMMIT, RecopyNeeded(A.table, "mended"), COMMIT)
        until(lambda: TableStates(pipeline.root).in_phase(Phase.COPYING))
        time.sleep(0.3)
        assert loads == []
        go_on.set()
        until(lambda: loads == [True])
        until(lambda: pipeline.status().tables[A.table].state == "live")
    assert ids(lake, "main.a") == {0, 1, 2}


def test_a_confirm_that_fails_is_reported_and_tried_again(lake: MemoryLake, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    class Hears(Listener):
        def retrying(self, error: Exception, seconds: float) -> None:
            heard.append(str(error))

    capture, faults = scripted(a=1), Faults()
    pipeline = pipeline_of(FaultyCapture(capture, faults), lake, listener=Hears())
    pipeline.sync_once()
    faults.add(Fault("confirm", nth=None))
    with running(pipeline):
        capture.append(insert(A, id=1, v="x"), COMMIT)
        until(lambda: 1 in ids(lake, "main.a"))
        until(lambda: pipeline.status().verdict == "stalled")
        assert "its log grows: a fault that the test asked for" in pipeline.status().reason
        assert heard
        assert capture.confirmed != capture.head
        faults.clear()
        until(lambda: capture.confirmed == capture.head)
        until(lambda: pipeline.status().verdict == "idle")
    assert len(heard) < 10, "it is tried again after a pause"


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: now[0]))
    backoff = Backoff(1.0, 10.0)
    assert backoff.is_over
    for pause in (1.0, 2.0, 4.0, 8.0, 10.0, 10.0):
        assert backoff.failed() == pause
        assert (backoff.is_over, backoff.rest) == (False, pause)
        now[0] += pause - 0.1
        assert not backoff.is_over
        now[0] += 0.1
        assert backoff.is_over
    backoff.reset()
    assert backoff.failed() == 1.0


def test_run_waits_longer_and_longer_before_it_opens_a_source_again_that_is_away(
    lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakefeed.flow.run_loop._FIRST_PAUSE_SECONDS", 0.2)
    opened: list[float] = []

    class Away(ScriptedCapture):
        def open(self) -> None:
            opened.append(time.monotonic())
            raise SourceUnavailableError("away")

    with running(pipeline_of(Away(), lake)):
        until(lambda: len(opened) == 4)
    first, second, third = (later - before for before, later in pairwise(opened))
    assert (first >= 0.2, second >= 0.4, third >= 0.8) == (True, True, True)


def test_a_table_that_fails_is_tried_again_less_and_less_often(
    lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.2)
    capture = scripted(a=1)
    pipeline = pipeline_of(capture, lake)
    pipeline.sync_once()
    tried = failing(monkeypatch, A.table)
    with running(pipeline):
        capture.append(insert(A, id=1, v="x"), COMMIT)
        until(lambda: len(tried) == 3)
    pauses = [later - before for before, later in pairwise(tried)]
    assert pauses[0] >= 0.2
    assert pauses[1] >= 0.4


def test_a_sync_in_the_pause_of_a_table_reports_its_error_and_does_not_try_it(
    lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = scripted(a=1, b=1)
    with pipeline_of(capture, lake) as pipeline:
        pipeline.sync_once()
        tried = failing(monkeypatch, A.table)
        capture.append(insert(A, id=1, v="x"), COMMIT)
        for _ in range(2):
            result = pipeline.sync_once()
            assert {name: found.error for name, found in result.errors.items()} == {A.table: "the table is locked"}
        assert len(tried) == 1


def test_a_commit_whose_answer_was_lost_is_no_error_once_the_table_says_it_has_it(
    lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)
    capture, apply = scripted(a=1), MemoryLakeTable.apply

    def lost(lake_table: MemoryLakeTable, window: Window, generation: int) -> None:
        apply(lake_table, window, generation)
        raise CommitUnknownError("the answer was lost")

    with pipeline_of(capture, lake) as pipeline:
        pipeline.sync_once()
        capture.append(insert(A, id=1, v="x"), COMMIT)
        with monkeypatch.context() as broken:
            broken.setattr(MemoryLakeTable, "apply", lost)
            assert pipeline.sync_once().errors
        assert not pipeline.sync_once().errors
        assert (pipeline.status().verdict, pipeline.status().tables[A.table].error) == ("idle", None)


def test_run_leaves_the_interval_between_two_merges(lake: MemoryLake, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[float] = []
    sync = LakeSide.sync

    def noted(side: LakeSide) -> CycleResult:
        started, result = time.monotonic(), sync(side)
        if result.tables:
            syncs.append(started)
        return result

    monkeypatch.setattr(LakeSide, "sync", noted)
    capture = scripted(a=1)
    pipeline = pipeline_of(capture, lake, replace(QUICK, interval_seconds=0.4))
    pipeline.sync_once()
    syncs.clear()
    with running(pipeline):
        number = 1
        while len(syncs) < 4:
            capture.append(insert(A, id=number, v="busy"), COMMIT)
            number += 1
            time.sleep(0.02)
    assert min(later - before for before, later in pairwise(syncs)) >= 0.39


def test_a_change_after_a_quiet_time_waits_for_no_interval(lake: MemoryLake) -> None:
    capture = scripted(a=1)
    pipeline = pipeline_of(capture, lake, replace(QUICK, interval_seconds=20.0))
    pipeline.sync_once()
    with running(pipeline):
        time.sleep(0.5)  # it has found nothing, and waits
        capture.append(insert(A, id=7, v="at once"), COMMIT)
        until(lambda: 7 in ids(lake, "main.a"), seconds=5.0)


class Slow(ScriptedCapture):
    """A server that is starved of processor time: each change set takes it a while, but there always is one."""

    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        for change_set in super().live(after, wait_seconds=wait_seconds):
            time.sleep(0.3)
            yield change_set


class Busy(ScriptedCapture):
    """Somebody commits faster than we read."""

    written = 1000

    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        for change_set in super().live(after, wait_seconds=wait_seconds):
            self.written += 1
            self.append(insert(A, id=self.written, v="busy"), COMMIT)
            yield change_set


class BusyWithoutEnd(Busy):
    def end(self) -> Any:
        return None


def test_a_sync_takes_everything_that_was_committed_before_it_however_slow_the_source_is(lake: MemoryLake) -> None:
    capture = Slow(snapshot={A: []})
    with pipeline_of(capture, lake) as pipeline:
        pipeline.sync_once()
        for number in range(6):
            capture.append(insert(A, id=number, v="x"), COMMIT)
        assert pipeline.sync_once().change_sets == 6
    assert ids(lake, "main.a") == set(range(6))


@pytest.mark.parametrize("kind", [Busy, BusyWithoutEnd])
def test_a_sync_of_a_source_that_is_written_to_all_the_time_ends_and_has_what_was_there_before(
    lake: MemoryLake, kind: type[Busy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_side, "_BUSY_SECONDS", 0.1)
    monkeypatch.setattr(capture_side, "_ENDLESS_SECONDS", 3.0)
    capture = kind(snapshot={A: []})
    for number in range(50):
        capture.append(insert(A, id=number, v="x"), COMMIT)
    with pipeline_of(capture, lake) as pipeline:
        pipeline.sync_once()
    assert ids(lake, "main.a") >= set(range(50))


def test_a_gap_in_what_the_capture_delivers_is_refused(lake: MemoryLake) -> None:
    class Gap(ScriptedCapture):
        def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
            for change_set in super().live(after, wait_seconds=wait_seconds):
                if len(self._log) > 1 and change_set.end == self._position(1):
                    continue
                yield change_set

    capture = Gap(snapshot={A: []})
    with pipeline_of(capture, lake) as pipeline:
        pipeline.sync_once()
        capture.append(insert(A, id=1, v="x"), COMMIT, insert(A, id=2, v="x"), COMMIT)
        with pytest.raises(JournalError, match="the change set starts at 1@0, but the journal ends at 0@0"):
            pipeline.sync_once()


def test_a_sync_applies_in_between_when_the_backlog_is_full(lake: MemoryLake) -> None:
    capture = scripted(a=1)
    with pipeline_of(capture, lake, replace(QUICK, max_backlog_bytes=1)) as pipeline:
        pipeline.sync_once()
        before = lake.commits
        for number in range(1, 4):
            capture.append(insert(A, id=number, v="x"), COMMIT)
        assert pipeline.sync_once().counts.inserted == 3
        assert lake.commits == before + 3


class Broken:
    """Applying to some tables fails, each time, until they are mended."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *tables: TableId, error: type[LakefeedError] = CommitFailedError
    ) -> None:
        self.tables = set(tables)
        apply = MemoryLakeTable.apply

        def broken(lake_table: MemoryLakeTable, window: Window, generation: int) -> Applied:
            if lake_table.route.table in self.tables:
                raise error("its directory is read-only", remedy="Make it writable.")
            return apply(lake_table, window, generation)

        monkeypatch.setattr(MemoryLakeTable, "apply", broken)
        monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.02)


FULL_AT_ONCE = replace(
    QUICK, max_backlog_bytes=20_000, journal=JournalOptions(fsync=False, keep_seconds=0, keep_change_sets=1)
)
"""Two small change sets are 16 KiB on disk, three are more than this."""


def test_a_table_that_fails_does_not_stop_the_capture_of_the_others(
    lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its changes fill the backlog: it is blocked, with reason and remedy, and the journal is trimmed to the others."""
    broken = Broken(monkeypatch, A.table)
    capture = scripted(a=1, b=1)
    pipeline = pipeline_of(capture, lake, FULL_AT_ONCE)
    pipeline.sync_once()
    with running(pipeline):
        for number in range(1, 20):
            capture.append(insert(A, id=number, v="x"), insert(B, id=number, v="x"), COMMIT)
            until(lambda number=number: number in ids(lake, "main.b"))  # type: ignore[misc]  # a default for the loop
        status = pipeline.status()
        assert (status.tables[A.table].state, status.tables[B.table].state) == ("blocked", "live")
        error, remedy = status.tables[A.table].error, status.tables[A.table].remedy
        assert error == "its directory is read-only. More than 20,000 bytes of changes waited for it: they are given up"
        assert remedy == "Make it writable. Then start the pipeline again: it copies the table again."
    with Journal.read(pipeline.root) as journal:
        assert journal.trimmed >= journal.head - 1, "what the others have is trimmed"
    broken.tables.clear()
    capture.content.rows[A.table] = [{"id": n, "v": "x"} for n in range(20)]
    with pipeline_of(capture, lake, FULL_AT_ONCE) as again:  # the remedy, as printed
        again.sync_once()
        assert again.status().tables[A.table].state == "live"
    assert ids(lake, "main.a") == set(range(20))


def test_while_no_table_can_be_written_capture_waits_and_nothing_is_given_up(
    lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lake that is down is no table's own trouble."""
    broken = Broken(monkeypatch, A.table, B.table)
    capture = scripted(a=1, b=1)
    pipeline = pipeline_of(capture, lake, FULL_AT_ONCE)
    pipeline.sync_once()
    for number in range(1, 9):
        capture.append(insert(A, id=number, v="x"), insert(B, id=number, v="x"), COMMIT)
    with running(pipeline):
        until(lambda: pipeline.status().verdict == "stalled")
        until(lambda: pipeline._opened is not None and pipeline._opened.lake.is_full)
        opened = pipeline._open()
        until(lambda: opened.errors._failed.get(A.table, (0, 0.0, False))[0] > 4)
        until(lambda: "Several tables fail, so the lake may be down" in pipeline.status().reason)
        assert {state.state for state in pipeline.status().tables.values()} == {"live"}
        assert pipeline.status().journal_head < 8
        broken.tables.clear()
        until(lambda: ids(lake, "main.a") == ids(lake, "main.b") == set(range(9)))


def test_a_table_that_fails_alone_for_long_does_not_stop_capture(
    lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other table has changes, which could show that the lake works; the next one of them must come through."""
    monkeypatch.setattr(retry, "_ALONE_SECONDS", 0.5)
    Broken(monkeypatch, A.table)
    capture = scripted(a=1, b=1)
    pipeline = pipeline_of(capture, lake, FULL_AT_ONCE)
    pipeline.sync_once()
    with running(pipeline):
        for number in range(1, 6):
            capture.append(insert(A, id=number, v="x"), COMMIT)
        capture.append(insert(B, id=7, v="x"), COMMIT)
        until(lambda: 7 in ids(lake, "main.b"))
        assert pipeline.status().tables[A.table].state == "blocked"


def test_while_a_table_that_fails_alone_holds_capture_the_status_says_for_how_long(
    lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    Broken(monkeypatch, A.table)
    capture = scripted(a=1, b=1)
    pipeline = pipeline_of(capture, lake, FULL_AT_ONCE)
    pipeline.sync_once()
    with running(pipeline):
        for number in range(1, 6):
            capture.append(insert(A, id=number, v="x"), COMMIT)
        until(lambda: "capture has stopped" in pipeline.status().reason)
        status = pipeline.status()
    assert status.verdict == "stalled"
    found = re.search(r"wait for tables .*\(main.a\): .* this table are given up in (\d+) s", status.reason)
    assert found is not None
    assert 500 < int(found[1]) <= 600


def test_an_error_that_is_the_tables_own_holds_capture_for_no_ten_minutes(
    lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    Broken(monkeypatch, A.table, error=TableStoppedError)
    capture = scripted(a=1, b=1)
    pipeline = pipeline_of(capture, lake, FULL_AT_ONCE)
    pipeline.sync_once()
    with running(pipeline):
        for number in range(1, 6):
            capture.append(insert(A, id=number, v="x"), COMMIT)
        capture.append(insert(B, id=7, v="x"), COMMIT)
        until(lambda: 7 in ids(lake, "main.b"))
        assert pipeline.status().tables[A.table].state == "blocked"


def test_what_the_source_did_is_settled_by_a_copy_at_once_each_time(lake: MemoryLake) -> None:
    """Twice the same reason, in the same words, and no change between: it has happened twice."""
    capture = scripted(a=1)
    with pipeline_of(capture, lake) as pipeline:
        pipeline.sync_once()
        for number in (2, 3):
            capture.content.rows[A.table] = [{"id": number, "v": "again"}]
            capture.append(RecopyNeeded(A.table, "its rows may be others"), COMMIT)
            pipeline.sync_once()
            assert ids(lake, "main.a") == {number}


def test_a_sync_with_a_full_backlog_goes_on_for_the_tables_that_work_or_says_why_not(
    lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Broken(monkeypatch, A.table)
    capture = scripted(a=1, b=1)
    with pipeline_of(capture, lake, FULL_AT_ONCE) as pipeline:
        pipeline.sync_once()
        for number in range(1, 9):
            capture.append(insert(A, id=number, v="x"), insert(B, id=number, v="x"), COMMIT)
        errors = pipeline.sync_once().errors
        assert [table for table in errors if "given up" in (errors[table].error or "")] == [A.table]
        assert ids(lake, "main.b") == set(range(9))
        broken.tables.add(B.table)
        for number in range(9, 14):
            capture.append(insert(B, id=number, v="x"), COMMIT)
        with pytest.raises(LakeError, match=r"capture has stopped: .* wait for tables .*\(main.b\): its dir") as raised:
            pipeline.sync_once()
        assert raised.value.remedy == "Make it writable."
        broken.tables.clear()
        pipeline.sync_once()
    assert ids(lake, "main.b") == set(range(14))


def test_a_table_that_cannot_catch_up_with_its_copy_is_copied_again_and_less_and_less_often(
    lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one without a key that is changed while it is copied: it converges as soon as nobody writes."""
    copies, apply, load = list[float](), MemoryLakeTable.apply, MemoryLakeTable.load
    capture = scripted(a=1)

    def no_overlap(lake_table: MemoryLakeTable, window: Window, generation: int) -> Applied:
        if not window.exact:
            text = f"nobody knows which of these changes the copy has, up to {window.upto}"  # another text each time
            raise RebuildNeededError(text, cause=RebuildCause.COPY)
        return apply(lake_table, window, generation)

    def load_beside_a_writer(lake_table: MemoryLakeTable, copy: TableCopy, progress: Any) -> Any:
        copies.append(time.monotonic())
        if is_written.is_set():
            number = len(copies)
            capture.content.rows[A.table].append({"id": number, "v": "x"})
            capture.append(insert(A, id=number, v="x"), COMMIT)
        return load(lake_table, copy, progress)

    is_written = threading.Event()
    is_written.set()
    monkeypatch.setattr(MemoryLakeTable, "apply", no_overlap)
    monkeypatch.setattr(MemoryLakeTable, "load", load_beside_a_writer)
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(lake_side, "_RECOPY_SECONDS", (0.8, 60.0))
    pipeline = pipeline_of(capture, lake)
    with running(pipeline):
        until(lambda: len(copies) >= 2)
        until(lambda: pipeline.status().tables[A.table].error is not None)
        until(lambda: len(copies) >= 4)
        is_written.clear()
        _, second, third = (later - before for before, later in pairwise(copies[:4]))
        assert (second >= 0.75, third >= 1.55) == (True, True), (
            "the first copy again comes at once, the next ones do not"
        )
        until(lambda: pipeline.status().verdict == "idle")
        assert (pipeline.status().tables[A.table].state, pipeline.status().tables[A.table].error) == ("live", None)
    assert ids(lake, "main.a") == set(range(len(capture.content.rows[A.table])))


class Hung(ScriptedCapture):
    """A server whose socket stays open and that answers nothing any more, not even to ``close``."""

    def __init__(self, silent: threading.Event, let_go: threading.Event) -> None:
        super().__init__(snapshot={A: [{"id": 0, "v": "x"}]}, waits=True)
        self.silent, self.let_go = silent, let_go

    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        for change_set in super().live(after, wait_seconds=wait_seconds):
            self._hang()
            yield change_set

    def close(self) -> None:
        self._hang()
        super().close()

    def lag(self) -> Lag:
        self._hang()
        return super().lag()

    def _hang(self) -> None:
        if self.silent.is_set():
            assert self.let_go.wait(60)


def test_stop_returns_in_time_and_status_answers_whatever_hangs(
    lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream, a merge, a group of chunks, maintenance and the closing of the source, all of them at once."""
    silent, lake_silent, let_go, hung = threading.Event(), threading.Event(), threading.Event(), set[str]()

    def hang(what: str) -> Callable[..., Any]:
        method = getattr(MemoryLakeTable, what)

        def hanging(lake_table: MemoryLakeTable, *arguments: Any) -> Any:
            if lake_silent.is_set():
                hung.add(what)
                assert let_go.wait(60)
            return method(lake_table, *arguments)

        return hanging

    for what in ("apply", "load", "maintain"):
        monkeypatch.setattr(MemoryLakeTable, what, hang(what))
    capture = Hung(silent, let_go)
    pipeline = pipeline_of(capture, lake, replace(QUICK, maintenance_seconds=0.05))
    pipeline.sync_once()
    thread = threading.Thread(target=pipeline.run, daemon=True)
    thread.start()
    try:
        until(lambda: pipeline.status().verdict == "idle")
        lake_silent.set()
        add_table_b(capture, 1)
        capture.append(insert(A, id=1, v="x"), COMMIT)
        until(lambda: hung == {"apply", "load", "maintain"})
        silent.set()
        started = time.monotonic()
        assert pipeline.status().lag == Lag()
        assert time.monotonic() - started < 2
        started = time.monotonic()
        pipeline.stop()
        thread.join(30)
        assert time.monotonic() - started < 10
        names = ("lakefeed-capture", "lakefeed-copies", "lakefeed-lake", "maintenance")
        assert pipeline.hanging == names
        copying = TableStates(pipeline.root).get(B.table)
    finally:
        let_go.set()
        thread.join(30)
    until(lambda: not any(one.name == "lakefeed-copies" for one in threading.enumerate()))
    assert copying is not None
    assert TableStates(pipeline.root).get(B.table) == copying, "what was left behind writes no state without the lease"
    silent.clear()
    lake_silent.clear()
    with pipeline_of(capture, lake) as again:
        again.sync_once()
    assert (ids(lake, "main.a"), ids(lake, "main.b")) == ({0, 1}, {0})


def test_the_source_is_opened_and_asked_once(lake: MemoryLake) -> None:
    capture, faults = scripted(a=1), Faults()
    with pipeline_of(FaultyCapture(capture, faults), lake) as pipeline:
        pipeline.sync_once()
    faults.counts.clear()
    with pipeline_of(FaultyCapture(capture, faults), lake) as pipeline:
        pipeline.sync_once()
        pipeline.sync_once()
    wanted: Mapping[str, int] = {"open": 1, "identity": 1, "continuity": 1, "live": 1}
    assert {name: faults.counts[name] for name in wanted} == wanted


def test_an_interrupted_sync_does_not_break_the_next_one(lake: MemoryLake) -> None:
    class CtrlC(ScriptedCapture):
        interrupts = 0

        def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
            for change_set in super().live(after, wait_seconds=wait_seconds):
                if self.interrupts:
                    self.interrupts -= 1
                    raise KeyboardInterrupt
                yield change_set

    capture = CtrlC(snapshot={A: []})
    with pipeline_of(capture, lake) as pipeline:
        pipeline.sync_once()
        capture.append(insert(A, id=1, v="x"), COMMIT)
        capture.interrupts = 1
        with pytest.raises(KeyboardInterrupt):
            pipeline.sync_once()
        pipeline.sync_once()
    assert ids(lake, "main.a") == {1}


def test_a_plan_that_ends_while_a_trim_counts_keeps_its_change_sets(
    lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base is chosen, the stream moves on, the trim takes its number, the plan is durable, the trim goes on."""
    capture = scripted(a=1)
    capturing = capture.snapshot
    has_base, may_plan = threading.Event(), threading.Event()

    def snapshot(table: TableId, *, chunk_rows: int = 250_000) -> SnapshotPlan:
        has_base.set()
        assert may_plan.wait(30)
        return capturing(table, chunk_rows=chunk_rows)

    complete = LakeSide._complete_everywhere

    def slowly_complete(self: LakeSide) -> int:
        number = complete(self)
        may_plan.set()
        planning.join(30)
        return number

    options = replace(QUICK, journal=JournalOptions(fsync=False, keep_seconds=0, keep_change_sets=0))
    with pipeline_of(capture, lake, options) as pipeline:
        pipeline.sync_once()
        opened = pipeline._open()
        add_table_b(capture, rows=3)
        monkeypatch.setattr(capture, "snapshot", snapshot)
        planning = threading.Thread(target=opened.copies.enrol)
        planning.start()
        assert has_base.wait(30)
        for number in range(100, 110):
            capture.append(insert(A, id=number, v="x"), COMMIT)
            opened.capture.drain()
        opened.lake.sync()
        monkeypatch.setattr(LakeSide, "_complete_everywhere", slowly_complete)
        opened.lake.trim()
        may_plan.set()
        planning.join(30)
        assert opened.journal.trimmed <= TableStates(pipeline.root).all()[B.table].base
        pipeline.sync_once()
        assert ids(lake, "main.b") == {0, 1, 2}


def test_a_table_that_is_dropped_stops_no_other_although_the_configuration_names_it(
    tmp_path: Path, lake: MemoryLake
) -> None:
    """It used to end ``run`` with "the table pattern 'b' matches no table"."""
    with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as database:
        for name in ("a", "b"):
            database.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, v TEXT)")
            database.execute(f"INSERT INTO {name} VALUES (1, 'x')")
        pipeline = Pipeline(Sqlite(tmp_path / "s.db", tables=["a", "b"]), lake, name="p", options=QUICK)
        with running(pipeline):
            until(lambda: ids(lake, "main.a") == ids(lake, "main.b") == {1})
            database.execute("DROP TABLE b")
            until(lambda: TableStates(pipeline.root).all()[B.table].phase is Phase.DROPPED)
            time.sleep(0.2)  # some more discoveries
            database.execute("INSERT INTO a VALUES (2, 'y')")
            until(lambda: ids(lake, "main.a") == {1, 2})
            database.execute("CREATE TABLE b (id INTEGER PRIMARY KEY, v TEXT)")
            database.execute("INSERT INTO b VALUES (7, 'again')")
            until(lambda: ids(lake, "main.b") == {7})


def test_a_source_that_cannot_be_closed_is_opened_again_all_the_same(lake: MemoryLake) -> None:
    """The error of closing took the place of the one that is tried again, and ended ``run``."""
    capture, faults = scripted(a=1), Faults()
    with running(pipeline_of(FaultyCapture(capture, faults), lake)):
        until(lambda: ids(lake, "main.a") == {0})
        faults.add(Fault("close"))
        faults.add(Fault("next"))
        until(lambda: faults.counts["open"] > 1)
        capture.append(insert(A, id=5, v="x"), COMMIT)
        until(lambda: ids(lake, "main.a") == {0, 5})


def test_all_notices_of_a_change_set_about_one_table_count(lake: MemoryLake) -> None:
    """Only the first did: a table that was blocked and put right again within one change set stayed blocked."""
    capture = scripted(a=1)
    with pipeline_of(capture, lake) as pipeline:
        pipeline.sync_once()
        states = TableStates(pipeline.root)
        commit = pipeline._open().journal.commit(pipeline._open().journal.head)
        notices = (TableBlocked(A.table, "no key", "give it one"), RecopyNeeded(A.table, "it has a key again"))
        states.act_on(replace(commit, notices=notices))
        assert states.all()[A.table].phase is Phase.STAGED
        staged = states.all()[A.table]
        states.act_on(replace(commit, notices=notices))
        assert states.all()[A.table] == staged  # a start may repeat it


class Unreadable:
    """What one lake table records cannot be read, each time, until it is mended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *tables: TableId) -> None:
        self.tables = set(tables)
        applied = MemoryLakeTable.applied

        def unreadable(lake_table: MemoryLakeTable, generation: int) -> Applied | None:
            if lake_table.route.table in self.tables:
                raise error
            return applied(lake_table, generation)

        error: Exception = OSError("its log is damaged")
        monkeypatch.setattr(MemoryLakeTable, "applied", unreadable)
        monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.02)


def test_a_lake_table_that_cannot_be_read_at_the_start_does_not_keep_the_others_from_starting(
    lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the start nor the status fails for its sake, and it goes on once it can be read again."""
    capture = scripted(a=1, b=1)
    with pipeline_of(capture, lake) as pipeline:
        pipeline.sync_once()
    generation = lake.tables[A.table].generation
    broken = Unreadable(monkeypatch, A.table)
    pipeline = pipeline_of(capture, lake)
    with running(pipeline):
        capture.append(insert(A, id=7, v="x"), insert(B, id=7, v="x"), COMMIT)
        until(lambda: 7 in ids(lake, "main.b"))
        until(lambda: pipeline.status().verdict == "stalled")
        status = pipeline.status()
        assert "its log is damaged" in (status.tables[A.table].error or "")
        assert status.tables[B.table].error is None
        broken.tables.clear()
        until(lambda: 7 in ids(lake, "main.a"))
    assert lake.tables[A.table].generation == generation, "it is not copied again for that"


def test_while_a_long_copy_holds_capture_the_status_says_so(lake: MemoryLake, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = scripted(a=1)
    pipeline = pipeline_of(capture, lake, FULL_AT_ONCE)
    pipeline.sync_once()
    held = HeldLoads(monkeypatch, B.table)
    add_table_b(capture, 3)
    try:
        with running(pipeline):
            assert held.begun.wait(30)
            for number in range(1, 9):
                capture.append(insert(A, id=number, v="x"), COMMIT)
            until(lambda: "capture waits" in pipeline.status().reason)
            assert pipeline.status().verdict == "healthy"
            held.go_on.set()
            until(lambda: ids(lake, "main.a") == set(range(9)))
            until(lambda: "capture waits" not in pipeline.status().reason)
    finally:
        held.go_on.set()

"""What a running pipeline counts of itself, and questions that may never be answered."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefeed import Pipeline, PipelineOptions
from lakefeed.capture.base import Lag
from lakefeed.change.segment import Counts
from lakefeed.change.table import TableId
from lakefeed.errors import SourceUnavailableError
from lakefeed.flow.report import answer
from lakefeed.flow.report.activity import HISTORY_STEPS, STEP_SECONDS, Activity
from lakefeed.flow.report.answer import Asker
from lakefeed.flow.report.listener import Listener, Listeners
from lakefeed.flow.report.verified import Verified, load_verified, save_verified
from lakefeed.flow.result import CycleResult
from lakefeed.flow.status import CopyProgress, Liveness
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.base import Applied, TableResult
from lakefeed.testing.builders import table
from lakefeed.testing.memory_lake import MemoryLake, MemoryLakeTable
from lakefeed.testing.scripted import COMMIT, ScriptedCapture, insert

A, T = table("main.a", {"id": pa.int64()}, key=("id",)), TableId("main", "a")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def cycle(inserted: int, table: TableId = T) -> CycleResult:
    counts = Counts(inserted=inserted)
    return CycleResult(counts=counts, tables={table: TableResult(applied=1, counts=counts)}, seconds=0.5)


def test_rates_are_means_over_the_last_minute() -> None:
    clock = Clock()
    activity = Activity(clock)
    clock.now += 120
    activity.applied(cycle(600))
    assert activity.report()["tables"]["main.a"]["rows_per_second"] == 10.0
    clock.now += 70
    assert activity.report()["tables"]["main.a"]["rows_per_second"] == 0.0
    assert activity.report()["tables"]["main.a"]["inserted"] == 600, "a total never goes down"


def test_the_history_has_a_number_for_each_step_of_the_last_hour_and_no_more() -> None:
    clock = Clock()
    activity = Activity(clock)
    activity.applied(cycle(5))
    clock.now += 3 * STEP_SECONDS
    activity.applied(cycle(7))
    activity.waiting(4096, 2.25)
    history = activity.report()["history"]
    assert history["applied"] == [5, 0, 0, 7]
    assert history["lag_seconds"] == [0.0, 0.0, 0.0, 2.2]
    assert history["until"] == (int(clock.now) // STEP_SECONDS + 1) * STEP_SECONDS
    clock.now += 2 * HISTORY_STEPS * STEP_SECONDS
    activity.applied(cycle(1))
    history = activity.report()["history"]
    assert (len(history["applied"]), sum(history["applied"])) == (HISTORY_STEPS, 1)


def test_a_clock_that_is_set_back_does_not_break_the_history() -> None:
    clock = Clock()
    activity = Activity(clock)
    activity.applied(cycle(5))
    clock.now -= 500
    activity.applied(cycle(6))
    assert activity.report()["history"]["applied"] == [11]


def test_rows_of_a_copy_are_copied_and_not_applied() -> None:
    clock = Clock()
    activity = Activity(clock)
    activity.snapshot_started(T, 1_000)
    activity.snapshot_progress(T, 250)
    clock.now += 10
    report = activity.report()["tables"]["main.a"]
    assert report["copy"] == {"rows": 250, "rows_estimate": 1_000, "began": clock.now - 10}
    progress = CopyProgress.of(report["copy"], clock.now)
    assert (progress.share, progress.seconds_left) == (0.25, 30.0)
    activity.snapshot_progress(T, 750)
    activity.snapshot_done(T, 1_000, 12.0)
    activity.applied(cycle(1_003))  # its copy, and three changes
    done = activity.report()["tables"]["main.a"]
    assert (done["copied"], done["inserted"], "copy" in done) == (1_000, 3, False)


def test_a_copy_that_has_more_rows_than_estimated_is_never_over_by_itself() -> None:
    progress = CopyProgress.of({"rows": 1_200, "rows_estimate": 1_000, "began": 1.0}, 11.0)
    assert (progress.share, progress.seconds_left) == (0.99, 0.0)
    unknown = CopyProgress.of({"rows": 5, "rows_estimate": 0, "began": 1.0}, 11.0)
    assert (unknown.share, unknown.seconds_left) == (None, None)


def test_an_error_that_comes_again_is_one_error_with_a_count() -> None:
    clock = Clock()
    activity = Activity(clock)
    for _ in range(3):
        activity.retrying(SourceUnavailableError("the server is away", remedy="Start it."), 1.0)
    activity.table_error(T, "no room", "Free space.")
    for number in range(50):
        activity.table_error(T, f"error {number}", "")
    activity.retrying(ValueError("odd"), 1.0)
    report = activity.report()
    assert report["retries"] == 4
    assert len(report["errors"]) == 20
    assert report["errors"][-1]["error"] == "odd"


def test_several_may_ask_the_same_at_the_same_time() -> None:
    asker, both = Asker(), threading.Barrier(2, timeout=10)
    first, second = asker.begin({"status": both.wait}), asker.begin({"status": both.wait})
    until = time.monotonic() + 10
    answers = [first.answers(until)["status"], second.answers(until)["status"]]
    assert sorted(map(str, answers)) == ["0", "1"]


def test_a_question_that_hangs_is_not_waited_for_and_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asker, free, asked = Asker(), threading.Event(), list[int]()

    def hang() -> int:
        asked.append(1)
        free.wait(30)
        return 1

    def fail() -> int:
        raise ZeroDivisionError

    began = time.monotonic()
    answers = asker.begin({"hangs": hang, "fails": fail, "works": lambda: 7}).answers(began + 0.2)
    assert time.monotonic() - began < 1
    assert answers["works"] == 7
    assert isinstance(answers["fails"], ZeroDivisionError)
    assert "hangs" not in answers
    monkeypatch.setattr(answer, "_HANGS_SECONDS", 0.1)
    for _ in range(5):
        assert asker.begin({"hangs": hang}).answers(time.monotonic() + 0.1) == {}
    assert asked == [1]
    free.set()
    until = time.monotonic() + 10
    while asker.begin({"hangs": hang}).answers(until) != {"hangs": 1}:
        assert time.monotonic() < until


def test_one_question_that_hangs_does_not_keep_hundreds_of_others_from_being_answered() -> None:
    asker, free = Asker(), threading.Event()
    questions: dict[int, Any] = {number: (lambda number=number: number) for number in range(300)}
    questions[7] = lambda: free.wait(30)
    answers = asker.begin(questions).answers(time.monotonic() + 1)
    assert set(answers) == set(range(300)) - {7}
    free.set()


@pytest.fixture
def capture() -> ScriptedCapture:
    return ScriptedCapture(snapshot={A: [{"id": 1}]}, waits=True)


@pytest.fixture
def pipeline(tmp_path: Path, capture: ScriptedCapture) -> Any:
    source = type("One", (), {"bind": lambda self, pipeline: capture})()
    options = PipelineOptions(journal=JournalOptions(fsync=False))
    with Pipeline(source, MemoryLake(str(tmp_path)), name="p", options=options) as made:
        yield made


def test_status_has_what_each_table_has_not_got_yet_in_rows_bytes_and_seconds(
    pipeline: Pipeline, capture: ScriptedCapture
) -> None:
    capture.append(insert(A, id=2), COMMIT)
    pipeline.sync_once()
    found = pipeline.status().tables[T]
    assert (found.lag_rows, found.lag_bytes, found.lag_seconds) == (0, 0, 0.0)
    capture.append(insert(A, id=3), insert(A, id=4), COMMIT)
    opened = pipeline._open()
    opened.capture.drain()
    time.sleep(0.05)
    found = pipeline.status().tables[T]
    assert found.lag_rows == 2
    assert (found.lag_bytes or 0) > 0
    assert found.lag_seconds is not None
    assert found.lag_seconds > 0
    waiting, seconds = opened.lake.backlog()
    assert waiting > 0
    assert seconds > 0
    pipeline.sync_once()
    assert pipeline.status().tables[T].lag_rows == 0


def test_the_running_process_reports_its_activity_for_others(pipeline: Pipeline, capture: ScriptedCapture) -> None:
    capture.append(insert(A, id=2), COMMIT)
    pipeline.sync_once()
    pipeline._open().report_now()
    activity = Liveness.read(pipeline.root).activity
    assert activity["captured"]["rows"] == 1
    assert activity["tables"]["main.a"]["inserted"] == 1
    found = pipeline.status()
    assert found.activity["cycles"] == 1
    assert found.reported_at == pytest.approx(time.time(), abs=30)
    assert found.tables[T].rows_per_second > 0


def test_a_source_that_hangs_leaves_the_lag_unknown_and_the_status_within_two_seconds(
    pipeline: Pipeline, capture: ScriptedCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.sync_once()
    free = threading.Event()

    def hang(self: ScriptedCapture) -> Lag:
        free.wait(60)
        return Lag()

    monkeypatch.setattr(ScriptedCapture, "lag", hang)
    for _ in range(2):
        began = time.monotonic()
        found = pipeline.status()
        assert time.monotonic() - began < 2
        assert found.unanswered == ("source",)
        assert found.tables[T].applied is not None, "the lake has answered"
    free.set()


def test_a_lake_table_that_hangs_leaves_the_others_and_the_status_within_two_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = table("main.b", {"id": pa.int64()}, key=("id",))
    both = ScriptedCapture(snapshot={A: [{"id": 1}], other: [{"id": 1}]}, waits=True)
    source = type("One", (), {"bind": lambda self, pipeline: both})()
    free, applied = threading.Event(), MemoryLakeTable.applied

    def hang(self: MemoryLakeTable, generation: int) -> Applied | None:
        if self.route.table == T:
            free.wait(60)
        return applied(self, generation)

    with Pipeline(source, MemoryLake(str(tmp_path)), name="p") as pipeline:
        pipeline.sync_once()
        monkeypatch.setattr(MemoryLakeTable, "applied", hang)
        for _ in range(2):
            began = time.monotonic()
            found = pipeline.status()
            assert time.monotonic() - began < 2
            assert found.unanswered == ("main.a",)
            assert found.tables[T].applied is None
            assert "did not answer in time" in (found.tables[T].reason or "")
            assert found.tables[other.table].applied is not None
        free.set()


def test_a_state_directory_that_hangs_is_the_verdict_within_two_seconds(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.sync_once()
    free, read = threading.Event(), Liveness.read

    def hang(root: Path) -> Liveness:
        free.wait(60)
        return read(root)

    monkeypatch.setattr(Liveness, "read", hang)
    began = time.monotonic()
    found = pipeline.status()
    assert time.monotonic() - began < 2
    assert (found.verdict, found.unanswered) == ("stalled", ("state directory",))
    assert str(pipeline.root) in found.reason
    free.set()


def test_what_a_verification_found_is_kept_table_by_table(tmp_path: Path) -> None:
    other = TableId("main", "b")
    save_verified(tmp_path, {T: Verified(at=1.0, equal=True), other: Verified(at=1.0, equal=True)})
    save_verified(tmp_path, {T: Verified(at=2.0, equal=False, difference="1 row is missing")})
    kept = load_verified(tmp_path)
    assert (kept[T].equal, kept[T].difference, kept[other].at) == (False, "1 row is missing", 1.0)
    (tmp_path / "verified.json").write_text("{")
    assert load_verified(tmp_path) == {}


def test_several_listeners_each_get_everything_that_one_would_get() -> None:
    reports = {name for name in vars(Listener) if not name.startswith("_")}
    assert reports <= vars(Listeners).keys(), "a report that nobody hands on reaches nobody"

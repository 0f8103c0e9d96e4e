"""What ``status`` says of a process that lives, one that hangs, and one whose disk is full; and the guard of states."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefeed import Pipeline, PipelineOptions
from lakefeed.capture.base import Lag
from lakefeed.errors import JournalFullError, LeaseError, SourceUnavailableError, StateError
from lakefeed.flow import lake_side
from lakefeed.flow.status import STALE_SECONDS, Liveness, read_status
from lakefeed.flow.table_state import Phase, TableStates
from lakefeed.journal.lease import Lease
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.base import Applied
from lakefeed.lake.route import Route
from lakefeed.testing.builders import table
from lakefeed.testing.memory_lake import MemoryLake, MemoryLakeTable
from lakefeed.testing.scripted import COMMIT, ScriptedCapture, insert

A = table("main.a", {"id": pa.int64()}, key=("id",))


class Source:
    def bind(self, pipeline: str) -> ScriptedCapture:
        return ScriptedCapture(snapshot={A: [{"id": 1}]}, waits=True)


@pytest.fixture
def pipeline(tmp_path: Path) -> Any:
    options = PipelineOptions(journal=JournalOptions(fsync=False))
    with Pipeline(Source(), MemoryLake(str(tmp_path)), name="p", options=options) as made:
        yield made


def verdict(pipeline: Pipeline, later: float) -> tuple[str, str]:
    found = read_status(pipeline.root, MemoryLake(str(pipeline.root)), Lag(), now=time.time() + later)
    return found.verdict, found.reason


def test_a_process_that_has_not_reported_for_a_minute_is_stalled(pipeline: Pipeline) -> None:
    pipeline.sync_once()
    assert verdict(pipeline, STALE_SECONDS - 5)[0] in ("idle", "healthy")
    assert verdict(pipeline, STALE_SECONDS + 5)[0] == "stalled"


def test_the_silence_of_a_process_that_has_never_reported_counts_from_its_start(pipeline: Pipeline) -> None:
    pipeline.sync_once()
    (pipeline.root / "liveness.json").unlink()
    found, reason = verdict(pipeline, 70)
    assert found == "stalled"
    seconds = int(reason.removesuffix(" s").rpartition(" ")[2])
    assert 65 <= seconds <= 100


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"at": 1}'])
def test_a_liveness_file_that_is_torn_does_not_break_the_status(pipeline: Pipeline, content: bytes) -> None:
    pipeline.sync_once()
    (pipeline.root / "liveness.json").write_bytes(content)
    assert pipeline.status().verdict in ("idle", "healthy")


def test_a_full_disk_is_reported_by_writing_over_the_last_report(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes, **_: object) -> None:
        raise JournalFullError(f"no room left to write {path}")

    pipeline.sync_once()
    pipeline.close()
    monkeypatch.setattr("lakefeed.storage.local.replace_file", full)
    Liveness(at=time.time(), error="no room left", remedy="Free space.").write(pipeline.root)
    assert (pipeline.status().verdict, pipeline.status().reason) == ("stalled", "no room left")
    Liveness(at=time.time()).write(pipeline.root)
    assert pipeline.status().verdict == "stopped", "a shorter report leaves nothing of the longer one"


def test_the_first_start_on_a_full_disk_is_a_sentence(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Lease, "acquire", full)
    with pytest.raises(JournalFullError, match=r"p cannot be written: No space left on device") as refused:
        pipeline.sync_once()
    assert "Free space" in refused.value.remedy
    assert pipeline.status().verdict == "stalled"


def test_what_a_crash_left_half_written_is_removed_at_the_next_start(pipeline: Pipeline) -> None:
    pipeline.sync_once()
    pipeline.close()
    litter = [pipeline.root / ".liveness.json.1-ab.tmp", pipeline.root / "tables" / ".main.a.json.1-cd.tmp"]
    for path in litter:
        path.touch()
    pipeline.sync_once()
    assert not any(path.exists() for path in litter)


def test_a_copy_reports_that_the_process_is_alive(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[float] = []
    monkeypatch.setattr(Liveness, "write", lambda report, root: reports.append(report.at))
    monkeypatch.setattr(pipeline, "_cycle", lambda opened: (opened.copies.enrol(), opened.copies.load(), 1 / 0))
    with pytest.raises(ZeroDivisionError):
        pipeline.sync_once()
    assert reports


def test_a_state_that_another_thread_has_changed_is_not_written_over(tmp_path: Path) -> None:
    states = TableStates(tmp_path)
    seen = states.stage(Route.same(A.table), reason="new")
    assert states.update_if(seen, phase=Phase.COPYING)
    assert not states.update_if(seen, phase=Phase.LIVE), "the phase is another one"
    assert not states.stage_if(seen, reason="no")
    copying = states.all()[A.table]
    again = states.stage(Route.same(A.table), reason="again")
    assert again.generation > copying.generation
    states.update(A.table, phase=Phase.COPYING)
    assert not states.update_if(copying, phase=Phase.LIVE), "the generation is another one"
    assert TableStates(tmp_path).all()[A.table].phase is Phase.COPYING
    assert states.stage_if(states.all()[A.table], reason="yes")
    before = states.all()[A.table]
    states.close()
    with pytest.raises(StateError, match=r"the pipeline is closed, so the state of main\.a is no longer written"):
        states.update(A.table, phase=Phase.LIVE)
    assert TableStates(tmp_path).all()[A.table] == before, "a thread that was left behind has no lease any more"


def test_a_source_that_is_away_at_the_first_start_is_in_the_status(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(capture: ScriptedCapture) -> None:
        raise SourceUnavailableError("the server is away")

    monkeypatch.setattr(ScriptedCapture, "open", away)
    with pytest.raises(SourceUnavailableError):
        pipeline.sync_once()
    assert (pipeline.status().verdict, pipeline.status().reason) == ("stalled", "the server is away")


def test_a_second_process_that_is_refused_leaves_the_status_of_the_first_alone(pipeline: Pipeline) -> None:
    pipeline.sync_once()
    second = Pipeline(Source(), MemoryLake(str(pipeline.root.parents[1])), name="p")
    for refused in (second.sync_once, second.run):
        with pytest.raises(LeaseError):
            refused()
    assert pipeline.status().verdict in ("idle", "healthy")


def test_a_trim_while_the_status_is_read_does_not_break_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader loads commit files when they are needed; by then the running process may have trimmed them."""
    quiet = table("main.quiet", {"id": pa.int64()}, key=("id",))  # what it has was applied long ago
    capture = ScriptedCapture(snapshot={A: [{"id": 1}], quiet: [{"id": 1}]}, waits=True)
    lake = MemoryLake(str(tmp_path))
    source = type("One", (), {"bind": lambda self, pipeline: capture})()
    options = PipelineOptions(journal=JournalOptions(fsync=False, keep_seconds=0, keep_change_sets=0))
    with (
        Pipeline(source, lake, name="p", options=options) as pipeline,
        Pipeline(Source(), lake, name="p", options=options) as reader,
    ):
        for number in range(2, 12):
            capture.append(insert(A, id=number), COMMIT)
            pipeline.sync_once()
        applied, trimmed = MemoryLakeTable.applied, threading.Event()

        def applied_and_trimmed(self: MemoryLakeTable, generation: int) -> Applied | None:
            found = applied(self, generation)
            if not trimmed.is_set():
                trimmed.set()
                with monkeypatch.context() as patch:
                    patch.setattr(lake_side, "TRIM_EVERY", 1)
                    pipeline.sync_once()
            return found

        monkeypatch.setattr(MemoryLakeTable, "applied", applied_and_trimmed)
        found = reader.status()
        assert found.journal_head == 10
        assert found.tables[A.table].applied == 10


def test_applied_never_goes_down_when_an_idle_table_gets_changes(tmp_path: Path) -> None:
    busy = table("main.busy", {"id": pa.int64()}, key=("id",))
    capture = ScriptedCapture(snapshot={A: [{"id": 1}], busy: [{"id": 1}]}, waits=True)
    lake = MemoryLake(str(tmp_path))
    source = type("One", (), {"bind": lambda self, pipeline: capture})()
    options = PipelineOptions(journal=JournalOptions(fsync=False))
    with Pipeline(source, lake, name="p", options=options) as pipeline:
        pipeline.sync_once()
        for number in range(2, 6):
            capture.append(insert(busy, id=number), COMMIT)
            pipeline.sync_once()
        before = pipeline.status()
        assert before.tables[A.table].applied == before.journal_head, "nothing of it is missing"
        assert before.tables[A.table].age_seconds is None, "it never had a change"
        assert before.tables[busy.table].age_seconds is not None
        capture.append(insert(A, id=2), COMMIT)
        pipeline.sync_once(tables=["busy"])  # the change is in the journal, and not in the lake
        after = pipeline.status()
        assert after.journal_head > before.journal_head
        assert after.tables[A.table].applied == before.tables[A.table].applied
        pipeline.sync_once()
        assert pipeline.status().tables[A.table].applied == after.journal_head


def test_the_age_is_the_one_of_the_newest_change_that_is_in_the_lake(tmp_path: Path) -> None:
    capture = ScriptedCapture(snapshot={A: [{"id": 1}]}, waits=True)
    source = type("One", (), {"bind": lambda self, pipeline: capture})()
    with Pipeline(source, MemoryLake(str(tmp_path)), name="p") as pipeline:
        capture.append(insert(A, id=2), COMMIT)
        pipeline.sync_once()
        first = pipeline.status()
        assert first.age_seconds is not None
        assert first.age_seconds == first.tables[A.table].age_seconds
        later = read_status(pipeline.root, MemoryLake(str(tmp_path)), Lag(), now=time.time() + 1000)
    (status,) = later.tables.values()
    assert status.applied is None or (status.age_seconds or 0) > first.age_seconds


def test_the_last_error_stays_with_its_remedy_until_a_sync_works(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(capture: ScriptedCapture) -> None:
        raise SourceUnavailableError("the server is away", remedy="Start it.")

    def bug(capture: ScriptedCapture) -> None:
        raise ZeroDivisionError("a bug")

    for broken, expected in ((away, "the server is away"), (bug, "ZeroDivisionError: a bug")):
        with monkeypatch.context() as patch:
            patch.setattr(ScriptedCapture, "open", broken)
            with pytest.raises((SourceUnavailableError, ZeroDivisionError)):
                pipeline.sync_once()
        found = pipeline.status()
        assert (found.verdict, found.reason) == ("stalled", expected)
        assert found.remedy == ("Start it." if broken is away else None)
        assert expected in verdict(pipeline, STALE_SECONDS + 5)[1], "also when it is long ago"
    pipeline.sync_once()
    assert pipeline.status().remedy is None
    pipeline.close()
    assert "the last error" not in pipeline.status().reason

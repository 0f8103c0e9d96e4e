"""C1 to C20 and C34: how a runtime starts."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from lakefeed.capture.base import ChangeCapture
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Custom, SqliteSequence
from lakefeed.embed.checkpoint import Checkpoint
from lakefeed.embed.feed import Pulled
from lakefeed.embed.options import IncrementalSnapshot, RuntimeOptions, RuntimeState
from lakefeed.embed.progress import SNAPSHOT, Progress
from lakefeed.embed.runtime import Runtime
from lakefeed.embed.store import MemoryCheckpointStore
from lakefeed.errors import (
    CheckpointError,
    ConfigError,
    PositionLostError,
    SourceChangedError,
    SourceUnavailableError,
    StateError,
)
from lakefeed.testing.builders import at, table
from lakefeed.testing.faulty import Fault, Faults, FaultyCapture, FaultyStore
from lakefeed.testing.runtime_contract import PEOPLE, ids, take_all, transactions
from lakefeed.testing.scripted import EVERYTHING, ScriptedCapture

KEY = "shop"
ROWS = [{"id": number, "name": "old"} for number in (1, 2, 3)]
TABLES = (PEOPLE.table,)
COPY = RuntimeOptions(snapshot_tables=TABLES, chunk_rows=1, wait_seconds=0)
BESIDE = RuntimeOptions(incremental=IncrementalSnapshot(tables=TABLES), chunk_rows=1, wait_seconds=0)
STREAM = RuntimeOptions(wait_seconds=0)


class Tracing:
    """A tracer that keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, ...]] = []

    def checkpoint_barrier(self, state: str) -> None:
        self.seen.append(("barrier", state))

    def event_end(self, event: str, outcome: str) -> None:
        self.seen.append((event, outcome))


def scripted(*numbers: int) -> ScriptedCapture:
    return ScriptedCapture(transactions(*numbers), snapshot={PEOPLE: ROWS})


def in_snapshot(
    chunks: int = 1, capture: ScriptedCapture | None = None
) -> tuple[ScriptedCapture, MemoryCheckpointStore]:
    """A source and a store, after ``chunks`` of three chunks were committed."""
    source, store = capture or scripted(8, 9), MemoryCheckpointStore()
    runtime = Runtime(source, store, key=KEY, options=COPY)
    runtime.start()
    for _ in range(chunks):
        delivery = runtime.poll()
        assert delivery is not None
        runtime.commit(delivery.token)
    runtime.force_stop()
    return source, store


def test_c01_a_runtime_is_idle_then_running_then_stopped_and_runs_again() -> None:
    runtime = Runtime(scripted(1), MemoryCheckpointStore(), key=KEY, options=STREAM)
    states = [runtime.state]
    for step in (runtime.start, runtime.stop, runtime.start, runtime.stop):
        step()
        states.append(runtime.state)
    running, stopped = RuntimeState.RUNNING, RuntimeState.STOPPED
    assert states == [RuntimeState.IDLE, running, stopped, running, stopped]


def test_c02_a_running_runtime_is_not_started_again() -> None:
    runtime = Runtime(scripted(), MemoryCheckpointStore(), key=KEY)
    runtime.start()
    with pytest.raises(StateError, match=r"^runtime already started$"):
        runtime.start()
    assert runtime.errors.tags() == ("runtime.start.state",)
    assert runtime.state is RuntimeState.RUNNING


def test_c03_a_stopping_runtime_is_not_started() -> None:
    class Restarting(ScriptedCapture):
        def close(self) -> None:
            super().close()
            with pytest.raises(StateError, match=r"^runtime is currently stopping$"):
                runtime.start()

    runtime = Runtime(Restarting(), MemoryCheckpointStore(), key=KEY)
    runtime.start()
    runtime.stop()
    assert runtime.errors.tags() == ("runtime.start.state",)


def test_c04_a_missing_schema_history_retention_is_said_loudly_and_does_not_stop_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        Runtime(scripted(), MemoryCheckpointStore(), key=KEY).start()
        assert caplog.text == ""
        options = RuntimeOptions(schema_history_retention=None)
        runtime = Runtime(scripted(), MemoryCheckpointStore(), key=KEY, options=options)
        runtime.start()
    assert "schema history will grow unboundedly" in caplog.text
    assert runtime.state is RuntimeState.RUNNING


def test_c05_the_committed_count_is_read_first_and_its_failure_is_tagged() -> None:
    calls = Faults()
    store = FaultyStore(MemoryCheckpointStore(), Faults(Fault("load", error=lambda: CheckpointError("torn"))))
    runtime = Runtime(FaultyCapture(scripted(), calls), store, key=KEY)
    with pytest.raises(CheckpointError, match="torn"):
        runtime.start()
    assert runtime.errors.tags() == ("runtime.start.committed_count",)
    assert (runtime.state, calls.calls) == (RuntimeState.IDLE, [])


def test_c06_the_barrier_is_hydrated_with_the_count_and_refuses_while_records_are_pending() -> None:
    store = MemoryCheckpointStore()
    store.save(KEY, Checkpoint.from_position(at(0), committed=41))
    runtime = Runtime(None, store, key=KEY)
    token = runtime.barrier.open([Pulled(Progress(at(1)), ChangeSet(None, at(1), rows=1))])
    with pytest.raises(StateError, match="pending"):
        runtime.start()
    assert runtime.errors.tags() == ("runtime.start.barrier_hydrate",)
    assert runtime.state is RuntimeState.IDLE
    runtime.barrier.accept(token, None, lambda _step, _committed: None)
    runtime.start()
    assert runtime.barrier.committed == 41


def test_c07_a_disabled_source_runs_without_any_connection_and_opens_the_barrier() -> None:
    tracer = Tracing()
    # Options that no source could start with: none of them is looked at.
    options = replace(BESIDE, snapshot_tables=TABLES)
    runtime = Runtime(None, MemoryCheckpointStore(), key=KEY, options=options, tracer=tracer)
    runtime.start()
    assert runtime.state is RuntimeState.RUNNING
    assert tracer.seen == [("barrier", "open")]
    assert runtime.poll() is None


def test_c07_a_disabled_source_commits_what_the_embedder_injects() -> None:
    store = MemoryCheckpointStore()
    runtime = Runtime(None, store, key=KEY)
    runtime.start()
    runtime.inject(ChangeSet(None, at(7), rows=3))
    delivery = runtime.poll()
    assert delivery is not None
    runtime.commit(delivery.token)
    saved = store.load(KEY)
    assert saved is not None
    assert (saved.decoded, saved.committed) == (at(7), 3)


def test_c08_both_ways_to_copy_tables_are_refused_before_connecting() -> None:
    calls = Faults()
    options = replace(BESIDE, snapshot_tables=TABLES)
    runtime = Runtime(FaultyCapture(scripted(), calls), MemoryCheckpointStore(), key=KEY, options=options)
    with pytest.raises(ConfigError) as caught:
        runtime.start()
    assert caught.value.message == (
        "cannot configure both snapshot_tables and incremental_snapshot; choose one startup mode"
    )
    assert "open" not in calls.calls


def test_c09_a_checkpoint_that_cannot_be_loaded_is_never_taken_for_none() -> None:
    source, store = in_snapshot()
    faulty = FaultyStore(store, Faults(Fault("load", nth=2, error=lambda: CheckpointError("torn"))))
    runtime = Runtime(source, faulty, key=KEY, options=COPY)
    with pytest.raises(CheckpointError, match="torn"):
        runtime.start()
    assert (runtime.state, source.is_open) == (RuntimeState.IDLE, False)


def test_c10_a_checkpoint_is_of_a_snapshot_by_its_source_type_alone() -> None:
    _, store = in_snapshot()
    saved = store.load(KEY)
    assert saved is not None
    assert saved.source_type == "sqlite_snapshot"
    stream = replace(saved, source_type="sqlite")
    again = MemoryCheckpointStore()
    again.save(KEY, stream)
    source = scripted(8)
    source.open()
    source.prepare(TABLES)
    runtime = Runtime(source, again, key=KEY, options=COPY)
    runtime.start()
    assert runtime.handoff_complete
    assert take_all(runtime) == [8]


def test_c10_a_checkpoint_of_another_kind_of_source_is_refused() -> None:
    store = MemoryCheckpointStore()
    store.save(KEY, Checkpoint.postgres_lsn(5))
    with pytest.raises(SourceChangedError, match="belongs to a postgres source"):
        Runtime(scripted(), store, key=KEY).start()


def test_c11_an_incremental_start_does_not_resume_a_snapshot_checkpoint() -> None:
    source, store = in_snapshot()
    with pytest.raises(ConfigError) as caught:
        Runtime(source, store, key=KEY, options=BESIDE).start()
    assert caught.value.message == "cannot resume incremental snapshot startup from a snapshot checkpoint"


def test_c12_without_the_capability_the_snapshot_starts_from_scratch_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, store = in_snapshot(chunks=2)
    source.capabilities = replace(EVERYTHING, snapshot_resume=False)
    runtime = Runtime(source, store, key=KEY, options=COPY)
    with caplog.at_level(logging.WARNING):
        runtime.start()
    assert "starts again from scratch" in caplog.text
    assert take_all(runtime) == [1, 2, 3, 8, 9]


def test_c13_resuming_a_snapshot_needs_its_tables() -> None:
    source, store = in_snapshot()
    with pytest.raises(ConfigError) as caught:
        Runtime(source, store, key=KEY, options=STREAM).start()
    assert caught.value.message == "snapshot_tables must not be empty when resuming from a snapshot checkpoint"


def test_c14_a_failed_connection_is_tagged_and_start_may_be_called_again() -> None:
    source = scripted(1)
    runtime = Runtime(FaultyCapture(source, Faults(Fault("open"))), MemoryCheckpointStore(), key=KEY, options=STREAM)
    with pytest.raises(SourceUnavailableError):
        runtime.start()
    assert runtime.errors.tags() == ("runtime.start.connect",)
    assert runtime.state is RuntimeState.IDLE
    runtime.start()
    assert take_all(runtime) == [1]


def test_c14_a_failed_connection_leaves_a_stopped_runtime_stopped() -> None:
    faults = Faults()
    runtime = Runtime(FaultyCapture(scripted(), faults), MemoryCheckpointStore(), key=KEY)
    runtime.start()
    runtime.stop()
    faults.add(Fault("open"))
    with pytest.raises(SourceUnavailableError):
        runtime.start()
    assert runtime.state is RuntimeState.STOPPED


def test_c15_an_incremental_start_has_its_handoff_behind_it_and_mixes_chunks_with_the_stream() -> None:
    runtime = Runtime(scripted(8, 9), MemoryCheckpointStore(), key=KEY, options=replace(BESIDE, max_events=1))
    runtime.start()
    assert runtime.handoff_complete
    assert take_all(runtime) == [1, 8, 2, 9, 3]


def test_c15_a_stream_checkpoint_without_a_cursor_starts_the_copy_from_there() -> None:
    source, store = scripted(7, 8), MemoryCheckpointStore()
    runtime = Runtime(source, store, key=KEY, options=STREAM)
    runtime.start()
    take_all(runtime)
    runtime.stop()
    source.append(*transactions(9))
    again = Runtime(source, store, key=KEY, options=BESIDE)
    again.start()
    assert sorted(take_all(again)) == [1, 2, 3, 9]


def test_c16_inside_a_snapshot_the_chunks_that_are_left_come_first_and_then_the_stream() -> None:
    source, store = in_snapshot(chunks=1)
    calls = Faults()
    runtime = Runtime(FaultyCapture(source, calls), store, key=KEY, options=COPY)
    runtime.start()
    assert not runtime.handoff_complete
    assert "prepare" not in calls.calls
    assert take_all(runtime) == [2, 3, 8, 9]
    assert runtime.handoff_complete


def test_c16_the_stream_position_comes_from_the_checkpoints_own_fields() -> None:
    source, store = in_snapshot(chunks=1)
    saved = store.load(KEY)
    assert saved is not None
    fields = json.loads(saved.metadata[SNAPSHOT])
    assert fields["sequence"] == 0
    del fields["sequence"]
    damaged = MemoryCheckpointStore()
    damaged.save(KEY, saved.with_metadata(SNAPSHOT, json.dumps(fields)))
    with pytest.raises(CheckpointError, match="missing 'sequence'"):
        Runtime(source, damaged, key=KEY, options=COPY).start()


def test_c17_a_stream_checkpoint_streams_and_ignores_snapshot_tables() -> None:
    source, store = in_snapshot(chunks=3)
    calls = Faults()
    runtime = Runtime(FaultyCapture(source, calls), store, key=KEY, options=COPY)
    runtime.start()
    assert runtime.handoff_complete
    assert take_all(runtime) == [8, 9]
    assert "snapshot" not in calls.calls


def test_c18_without_checkpoint_and_tables_it_streams_from_the_resume_point() -> None:
    source = scripted(8, 9)
    runtime = Runtime(source, MemoryCheckpointStore(), key=KEY, options=STREAM)
    runtime.start()
    assert runtime.handoff_complete
    assert take_all(runtime) == [8, 9]


def test_c18_a_resume_point_that_is_there_is_used_and_not_made_again() -> None:
    source, calls = scripted(8, 9), Faults()
    source.open()
    source.prepare(TABLES)
    source.confirm(at(1))
    runtime = Runtime(FaultyCapture(source, calls), MemoryCheckpointStore(), key=KEY, options=STREAM)
    runtime.start()
    assert take_all(runtime) == [9]
    assert "prepare" not in calls.calls


def test_c19_the_resume_point_exists_before_the_first_row_is_read() -> None:
    calls = Faults()
    runtime = Runtime(FaultyCapture(scripted(8), calls), MemoryCheckpointStore(), key=KEY, options=COPY)
    runtime.start()
    assert not runtime.handoff_complete
    assert take_all(runtime) == [1, 2, 3, 8]
    order = [calls.calls.index(name) for name in ("open", "continuity", "prepare", "snapshot", "chunk", "live")]
    assert order == sorted(order)


def test_c19_writes_during_the_snapshot_are_streamed_afterwards() -> None:
    source = scripted()
    runtime = Runtime(source, MemoryCheckpointStore(), key=KEY, options=COPY)
    runtime.start()
    delivery = runtime.poll()
    assert delivery is not None
    source.append(*transactions(4))
    runtime.commit(delivery.token)
    assert take_all(runtime) == [2, 3, 4]


def test_c20_a_start_opens_the_barrier_and_clears_the_counters() -> None:
    now, tracer = [100.0], Tracing()
    options = replace(STREAM, clock=lambda: now[0])
    source = scripted(8, 9)
    runtime = Runtime(source, MemoryCheckpointStore(), key=KEY, options=options, tracer=tracer)
    runtime.start()
    take_all(runtime)
    assert (runtime.stats.polled, runtime.stats.committed, runtime.stats.last_commit_at) == (2, 2, 100.0)
    runtime.stop()
    now[0] = 200.0
    runtime.start()
    stats = runtime.stats
    assert (stats.started_at, stats.last_poll_at, stats.last_event_at, stats.last_commit_at) == (
        200.0,
        None,
        None,
        None,
    )
    assert (stats.polled, stats.committed, stats.deduplicated) == (0, 0, 0)
    assert tracer.seen == [("barrier", "open"), ("barrier", "stopped"), ("barrier", "open")]


@pytest.mark.parametrize("call", ["continuity", "prepare", "discover", "identity"])
def test_c34_a_start_that_fails_after_connecting_closes_the_connection(call: str) -> None:
    source = scripted(8)
    runtime = Runtime(FaultyCapture(source, Faults(Fault(call))), MemoryCheckpointStore(), key=KEY, options=COPY)
    with pytest.raises(SourceUnavailableError):
        runtime.start()
    assert (runtime.state, source.is_open) == (RuntimeState.IDLE, False)
    assert runtime.errors.tags() == ("runtime.start.source",)
    runtime.start()
    assert take_all(runtime) == [1, 2, 3, 8]


def test_c34_a_failing_close_does_not_hide_why_the_start_failed() -> None:
    faults = Faults(Fault("prepare", error=lambda: PositionLostError("why")), Fault("close"))
    runtime = Runtime(FaultyCapture(scripted(), faults), MemoryCheckpointStore(), key=KEY, options=COPY)
    with pytest.raises(PositionLostError, match="why"):
        runtime.start()
    assert runtime.errors.tags() == ("runtime.start.source", "runtime.start.close")


@pytest.mark.parametrize("options", [STREAM, BESIDE])
def test_e11_a_fresh_source_under_a_checkpoint_is_a_lost_position(options: RuntimeOptions) -> None:
    source, store = scripted(8), MemoryCheckpointStore()
    runtime = Runtime(source, store, key=KEY, options=options)
    runtime.start()
    take_all(runtime)
    runtime.stop()
    source.uninstall()
    with pytest.raises(PositionLostError, match="no longer has a resume point"):
        runtime.start()
    assert runtime.state is RuntimeState.STOPPED


def test_e11_a_fresh_source_under_a_snapshot_checkpoint_is_a_lost_position() -> None:
    source, store = in_snapshot()
    source.uninstall()
    with pytest.raises(PositionLostError):
        Runtime(source, store, key=KEY, options=COPY).start()


def test_another_database_under_the_same_checkpoint_is_refused() -> None:
    source, store = in_snapshot(chunks=3)
    source.name = "restored copy"
    with pytest.raises(SourceChangedError, match="restored copy"):
        Runtime(source, store, key=KEY, options=COPY).start()


def test_t35_a_table_that_does_not_exist_is_refused_at_the_start() -> None:
    missing = table("main.persons", {"id": pa.int64()}).table
    options = replace(COPY, snapshot_tables=(missing,))
    with pytest.raises(ConfigError, match=r"there is no table main\.persons; there are main\.people"):
        Runtime(scripted(), MemoryCheckpointStore(), key=KEY, options=options).start()


def test_c25_a_snapshot_of_an_unknown_source_resumes_from_its_own_position_and_never_from_a_guess() -> None:
    source = ScriptedCapture(
        transactions(8), snapshot={PEOPLE: ROWS}, kind="oracle", position=lambda number: Custom(f"scn{number}")
    )
    _, store = in_snapshot(capture=source)
    saved = store.load(KEY)
    assert saved is not None
    fields = json.loads(saved.metadata[SNAPSHOT])
    assert fields.pop("position") == "custom=scn0"
    nameless = MemoryCheckpointStore()
    nameless.save(KEY, saved.with_metadata(SNAPSHOT, json.dumps(fields)))
    with pytest.raises(StateError, match="cannot be derived"):
        Runtime(source, nameless, key=KEY, options=COPY).start()
    runtime = Runtime(source, store, key=KEY, options=COPY)
    runtime.start()
    assert take_all(runtime) == [2, 3, 8]


@pytest.mark.parametrize("wrong", [{"max_events": 0}, {"max_in_flight": 0}, {"wait_seconds": -1}, {"chunk_rows": 0}])
def test_options_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RuntimeOptions(**wrong)


def test_a_scripted_capture_satisfies_the_protocol_and_starts_from_its_number() -> None:
    capture: ChangeCapture = scripted()
    assert capture.kind == SqliteSequence.kind
    assert ids([]) == []

"""Copying tables in the runtime: the chunk cursor, the handoff, copies beside the stream."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

from lakefeed.change.batch import OP, POSITION, SEQ
from lakefeed.change.table import TableSchema
from lakefeed.embed.options import Delivery, IncrementalSnapshot, RuntimeOptions
from lakefeed.embed.progress import SNAPSHOT, SnapshotCursor
from lakefeed.embed.runtime import Runtime
from lakefeed.embed.store import MemoryCheckpointStore
from lakefeed.errors import CheckpointError, DecodeError, SourceError, SourceUnavailableError
from lakefeed.testing.builders import at, batch, change_set, table
from lakefeed.testing.faulty import AFTER, BEFORE, Fault, Faults, FaultyCapture, FaultyStore, When
from lakefeed.testing.runtime_contract import PEOPLE, ids, take_all, transactions
from lakefeed.testing.scripted import COMMIT, CRASH, HEARTBEAT, ScriptedCapture, insert

KEY = "shop"
ORDERS = table("main.orders", {"id": pa.int64()}, key=("id",))
PEOPLE_ROWS = [{"id": number, "name": "old"} for number in (1, 2, 3)]
ORDER_ROWS = [{"id": number} for number in (11, 12)]
BOTH = (PEOPLE.table, ORDERS.table)
COPY = RuntimeOptions(snapshot_tables=BOTH, chunk_rows=2, wait_seconds=0)
BESIDE = RuntimeOptions(
    incremental=IncrementalSnapshot(tables=BOTH), chunk_rows=2, wait_seconds=0, max_events=1, max_in_flight=2
)


def scripted(*numbers: int) -> ScriptedCapture:
    return ScriptedCapture(transactions(*numbers), snapshot={PEOPLE: PEOPLE_ROWS, ORDERS: ORDER_ROWS})


def polled(runtime: Runtime) -> Delivery:
    delivery = runtime.poll()
    assert delivery is not None
    return delivery


def take_through(runtime: Runtime, polls: int) -> list[int]:
    """Poll and commit, and go on after every lost connection."""
    taken: list[int] = []
    for _ in range(polls):
        with suppress(SourceUnavailableError):
            if delivery := runtime.poll():
                taken += ids(delivery.change_sets)
                runtime.commit(delivery.token)
    return taken


def cursor(store: MemoryCheckpointStore) -> SnapshotCursor | None:
    checkpoint = store.load(KEY)
    if checkpoint is None or SNAPSHOT not in checkpoint.metadata:
        return None
    return SnapshotCursor.from_json(json.loads(checkpoint.metadata[SNAPSHOT]))


def test_a_chunk_is_one_delivery_of_read_rows_with_its_bracket() -> None:
    runtime = Runtime(scripted(8), MemoryCheckpointStore(), key=KEY, options=COPY)
    runtime.start()
    delivery = polled(runtime)
    assert (delivery.is_snapshot, delivery.bracket, delivery.rows) == (True, (at(1), at(1)), 2)
    (chunk,) = delivery.change_sets
    assert (chunk.start, chunk.end, chunk.schemas) == (at(0), at(0), (PEOPLE,))
    (part,) = chunk.batches
    assert part.data.column(OP).to_pylist() == [5, 5]
    assert part.data.column(SEQ).to_pylist() == [0, 1]
    assert part.data.column(POSITION).to_pylist() == [at(1).encode()] * 2
    assert part.data.column("name").to_pylist() == ["old", "old"]


def test_tables_come_one_after_the_other_each_with_its_schema_first() -> None:
    runtime = Runtime(scripted(), MemoryCheckpointStore(), key=KEY, options=COPY)
    runtime.start()
    seen: list[tuple[TableSchema, ...]] = []
    while delivery := runtime.poll():
        seen.append(delivery.change_sets[0].schemas)
        runtime.commit(delivery.token)
    assert seen == [(PEOPLE,), (), (ORDERS,)]


def test_an_empty_table_is_seen_by_its_schema_and_the_handoff_follows() -> None:
    source, store = ScriptedCapture(transactions(8), snapshot={ORDERS: []}), MemoryCheckpointStore()
    runtime = Runtime(source, store, key=KEY, options=replace(COPY, snapshot_tables=(ORDERS.table,)))
    runtime.start()
    delivery = polled(runtime)
    assert (delivery.rows, delivery.change_sets[0].schemas) == (0, (ORDERS,))
    runtime.commit(delivery.token)
    assert runtime.handoff_complete
    assert take_all(runtime) == [8]


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_t07_the_cursor_moves_only_with_the_commit_of_its_rows(when: When) -> None:
    faults, store = Faults(), MemoryCheckpointStore()
    runtime = Runtime(scripted(8), FaultyStore(store, faults), key=KEY, options=COPY)
    runtime.start()
    delivery = polled(runtime)
    assert cursor(store) is None
    faults.add(Fault("save", when=when, error=lambda: CheckpointError("disk full")))
    with pytest.raises(CheckpointError):
        runtime.commit(delivery.token)
    runtime.commit(delivery.token)
    saved = cursor(store)
    assert saved is not None
    assert (saved.current, saved.chunk, len(saved.chunks)) == (PEOPLE.table, 1, 2)


def test_t07_beside_the_stream_cursor_and_position_are_one_record() -> None:
    source, store = scripted(8, 9), MemoryCheckpointStore()
    runtime = Runtime(source, store, key=KEY, options=BESIDE)
    runtime.start()
    chunk, change = polled(runtime), polled(runtime)
    assert (chunk.is_snapshot, change.is_snapshot) == (True, False)
    runtime.commit(change.token)
    assert store.load(KEY) is None  # the chunk before it is not committed: neither part may move
    runtime.commit(chunk.token)
    saved, checkpoint = cursor(store), store.load(KEY)
    assert saved is not None
    assert checkpoint is not None
    assert (checkpoint.source_type, checkpoint.decoded, saved.chunk) == ("sqlite", at(1), 1)


def test_t08_a_lost_connection_beside_a_copy_goes_on_with_the_copy() -> None:
    source = ScriptedCapture(
        [*transactions(8), CRASH, *transactions(9)], snapshot={PEOPLE: PEOPLE_ROWS, ORDERS: ORDER_ROWS}
    )
    runtime = Runtime(source, MemoryCheckpointStore(), key=KEY, options=replace(BESIDE, max_events=100))
    runtime.start()
    taken = take_through(runtime, polls=20)
    assert sorted(taken) == [1, 2, 3, 8, 9, 11, 12]
    assert "runtime.poll.source" in runtime.errors.tags()


@pytest.mark.parametrize("call", ["chunk", "snapshot"])
def test_t08_a_chunk_that_fails_is_read_again_and_nothing_is_left_out(call: str) -> None:
    faults = Faults(Fault(call, nth=2))
    runtime = Runtime(FaultyCapture(scripted(8), faults), MemoryCheckpointStore(), key=KEY, options=COPY)
    runtime.start()
    assert take_through(runtime, polls=10) == [1, 2, 3, 11, 12, 8]
    assert runtime.errors.tags() == ("runtime.poll.source",)


def test_t05_a_chunk_from_before_the_stream_is_read_again_and_not_put_over_newer_rows() -> None:
    source = scripted(8)
    runtime = Runtime(source, MemoryCheckpointStore(), key=KEY, options=replace(BESIDE, max_in_flight=1))
    runtime.start()
    for _ in range(2):
        runtime.commit(polled(runtime).token)
    source.content.pinned = at(0)  # the log is at 1, but a reader does not see it yet
    assert runtime.poll() is None
    source.content.pinned = None
    assert sorted(take_all(runtime)) == [3, 11, 12]


def test_t05_a_reader_that_never_catches_up_is_an_error_and_not_an_endless_wait() -> None:
    source = scripted(8)
    runtime = Runtime(source, MemoryCheckpointStore(), key=KEY, options=replace(BESIDE, max_in_flight=1))
    runtime.start()
    for _ in range(2):
        runtime.commit(polled(runtime).token)
    source.content.pinned = at(0)
    for _ in range(99):
        assert runtime.poll() is None
    with pytest.raises(SourceError, match="older than the stream"):
        runtime.poll()


def test_the_last_chunk_and_the_handoff_are_one_commit() -> None:
    store = MemoryCheckpointStore()
    runtime = Runtime(scripted(8), store, key=KEY, options=COPY)
    runtime.start()
    kinds = []
    while delivery := runtime.poll():
        before = runtime.handoff_complete
        runtime.commit(delivery.token)
        checkpoint = store.load(KEY)
        assert checkpoint is not None
        kinds.append((before, checkpoint.source_type, checkpoint.position))
    zero, one = at(0).text(), at(1).text()
    assert kinds == [
        (False, "sqlite_snapshot", zero),
        (False, "sqlite_snapshot", zero),
        (False, "sqlite", zero),
        (True, "sqlite", one),
    ]


def test_a_snapshot_does_not_let_the_source_forget() -> None:
    source = scripted(8)
    runtime = Runtime(source, MemoryCheckpointStore(), key=KEY, options=COPY)
    runtime.start()
    for _ in range(3):
        runtime.commit(polled(runtime).token)
    assert source.confirmed == at(0)


def test_an_idle_source_does_not_slow_down_a_copy_beside_it() -> None:
    waits: list[float] = []

    class Waiting(ScriptedCapture):
        def live(self, after, *, wait_seconds=1.0):  # type: ignore[no-untyped-def]
            waits.append(wait_seconds)
            return super().live(after, wait_seconds=wait_seconds)

    source = Waiting([HEARTBEAT], snapshot={PEOPLE: PEOPLE_ROWS, ORDERS: ORDER_ROWS})
    runtime = Runtime(source, MemoryCheckpointStore(), key=KEY, options=replace(BESIDE, wait_seconds=5))
    runtime.start()
    assert sorted(take_all(runtime)) == [1, 2, 3, 11, 12]
    assert waits == [0.0, 5]


def test_a_copy_that_is_done_is_not_done_again_unless_a_new_generation_asks_for_it() -> None:
    source, store = scripted(8), MemoryCheckpointStore()
    for generation, expected in ((1, [1, 2, 3, 8, 11, 12]), (1, []), (2, [1, 2, 3, 11, 12]), (2, [])):
        incremental = IncrementalSnapshot(tables=BOTH, generation=generation)
        runtime = Runtime(source, store, key=KEY, options=replace(BESIDE, incremental=incremental))
        runtime.start()
        assert sorted(take_all(runtime)) == expected
        runtime.stop()


def test_a_table_that_is_added_to_a_finished_copy_is_copied_alone() -> None:
    source, store = scripted(), MemoryCheckpointStore()
    for tables, expected in (((PEOPLE.table,), [1, 2, 3]), (BOTH, [11, 12])):
        options = replace(BESIDE, incremental=IncrementalSnapshot(tables=tables))
        runtime = Runtime(source, store, key=KEY, options=options)
        runtime.start()
        assert sorted(take_all(runtime)) == expected
        runtime.stop()


def test_a_plain_stream_keeps_the_cursor_of_an_unfinished_copy() -> None:
    source, store = scripted(8), MemoryCheckpointStore()
    runtime = Runtime(source, store, key=KEY, options=replace(BESIDE, max_in_flight=1))
    runtime.start()
    runtime.commit(polled(runtime).token)
    runtime.force_stop()
    plain = Runtime(source, store, key=KEY, options=RuntimeOptions(wait_seconds=0))
    plain.start()
    assert take_all(plain) == [8]
    plain.stop()
    again = Runtime(source, store, key=KEY, options=BESIDE)
    again.start()
    assert sorted(take_all(again)) == [3, 11, 12]


def test_injected_change_sets_take_turns_with_chunks() -> None:
    runtime = Runtime(scripted(), MemoryCheckpointStore(), key=KEY, options=COPY)
    runtime.start()
    runtime.inject(change_set(None, 99, batch(PEOPLE, [("insert", {"id": 99})])))
    taken = []
    while delivery := runtime.poll():
        taken.append(ids(delivery.change_sets))
        runtime.commit(delivery.token)
    assert taken == [[1, 2], [99], [3], [11, 12]]


def test_a_table_that_was_altered_during_its_snapshot_stops_it_with_a_remedy() -> None:
    source = scripted()
    runtime = Runtime(source, MemoryCheckpointStore(), key=KEY, options=COPY)
    runtime.start()
    runtime.commit(polled(runtime).token)
    altered = table("main.people", {"id": pa.int64(), "nick": pa.string()}, key=("id",))
    source.append(insert(altered, id=5, nick="x"), COMMIT)
    source.content.schemas[PEOPLE.table] = altered
    with pytest.raises(DecodeError, match="id, nick; id, name were planned"):
        runtime.poll()


@pytest.mark.parametrize("payload", ["{}", "[]", "not json", '{"tables": 5}'])
def test_a_cursor_that_cannot_be_read_is_an_error_and_not_a_fresh_copy(payload: str) -> None:
    source, store = scripted(8), MemoryCheckpointStore()
    runtime = Runtime(source, store, key=KEY, options=BESIDE)
    runtime.start()
    take_all(runtime)
    runtime.stop()
    checkpoint = store.load(KEY)
    assert checkpoint is not None
    store.save(KEY, checkpoint.with_metadata(SNAPSHOT, payload))
    with pytest.raises(CheckpointError, match="snapshot cursor"):
        runtime.start()

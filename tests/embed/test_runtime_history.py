"""Any history of polls, commits, failures and restarts: every change arrives, in order, and nothing moves back."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lakefeed.change.position import SqliteSequence
from lakefeed.embed.options import Delivery, IncrementalSnapshot, RuntimeOptions
from lakefeed.embed.runtime import Runtime
from lakefeed.embed.store import MemoryCheckpointStore
from lakefeed.errors import CheckpointError, LakefeedError, SourceUnavailableError, StateError
from lakefeed.testing.faulty import AFTER, BEFORE, Fault, Faults, FaultyCapture, FaultyStore
from lakefeed.testing.runtime_contract import PEOPLE, ids
from lakefeed.testing.scripted import COMMIT, CRASH, HEARTBEAT, ScriptedCapture, insert

KEY = "shop"
COPIED = [1001, 1002, 1003, 1004, 1005, 1006]
MODES = {
    "stream": RuntimeOptions(wait_seconds=0),
    "snapshot": RuntimeOptions(wait_seconds=0, chunk_rows=1, snapshot_tables=(PEOPLE.table,)),
    "incremental": RuntimeOptions(
        wait_seconds=0, chunk_rows=1, incremental=IncrementalSnapshot(tables=(PEOPLE.table,))
    ),
}
FAULTS = [
    None,
    Fault("save", when=BEFORE, error=lambda: CheckpointError("disk full")),
    Fault("save", when=AFTER, error=lambda: CheckpointError("answer lost")),
    Fault("confirm", when=BEFORE),
    Fault("confirm", when=AFTER),
]


class RuntimeHistory(RuleBasedStateMachine):
    """The sink keeps a prefix before it commits it, so a checkpoint may cover all that was kept and no more."""

    def __init__(self) -> None:
        super().__init__()
        rows = [{"id": number, "name": "old"} for number in COPIED]
        self.source = ScriptedCapture(snapshot={PEOPLE: rows})
        self.store = MemoryCheckpointStore()
        self.faults = Faults()
        self.options = MODES["stream"]
        self.written = 0
        self.kept: set[int] = set()
        self.expected_next = 1
        self.saved = (0, 0)
        self.in_flight: list[Delivery] = []
        self.runtime = Runtime(None, self.store, key=KEY)

    @initialize(mode=st.sampled_from(sorted(MODES)), events=st.sampled_from([1, 2, 100]), flights=st.integers(1, 3))
    def begin(self, mode: str, events: int, flights: int) -> None:
        base = MODES[mode]
        self.options = RuntimeOptions(
            wait_seconds=0,
            chunk_rows=base.chunk_rows,
            snapshot_tables=base.snapshot_tables,
            incremental=base.incremental,
            max_events=events,
            max_in_flight=flights,
        )
        self.restart()

    def restart(self) -> None:
        self.faults.clear()
        capture, store = FaultyCapture(self.source, self.faults), FaultyStore(self.store, self.faults)
        self.runtime = Runtime(capture, store, key=KEY, options=self.options)
        self.runtime.start()
        self.in_flight.clear()
        checkpoint = self.store.load(KEY)
        position = checkpoint.decoded if checkpoint else SqliteSequence(0)
        assert isinstance(position, SqliteSequence)
        self.expected_next = 1 + sum(self.rows_at[: position.sequence])

    @property
    def rows_at(self) -> list[int]:
        """Rows of each place of the log."""
        return [entry.rows for entry in self.source._log if entry.mark is not CRASH]

    @rule(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4))
    def write(self, sizes: list[int]) -> None:
        for rows in sizes:
            numbers = range(self.written + 1, self.written + rows + 1)
            self.source.append(*(insert(PEOPLE, id=number) for number in numbers), COMMIT)
            self.written += rows

    @rule(mark=st.sampled_from([HEARTBEAT, CRASH]))
    def mark(self, mark: object) -> None:
        self.source.append(HEARTBEAT if mark is HEARTBEAT else CRASH)

    @rule(times=st.integers(1, 3))
    def poll(self, times: int) -> None:
        for _ in range(times):
            if self.runtime.barrier.in_flight >= self.options.max_in_flight:
                return
            with suppress(SourceUnavailableError):
                delivery = self.runtime.poll()
                if delivery is not None:
                    self.receive(delivery)

    def receive(self, delivery: Delivery) -> None:
        numbers = ids(delivery.change_sets)
        self.in_flight.append(delivery)
        if delivery.is_snapshot:
            assert set(numbers) <= set(COPIED)
            return
        assert numbers == list(range(self.expected_next, self.expected_next + len(numbers)))
        self.expected_next += len(numbers)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), fault=st.sampled_from(FAULTS))
    def commit(self, data: st.DataObject, fault: Fault | None) -> None:
        delivery = data.draw(st.sampled_from(self.in_flight))
        prefix = data.draw(st.integers(1, len(delivery.change_sets)))
        if fault is not None:
            self.faults.add(fault)
        self.kept.update(ids(delivery.change_sets[:prefix]))
        with suppress(CheckpointError, StateError):
            self.runtime.commit(delivery.token, prefix=prefix)
            if prefix == len(delivery.change_sets):
                self.in_flight.remove(delivery)
        self.faults.clear()

    @rule(how=st.sampled_from(["stop", "force_stop", "crash"]))
    def end(self, how: str) -> None:
        if how == "stop":
            try:
                self.runtime.stop()
            except StateError:
                assert self.runtime.barrier.pending_events + self.runtime._queue.events > 0
                return
        elif how == "force_stop":
            drained = [number for number in ids(self.runtime.force_stop()) if number not in COPIED]
            assert drained == sorted(set(drained))
        else:
            self.source.close()
        self.restart()

    @invariant()
    def nothing_moves_back_or_ahead(self) -> None:
        checkpoint = self.store.load(KEY)
        if checkpoint is None:
            return
        position = checkpoint.decoded
        assert isinstance(position, SqliteSequence)
        now = (position.sequence, checkpoint.committed)
        assert now[0] >= self.saved[0]
        assert now[1] >= self.saved[1]
        self.saved = now
        rows = sum(self.rows_at[: position.sequence])
        assert set(range(1, rows + 1)) <= self.kept
        confirmed = self.source.confirmed
        assert confirmed is None or confirmed <= position

    def teardown(self) -> None:
        """Without any more trouble, all of it arrives, and the count is exact: it is saved with the position."""
        with suppress(LakefeedError):
            self.runtime.force_stop()
        self.restart()
        for _ in range(10 * (len(self.source._log) + 10)):  # every mark in the script can take a poll of its own
            with suppress(SourceUnavailableError):
                if delivery := self.runtime.poll():
                    self.receive(delivery)
                    self.kept.update(ids(delivery.change_sets))
                    self.runtime.commit(delivery.token)
                elif self.source.confirmed == self.source.head:
                    break
        copied = [] if self.options.snapshot_tables == () and self.options.incremental is None else COPIED
        assert self.kept == {*range(1, self.written + 1), *copied}
        assert self.runtime.barrier.committed == self.written + len(copied)
        assert self.source.confirmed == self.source.head
        self.runtime.stop()


TestRuntimeHistory = RuntimeHistory.TestCase
TestRuntimeHistory.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)

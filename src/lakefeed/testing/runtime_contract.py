"""RuntimeContract: what a runtime promises over any checkpoint store. Subclass it in a test module:

    class TestRuntimeOnMyStore(RuntimeContract):
        def make_runtime(self, capture, options):
            return Runtime(capture, MyStore(self.place), key="shop", options=options)

``make_runtime`` is called again within one test to represent a restart: it must find what was saved before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from lakefeed.capture.base import ChangeCapture
from lakefeed.change.batch import OP, Operation
from lakefeed.change.change_set import ChangeSet
from lakefeed.embed.options import IncrementalSnapshot, RuntimeOptions, RuntimeState
from lakefeed.embed.runtime import Runtime
from lakefeed.errors import StateError
from lakefeed.testing.builders import at, table
from lakefeed.testing.scripted import COMMIT, HEARTBEAT, ScriptedCapture, ScriptStep, insert

PEOPLE = table("main.people", {"id": pa.int64(), "name": pa.string()}, key=("id",))
NOW = RuntimeOptions(wait_seconds=0)


def values(change_sets: Iterable[ChangeSet], column: str) -> list[Any]:
    """One column of all rows, in order."""
    return [value for part in change_sets for batch in part.batches for value in batch.data.column(column).to_pylist()]


def ids(change_sets: Iterable[ChangeSet]) -> list[int]:
    return values(change_sets, "id")


def operations(change_sets: Iterable[ChangeSet]) -> set[Operation]:
    return {Operation(code) for code in values(change_sets, OP)}


def transactions(*numbers: int) -> list[ScriptStep]:
    """One transaction with one row for each number."""
    return [step for number in numbers for step in (insert(PEOPLE, id=number, name=f"p{number}"), COMMIT)]


def take_all(runtime: Runtime) -> list[int]:
    """Poll and commit until there is nothing more. Returns the ids in order of arrival."""
    taken: list[int] = []
    while delivery := runtime.poll():
        taken += ids(delivery.change_sets)
        runtime.commit(delivery.token)
    return taken


class RuntimeContract(ABC):
    """See the module."""

    @abstractmethod
    def make_runtime(self, capture: ChangeCapture, options: RuntimeOptions) -> Runtime:
        """A runtime that is not started, on the same store within one test."""

    def started(self, capture: ChangeCapture, options: RuntimeOptions = NOW) -> Runtime:
        runtime = self.make_runtime(capture, options)
        runtime.start()
        return runtime

    def test_everything_arrives_once_and_in_order_and_then_it_stops(self) -> None:
        runtime = self.started(ScriptedCapture(transactions(1, 2, 3, 4)))
        assert take_all(runtime) == [1, 2, 3, 4]
        assert runtime.stop() == []
        assert runtime.state is RuntimeState.STOPPED

    def test_what_was_not_committed_comes_again_after_a_restart_and_what_was_does_not(self) -> None:
        capture = ScriptedCapture(transactions(1, 2, 3))
        runtime = self.started(capture)
        delivery = runtime.poll()
        assert delivery is not None
        runtime.commit(delivery.token, prefix=1)
        assert capture.confirmed == at(1)
        runtime.force_stop()
        assert take_all(self.started(capture)) == [2, 3]

    def test_a_crash_without_any_stop_loses_nothing(self) -> None:
        capture = ScriptedCapture(transactions(1, 2))
        self.started(capture).poll()
        assert take_all(self.started(capture)) == [1, 2]

    def test_a_used_token_is_refused(self) -> None:
        runtime = self.started(ScriptedCapture(transactions(1)))
        delivery = runtime.poll()
        assert delivery is not None
        runtime.commit(delivery.token)
        with pytest.raises(StateError):
            runtime.commit(delivery.token)

    def test_stop_is_refused_while_something_is_uncommitted(self) -> None:
        runtime = self.started(ScriptedCapture(transactions(1)))
        delivery = runtime.poll()
        assert delivery is not None
        with pytest.raises(StateError, match="1 uncommitted events"):
            runtime.stop()
        runtime.commit(delivery.token)
        runtime.stop()

    def test_force_stop_hands_back_what_comes_again(self) -> None:
        capture = ScriptedCapture(transactions(1, 2))
        runtime = self.started(capture)
        runtime.poll()
        drained = ids(runtime.force_stop())
        assert take_all(self.started(capture)) == drained == [1, 2]

    def test_the_committed_count_goes_on_over_restarts(self) -> None:
        capture = ScriptedCapture(transactions(1, 2))
        runtime = self.started(capture)
        take_all(runtime)
        runtime.stop()
        capture.append(*transactions(3))
        again = self.started(capture)
        assert again.barrier.committed == 2
        take_all(again)
        assert (again.barrier.committed, again.stats.committed) == (3, 1)

    def test_an_idle_source_may_forget(self) -> None:
        capture = ScriptedCapture([*transactions(1), HEARTBEAT])
        runtime = self.started(capture)
        take_all(runtime)
        assert capture.confirmed == capture.head == at(2)

    @pytest.mark.parametrize("committed", [0, 1, 2, 3])
    def test_a_snapshot_goes_on_where_it_was_and_then_streams(self, committed: int) -> None:
        rows = [{"id": number, "name": "old"} for number in (1, 2, 3)]
        capture = ScriptedCapture(transactions(9), snapshot={PEOPLE: rows})
        options = RuntimeOptions(snapshot_tables=(PEOPLE.table,), chunk_rows=1, wait_seconds=0)
        runtime = self.started(capture, options)
        first = []
        for _ in range(committed):
            delivery = runtime.poll()
            assert delivery is not None
            assert operations(delivery.change_sets) == {Operation.READ}
            first += ids(delivery.change_sets)
            runtime.commit(delivery.token)
        runtime.force_stop()
        again = self.started(capture, options)
        assert again.handoff_complete is (committed == 3)
        assert first + take_all(again) == [1, 2, 3, 9]
        assert again.handoff_complete

    @pytest.mark.parametrize("committed", [0, 1, 2, 3, 4])
    def test_an_incremental_snapshot_goes_on_where_it_was(self, committed: int) -> None:
        rows = [{"id": number, "name": "old"} for number in (1, 2)]
        capture = ScriptedCapture(transactions(8, 9), snapshot={PEOPLE: rows})
        incremental = IncrementalSnapshot(tables=(PEOPLE.table,))
        options = RuntimeOptions(incremental=incremental, chunk_rows=1, wait_seconds=0, max_events=1)
        runtime = self.started(capture, options)
        first = []
        for _ in range(committed):
            delivery = runtime.poll()
            assert delivery is not None
            first += ids(delivery.change_sets)
            runtime.commit(delivery.token)
        runtime.force_stop()
        assert sorted(first + take_all(self.started(capture, options))) == [1, 2, 8, 9]

"""C26 to C35: how a runtime stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from lakefeed.capture.base import ChangeCapture
from lakefeed.change.change_set import ChangeSet, TableDropped
from lakefeed.change.position import Position
from lakefeed.embed.options import Delivery, RuntimeOptions, RuntimeState
from lakefeed.embed.runtime import Runtime
from lakefeed.embed.store import MemoryCheckpointStore
from lakefeed.errors import SourceUnavailableError, StateError
from lakefeed.testing.builders import at, batch, change_set
from lakefeed.testing.faulty import HELD, Fault, Faults, FaultyCapture
from lakefeed.testing.runtime_contract import PEOPLE, ids, take_all, transactions
from lakefeed.testing.scripted import COMMIT, CRASH, ScriptedCapture, ScriptStep

KEY = "shop"
STREAM = RuntimeOptions(wait_seconds=0)
STOPS: list[Callable[[Runtime], object]] = [Runtime.stop, Runtime.force_stop]


class Tracing:
    def __init__(self) -> None:
        self.seen: list[tuple[str, ...]] = []

    def checkpoint_barrier(self, state: str) -> None:
        self.seen.append(("barrier", state))

    def event_end(self, event: str, outcome: str) -> None:
        self.seen.append((event, outcome))


def started(capture: ChangeCapture | None, options: RuntimeOptions = STREAM) -> Runtime:
    runtime = Runtime(capture, MemoryCheckpointStore(), key=KEY, options=options, tracer=Tracing())
    runtime.start()
    return runtime


class Asked(ScriptedCapture):
    """Sets ``asked`` when somebody waits for it."""

    def __init__(self, *script: ScriptStep) -> None:
        super().__init__(script, waits=True)
        self.asked = threading.Event()

    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        inner = super().live(after, wait_seconds=wait_seconds)
        while True:
            if wait_seconds:
                self.asked.set()
            yield next(inner)


def polled(runtime: Runtime) -> Delivery:
    delivery = runtime.poll()
    assert delivery is not None
    return delivery


def trace(runtime: Runtime) -> list[tuple[str, ...]]:
    tracer = runtime._tracer
    assert isinstance(tracer, Tracing)
    return tracer.seen


@pytest.mark.parametrize("stop", STOPS)
def test_c26_stopping_what_does_not_run_is_harmless_and_repeatable(stop: Callable[[Runtime], object]) -> None:
    runtime = Runtime(ScriptedCapture(), MemoryCheckpointStore(), key=KEY)
    for _ in range(3):
        assert stop(runtime) == []
        assert runtime.state is RuntimeState.STOPPED


def stopped_while_stopping(stop: Callable[[Runtime], object]) -> Runtime:
    """Calls ``stop`` on a runtime from inside its own stop, where it must be refused."""

    class Stopping(ScriptedCapture):
        def close(self) -> None:
            super().close()
            with pytest.raises(StateError, match=r"^runtime already stopping$"):
                stop(runtime)

    runtime = started(Stopping())
    runtime.stop()
    return runtime


def test_c27_a_runtime_that_is_stopping_is_not_stopped_again() -> None:
    assert stopped_while_stopping(Runtime.stop).errors.tags() == ("runtime.stop.state",)


def test_c30_a_runtime_that_is_stopping_is_not_force_stopped() -> None:
    assert stopped_while_stopping(Runtime.force_stop).errors.tags() == ("runtime.force_stop.state",)


def test_c30_force_stopping_what_does_not_run_returns_nothing_and_ends_stopped() -> None:
    runtime = Runtime(ScriptedCapture(), MemoryCheckpointStore(), key=KEY)
    assert runtime.force_stop() == []
    assert runtime.state is RuntimeState.STOPPED


def test_c28_uncommitted_events_are_counted_in_the_refusal_and_nothing_is_closed() -> None:
    source = ScriptedCapture([*transactions(1, 2), *transactions(3)])
    runtime = started(source)
    runtime.commit(polled(runtime).token, prefix=1)
    runtime.inject(change_set(None, 99, batch(PEOPLE, [("insert", {"id": 99}), ("insert", {"id": 98})])))
    with pytest.raises(StateError) as caught:
        runtime.stop()
    assert caught.value.message == (
        "runtime has 4 uncommitted events; commit acknowledgements before stop or call force_stop()"
    )
    assert runtime.errors.tags() == ("runtime.stop.uncommitted",)
    assert (runtime.state, source.is_open) == (RuntimeState.RUNNING, True)


def test_c28_a_change_set_without_rows_is_not_stopped_over() -> None:
    runtime = started(ScriptedCapture([TableDropped(PEOPLE.table), COMMIT]))
    polled(runtime)
    with pytest.raises(StateError, match="1 uncommitted"):
        runtime.stop()


def test_c28_an_acknowledgement_that_is_held_back_is_not_stopped_over() -> None:
    runtime = started(ScriptedCapture(transactions(1, 2)), replace(STREAM, max_events=1, max_in_flight=2))
    first, second = polled(runtime), polled(runtime)
    runtime.commit(second.token)
    with pytest.raises(StateError, match="2 uncommitted"):
        runtime.stop()
    runtime.commit(first.token)
    runtime.stop()


def test_c29_with_nothing_pending_the_source_is_closed_and_the_barrier_is_stopped() -> None:
    source = ScriptedCapture(transactions(1))
    runtime = started(source)
    take_all(runtime)
    assert runtime.stop() == []
    assert (runtime.state, source.is_open) == (RuntimeState.STOPPED, False)
    assert trace(runtime) == [("barrier", "open"), ("barrier", "stopped")]
    assert (runtime.stats.started_at, runtime.stats.last_event_at) == (None, None)
    with pytest.raises(StateError, match="not running"):
        runtime.poll()


def test_c31_everything_is_drained_in_delivery_order_and_injected_events_last() -> None:
    # Two deliveries in flight (1 2 and 3), 4 pulled and left over by the limit, then what the embedder injected.
    source = ScriptedCapture(transactions(1, 2))
    runtime = started(source, replace(STREAM, max_events=2, max_in_flight=3))
    first = polled(runtime)
    source.append(*transactions(3))
    polled(runtime)
    source.append(*[step for step in transactions(4, 5) if step is not COMMIT], COMMIT, *transactions(6, 7))
    runtime._gather(0)
    runtime.inject(change_set(None, 99, batch(PEOPLE, [("insert", {"id": 99})])))
    runtime.commit(first.token, prefix=1)
    assert ids(runtime.force_stop()) == [2, 3, 4, 5, 99]


def test_c31_what_was_gathered_before_an_error_is_delivered_and_not_lost() -> None:
    runtime = started(ScriptedCapture([*transactions(1), CRASH, *transactions(2)]))
    assert ids(runtime.force_stop()) == []
    runtime.start()
    assert ids(polled(runtime).change_sets) == [1]
    assert runtime.errors.tags() == ("runtime.poll.source",)
    assert ids(runtime.force_stop()) == [1]


def test_c31_a_held_back_acknowledgement_is_not_drained() -> None:
    runtime = started(ScriptedCapture(transactions(1, 2)), replace(STREAM, max_events=1, max_in_flight=2))
    polled(runtime)
    runtime.commit(polled(runtime).token)
    assert ids(runtime.force_stop()) == [1]


def test_c32_a_forced_stop_moves_no_checkpoint_traces_each_event_and_can_be_started_again() -> None:
    source, store, tracer = ScriptedCapture(transactions(1, 2, 3)), MemoryCheckpointStore(), Tracing()
    runtime = Runtime(source, store, key=KEY, options=STREAM, tracer=tracer)
    runtime.start()
    delivery = polled(runtime)
    runtime.commit(delivery.token, prefix=1)
    before = store.load(KEY)
    runtime.force_stop()
    assert store.load(KEY) == before
    assert (source.confirmed, source.is_open, runtime.state) == (at(1), False, RuntimeState.STOPPED)
    ended = [(at(number).encode(), "force_stopped") for number in (2, 3)]
    assert tracer.seen == [("barrier", "open"), *ended, ("barrier", "stopped")]
    assert (runtime.barrier.in_flight, runtime.barrier.pending_events) == (0, 0)
    runtime.start()
    with pytest.raises(StateError):
        runtime.commit(delivery.token)
    assert take_all(runtime) == [2, 3]


def test_c33_stop_is_safe_by_default_and_force_stop_leaves_duplicates_to_the_embedder() -> None:
    runtime = started(ScriptedCapture(transactions(1)))
    kept = ids(polled(runtime).change_sets)
    with pytest.raises(StateError):
        runtime.stop()
    runtime.force_stop()
    runtime.start()
    assert kept + take_all(runtime) == [1, 1]


def test_c34_a_failing_close_ends_stopped_and_is_raised_by_stop() -> None:
    runtime = started(FaultyCapture(ScriptedCapture(), Faults(Fault("close"))))
    with pytest.raises(SourceUnavailableError):
        runtime.stop()
    assert (runtime.state, runtime.errors.tags()) == (RuntimeState.STOPPED, ("runtime.stop.close",))
    runtime.start()
    runtime.stop()


def test_c34_a_failing_close_does_not_take_the_drained_events_with_it() -> None:
    runtime = started(FaultyCapture(ScriptedCapture(transactions(1)), Faults(Fault("close"))))
    polled(runtime)
    assert ids(runtime.force_stop()) == [1]
    assert (runtime.state, runtime.errors.tags()) == (RuntimeState.STOPPED, ("runtime.force_stop.close",))


def test_c35_events_that_are_only_buffered_hold_up_a_stop_too() -> None:
    source = ScriptedCapture([*transactions(1), *transactions(2)])
    runtime = started(source, replace(STREAM, max_events=2))
    runtime._gather(0)
    with pytest.raises(StateError, match="2 uncommitted"):
        runtime.stop()
    assert len(ids(runtime.force_stop())) == 2


@pytest.mark.parametrize("stop", ["stop", "force_stop"])
def test_a_stop_from_another_thread_ends_the_poll_that_waits_and_nothing_is_lost(stop: str) -> None:
    source = Asked()
    runtime = started(source)
    answers: list[Delivery | None] = []
    polling = threading.Thread(target=lambda: answers.append(runtime.poll(wait_seconds=1_000)), daemon=True)
    polling.start()
    assert source.asked.wait(60)
    assert getattr(runtime, stop)() == []
    polling.join(60)
    assert (answers, runtime.state) == ([None], RuntimeState.STOPPED)
    source.append(*transactions(1))
    runtime.start()
    assert take_all(runtime) == [1]


def test_what_a_poll_pulls_while_the_runtime_is_stopped_is_delivered_by_the_next_run() -> None:
    faults = Faults(Fault("next", when=HELD))
    runtime = started(FaultyCapture(ScriptedCapture(transactions(1)), faults))
    answers: list[Delivery | None] = []
    polling = threading.Thread(target=lambda: answers.append(runtime.poll()))
    polling.start()
    assert faults.reached.wait(60)
    drained: list[int] = []
    stopping = threading.Thread(target=lambda: drained.extend(ids(runtime.force_stop())))
    stopping.start()
    while runtime.state is RuntimeState.RUNNING:
        time.sleep(0.001)
    faults.release()
    polling.join(60)
    stopping.join(60)
    assert (answers, drained, runtime.state) == ([None], [], RuntimeState.STOPPED)
    runtime.start()
    assert take_all(runtime) == [1]


def test_a_commit_is_saved_while_another_thread_waits_in_a_poll_and_confirmed_when_that_is_over() -> None:
    source = Asked(*transactions(1))
    runtime = started(source, replace(STREAM, max_in_flight=2))
    delivery = polled(runtime)
    answers: list[Delivery | None] = []
    polling = threading.Thread(target=lambda: answers.append(runtime.poll(wait_seconds=1_000)), daemon=True)
    polling.start()
    assert source.asked.wait(60)
    runtime.commit(delivery.token)
    assert (runtime.stats.committed, runtime.barrier.in_flight, source.confirmed) == (1, 0, at(0))
    source.append(*transactions(2))
    polling.join(60)
    assert source.confirmed == at(1)
    assert [ids(one.change_sets) for one in answers if one is not None] == [[2]]

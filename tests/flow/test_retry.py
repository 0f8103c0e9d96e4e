"""Retrying: transient errors are waited out, others are not, and nothing is given twice or left out."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position
from lakefeed.errors import CommitFailedError, ConfigError, DecodeError, SourceUnavailableError
from lakefeed.flow.retry import Pacer, Retrying, RetryPolicy, retrying
from lakefeed.testing.builders import at
from lakefeed.testing.faulty import AFTER, BEFORE, Fault, Faults, FaultyCapture, When
from lakefeed.testing.runtime_contract import PEOPLE, ids, transactions
from lakefeed.testing.scripted import CRASH, EOF, ScriptedCapture, ScriptStep


class Time:
    """A clock that only moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)

    def pacer(self, stop: threading.Event | None = None) -> Pacer:
        return Pacer(stop=stop or threading.Event(), clock=lambda: self.now, chance=lambda: 0.0, sleep=self.sleep)


class Flaky:
    """Fails ``times`` times, then answers."""

    def __init__(self, times: int, error: type[Exception] = CommitFailedError) -> None:
        self.times = times
        self.error = error
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error("again")
        return "done"


def opened(*script: ScriptStep, faults: Faults | None = None, time: Time | None = None) -> Retrying:
    source = ScriptedCapture(script)
    retrying_capture = Retrying(FaultyCapture(source, faults or Faults()), pacer=(time or Time()).pacer())
    retrying_capture.open()
    retrying_capture.prepare([PEOPLE.table] if script else [])
    return retrying_capture


def read(live: Iterator[ChangeSet], count: int) -> list[int]:
    return ids(next(live) for _ in range(count))


def test_a_transient_error_is_tried_again_after_growing_pauses() -> None:
    time, flaky = Time(), Flaky(4)
    assert retrying(flaky, RetryPolicy(first_seconds=1, longest_seconds=5), pacer=time.pacer()) == "done"
    assert time.slept == [1, 2, 4, 5]


def test_an_error_that_says_never_is_raised_at_once() -> None:
    time, flaky = Time(), Flaky(1, DecodeError)
    with pytest.raises(DecodeError):
        retrying(flaky, pacer=time.pacer())
    assert (flaky.calls, time.slept) == (1, [])


def test_an_error_that_is_not_ours_is_raised_at_once() -> None:
    with pytest.raises(KeyError):
        retrying(Flaky(1, KeyError), pacer=Time().pacer())


def test_attempts_are_bounded_and_the_last_error_says_so() -> None:
    flaky = Flaky(99)
    with pytest.raises(CommitFailedError) as caught:
        retrying(flaky, RetryPolicy(attempts=3), pacer=Time().pacer())
    assert flaky.calls == 3
    assert "given up after 3 attempts" in caught.value.__notes__[0]


def test_the_whole_time_is_bounded() -> None:
    time = Time()
    policy = RetryPolicy(attempts=1000, total_seconds=10, first_seconds=1, factor=1)
    with pytest.raises(CommitFailedError):
        retrying(Flaky(1000), policy, pacer=time.pacer())
    assert time.now == 10


def test_a_stop_interrupts_the_wait_and_raises_what_was_waited_out() -> None:
    stop = threading.Event()
    stop.set()
    flaky = Flaky(1)
    with pytest.raises(CommitFailedError):
        retrying(flaky, RetryPolicy(first_seconds=3600, longest_seconds=3600), pacer=Pacer(stop=stop))
    assert flaky.calls == 1


@given(st.integers(1, 500), st.floats(0, 1, exclude_max=True))
def test_a_pause_is_never_longer_than_the_longest_nor_shorter_than_jitter_allows(failures: int, chance: float) -> None:
    policy = RetryPolicy(first_seconds=0.1, longest_seconds=30, jitter=0.5)
    assert 0.05 <= policy.pause_seconds(failures, chance) <= 30


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"jitter": 2.0}, {"factor": 0.5}])
def test_a_policy_that_cannot_work_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        RetryPolicy(**wrong)  # type: ignore[arg-type]


def test_t33_a_broken_connection_is_closed_before_the_wait_and_opened_after_it() -> None:
    time, faults = Time(), Faults()
    capture = opened(faults=faults, time=time)
    order: list[str] = []
    source = capture._capture
    assert isinstance(source, FaultyCapture)
    faults.calls.clear()
    faults.add(Fault("discover"))
    pacer = Pacer(clock=lambda: 0.0, chance=lambda: 0.0, sleep=lambda _: order.extend([*faults.calls, "sleep"]))
    capture._pacer = pacer
    capture.discover()
    assert order == ["discover", "close", "sleep"]
    assert faults.calls == ["discover", "close", "open", "discover"]


def test_a_connection_that_does_not_come_back_at_once_is_one_more_attempt() -> None:
    time, faults = Time(), Faults()
    capture = opened(faults=faults, time=time)
    faults.add(Fault("discover"))
    faults.add(Fault("open"))
    capture.discover()
    assert len(time.slept) == 2


def test_open_itself_is_tried_again() -> None:
    time = Time()
    opened(faults=Faults(Fault("open"), Fault("open", nth=2)), time=time)
    assert len(time.slept) == 2


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_confirm_is_cumulative_so_it_is_safe_to_repeat(when: When) -> None:
    faults = Faults(Fault("confirm", when=when))
    source = ScriptedCapture(transactions(1))
    capture = Retrying(FaultyCapture(source, faults), pacer=Time().pacer())
    capture.open()
    capture.prepare([PEOPLE.table])
    capture.confirm(at(1))
    assert source.confirmed == at(1)


def test_live_goes_on_strictly_after_the_last_change_set_it_gave() -> None:
    capture = opened(*transactions(1, 2), CRASH, *transactions(3), CRASH, *transactions(4))
    assert read(capture.live(None), 4) == [1, 2, 3, 4]


def test_live_does_not_repeat_what_a_source_with_its_own_cursor_gives_again() -> None:
    class Repeating(ScriptedCapture):
        def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
            return super().live(None, wait_seconds=wait_seconds)

    capture = Retrying(Repeating([*transactions(1, 2), CRASH, *transactions(3)]), pacer=Time().pacer())
    capture.open()
    capture.prepare([PEOPLE.table])
    assert read(capture.live(None), 3) == [1, 2, 3]


def test_live_survives_that_another_call_had_to_make_a_new_connection() -> None:
    faults = Faults()
    capture = opened(*transactions(1, 2, 3), faults=faults)
    live = capture.live(None)
    assert read(live, 1) == [1]
    faults.add(Fault("confirm"))
    capture.confirm(at(1))
    assert read(live, 2) == [2, 3]


def test_live_gives_up_when_nothing_comes_between_the_failures_and_only_then() -> None:
    faults, time = Faults(), Time()
    source = FaultyCapture(ScriptedCapture(transactions(1, 2, 3)), faults)
    capture = Retrying(source, RetryPolicy(attempts=2), pacer=time.pacer())
    capture.open()
    capture.prepare([PEOPLE.table])
    live = capture.live(None)
    for number in (1, 2, 3):
        faults.add(Fault("next"))
        assert read(live, 1) == [number]
    faults.add(Fault("next", nth=None))
    with pytest.raises(SourceUnavailableError):
        next(live)


def test_live_raises_what_is_not_transient() -> None:
    capture = opened(*transactions(1), faults=Faults(Fault("next", error=lambda: DecodeError("what is this"))))
    with pytest.raises(DecodeError):
        next(capture.live(None))


def test_live_ends_when_the_source_ends() -> None:
    assert ids(opened(*transactions(1), EOF).live(None)) == [1]


def test_lag_and_check_are_asked_once() -> None:
    faults = Faults(Fault("lag"), Fault("check"))
    capture = opened(faults=faults)
    for ask in (capture.lag, capture.check):
        with pytest.raises(SourceUnavailableError):
            ask()
    assert "close" not in faults.calls


@given(st.lists(st.sampled_from(["row", "crash"]), max_size=9))  # ten crashes in a row are more than the policy allows
def test_whatever_breaks_in_between_everything_comes_once_and_in_order(history: list[str]) -> None:
    script: list[ScriptStep] = []
    numbers = 0
    for word in history:
        numbers += word == "row"
        script += transactions(numbers) if word == "row" else [CRASH]
    capture = opened(*transactions(0), *script)
    assert read(capture.live(None), numbers + 1) == list(range(numbers + 1))

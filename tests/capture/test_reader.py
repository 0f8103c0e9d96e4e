"""The background reader alone, on a log that is a list."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest

from lakefeed.capture.reader import BackgroundReader
from lakefeed.change.position import Position
from lakefeed.errors import PositionLostError, SourceUnavailableError


class ListReader:
    """Gives what is in ``log``; ``hang`` makes the next read hang until the reader is closed."""

    in_burst = False

    def __init__(self, log: list[str], size: int = 1) -> None:
        self.log = log
        self.bytes = size
        self.beats = 0
        self.reads = 0
        self.joins = False
        self.fail: Exception | None = None
        self.hang = False
        self.closed = threading.Event()
        self._woken = threading.Event()

    def read(self, wait_seconds: float) -> str | None:
        self.reads += 1
        if self.hang:
            self.closed.wait()
        if self.log:
            return self.log.pop(0)
        if self.fail is not None:
            raise self.fail
        self._woken.wait(wait_seconds)
        self._woken.clear()
        return None

    def size(self, piece: str) -> int:
        return self.bytes

    def joined(self, pieces: Sequence[str]) -> list[str]:
        return ["".join(pieces)] if self.joins else list(pieces)

    def beat(self) -> None:
        self.beats += 1

    def wake(self) -> None:
        self._woken.set()

    def confirm(self, position: Position) -> None: ...

    def close(self) -> None:
        self.closed.set()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_pieces_come_in_order_and_before_the_error() -> None:
    reader = ListReader(["a", "b"])
    reader.fail = PositionLostError("gone")
    background = BackgroundReader("test", reader)
    assert [background.read(5), background.read(5)] == ["a", "b"]
    with pytest.raises(PositionLostError):
        background.read(5)
    background.close()


def test_without_a_wait_none_means_that_the_log_has_no_more() -> None:
    reader = ListReader([])
    background = BackgroundReader("test", reader)
    for number in range(50):
        reader.log.append(str(number))
        assert background.read(0) == str(number)
    assert background.read(0) is None
    background.close()


def test_each_read_without_a_wait_asks_the_source() -> None:
    """Every second one used to answer from memory: a sync missed what was committed since the sync before."""
    reader = ListReader([])
    background = BackgroundReader("test", reader)
    for number in range(20):
        assert background.read(0) is None
        reader.log.append(str(number))
        assert background.read(0) == str(number)
    background.close()


def test_it_reads_no_further_than_there_is_room_and_keeps_the_connection_alive() -> None:
    reader = ListReader([str(number) for number in range(100)], size=10)
    background = BackgroundReader("test", reader, room_bytes=30)
    until(lambda: reader.beats > 0)
    assert len(reader.log) == 97
    assert [background.read(5) for _ in range(100)] == [str(number) for number in range(100)]
    background.close()


def test_a_consumer_that_has_fallen_behind_gets_small_pieces_as_one_and_large_ones_as_they_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakefeed.capture.reader._JOINED_BYTES", 40)
    reader = ListReader(list("abcdefghij"), size=10)
    reader.joins = True
    background = BackgroundReader("test", reader)
    until(lambda: len(background._pieces) == 10)
    assert [background.read(0) for _ in range(4)] == ["abcd", "efgh", "ij", None]
    reader.bytes, reader.log = 50, list("klm")
    until(lambda: len(background._pieces) == 3)
    assert [background.read(0) for _ in range(4)] == ["k", "l", "m", None]
    background.close()


@pytest.mark.parametrize("hang", [True, False])
def test_a_server_that_answers_nothing_is_left(hang: bool) -> None:
    """Whether reads come back empty or do not come back at all."""
    reader = ListReader([])
    reader.hang = hang
    background = BackgroundReader("test", reader, silence_seconds=0.2)
    began = time.monotonic()
    with pytest.raises(SourceUnavailableError, match="answered nothing"):
        background.read(10)
    background.close()
    assert time.monotonic() - began < 6


def test_in_a_burst_a_short_wait_lasts_until_the_next_gulp_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog comes in gulps: that one is still on its way does not mean that the log has no more."""
    monkeypatch.setattr("lakefeed.capture.reader._BURST_SECONDS", 60)
    reader = ListReader([])
    background = BackgroundReader("test", reader)
    assert background.read(0.001) is None
    reader.in_burst = True

    def gulp() -> None:
        reader.log.append("a")
        reader.wake()

    threading.Timer(0.1, gulp).start()
    assert background.read(0.001) == "a"
    background.close()


def test_an_unexpected_exception_becomes_a_source_that_may_be_tried_again() -> None:
    reader = ListReader([])
    reader.fail = ValueError("what")
    background = BackgroundReader("test", reader)
    with pytest.raises(SourceUnavailableError, match="what"):
        background.read(5)
    background.close()


def test_close_wakes_whoever_waits() -> None:
    background = BackgroundReader("test", ListReader([]))
    threading.Timer(0.1, background.close).start()
    began = time.monotonic()
    assert background.read(30) is None
    assert time.monotonic() - began < 5

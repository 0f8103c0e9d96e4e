"""Faults act where and when a test says, and nowhere else."""

from __future__ import annotations

import threading

import pytest

from lakefeed.embed.checkpoint import Checkpoint
from lakefeed.embed.store import MemoryCheckpointStore
from lakefeed.errors import CheckpointError, SourceUnavailableError
from lakefeed.testing.builders import at
from lakefeed.testing.faulty import AFTER, HELD, Fault, Faults, FaultyCapture, FaultyStore
from lakefeed.testing.runtime_contract import ids, transactions
from lakefeed.testing.scripted import ScriptedCapture

ONE = Checkpoint.from_position(at(1))


def torn() -> Exception:
    return CheckpointError("torn")


def test_without_faults_the_wrappers_are_not_there() -> None:
    store = FaultyStore(MemoryCheckpointStore(), Faults())
    store.save("a", ONE)
    assert (store.load("a"), store.list(), store.all(), store.damaged()) == (ONE, ("a",), {"a": ONE}, {})
    store.delete("a")
    assert store.load("a") is None
    capture = FaultyCapture(ScriptedCapture(transactions(1)), Faults())
    capture.open()
    capture.prepare(())
    assert ids([next(capture.live(None))]) == [1]
    assert (capture.kind, capture.identity(), capture.check()) == ("sqlite", "scripted", ())
    assert capture.uninstall() == ("resume point",)


def test_before_means_that_it_did_not_happen() -> None:
    inner = MemoryCheckpointStore()
    store = FaultyStore(inner, Faults(Fault("save", error=torn)))
    with pytest.raises(CheckpointError):
        store.save("a", ONE)
    assert inner.load("a") is None


def test_after_means_that_it_happened_and_the_answer_was_lost() -> None:
    inner = MemoryCheckpointStore()
    store = FaultyStore(inner, Faults(Fault("save", when=AFTER, error=torn)))
    with pytest.raises(CheckpointError):
        store.save("a", ONE)
    assert inner.load("a") == ONE


def test_held_means_that_it_happened_and_the_answer_waits() -> None:
    inner, faults = MemoryCheckpointStore(), Faults(Fault("save", when=HELD))
    saving = threading.Thread(target=FaultyStore(inner, faults).save, args=("a", ONE))
    saving.start()
    assert faults.reached.wait(60)
    assert inner.load("a") == ONE
    assert saving.is_alive()
    faults.release()
    saving.join(60)
    assert not saving.is_alive()


def test_the_nth_call_is_counted_per_method_and_from_the_moment_it_is_added() -> None:
    faults = Faults(Fault("load", nth=2, error=torn))
    store = FaultyStore(MemoryCheckpointStore(), faults)
    store.list()
    store.load("a")
    with pytest.raises(CheckpointError):
        store.load("a")
    store.load("a")
    faults.add(Fault("load", error=torn))
    with pytest.raises(CheckpointError):
        store.load("a")
    store.load("a")
    assert faults.counts["load"] == 5


def test_every_call_can_fail_until_the_faults_are_cleared() -> None:
    faults = Faults(Fault("load", nth=None, error=torn))
    store = FaultyStore(MemoryCheckpointStore(), faults)
    for _ in range(3):
        with pytest.raises(CheckpointError):
            store.load("a")
    faults.clear()
    assert store.load("a") is None


def test_a_pull_from_live_is_a_call_of_its_own() -> None:
    capture = FaultyCapture(ScriptedCapture(transactions(1, 2)), Faults(Fault("next", nth=2)))
    capture.open()
    capture.prepare(())
    live = capture.live(None)
    next(live)
    with pytest.raises(SourceUnavailableError):
        next(live)

"""One writer in an object store: who gets the lease, who loses it, and what a writer that comes back late can do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pyarrow as pa
import pytest

from lakefeed.errors import JournalError, LeaseError, LeaseLostError, StateError
from lakefeed.flow.table_state import TableStates
from lakefeed.journal import store_lease
from lakefeed.journal.journal import Journal
from lakefeed.journal.lease import lease_holder
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.mode import Mirror
from lakefeed.lake.route import Route
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at
from lakefeed.testing.builders import at, batch, change_set, read_window, table
from lakefeed.testing.server.object_store import Seaweed
from lakefeed.testing.server.proxy import HttpProxy

T = table("main.t", {"id": pa.int64()}, key=("id",))
QUICK = JournalOptions(lease_seconds=3, keep_seconds=0, keep_change_sets=1)
SLOW = JournalOptions(lease_seconds=300)
WRITER = """
import json, sys, time
import pyarrow as pa
from lakefeed.errors import LakefeedError
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.storage.location import storage_at
from lakefeed.testing.builders import batch, change_set, table

address, options, pause = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
T = table("main.t", {"id": pa.int64()}, key=("id",))
journal = Journal.open(storage_at(address, options), options=JournalOptions(lease_seconds=3))
number = journal.head
while True:
    number += 1
    try:
        rows = batch(T, [("insert", {"id": number})])
        journal.append(change_set(journal.end, number, rows))
    except LakefeedError as error:
        print(type(error).__name__, flush=True)
        sys.exit(7)
    print(number, flush=True)
    time.sleep(pause)
"""


@pytest.fixture
def place(seaweed: Seaweed, address: str) -> Storage:
    return storage_at(address, seaweed.options)


@pytest.fixture
def writer(seaweed: Seaweed, address: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that appends all the time, and has begun."""
    command = [sys.executable, "-c", WRITER, address, json.dumps(seaweed.options), "0.02"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        yield process
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()


def append(journal: Journal, number: int) -> None:
    journal.append(change_set(journal.end, number, batch(T, [("insert", {"id": number})])))


def taken_over(place: Storage, seconds: float = 20.0) -> Journal:
    """Open it as soon as the lease lets go."""
    until = time.monotonic() + seconds
    while True:
        try:
            return Journal.open(place, options=QUICK)
        except LeaseError:
            assert time.monotonic() < until
            time.sleep(0.2)


def require_whole(place: Storage) -> list[int]:
    """Every change set is there, once, in order, and every segment is what was written. Returns the rows."""
    reader = Journal.read(place)
    reader.verify()
    numbers = [commit.number for commit in reader.commits()]
    assert numbers == list(range(1, len(numbers) + 1))
    window = reader.window(T.table, 0, reader.head)
    reader.check(window)
    return [int(one["id"]) for one in read_window(window)]


def test_a_second_writer_is_refused_and_told_who_writes(place: Storage) -> None:
    with Journal.open(place, options=SLOW) as journal:
        append(journal, 1)
        with pytest.raises(LeaseError, match=f"is written by process {os.getpid()} on .*; its lease expires 300 s"):
            Journal.open(place, options=SLOW)
        holder = lease_holder(place)
        assert holder is not None
        assert (holder.pid, holder.generation) == (os.getpid(), 1)
    assert lease_holder(place) is None
    with Journal.open(place, options=SLOW) as journal:
        append(journal, 2)
        assert journal.commit(2).generation == 2, "given back: there is nothing to wait for"
    with pytest.raises(StateError):
        append(journal, 3)


def test_of_many_that_want_the_lease_at_once_one_gets_it(place: Storage) -> None:
    opened: list[Journal] = []

    def attempt() -> None:
        with suppress(LeaseError):
            opened.append(Journal.open(place.below(), options=SLOW))

    threads = [threading.Thread(target=attempt) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 1
    opened[0].close()


def test_a_lease_of_a_killed_process_of_this_machine_is_free_at_once(
    place: Storage, writer: subprocess.Popen[str]
) -> None:
    writer.kill()
    writer.wait()
    began = time.monotonic()
    with Journal.open(place, options=SLOW) as journal:
        assert time.monotonic() - began < 2.5
        append(journal, journal.head + 1)
    assert require_whole(place) == list(range(1, journal.head + 1))


def test_a_stopped_writer_is_taken_over_and_does_no_harm_when_it_goes_on(
    place: Storage, writer: subprocess.Popen[str]
) -> None:
    writer.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(LeaseError, match=f"process {writer.pid}"):
        Journal.open(place, options=QUICK)
    with taken_over(place) as journal:
        assert 1.5 < time.monotonic() - began < 10
        for _ in range(3):
            append(journal, journal.head + 1)
        writer.send_signal(signal.SIGCONT)
        assert writer.stdout is not None
        assert writer.stdout.read().split()[-1] == "LeaseLostError"
        assert writer.wait(20) == 7
        append(journal, journal.head + 1)
        head = journal.head
    assert require_whole(place) == list(range(1, head + 1))


@pytest.mark.parametrize("is_first", [True, False])
def test_a_writer_that_was_stopped_right_before_its_commit_cannot_have_a_number_that_is_given(
    place: Storage, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """After its check of the lease, as late as can be: what then keeps it out is the put itself."""
    old = Journal.open(place, options=QUICK)
    append(old, 1)
    assert old._lease is not None
    monkeypatch.setattr(old._lease, "check", lambda: None)
    old._lease._over.set()  # type: ignore[union-attr]  # its thread has stopped, as all of the process has
    reached, go_on, outcome = threading.Event(), threading.Event(), list[object]()

    def stops(name: str) -> None:
        if name == "journal.before_commit" and threading.current_thread().name == "old":
            reached.set()
            go_on.wait(30)

    def late() -> None:
        try:
            append(old, 2)
            outcome.append(old.head)
        except JournalError as error:
            outcome.append(type(error))

    monkeypatch.setattr("lakefeed.journal.journal.hit", stops)
    thread = threading.Thread(target=late, name="old")
    thread.start()
    assert reached.wait(10)
    with taken_over(place) as new:
        if is_first:  # the number is given: the old one is refused, and its files go
            append(new, 3)
            go_on.set()
            thread.join()
            assert outcome == [LeaseLostError]
            append(new, 4)
        else:  # the number is still free: the old one has it, with its files, and the new one finds out
            go_on.set()
            thread.join()
            assert outcome == [2]
            with pytest.raises(LeaseLostError, match="another writer has used the journal"):
                append(new, 3)
    with Journal.open(place, options=QUICK) as again:
        assert (again.end, again.head) == ((at(4), 3) if is_first else (at(2), 2))
        append(again, 5)
    assert require_whole(place) == ([1, 3, 4, 5] if is_first else [1, 2, 5])


def test_a_late_writer_takes_back_no_schema_no_trim_mark_and_no_table_state(
    place: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, old_states = (
        Journal.open(place, options=JournalOptions(lease_seconds=3, keep_seconds=0, keep_change_sets=1)),
        TableStates(place),
    )
    for number in (1, 2, 3):
        append(old, number)
    old_states.stage(Route(T.table, T.table, Mirror()), reason="first")
    assert old._lease is not None
    monkeypatch.setattr(old._lease, "check", lambda: None)
    old._lease._over.set()  # type: ignore[union-attr]
    with taken_over(place) as new:
        states = TableStates(place)
        states.stage(Route(T.table, T.table, Mirror()), reason="second")
        wider = table("main.t", {"id": pa.int64(), "more": pa.string()}, key=("id",))
        append(new, 4)
        new.record_schema(wider, at(9))
        new.trim(4)
        with pytest.raises(LeaseLostError, match=r"schemas/main.t.json"):
            old.record_schema(table("main.t", {"id": pa.int64(), "other": pa.int64()}, key=("id",)), at(9))
        with pytest.raises(LeaseLostError, match=r"origin.json"):
            old.trim(2)
        with pytest.raises(LeaseLostError, match=r"tables/main.t.json"):
            old_states.update(T.table, reason="late")
        assert TableStates(place).all()[T.table].reason == "second"
        assert Journal.read(place).schemas.versions(T.table).keys() == {1, 2}


@pytest.mark.slow
def test_a_writer_that_is_cut_off_stops_before_its_lease_runs_out_and_goes_on_when_the_network_is_back(
    seaweed: Seaweed, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakefeed.storage.object_store._RETRY_SECONDS", 0.2)
    direct = storage_at(address, seaweed.options)
    with HttpProxy(seaweed.port) as proxy:
        place = storage_at(address, {**seaweed.options, "endpoint": proxy.endpoint})
        journal = Journal.open(place, options=QUICK)
        append(journal, 1)
        time.sleep(1.3)
        proxy.cut()
        began, refused_at, reason = time.monotonic(), None, ""
        other: Journal | None = None
        while other is None:
            assert time.monotonic() - began < 15
            if refused_at is None:
                try:
                    journal._require_lease()
                except LeaseLostError as error:
                    refused_at, reason = time.monotonic(), error.message
            try:
                other = Journal.open(direct, options=QUICK)
            except LeaseError:
                time.sleep(0.05)
        assert refused_at is not None, "it stops by itself before another can have the lease"
        assert "could not be renewed for 2 s" in reason
        append(other, 2)
        proxy.restore()
        with pytest.raises(LeaseLostError):
            append(journal, 2)
        journal.close()
        with pytest.raises(LeaseError, match="is written by"):
            Journal.open(place, options=QUICK)
        other.close()
        with Journal.open(place, options=QUICK) as journal:
            append(journal, 3)
    assert require_whole(direct) == [1, 2, 3]


@pytest.mark.parametrize("days", [-2, 2])
def test_a_clock_that_is_wrong_neither_loses_a_lease_nor_takes_one(
    place: Storage, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    with Journal.open(place, options=SLOW) as journal:
        append(journal, 1)
        with monkeypatch.context() as patch:
            moved = SimpleNamespace(
                now=lambda zone: datetime.now(UTC) + timedelta(days=days), fromisoformat=datetime.fromisoformat
            )
            patch.setattr(store_lease, "datetime", moved)
            patch.setattr(time, "time", lambda: time.monotonic() + days * 86_400)
            patch.setattr(store_lease, "_watched", {})
            append(journal, 2)
            with pytest.raises(LeaseError, match="is written by"):
                Journal.open(place, options=SLOW)
        append(journal, 3)


@pytest.mark.slow
def test_an_old_lease_is_taken_at_once_by_one_who_never_saw_it_renewed(
    place: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the store's clock: whoever comes long after a machine was lost does not wait once more."""
    journal = Journal.open(place, options=QUICK)
    append(journal, 1)
    assert journal._lease is not None
    journal._lease._over.set()  # type: ignore[union-attr]
    time.sleep(5.5)
    monkeypatch.setattr(store_lease, "_watched", {})
    with Journal.open(place, options=QUICK) as other:
        append(other, 2)
    assert place.names() == [name for name in place.names() if ".clock-" not in name]

"""Lease: one writer, whoever and wherever the second one is."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from lakefeed.change.batch import ChangeBatch
from lakefeed.errors import LeaseError, StateError
from lakefeed.journal.journal import Journal
from lakefeed.journal.lease import lease_holder
from lakefeed.journal.options import JournalOptions
from lakefeed.testing.builders import at, batch, change_set, table

T = table("main.t", {"id": pa.int64()}, key=("id",))
FAST = JournalOptions(fsync=False)
HOLD = """
import sys, time
from lakefeed.journal.journal import Journal
journal = Journal.open(sys.argv[1])
print("ready", flush=True)
time.sleep(60)
"""


def row(key: int) -> ChangeBatch:
    return batch(T, [("insert", {"id": key})])


def test_t31_a_second_writer_in_the_same_process_is_refused_and_told_who_writes(tmp_path: Path) -> None:
    with Journal.open(tmp_path, options=FAST), pytest.raises(LeaseError, match=f"process {os.getpid()} on .* since 20"):
        Journal.open(tmp_path, options=FAST)
    Journal.open(tmp_path, options=FAST).close()


@pytest.mark.crash
def test_a_writer_in_another_process_is_named_and_its_lease_ends_with_kill_9(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        holder = lease_holder(tmp_path)
        assert holder is not None
        assert (holder.pid, holder.generation) == (child.pid, 1)
        with pytest.raises(LeaseError, match=f"process {child.pid} "):
            Journal.open(tmp_path, options=FAST)
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert lease_holder(tmp_path) is None
    with Journal.open(tmp_path, options=FAST):
        taken = lease_holder(tmp_path)
        assert taken is not None
        assert (taken.pid, taken.generation) == (os.getpid(), 2)


def test_nobody_holds_a_journal_that_is_not_there_or_was_closed(tmp_path: Path) -> None:
    assert lease_holder(tmp_path) is None
    Journal.open(tmp_path, options=FAST).close()
    assert lease_holder(tmp_path) is None


def test_close_is_idempotent_and_a_closed_journal_takes_nothing(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, options=FAST)
    journal.close()
    journal.close()
    for write in (
        lambda: journal.append(change_set(None, 1, row(1))),
        lambda: journal.trim(0),
        lambda: journal.record_schema(T, at(1)),
        lambda: journal.adopt("db"),
    ):
        with pytest.raises(StateError, match="closed"):
            write()


def test_a_writer_whose_lease_was_taken_over_publishes_nothing(tmp_path: Path) -> None:
    with Journal.open(tmp_path, options=FAST) as journal:
        journal.append(change_set(None, 1, row(1)))
        newer = json.loads((tmp_path / "lease").read_text()) | {"generation": 99, "pid": 4711}
        (tmp_path / "lease").write_text(json.dumps(newer))
        with pytest.raises(LeaseError, match="taken over by process 4711"):
            journal.append(change_set(1, 2, row(2)))
        with pytest.raises(LeaseError):
            journal.trim(1)
        assert journal.head == 1
    assert len(list((tmp_path / "commits").iterdir())) == 1


def test_a_take_over_during_the_append_is_found_out_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence is the last step before the rename: the lease goes while the commit file has its temporary name."""

    def take_away(failpoint: str) -> None:
        if failpoint == "journal.before_commit":
            (tmp_path / "lease").unlink()

    with Journal.open(tmp_path, options=FAST) as journal:
        monkeypatch.setattr("lakefeed.journal.journal.hit", take_away)
        with pytest.raises(LeaseError, match="is gone"):
            journal.append(change_set(None, 1, row(1)))
        assert journal.head == 0
    assert list((tmp_path / "commits").iterdir()) == []
    assert list(tmp_path.glob("segments/*/*")) == []


def test_a_lost_lease_file_does_not_bring_an_old_generation_back(tmp_path: Path) -> None:
    for expected in (1, 2):
        with Journal.open(tmp_path, options=FAST) as journal:
            start = journal.end
            commit = journal.append(change_set(start, expected, row(expected)))
            assert commit.generation == expected
        (tmp_path / "lease").unlink()
    with Journal.open(tmp_path, options=FAST) as journal:
        assert journal.append(change_set(2, 3, row(3))).generation == 3


def test_asking_for_the_holder_does_not_disturb_an_opener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks has the lock for an instant. Here the opener comes in that instant, which its first pause ends."""
    Journal.open(tmp_path, options=FAST).close()
    asking, paused = threading.Event(), threading.Event()
    flock = fcntl.flock

    def held(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        if operation & fcntl.LOCK_SH:
            asking.set()
            paused.wait(60)

    def pause(_: float) -> None:
        paused.set()
        asker.join(60)

    monkeypatch.setattr(fcntl, "flock", held)
    monkeypatch.setattr("lakefeed.journal.lease.time", SimpleNamespace(sleep=pause))
    asker = threading.Thread(target=lease_holder, args=(tmp_path,), daemon=True)
    asker.start()
    assert asking.wait(60)
    Journal.open(tmp_path, options=FAST).close()
    assert paused.is_set(), "the opener did not meet the one who asks"

"""Reading beside the writer: from other threads, and from other processes by Journal.read."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from lakefeed.errors import JournalDamagedError, StateError
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.base import ChangeLog
from lakefeed.testing.builders import at, batch, change_set, table
from lakefeed.testing.journal_reader import read_window

T = table("main.t", {"id": pa.int64()}, key=("id",))
FAST = JournalOptions(fsync=False, keep_change_sets=2)


def append(journal: Journal, number: int) -> None:
    journal.append(change_set(journal.end, number, batch(T, [("insert", {"id": number})])))


def test_a_reader_sees_new_commits_when_asked_and_cannot_write(tmp_path: Path) -> None:
    with Journal.open(tmp_path, identity="db", options=FAST) as writer:
        reader = Journal.read(tmp_path)
        assert (reader.head, reader.identity) == (0, "db")
        append(writer, 1)
        assert reader.head == 0
        reader.refresh()
        assert (reader.head, reader.end) == (1, at(1))
        assert [row["id"] for row in read_window(reader.window(T.table, 0, 1))] == [1]
        for write in (
            lambda: reader.append(change_set(1, 2)),
            lambda: reader.trim(1),
            lambda: reader.record_schema(T, at(1)),
            lambda: reader.adopt("other"),
        ):
            with pytest.raises(StateError, match="read only"):
                write()
        reader.close()
        append(writer, 2)


def test_a_reader_follows_a_trim_even_past_everything_it_knew(tmp_path: Path) -> None:
    with Journal.open(tmp_path, options=FAST) as writer:
        append(writer, 1)
        reader = Journal.read(tmp_path)
        for number in range(2, 8):
            append(writer, number)
        writer.trim(7)
        reader.refresh()
        assert (reader.trimmed, reader.head) == (5, 7)
        assert reader.commit(6) == writer.commit(6)
        writer.refresh()
        assert writer.head == 7


def test_reading_what_is_not_there_is_an_empty_journal_and_makes_nothing(tmp_path: Path) -> None:
    reader = Journal.read(tmp_path / "none")
    reader.refresh()
    assert (reader.head, reader.end, list(reader.commits())) == (0, None, [])
    assert not (tmp_path / "none").exists()


def test_reading_a_gutted_journal_is_an_error(tmp_path: Path) -> None:
    with Journal.open(tmp_path, options=FAST) as writer:
        append(writer, 1)
    (tmp_path / "commits" / f"{1:020d}.json").unlink()
    (tmp_path / "commits").rmdir()
    with pytest.raises(JournalDamagedError):
        Journal.read(tmp_path)


def test_a_journal_is_the_change_log_that_the_lake_asks_for(tmp_path: Path) -> None:
    with Journal.open(tmp_path, options=FAST) as journal:
        log: ChangeLog = journal
        assert log.head == 0


def test_windows_stay_whole_while_another_thread_appends_and_a_third_trims(tmp_path: Path) -> None:
    errors: list[BaseException] = []
    done = threading.Event()

    def look(journal: Journal) -> None:
        try:
            while not done.is_set():
                head = journal.head
                window = journal.window(T.table, head - 1, head) if head else None
                assert window is None or [row["id"] for row in read_window(window)] == [head]
                journal.refresh()
        except BaseException as error:  # noqa: BLE001  # handed to the test's own thread
            errors.append(error)

    def trim(journal: Journal) -> None:
        try:
            while not done.wait(0.002):
                journal.trim(journal.head)
        except BaseException as error:  # noqa: BLE001  # handed to the test's own thread
            errors.append(error)

    options = JournalOptions(fsync=False, keep_change_sets=100)
    with Journal.open(tmp_path, options=options) as journal:
        append(journal, 1)
        threads = [
            threading.Thread(target=look, args=(journal,)),
            threading.Thread(target=look, args=(Journal.read(tmp_path),)),
            threading.Thread(target=trim, args=(journal,)),
        ]
        for thread in threads:
            thread.start()
        for number in range(2, 250):
            append(journal, number)
        done.set()
        for thread in threads:
            thread.join()
        assert errors == []
        assert journal.trim(249).trimmed == 149

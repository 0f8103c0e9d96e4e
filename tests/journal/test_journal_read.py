"""Reading beside the writer: from other threads, and from other processes by Journal.read."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefeed.errors import JournalDamagedError, JournalError, StateError
from lakefeed.journal import recovery
from lakefeed.journal.commit import Commit, parse_commit
from lakefeed.journal.journal import Journal
from lakefeed.journal.layout import Layout
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.base import ChangeLog
from lakefeed.storage.base import Storage
from lakefeed.storage.local import LocalStorage
from lakefeed.testing.builders import at, batch, change_set, read_window, table

T = table("main.t", {"id": pa.int64()}, key=("id",))
FAST = JournalOptions(fsync=False, keep_seconds=0, keep_change_sets=2)


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
            with pytest.raises(StateError, match="read-only"):
                write()
        reader.close()
        append(writer, 2)


def test_a_reader_of_a_long_journal_reads_what_is_new_and_lists_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal.open(tmp_path, options=FAST) as writer:
        for number in range(1, 31):
            append(writer, number)
        reader = Journal.read(tmp_path)
        list(reader.commits())
        append(writer, 31)
        append(writer, 32)

        def refused(*_: object) -> list[int]:
            raise AssertionError("the commits were listed")

        read = list[str]()

        def parsed(data: bytes, name: str, root: Storage) -> Commit:
            read.append(name)
            return parse_commit(data, name, root)

        monkeypatch.setattr(Layout, "commit_numbers", refused)
        monkeypatch.setattr(recovery, "parse_commit", parsed)
        reader.refresh()
        assert len(read) == 2
        assert [one.number for one in reader.commits()] == list(range(1, 33))
        assert [row["id"] for row in read_window(reader.window(T.table, 29, 32))] == [30, 31, 32]
        monkeypatch.undo()
        writer.trim(30)
        reader.refresh()
        assert [one.number for one in reader.commits()] == [one.number for one in Journal.read(tmp_path).commits()]


def test_a_commit_that_does_not_follow_what_a_reader_knows_is_damage(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "one", options=FAST) as one, Journal.open(tmp_path / "other", options=FAST) as other:
        append(one, 1)
        reader = Journal.read(tmp_path / "one")
        append(other, 5)
        append(other, 6)
        name = "commits/00000000000000000002.json"
        (tmp_path / "one" / name).write_bytes((tmp_path / "other" / name).read_bytes())
        with pytest.raises(JournalDamagedError, match="does not start where the previous one ends"):
            reader.refresh()


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
    """The last 100 change sets are kept, and the writer waits for a reader that is 50 behind."""
    errors: list[BaseException] = []
    done, moved = threading.Event(), threading.Condition()
    seen = [0, 0]

    def look(reader: int, journal: Journal) -> None:
        while not done.is_set():
            head = journal.head
            with moved:
                seen[reader] = head
                moved.notify()
            window = journal.window(T.table, head - 1, head) if head else None
            assert window is None or [row["id"] for row in read_window(window)] == [head]
            journal.refresh()

    def trim(journal: Journal) -> None:
        while not done.wait(0.002):
            journal.trim(journal.head)

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # handed to the test's own thread
            with moved:
                errors.append(error)
                moved.notify()

    def wait_for_readers(number: int) -> None:
        with moved:
            assert moved.wait_for(lambda: errors or min(seen) > number - 50, timeout=60), seen

    options = JournalOptions(fsync=False, keep_seconds=0, keep_change_sets=100)
    with Journal.open(tmp_path, options=options) as journal:
        append(journal, 1)
        other = Journal.read(tmp_path)
        works = (lambda: look(0, journal), lambda: look(1, other), lambda: trim(journal))
        threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        try:
            for number in range(2, 250):
                wait_for_readers(number)
                append(journal, number)
        finally:
            done.set()
            for thread in threads:
                thread.join(60)
        assert errors == []
        assert not any(thread.is_alive() for thread in threads)
        assert journal.trim(249).trimmed == 149


def test_a_reader_reads_only_the_commit_files_that_a_question_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(data: bytes, name: str, root: Storage) -> Commit:
        read.append(name)
        return parse_commit(data, name, root)

    other = table("main.other", {"id": pa.int64()}, key=("id",))
    with Journal.open(tmp_path, options=JournalOptions(fsync=False, keep_seconds=0, keep_change_sets=1000)) as writer:
        writer.append(change_set(None, 1, batch(other, [("insert", {"id": 1})])))
        for number in range(2, 301):
            append(writer, number)
        monkeypatch.setattr(recovery, "parse_commit", counted)
        reader = Journal.read(tmp_path)
        assert (reader.head, reader.trimmed, len(read)) == (300, 0, 1)
        assert reader.end == at(300)
        assert reader.window(T.table, 300, 300).segments == ()
        assert len(read) == 1
        assert [row["id"] for row in read_window(reader.window(T.table, 290, 300))] == list(range(291, 301))
        assert reader.position(5) == at(5)
        assert len(read) <= 12
        assert reader.backlog_bytes(290) == writer.backlog_bytes(290)
        # A table that has had nothing for long: its only schema is known without reading back to it.
        assert reader.window(other.table, 295, 300) == writer.window(other.table, 295, 300)
        assert len(read) <= 12
        # Everything, when everything is asked for, and no file twice but for the one asked for alone.
        assert list(reader.commits()) == list(writer.commits())
        assert reader.latest_schema(other.table) == writer.latest_schema(other.table)
        assert reader.window(T.table, 0, 300) == writer.window(T.table, 0, 300)
        assert len(read) <= 301
        append(writer, 301)
        reader.refresh()
        assert (reader.head, len(read)) == (301, len(set(read)) + 1)


def test_a_writer_reads_only_the_newest_commit_files_when_it_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(data: bytes, name: str, root: Storage) -> Commit:
        read.append(name)
        return parse_commit(data, name, root)

    other = table("main.other", {"id": pa.int64()}, key=("id",))
    with Journal.open(tmp_path, options=FAST) as writer:
        writer.append(change_set(None, 1, batch(other, [("insert", {"id": 1})])))
        for number in range(2, 101):
            append(writer, number)
        size, commits = writer.backlog_bytes(0), list(writer.commits())
        windows = [writer.window(name, 0, 100) for name in (T.table, other.table)]
        versions = [writer.version_at(name, 101) for name in (T.table, other.table)]
    monkeypatch.setattr(recovery, "parse_commit", counted)
    monkeypatch.setattr(recovery, "READ_AT_OPEN", 10)
    with Journal.open(tmp_path, options=FAST) as writer:
        assert len(read) == 10
        assert (writer.head, writer.end, writer.backlog_bytes(0)) == (100, at(100), size)
        assert len(writer.window(T.table, 95, 100).segments) == 5
        append(writer, 101)
        assert len(read) == 10, "what goes on with the newest reads no older one"
        assert [writer.version_at(name, 100) for name in (T.table, other.table)] == versions
        assert [writer.window(name, 0, 100) for name in (T.table, other.table)] == windows
        assert (list(writer.commits(0, 100)), len(set(read)), len(read)) == (commits, 100, 100)
    read.clear()
    monkeypatch.setattr("lakefeed.journal.journal._TRIM_AT_ONCE", 7)
    with Journal.open(tmp_path, options=FAST) as writer:
        trimmed = writer.trim(50)
        assert (trimmed.trimmed, trimmed.change_sets, len(read)) == (50, 50, 10 + 50)
        assert writer.backlog_bytes(0) == sum(one.disk_bytes for one in writer.commits())
        assert [writer.version_at(name, 50) for name in (T.table, other.table)] == versions
    with Journal.open(tmp_path, options=FAST) as writer:
        assert (writer.trimmed, writer.head, writer.verify()) == (50, 101, 51)


def test_damage_in_an_old_commit_file_is_found_when_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal.open(tmp_path, options=FAST) as writer:
        for number in range(1, 8):
            append(writer, number)
    monkeypatch.setattr(recovery, "READ_AT_OPEN", 3)
    old, older = (tmp_path / "commits" / f"{number:020d}.json" for number in (2, 1))
    content = old.read_bytes()
    old.write_bytes(content[:-9])
    with Journal.open(tmp_path, options=FAST) as writer:
        assert len(writer.window(T.table, 4, 7).segments) == 3
        for ask in (lambda: writer.window(T.table, 0, 7), lambda: writer.trim(7), lambda: list(writer.commits())):
            with pytest.raises(JournalDamagedError, match=old.name):
                ask()
        append(writer, 8)
    old.write_bytes(content)
    older.unlink()
    with pytest.raises(JournalDamagedError, match=older.name):
        Journal.open(tmp_path, options=FAST)


def test_what_a_reader_asks_beside_a_trim_is_answered_with_what_is_left(tmp_path: Path) -> None:
    """No "read again": what it has in memory and what is still there is the answer."""
    two = table("main.t", {"id": pa.int64(), "name": pa.string()}, key=("id",))
    with Journal.open(tmp_path, options=FAST) as writer:
        for number in range(1, 8):
            append(writer, number)
        writer.append(change_set(7, 8, batch(two, [("insert", {"id": 8})])))
        readers = [Journal.read(tmp_path) for _ in range(4)]
        writer.trim(8)
        assert writer.trimmed == 6
        assert [commit.number for commit in readers[0].commits()] == [7, 8]
        assert readers[1].window(T.table, 7, 8).target.version == 2
        assert readers[2].latest_schema(T.table) == writer.latest_schema(T.table)
        assert readers[2].position(3) is None
        for number in range(9, 15):
            append(writer, number)
        writer.trim(14)
        assert [commit.number for commit in readers[3].commits()] == [8], "the newest of its time is in memory"


def test_a_reader_that_is_overtaken_by_a_trim_is_told_so(tmp_path: Path) -> None:
    with Journal.open(tmp_path, options=FAST) as writer:
        for number in range(1, 8):
            append(writer, number)
        reader = Journal.read(tmp_path)
        writer.trim(7)
        with pytest.raises(JournalError, match="3 to 5 have been trimmed"):
            reader.window(T.table, 2, 7)
        reader.refresh()
        assert reader.window(T.table, 5, 7) == writer.window(T.table, 5, 7)


def test_threads_of_one_reader_get_whole_windows_while_another_one_catches_up(tmp_path: Path) -> None:
    """Python changes threads so often here that steps of all of them come between each other's."""
    with Journal.open(tmp_path, options=JournalOptions(fsync=False, keep_seconds=0, keep_change_sets=1_000)) as writer:
        for number in range(1, 121):
            append(writer, number)
    wrong, interval, until = list[object](), sys.getswitchinterval(), time.monotonic() + 3
    sys.setswitchinterval(2e-5)
    try:
        while time.monotonic() < until:
            reader, over = Journal.read(tmp_path), threading.Event()

            def catch_up(reader: Journal = reader, over: threading.Event = over) -> None:
                try:
                    while not over.is_set():
                        reader.refresh()
                except Exception as error:  # noqa: BLE001  # a finding
                    wrong.append(error)

            def ask(after: int, reader: Journal = reader) -> None:
                try:
                    found = [one.first_seq for one in reader.window(T.table, after, 120).segments]
                    if found != list(range(after + 1, 121)):
                        wrong.append((after, found))
                except Exception as error:  # noqa: BLE001  # a finding
                    wrong.append(error)

            catching_up = threading.Thread(target=catch_up)
            asking = [threading.Thread(target=ask, args=(after,)) for after in (60, 30, 0)]
            for thread in (catching_up, *asking):
                thread.start()
            for thread in asking:
                thread.join()
            over.set()
            catching_up.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong, wrong[:3]


def test_a_reader_that_begins_again_between_two_steps_of_a_question_answers_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal.open(tmp_path, options=JournalOptions(fsync=False, keep_seconds=0, keep_change_sets=20)) as writer:
        append(writer, 1)
        reader = Journal.read(tmp_path)
        for number in range(2, 41):
            append(writer, number)
        writer.trim(40)
        reader.refresh()
        need, asked = reader._need, list[int]()

        def then_begins_again(after: int) -> None:
            need(after)
            if not asked:
                asked.append(after)
                reader._index = recovery.catch_up(Layout(reader.root), reader.schemas, None)

        monkeypatch.setattr(reader, "_need", then_begins_again)
        assert [row["id"] for row in read_window(reader.window(T.table, 20, 40))] == list(range(21, 41))
        asked.clear()
        assert [one.number for one in reader.commits(25)] == list(range(26, 41))


def test_a_reader_far_behind_reads_what_is_new_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal.open(tmp_path, options=FAST) as writer:
        append(writer, 1)
        reader = Journal.read(tmp_path)
        for number in range(2, 61):
            append(writer, number)
        together = list[int]()
        read_all = LocalStorage.read_all

        def counted(storage: LocalStorage, names: Sequence[str]) -> list[bytes]:
            together.extend([len(names)] if "commits" in names[0] else [])
            return read_all(storage, names)

        monkeypatch.setattr(LocalStorage, "read_all", counted)
        reader.refresh()
        assert together == [59 - recovery._READ_SINGLY], "in an object store these are requests side by side"
        assert [row["id"] for row in read_window(reader.window(T.table, 0, 60))] == list(range(1, 61))


def test_a_lost_commit_file_is_damage_for_a_reader_and_not_the_end(tmp_path: Path) -> None:
    with Journal.open(tmp_path, options=FAST) as writer:
        for number in range(1, 6):
            append(writer, number)
        reader = Journal.read(tmp_path)
        for number in range(6, 11):
            append(writer, number)
        (tmp_path / "commits" / f"{6:020d}.json").unlink()
        with pytest.raises(JournalDamagedError, match=r"06\.json is missing, but change set 7 exists"):
            reader.refresh()


def test_a_trim_between_two_steps_of_catching_up_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal.open(tmp_path, options=FAST) as writer:
        for number in range(1, 6):
            append(writer, number)
        reader = Journal.read(tmp_path)
        load, trimmed = recovery.load_origin, list[object]()

        def then_trimmed(layout: Layout) -> Any:
            origin = load(layout)
            if not trimmed:
                for number in range(6, 21):
                    append(writer, number)
                trimmed.append(writer.trim(20))
            return origin

        monkeypatch.setattr(recovery, "load_origin", then_trimmed)
        reader.refresh()
        assert (reader.trimmed, reader.head) == (18, 20)
        assert [row["id"] for row in read_window(reader.window(T.table, 18, 20))] == [19, 20]


def test_a_reader_that_lives_long_remembers_no_segments_that_were_trimmed(tmp_path: Path) -> None:
    with Journal.open(tmp_path, options=FAST) as writer:
        append(writer, 1)
        reader = Journal.read(tmp_path)
        for number in range(2, 51):
            append(writer, number)
            reader.refresh()
            reader.check(reader.window(T.table, number - 1, number))
            writer.trim(number)
        reader.refresh()
        assert len(reader._sound) <= FAST.keep_change_sets

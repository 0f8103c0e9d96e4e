"""Trim: takes what is applied and not to be kept, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lakefeed.change.batch import ChangeBatch
from lakefeed.errors import JournalError, StateError
from lakefeed.failpoint import FailpointError, armed
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.testing.builders import at, batch, change_set, read_window, table

T = table("main.t", {"id": pa.int64()}, key=("id",))


def filled(root: Path, keep: int, count: int = 6) -> Journal:
    journal = Journal.open(root, options=JournalOptions(fsync=False, keep_seconds=0, keep_change_sets=keep))
    for place in range(count):
        journal.append(change_set(place or None, place + 1, batch(T, [("insert", {"id": place + 1})])))
    return journal


def on_disk(root: Path) -> tuple[int, int]:
    return len(list(root.glob("commits/*.json"))), len(list(root.glob("segments/*/*.parquet")))


def test_nothing_above_applied_is_trimmed(tmp_path: Path) -> None:
    with filled(tmp_path, keep=0) as journal:
        result = journal.trim(2)
        assert (result.trimmed, result.change_sets, journal.trimmed) == (2, 2, 2)
        assert on_disk(tmp_path) == (4, 4)
        assert [row["id"] for row in read_window(journal.window(T.table, 2, 6))] == [3, 4, 5, 6]


def test_the_newest_change_sets_are_kept_even_when_they_are_applied(tmp_path: Path) -> None:
    with filled(tmp_path, keep=4) as journal:
        assert journal.trim(6).trimmed == 2
        assert journal.trim(6).change_sets == 0
        assert on_disk(tmp_path) == (4, 4)


def test_the_head_is_never_trimmed_and_carries_on_the_counts(tmp_path: Path) -> None:
    with filled(tmp_path, keep=0) as journal:
        assert journal.trim(6).trimmed == 5
        assert on_disk(tmp_path) == (1, 1)
    with Journal.open(tmp_path) as journal:
        assert (journal.head, journal.trimmed, journal.end) == (6, 5, at(6))
        assert (journal.last_seq, journal.committed_rows) == (6, 6)
        assert journal.append(change_set(6, 7)).number == 7


def test_a_window_that_reaches_below_the_trim_is_refused(tmp_path: Path) -> None:
    with filled(tmp_path, keep=0) as journal:
        journal.trim(3)
        with pytest.raises(JournalError, match="change sets 3 to 3 have been trimmed"):
            journal.window(T.table, 2, 6)
        with pytest.raises(JournalError, match="does not have change set 3"):
            journal.commit(3)
        assert [commit.number for commit in journal.commits(after=1, upto=5)] == [4, 5]
        assert journal.window(T.table, 3, 3).segments == ()


def test_what_is_not_in_the_journal_cannot_be_applied(tmp_path: Path) -> None:
    with filled(tmp_path, keep=0) as journal, pytest.raises(StateError, match="head is 6"):
        journal.trim(7)


def test_an_older_applied_number_never_moves_the_trim_back(tmp_path: Path) -> None:
    with filled(tmp_path, keep=0) as journal:
        journal.trim(4)
        assert journal.trim(1).trimmed == 4


def test_a_failure_in_the_middle_leaves_litter_that_the_next_open_removes(tmp_path: Path) -> None:
    journal = filled(tmp_path, keep=0)
    with armed("journal.during_trim", "raise"), pytest.raises(FailpointError):
        journal.trim(4)
    assert (journal.trimmed, on_disk(tmp_path)) == (4, (2, 6))
    journal.close()
    with Journal.open(tmp_path) as journal:
        assert (journal.trimmed, journal.head, on_disk(tmp_path)) == (4, 6, (2, 2))


def test_backlog_bytes_after_a_trim_counts_what_is_left(tmp_path: Path) -> None:
    with filled(tmp_path, keep=0) as journal:
        sizes = {commit.number: commit.disk_bytes for commit in journal.commits()}
        journal.trim(3)
        assert journal.backlog_bytes(0) == journal.backlog_bytes(3) == sizes[4] + sizes[5] + sizes[6]
        assert journal.backlog_bytes(5) == sizes[6]
        assert journal.backlog_bytes(6) == 0


def test_a_trim_beside_an_append_leaves_it_the_schema_that_is_in_effect(tmp_path: Path) -> None:
    """The version in effect moves from the schema history to the origin while the append reads its batches."""
    other = table("main.o", {"id": pa.int64()}, key=("id",))
    wider = table("main.t", {"id": pa.int64(), "w": pa.string()}, key=("id",))
    options = JournalOptions(fsync=False, keep_seconds=0, keep_change_sets=0, keep_schemas=1)
    with Journal.open(tmp_path, options=options) as journal:
        journal.append(change_set(None, 1, batch(T, [("insert", {"id": 1})])))
        journal.append(change_set(1, 2, batch(other, [("insert", {"id": 1})])))
        journal.trim(1)
        recorded = journal.record_schema(wider, at(2))
        for place in (2, 3):
            journal.append(change_set(place, place + 1, batch(other, [("insert", {"id": place})])))
        whole = change_set(4, 5, batch(other, [("insert", {"id": 9})]), batch(wider, [("insert", {"id": 2, "w": "x"})]))

        class TrimmedInBetween:
            def __iter__(self) -> Iterator[ChangeBatch]:
                first, second = whole.batches
                yield first
                journal.trim(4)
                yield second

        commit = journal.append(replace(whole, batches=TrimmedInBetween()))
        assert commit.tables[T.table].schema_version == recorded.version
        assert journal.trimmed == 3


def test_of_two_schemas_recorded_for_one_change_set_a_trim_keeps_the_last_in_effect(tmp_path: Path) -> None:
    """A table that is altered while its copy waits is recorded twice, and no change set lies in between."""
    other = table("main.o", {"id": pa.int64()}, key=("id",))
    wider = table("main.t", {"id": pa.int64(), "w": pa.string()}, key=("id",))
    with Journal.open(
        tmp_path, options=JournalOptions(fsync=False, keep_seconds=0, keep_change_sets=0, keep_schemas=1)
    ) as journal:
        for schema in (T, wider):
            journal.record_schema(schema, at(0))
        for place in (0, 1):
            journal.append(change_set(place or None, place + 1, batch(other, [("insert", {"id": place})])))
        journal.trim(1)
        latest = journal.latest_schema(T.table)
        assert latest is not None
        assert latest.same_shape(wider)

"""Schema history: versions are given once, in order, survive replays and trims, and go only when nothing needs them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lakefeed.change.batch import ChangeBatch
from lakefeed.change.change_set import RecopyNeeded
from lakefeed.change.segment import StaleReason
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import JournalError
from lakefeed.failpoint import FailpointError, armed
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.testing.builders import at, batch, change_set, read_window, table

NAME = TableId("main", "t")
A = table("main.t", {"id": pa.int64()}, key=("id",))
B = table("main.t", {"id": pa.int64(), "b": pa.string()}, key=("id",))
C = table("main.t", {"id": pa.int64(), "c": pa.float64()}, key=("id",))
OPTIONS = JournalOptions(fsync=False, keep_seconds=0, keep_change_sets=1)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path, options=OPTIONS) as opened:
        yield opened


def row(schema: TableSchema, key: int = 1, start_seq: int = 0) -> ChangeBatch:
    return batch(schema, [("insert", {"id": key})], start_seq=start_seq)


def test_the_same_shape_keeps_its_version_and_another_gets_the_next(journal: Journal) -> None:
    assert journal.latest_schema(NAME) is None
    assert journal.record_schema(A, at(1)).version == 1
    assert journal.record_schema(A, at(5)).version == 1
    assert journal.record_schema(B, at(9)).version == 2
    assert journal.latest_schema(NAME) == B.at_version(2)
    assert journal.schema(NAME, 1) == A.at_version(1)
    with pytest.raises(JournalError, match="no version 3"):
        journal.schema(NAME, 3)


def test_t14_a_schema_change_that_is_replayed_gets_the_version_it_had(tmp_path: Path) -> None:
    with Journal.open(tmp_path, options=OPTIONS) as journal:
        recorded = [journal.record_schema(schema, at(place)).version for schema, place in ((A, 1), (B, 10), (C, 20))]
    with Journal.open(tmp_path, options=OPTIONS) as journal:
        replayed = [journal.record_schema(schema, at(place)).version for schema, place in ((A, 1), (B, 10), (C, 20))]
        assert recorded == replayed == [1, 2, 3]
        assert journal.latest_schema(NAME) == C.at_version(3)


def test_t14_a_replay_that_is_cut_elsewhere_gets_the_same_versions(journal: Journal) -> None:
    journal.append(change_set(None, 1, row(A)))
    with armed("journal.after_segments", "raise"), pytest.raises(FailpointError):
        journal.append(change_set(1, 30, row(B), row(C, start_seq=1)))
    assert journal.append(change_set(1, 10, row(B))).tables[NAME].schema_version == 2
    assert journal.append(change_set(10, 30, row(C))).tables[NAME].schema_version == 3


def test_a_version_that_only_a_failed_append_recorded_is_not_in_effect(journal: Journal) -> None:
    journal.append(change_set(None, 1, row(A)))
    with armed("journal.after_segments", "raise"), pytest.raises(FailpointError):
        journal.append(change_set(1, 30, row(A), row(B, start_seq=1)))
    journal.append(change_set(1, 2, row(A)))
    assert journal.window(NAME, 1, 2).target == A.at_version(1)


def test_a_window_has_what_was_said_against_the_rows_of_before_and_the_version_that_came_with_it(
    journal: Journal,
) -> None:
    journal.append(change_set(None, 1, row(A)))
    journal.append(change_set(1, 2, schemas=[B], notices=[RecopyNeeded(NAME, "filled", ("b",))]))
    others = RecopyNeeded(TableId("main", "u"), "another table's")
    journal.append(change_set(2, 3, notices=[others, RecopyNeeded(NAME, "missed")]))
    assert journal.window(NAME, 0, 3).stale_reasons == (StaleReason(2, "filled", ("b",)), StaleReason(2, "missed"))
    assert journal.window(NAME, 1, 2).stale_reasons == (StaleReason(2, "filled", ("b",)),)
    assert journal.window(NAME, 0, 1).stale_reasons == ()


def test_rows_of_two_versions_in_one_change_set_go_to_two_segments(journal: Journal) -> None:
    journal.append(change_set(None, 1, row(A, 1)))
    journal.append(change_set(1, 2, row(A, 2), row(B, 3, start_seq=1), schemas=[B]))
    window = journal.window(NAME, 0, 2)
    assert [segment.schema_version for segment in window.segments] == [1, 1, 2]
    assert [item["id"] for item in read_window(window)] == [1, 2, 3]
    assert window.target == B.at_version(2)
    assert dict(window.schemas) == {1: A.at_version(1), 2: B.at_version(2)}


def test_segments_never_overlap_in_seq_even_when_versions_alternate(journal: Journal) -> None:
    parts = [row(schema, key, start_seq=key) for key, schema in enumerate((A, B, A))]
    journal.append(change_set(None, 1, *parts))
    window = journal.window(NAME, 0, 1)
    assert [(segment.first_seq, segment.last_seq) for segment in window.segments] == [(1, 1), (2, 2), (3, 3)]
    assert [item["id"] for item in read_window(window)] == [0, 1, 2]


def test_a_change_back_to_an_earlier_shape_is_a_new_version(journal: Journal) -> None:
    for place, schema in enumerate((A, B, A)):
        journal.append(change_set(place or None, place + 1, row(schema)))
    assert [journal.window(NAME, 0, number).target.version for number in (1, 2, 3)] == [1, 2, 3]
    assert journal.window(NAME, 0, 3).target.same_shape(A)


def test_there_and_back_in_one_change_set_ends_in_the_last_shape_announced(journal: Journal) -> None:
    journal.append(change_set(None, 1, row(A), row(B, start_seq=1), schemas=[A, B, A]))
    assert journal.window(NAME, 0, 1).target.same_shape(A)
    journal.append(change_set(1, 2, row(A), row(B, start_seq=1), row(A, start_seq=2)))
    assert journal.window(NAME, 1, 2).target.same_shape(A)


def test_an_announcement_without_rows_is_the_target_from_there_on(journal: Journal) -> None:
    journal.append(change_set(None, 1, row(A)))
    journal.append(change_set(1, 2, schemas=[B, C]))
    journal.append(change_set(2, 3, batch(table("main.other", {"x": pa.int64()}), [("insert", {"x": 1})])))
    assert journal.commit(2).tables[NAME].segments == ()
    assert [journal.window(NAME, 0, number).target.version for number in (1, 2, 3)] == [1, 3, 3]
    assert set(journal.window(NAME, 1, 2).schemas) == {1, 2, 3}


def test_a_window_of_a_quiet_table_has_its_last_schema_even_after_its_commits_are_trimmed(tmp_path: Path) -> None:
    with Journal.open(tmp_path, options=OPTIONS) as journal:
        journal.append(change_set(None, 1, row(A)))
        journal.append(change_set(1, 2, row(B)))
        for place in range(2, 5):
            journal.append(change_set(place, place + 1))
        assert journal.trim(4).trimmed == 4
        assert journal.window(NAME, 4, 5).target == B.at_version(2)
    with Journal.open(tmp_path, options=OPTIONS) as journal:
        assert journal.window(NAME, 4, 5).target == B.at_version(2)
        assert journal.latest_schema(NAME) == B.at_version(2)
        assert journal.append(change_set(5, 6, row(B))).tables[NAME].schema_version == 2


def test_a_schema_recorded_for_a_copy_is_in_effect_from_the_next_change_set(tmp_path: Path) -> None:
    with Journal.open(tmp_path, options=OPTIONS) as journal:
        journal.append(change_set(None, 1, row(A)))
        journal.record_schema(B, at(1))
        journal.append(change_set(1, 2))
        assert journal.window(NAME, 0, 1).target.version == 1
        assert journal.window(NAME, 1, 2).target.version == 2
    with Journal.open(tmp_path, options=OPTIONS) as journal:
        assert journal.window(NAME, 1, 2).target.version == 2


def test_recording_again_what_a_failed_append_left_puts_it_into_effect(journal: Journal) -> None:
    journal.append(change_set(None, 1, row(A)))
    with armed("journal.after_segments", "raise"), pytest.raises(FailpointError):
        journal.append(change_set(1, 2, row(B)))
    assert journal.latest_schema(NAME) == A.at_version(1)
    assert journal.record_schema(B, at(3)).version == 2
    assert journal.latest_schema(NAME) == B.at_version(2)


def test_rows_from_before_a_copy_do_not_take_the_table_back_to_an_older_shape(journal: Journal) -> None:
    journal.append(change_set(None, 1, row(A)))
    journal.record_schema(B, at(100))
    commit = journal.append(change_set(1, 50, row(A)))
    assert commit.tables[NAME].segments[0].schema_version != 2
    assert journal.window(NAME, 1, 2).target == B.at_version(2)
    journal.append(change_set(50, 150, row(C)))
    assert journal.window(NAME, 2, 3).target.same_shape(C)


def test_a_table_nobody_has_seen_has_no_window(journal: Journal) -> None:
    journal.append(change_set(None, 1))
    with pytest.raises(JournalError, match=r"never seen table main\.t"):
        journal.window(NAME, 0, 1)


def versions(count: int) -> Iterator[TableSchema]:
    for number in range(count):
        yield table("main.t", {"id": pa.int64(), f"c{number}": pa.int64()}, key=("id",))


def test_c4_old_versions_go_when_nothing_needs_them(tmp_path: Path) -> None:
    options = JournalOptions(fsync=False, keep_seconds=0, keep_change_sets=2, keep_schemas=3)
    with Journal.open(tmp_path, options=options) as journal:
        for place, schema in enumerate(versions(10)):
            journal.append(change_set(place or None, place + 1, row(schema)))
        assert journal.trim(3).schemas == 2
        kept = [number for number in range(1, 11) if number in journal.schemas.versions(NAME)]
        assert kept == [3, 4, 5, 6, 7, 8, 9, 10]  # 3 held at the trim, retained segments use the others
        assert journal.trim(10, needed={NAME: [5]}).schemas == 4
        assert list(journal.schemas.versions(NAME)) == [5, 8, 9, 10]
        assert journal.window(NAME, 8, 10).target.version == 10
    with Journal.open(tmp_path, options=options) as journal:
        assert journal.record_schema(A, at(99)).version == 11


def test_c4_no_limit_on_the_schema_history_is_said_loudly_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = JournalOptions(fsync=False, keep_schemas=None, keep_seconds=0, keep_change_sets=1)
    with caplog.at_level(logging.WARNING), Journal.open(tmp_path, options=options) as journal:
        for place, schema in enumerate(versions(4)):
            journal.append(change_set(place or None, place + 1, row(schema)))
        assert journal.trim(4).schemas == 0
    assert "will grow unboundedly" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING), Journal.open(tmp_path, options=OPTIONS):
        assert caplog.text == ""

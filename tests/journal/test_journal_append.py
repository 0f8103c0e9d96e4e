"""Append: what goes in comes out, numbered, ordered, whole or not at all."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakefeed.change.batch import ABSENT, OP, POSITION, SEQ, TIME, TXN, ChangeBatch, Operation, change_schema
from lakefeed.change.change_set import ChangeSet, RecopyNeeded, TableBlocked, TableDropped
from lakefeed.change.segment import Counts
from lakefeed.errors import ConfigError, JournalError, JournalFullError, SourceChangedError, StateError
from lakefeed.failpoint import FailpointError, armed
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.journal.segment_file import SegmentFile
from lakefeed.storage.local import LocalStorage
from lakefeed.testing.builders import at, batch, change_set, read_window, table

PEOPLE = table("main.people", {"id": pa.int64(), "name": pa.string()}, key=("id",))
ORDERS = table("main.orders", {"id": pa.int64(), "total": pa.decimal128(10, 2)}, key=("id",))
FAST = JournalOptions(fsync=False)


def people(*ids: int, start_seq: int = 0) -> ChangeBatch:
    return batch(PEOPLE, [("insert", {"id": key, "name": f"n{key}"}) for key in ids], start_seq=start_seq)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal", options=FAST) as opened:
        yield opened


def files(journal_root: Path) -> list[str]:
    return sorted(path.name for path in journal_root.rglob("*") if path.is_file() and path.name != "lease")


def test_an_absent_directory_is_a_new_empty_journal(journal: Journal) -> None:
    assert (journal.head, journal.end, journal.last_seq, journal.committed_rows) == (0, None, 0, 0)
    assert (journal.trimmed, journal.identity, list(journal.commits())) == (0, None, [])


def test_change_sets_are_numbered_from_one_and_come_back_as_they_went_in(journal: Journal) -> None:
    first = journal.append(change_set(None, 10, people(1, 2)))
    second = journal.append(
        change_set(10, 20, batch(PEOPLE, [("update", {"id": 2, "name": "b"}), ("delete", {"id": 1})]))
    )
    assert (first.number, second.number, journal.head, journal.end) == (1, 2, 2, at(20))
    rows = read_window(journal.window(PEOPLE.table, 0, 2))
    assert [(row["id"], row["name"], row[OP], row[SEQ]) for row in rows] == [
        (1, "n1", Operation.INSERT, 1),
        (2, "n2", Operation.INSERT, 2),
        (2, "b", Operation.UPDATE, 3),
        (1, None, Operation.DELETE, 4),
    ]
    assert (second.counts, journal.committed_rows, journal.last_seq) == (Counts(updated=1, deleted=1), 4, 4)
    assert journal.position(1) == at(10)
    assert journal.position(0) is None


def test_everything_is_there_again_after_a_reopen(tmp_path: Path) -> None:
    with Journal.open(tmp_path, identity="db-1") as journal:
        notices = (
            TableDropped(ORDERS.table),
            TableBlocked(ORDERS.table, "it has no key", "Give it one."),
            RecopyNeeded(PEOPLE.table, "triggers were gone"),
            RecopyNeeded(PEOPLE.table, "the type of name changed", ("name",)),
            RecopyNeeded(PEOPLE.table, "its key changed", ()),
        )
        journal.append(change_set(None, 10, people(1, 2), notices=notices))
        before = journal.commit(1)
    with Journal.open(tmp_path) as journal:
        assert journal.commit(1) == before
        assert journal.commit(1).notices == notices
        assert (journal.head, journal.end, journal.last_seq, journal.committed_rows) == (1, at(10), 2, 2)
        assert journal.identity == "db-1"
        assert journal.verify() == 1


def test_a_journal_that_was_moved_is_read_where_it_is_now(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "old", options=FAST) as journal:
        journal.append(change_set(None, 10, people(1)))
    (tmp_path / "old").rename(tmp_path / "new")
    with Journal.open(tmp_path / "new", options=FAST) as journal:
        assert [row["id"] for row in read_window(journal.window(PEOPLE.table, 0, 1))] == [1]


def test_seq_is_one_order_over_tables_and_change_sets_and_keeps_gaps(journal: Journal) -> None:
    order = batch(ORDERS, [("insert", {"id": 1})], start_seq=2)
    journal.append(change_set(None, 10, people(1, 2), order, people(3, start_seq=7)))
    journal.append(change_set(10, 20, people(4)))
    assert [row[SEQ] for row in read_window(journal.window(PEOPLE.table, 0, 2))] == [1, 2, 8, 9]
    assert [row[SEQ] for row in read_window(journal.window(ORDERS.table, 0, 2))] == [3]
    assert [commit.last_seq for commit in journal.commits()] == [8, 9]


def test_a_window_has_exactly_the_asked_change_sets_of_one_table(journal: Journal) -> None:
    journal.append(change_set(None, 10, people(1)))
    journal.append(change_set(10, 20, batch(ORDERS, [("insert", {"id": 9})])))
    journal.append(change_set(20, 30, people(3)))
    window = journal.window(PEOPLE.table, 1, 3)
    assert [row["id"] for row in read_window(window)] == [3]
    assert (window.end, window.target.version, window.rows) == (at(30), 1, 1)
    assert journal.window(PEOPLE.table, 1, 2).segments == ()
    with pytest.raises(JournalError, match="not in the journal yet"):
        journal.window(PEOPLE.table, 0, 4)


def test_a_segment_tells_counts_truncation_and_absent_columns(journal: Journal) -> None:
    rows = [("read", {"id": 1}), ("insert", {"id": 2}), ("truncate", {}), ("update", {"id": 3}), ("truncate", {})]
    journal.append(change_set(None, 10, batch(PEOPLE, rows, absent={3: ["name"], 0: []})))
    [segment] = journal.window(PEOPLE.table, 0, 1).segments
    assert segment.counts == Counts(inserted=2, updated=1, deleted=0, truncated=2)
    assert (segment.truncated_at, segment.absent) == (5, ("name",))
    assert (segment.first_seq, segment.last_seq, segment.rows) == (1, 5, 5)


def test_before_images_are_rows_of_a_segment_and_no_changes(tmp_path: Path) -> None:
    old, new = ("before", {"id": 1, "name": "a"}), ("update", {"id": 1, "name": "b"})
    with Journal.open(tmp_path / "journal", options=JournalOptions(fsync=False, segment_bytes=1)) as journal:
        journal.append(change_set(None, 10, batch(PEOPLE, [old, new]), batch(PEOPLE, [old], start_seq=2)))
        (commit,) = journal.commits()
        window = journal.window(PEOPLE.table, 0, 1)
    assert (commit.rows, commit.counts, window.has_before_images) == (3, Counts(updated=1), True)
    (segment,) = window.segments
    assert (segment.first_seq, segment.last_seq, segment.rows) == (1, 3, 3)


def test_a_segment_is_plain_parquet_with_statistics(journal: Journal) -> None:
    journal.append(change_set(None, 10, batch(PEOPLE, [("insert", {"id": 1})], position=7, absent={0: ["name"]})))
    [segment] = journal.window(PEOPLE.table, 0, 1).segments
    file = pq.ParquetFile(segment.path)
    types = {field.name: field.type for field in file.schema_arrow}
    assert list(types) == ["id", "name", OP, SEQ, POSITION, TIME, TXN, ABSENT]
    assert types[POSITION] == types[TXN] == pa.string()
    assert types[TIME] == pa.timestamp("us", tz="UTC")
    assert (types[OP], types[ABSENT].value_type) == (pa.int8(), pa.string())
    statistics = file.metadata.row_group(0).column(0).statistics
    assert statistics is not None
    assert statistics.max == 1
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert Path(segment.path).stat().st_size == segment.bytes


def test_small_batches_are_gathered_into_one_row_group(journal: Journal) -> None:
    parts = [people(number, start_seq=number) for number in range(500)]
    journal.append(change_set(None, 10, *parts))
    [segment] = journal.window(PEOPLE.table, 0, 1).segments
    assert pq.ParquetFile(segment.path).metadata.num_row_groups == 1


def test_a_large_change_set_rolls_over_to_new_files(tmp_path: Path) -> None:
    options = JournalOptions(fsync=False, segment_bytes=1)
    parts = [people(*range(start, start + 70_000), start_seq=start) for start in (0, 70_000, 140_000)]
    with Journal.open(tmp_path, options=options) as journal:
        journal.append(change_set(None, 10, *parts))
        window = journal.window(PEOPLE.table, 0, 1)
        assert [segment.first_seq for segment in window.segments] == [1, 70_001, 140_001]
        assert [row["id"] for row in read_window(window)] == list(range(210_000))


def test_more_tables_than_files_may_be_open_at_once(journal: Journal) -> None:
    schemas = [table(f"main.t{number}", {"id": pa.int64()}) for number in range(150)]
    rounds = [
        batch(schema, [("insert", {"id": turn})], start_seq=turn * 150 + place)
        for turn in range(2)
        for place, schema in enumerate(schemas)
    ]
    journal.append(change_set(None, 10, *rounds))
    for schema in schemas:
        assert [row["id"] for row in read_window(journal.window(schema.table, 0, 1))] == [0, 1]


def test_batches_are_read_once_and_never_held_together(journal: Journal) -> None:
    starts = 0

    class Lazy:
        def __iter__(self) -> Iterator[ChangeBatch]:
            nonlocal starts
            starts += 1
            yield people(1)
            yield people(2, start_seq=1)

    journal.append(ChangeSet(None, at(10), Lazy(), rows=2))
    assert starts == 1
    assert journal.committed_rows == 2


def test_a_heartbeat_that_moves_the_end_is_an_empty_commit_and_another_is_refused(journal: Journal) -> None:
    journal.append(change_set(None, 10))
    assert journal.append(change_set(10, 12)).tables == {}
    assert (journal.head, journal.end, journal.last_seq) == (2, at(12), 0)
    with pytest.raises(StateError, match="heartbeat"):
        journal.append(change_set(12, 12))
    assert journal.head == 2


def test_a_change_set_must_start_where_the_journal_ends(journal: Journal) -> None:
    journal.append(change_set(5, 10, people(1)))
    for start in (None, 5, 11):
        with pytest.raises(JournalError, match="the journal ends at 10"):
            journal.append(change_set(start, 20, people(2)))
    with pytest.raises(JournalError, match="before its start"):
        journal.append(change_set(10, 9, people(2)))
    assert journal.append(change_set(10, 10, people(2))).number == 2


def test_a_row_count_that_does_not_match_the_batches_is_refused(journal: Journal) -> None:
    with pytest.raises(JournalError, match="1 rows, but the change set says 2"):
        journal.append(ChangeSet(None, at(10), [people(1)], rows=2))
    assert journal.head == 0


def test_rows_out_of_order_are_refused(journal: Journal) -> None:
    with pytest.raises(JournalError, match="out of order"):
        journal.append(change_set(None, 10, people(1), people(2)))
    data = people(1).data
    wrong = data.set_column(data.schema.get_field_index(OP), change_schema(PEOPLE).field(OP), pa.array([9], pa.int8()))
    with pytest.raises(JournalError, match="operation"):
        journal.append(change_set(None, 10, ChangeBatch(PEOPLE, wrong)))


def test_t13_a_source_that_fails_half_way_leaves_nothing_and_the_same_change_set_can_be_appended(
    tmp_path: Path,
) -> None:
    def broken() -> Iterator[ChangeBatch]:
        yield people(*range(70_000))
        raise ConnectionResetError("gone")

    with Journal.open(tmp_path, options=FAST) as journal:
        journal.append(change_set(None, 10, people(1)))
        before = files(tmp_path)
        with pytest.raises(ConnectionResetError):
            journal.append(ChangeSet(at(10), at(20), broken(), rows=70_001))
        assert files(tmp_path) == before
        assert journal.append(change_set(10, 20, people(2))).number == 2
        assert journal.last_seq == 2


def test_t13_a_failure_before_the_commit_file_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    with Journal.open(tmp_path, options=FAST) as journal:
        journal.append(change_set(None, 10, people(1)))
        before = files(tmp_path)
        for name in ("journal.after_segments", "journal.before_commit"):
            with armed(name, "raise"), pytest.raises(FailpointError):
                journal.append(change_set(10, 20, people(2)))
            assert (files(tmp_path), journal.head) == (before, 1)
        assert journal.append(change_set(10, 20, people(2))).number == 2


def test_a_failure_after_the_commit_file_stops_the_writer_until_it_is_opened_again(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, options=FAST)
    with armed("journal.after_commit", "raise"), pytest.raises(FailpointError):
        journal.append(change_set(None, 10, people(1)))
    with pytest.raises(StateError, match="may or may not be durable"):
        journal.append(change_set(None, 10, people(1)))
    journal.close()
    with Journal.open(tmp_path, options=FAST) as again:
        assert (again.head, again.end) == (1, at(10))


@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, JournalFullError), (errno.EIO, JournalError)])
def test_a_full_disk_is_its_own_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[JournalError]
) -> None:
    real, written = os.write, 0

    def full(descriptor: int, data: memoryview) -> int:
        nonlocal written
        written += len(data)
        if written > 1000:
            raise OSError(code, os.strerror(code))
        return real(descriptor, data)

    with Journal.open(tmp_path, options=FAST) as journal:
        journal.append(change_set(None, 10, people(1)))
        before = files(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr("lakefeed.storage.local.os.write", full)
            with pytest.raises(error) as caught:
                journal.append(change_set(10, 20, people(*range(100_000))))
        assert type(caught.value) is error
        assert ".parquet" in caught.value.message
        assert (files(tmp_path), journal.head) == (before, 1)
        assert journal.append(change_set(10, 20, people(2))).number == 2


def test_nothing_of_a_written_segment_stays_in_memory(journal: Journal) -> None:
    """The Parquet library's reference to its output is one that the garbage collector does not see."""
    for number in range(1, 4):
        journal.append(change_set(number - 1 or None, number, people(number)))
    gc.collect()
    assert not [item for item in gc.get_objects() if type(item) is SegmentFile]


def test_a_type_that_parquet_does_not_have_leaves_no_file_and_no_descriptor(journal: Journal, tmp_path: Path) -> None:
    odd = table("main.odd", {"id": pa.int64(), "span": pa.month_day_nano_interval()}, key=("id",))
    before = files(tmp_path), len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(pa.ArrowException):
            SegmentFile(LocalStorage(tmp_path), "odd.parquet", odd)
    assert (files(tmp_path), len(list(Path("/proc/self/fd").iterdir()))) == before
    assert journal.append(change_set(None, 10, people(1))).number == 1


def test_the_journal_of_one_source_refuses_another(tmp_path: Path) -> None:
    with Journal.open(tmp_path, identity="db-1", options=FAST):
        pass
    with pytest.raises(SourceChangedError, match="belongs to db-1, not to db-2"):
        Journal.open(tmp_path, identity="db-2", options=FAST)
    with Journal.open(tmp_path, options=FAST) as journal:
        assert journal.append(change_set(None, 10, people(1))).identity == "db-1"
        journal.adopt("db-1")
        with pytest.raises(SourceChangedError):
            journal.adopt("db-2")


def test_table_names_that_no_file_system_takes_are_stored(journal: Journal) -> None:
    names = ["main.a/b", "main.A", "main.a", "main...", "main.ü*?[x]=%", "main." + "long" * 80, "main.COM1:"]
    schemas = [table(name, {"id": pa.int64()}) for name in names]
    parts = [batch(schema, [("insert", {"id": place})], start_seq=place) for place, schema in enumerate(schemas)]
    journal.append(change_set(None, 10, *parts))
    for place, schema in enumerate(schemas):
        assert [row["id"] for row in read_window(journal.window(schema.table, 0, 1))] == [place]


def test_backlog_bytes_counts_what_is_above_a_number_takes_on_disk(journal: Journal, tmp_path: Path) -> None:
    """Small change sets most of all: the commit file and the file system's blocks are more than the changes."""
    for place in range(3):
        journal.append(change_set(place or None, place + 1, people(place)))
    root = tmp_path / "journal"
    for after in range(4):
        files_above = [path for path in (root / "commits").iterdir() if int(path.stem) > after]
        files_above += [path for path in (root / "segments").rglob("*.parquet") if int(path.name[:20]) > after]
        assert journal.backlog_bytes(after) == sum(path.stat().st_blocks * 512 for path in files_above)


def test_only_local_paths_are_taken(tmp_path: Path) -> None:
    for place in (Path("s3://bucket/journal"), "hdfs:///x"):
        with pytest.raises(ConfigError, match="the journal cannot be at"):
            Journal.open(place)
    with Journal.open((tmp_path / "a b").as_uri(), options=FAST) as journal:
        journal.append(change_set(None, 10, people(1)))
    assert (tmp_path / "a b" / "commits").is_dir()


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="segment_bytes is 0"):
        JournalOptions(segment_bytes=0)
    with pytest.raises(ConfigError, match="keep_change_sets is -1"):
        JournalOptions(keep_change_sets=-1)
    with pytest.raises(ConfigError, match="keep_schemas is 0"):
        JournalOptions(keep_schemas=0)

"""The stream reader as Spark drives it: which offsets, which change sets, and when it refuses. Without a JVM."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.reading.journals import PEOPLE, PETS, add, add_people, opened

from lakefeed.change.table import Column, TableSchema
from lakefeed.errors import JournalError, TableStoppedError
from lakefeed.journal.journal import Journal
from lakefeed.reading.feed import TableFeed
from lakefeed.reading.options import ReadOptions
from lakefeed.reading.rows import ChangePartition
from lakefeed.reading.source import LakefeedSource
from lakefeed.reading.stream import ChangeStream, Offset

Start = Callable[..., ChangeStream]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with opened(tmp_path / "j", keep=0) as made:
        add_people(made, range(1, 6))
        yield made


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """A query's reader, made as Spark makes it: by way of pickled objects."""

    def made(**options: str) -> ChangeStream:
        source = LakefeedSource({"journal": str(tmp_path / "j"), "table": "main.people", **options})
        schema = source.schema()
        again: LakefeedSource = pickle.loads(pickle.dumps(source))
        return again.streamReader(schema)

    return made


def numbers(stream: ChangeStream, after: Offset, upto: Offset) -> list[int]:
    parts = stream.partitions(after, upto)
    return [read.number for part in parts if isinstance(part, ChangePartition) for read in part.segments]


def run(stream: ChangeStream, after: Offset | None = None) -> tuple[list[int], Offset]:
    """One micro-batch, in the order of calls that Spark 4.1 was seen to make."""
    if after is not None:
        assert stream.partitions(after, after) == []
    upto = stream.latestOffset()
    return numbers(stream, after or stream.initialOffset(), upto), upto


def test_a_feed_beside_a_trim_says_what_is_missing_and_knows_the_rest(tmp_path: Path, journal: Journal) -> None:
    """It reads commit files when it is asked, and the writer may have removed them by then."""
    wider = replace(PEOPLE, columns=(*PEOPLE.columns, Column("age", pa.int64(), id="9")))
    add(journal, ("insert", {"id": 6}), schema=wider)
    options = ReadOptions.parse({"journal": str(tmp_path / "j"), "table": "main.people"})
    feeds = [TableFeed.open(options) for _ in range(3)]
    journal.trim(4)
    with pytest.raises(JournalError, match=r"change sets 3 to 4 of table main.people are needed.* it has 5 to 6"):
        feeds[0].parts(2, 6)
    assert [part.number for part in feeds[0].parts(4, 6)] == [5, 6]
    assert [feeds[1].schema_at(number).version for number in (5, 6)] == [1, 2]
    assert feeds[2].position(5) == journal.commit(5).end.encode()


def test_a_new_query_begins_with_the_earliest_and_goes_on_from_its_offset(journal: Journal, start: Start) -> None:
    stream = start()
    read, offset = run(stream)
    assert (read, offset) == ([1, 2, 3, 4, 5], {"change_set": 5, "position": "sqlite=5@0", "began_after": 0})
    assert stream.latestOffset() == offset, "an offset that changes by itself makes empty micro-batches"
    add_people(journal, [6])
    stream.commit(offset)
    assert run(start(), offset)[0] == [6]


@pytest.mark.parametrize(("option", "expected"), [("3", [3, 4, 5]), ("earliest", [1, 2, 3, 4, 5]), ("latest", [])])
def test_a_query_begins_where_it_is_told(journal: Journal, start: Start, option: str, expected: list[int]) -> None:
    assert run(start(start=option))[0] == expected


def test_a_limit_holds_from_the_first_micro_batch_on(journal: Journal, start: Start) -> None:
    stream = start(max_change_sets="2")
    read, offset = run(stream)
    assert read == [1, 2]
    upto = stream.latestOffset()
    assert numbers(stream, offset, upto) == [3, 4]
    assert run(start(max_change_sets="2"), upto)[0] == [5]


def test_change_sets_of_other_tables_move_the_offset_and_give_no_rows(journal: Journal, start: Start) -> None:
    stream = start(start="latest")
    _, offset = run(stream)
    add(journal, ("insert", {"id": 1}), schema=PETS)
    add(journal)
    upto = stream.latestOffset()
    assert upto["change_set"] == 7
    assert numbers(stream, offset, upto) == []


def test_a_first_micro_batch_that_is_run_again_begins_where_it_began(journal: Journal, start: Start) -> None:
    """Spark asks for the initial offset again; "latest" is another place by then."""
    stream = start(start="latest", max_change_sets="1")
    _, first = run(stream)
    add_people(journal, [6, 7])
    upto = stream.latestOffset()
    add_people(journal, [8])
    again = start(start="latest", max_change_sets="1")
    again.partitions(upto, upto)
    assert again.initialOffset() == first
    assert numbers(again, again.initialOffset(), upto) == [6]


def test_an_offset_older_than_what_is_retained_is_an_error_that_says_what_is_missing(
    journal: Journal, start: Start
) -> None:
    stream = start(max_change_sets="1")
    _, offset = run(stream)
    journal.trim(4)
    said = "change sets 2 to 4 of table main.people are needed, but they have been trimmed .*; it has 5 to 5.*keep_chan"
    with pytest.raises(JournalError, match=said):
        stream.latestOffset()
    with pytest.raises(JournalError, match=said):
        start().partitions(offset, offset)
    with pytest.raises(JournalError, match=r"change sets 3 to 4 of table main.people are needed"):
        start(start="3").latestOffset()
    assert run(start())[0] == [5]


def test_a_query_that_stands_at_the_edge_of_the_trim_misses_nothing(journal: Journal, start: Start) -> None:
    _, offset = run(start(max_change_sets="4"))
    journal.trim(4)
    assert offset["change_set"] == journal.trimmed == 4
    assert run(start(), offset)[0] == [5]


def test_a_journal_that_was_made_anew_is_not_taken_for_the_old_one(
    journal: Journal, start: Start, tmp_path: Path
) -> None:
    _, offset = run(start(start="2"))
    journal.close()
    (tmp_path / "j").rename(tmp_path / "old")
    with opened(tmp_path / "j") as anew:
        add_people(anew, range(1, 4))
        with pytest.raises(JournalError, match="ends with 3"):
            start().partitions(offset, offset)
    with pytest.raises(JournalError, match=r"belongs to another journal .* ended at sqlite=9@0 when"):
        start().partitions({**offset, "change_set": 3, "position": "sqlite=9@0"}, offset)


def test_a_start_that_is_not_there_yet_is_an_error(journal: Journal, start: Start) -> None:
    assert run(start(start="6"))[0] == []
    with pytest.raises(JournalError, match=r"change set 6 of table [a-z.]+ is needed.* ends with 5"):
        start(start="7").latestOffset()


def test_an_added_column_waits_for_a_restart(journal: Journal, start: Start) -> None:
    stream = start()
    _, offset = run(stream)
    add(journal, ("insert", {"id": 6, "name": "n6", "age": 1}), schema=aged())
    parts = stream.partitions(offset, stream.latestOffset())
    read = [row for part in parts for data in stream.read(part) for row in data.to_pylist()]
    assert [(row["id"], row["name"], "age" in row) for row in read] == [(6, "n6", False)]
    assert "age" in start()._target.names


def test_a_renamed_column_keeps_its_old_name_until_a_restart(tmp_path: Path, start: Start) -> None:
    key, name = (replace(column, id=column.name) for column in PEOPLE.columns)
    with opened(tmp_path / "j") as journal:
        add(journal, ("insert", {"id": 1, "name": "a"}), schema=replace(PEOPLE, columns=(key, name)))
        stream = start()
        _, offset = run(stream)
        renamed = replace(PEOPLE, columns=(key, replace(name, name="called")))
        add(journal, ("insert", {"id": 2, "called": "b"}), schema=renamed)
        parts = stream.partitions(offset, stream.latestOffset())
        assert [row["name"] for part in parts for data in stream.read(part) for row in data.to_pylist()] == ["b"]
    assert start()._target.names == ("id", "called")


def test_what_came_before_a_change_that_cannot_be_shown_is_delivered_first(journal: Journal, start: Start) -> None:
    stream = start()
    _, offset = run(stream)
    add_people(journal, [6])
    add(journal, ("insert", {"id": 7}), schema=replace(PEOPLE, columns=PEOPLE.columns[:1]))
    upto = stream.latestOffset()
    assert numbers(stream, offset, upto) == [6]
    with pytest.raises(TableStoppedError, match=r"column 'name' is gone since schema version 2\. Restart the query"):
        stream.latestOffset()
    assert run(start(), upto)[0] == [7]


def aged() -> TableSchema:
    return replace(PEOPLE, columns=(*PEOPLE.columns, Column("age", pa.int64())))


def test_large_segments_have_a_partition_each_and_small_neighbours_share_one(
    journal: Journal, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(start().partitions(*ends(start()))) == 1
    size = max(commit.bytes for commit in journal.commits())
    monkeypatch.setattr("lakefeed.reading.batch.PARTITION_BYTES", size)
    assert len(start().partitions(*ends(start()))) == 5
    monkeypatch.setattr("lakefeed.reading.batch.PARTITION_BYTES", 1)
    assert numbers(start(), *ends(start())) == [1, 2, 3, 4, 5], "one that is larger than the limit is read, too"


def ends(stream: ChangeStream) -> tuple[Offset, Offset]:
    return stream.initialOffset(), stream.latestOffset()

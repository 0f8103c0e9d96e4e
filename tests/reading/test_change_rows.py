"""Rows of any schema version as rows of the one that is read, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.reading.journals import add, opened

from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.errors import DecodeError, JournalDamagedError, JournalError, TableStoppedError
from lakefeed.lake.schema.widening import holds
from lakefeed.reading.columns import ReadColumn, read_columns
from lakefeed.reading.rows import SegmentRead, default_scalar, read_segment

T = TableId("main", "t")


def schema(version: int, *columns: Column) -> TableSchema:
    return TableSchema(T, columns, version=version)


def origins(schemas: Mapping[int, TableSchema], version: int, target: int) -> dict[str, str | None]:
    return {column.name: column.origin for column in read_columns(schemas, version, schemas[target])}


ID = Column("id", pa.int64(), id="1")
HISTORY = {
    1: schema(1, ID, Column("old", pa.string(), id="2"), Column("gone", pa.string(), id="3")),
    2: schema(2, ID, Column("new", pa.string(), id="2"), Column("gone", pa.string(), id="3")),
    3: schema(3, ID, Column("new", pa.string(), id="2"), Column("born", pa.int32(), id="4", default=7)),
    4: schema(4, Column("id", pa.string(), id="1"), Column("new", pa.string(), id="2")),
}


def test_older_rows_are_brought_up_and_newer_ones_taken_back() -> None:
    assert origins(HISTORY, 1, 3) == {"id": "id", "new": "old", "born": None}
    assert origins(HISTORY, 3, 3) == {"id": "id", "new": "new", "born": "born"}
    assert origins(HISTORY, 2, 1) == {"id": "id", "old": "new", "gone": "gone"}


def test_a_column_that_is_gone_or_has_another_type_stops_the_reader_with_a_remedy() -> None:
    with pytest.raises(TableStoppedError, match="column 'gone' is gone since schema version 3") as stopped:
        read_columns(HISTORY, 3, HISTORY[1])
    assert stopped.value.remedy.startswith("Restart the query")
    with pytest.raises(TableStoppedError, match="'id' is int64 in schema version 3, but string in 4"):
        read_columns({3: HISTORY[3], 4: HISTORY[4]}, 4, replace(HISTORY[3], columns=HISTORY[3].columns[:2]))
    with pytest.raises(TableStoppedError, match="'id' is string in schema version 4, but int64 in 1"):
        read_columns(HISTORY, 1, HISTORY[4])


def test_versions_that_the_journal_has_let_go_are_an_error_and_not_a_guess() -> None:
    with pytest.raises(TableStoppedError, match="the lake needs 1 to 3"):
        read_columns({3: HISTORY[3]}, 1, HISTORY[3])


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        (pa.int64(), pa.int32(), True),
        (pa.int32(), pa.int64(), False),
        (pa.float64(), pa.int32(), True),
        (pa.float64(), pa.int64(), False),
        (pa.float64(), pa.float32(), True),
        (pa.decimal128(10, 2), pa.decimal128(8, 2), True),
        (pa.decimal128(10, 4), pa.decimal128(8, 2), True),
        (pa.decimal128(9, 4), pa.decimal128(8, 2), False),
        (pa.decimal128(19, 0), pa.int64(), True),
        (pa.decimal128(20, 2), pa.int64(), False),
        (pa.string(), pa.int64(), False),
    ],
)
def test_a_type_takes_the_place_of_another_only_if_it_holds_every_value(
    wide: pa.DataType, narrow: pa.DataType, expected: bool
) -> None:
    assert holds(wide, narrow) is expected


@pytest.mark.parametrize(
    ("default", "kind", "expected"),
    [
        (1, pa.bool_(), True),
        ("1.50", pa.decimal128(9, 2), Decimal("1.50")),
        (1.5, pa.decimal128(9, 2), Decimal("1.50")),
        ("2024-02-29", pa.date32(), date(2024, 2, 29)),
        ("2024-02-29 01:02:03", pa.timestamp("us", tz="UTC"), datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC)),
        ("2024-02-29 01:02:03+01:00", pa.timestamp("us", tz="UTC"), datetime(2024, 2, 29, 0, 2, 3, tzinfo=UTC)),
        (5, pa.string(), "5"),
        ("x", pa.binary(), b"x"),
    ],
)
def test_a_default_becomes_a_value_of_its_column(default: Any, kind: pa.DataType, expected: Any) -> None:
    assert default_scalar(ReadColumn("c", kind, None, default), "main.t").as_py() == expected


def test_a_default_that_is_no_value_of_its_column_is_an_error() -> None:
    with pytest.raises(DecodeError, match="the default 'soon' of column 'c' is not a date32"):
        default_scalar(ReadColumn("c", pa.date32(), None, "soon"), "main.t")


def test_columns_that_were_not_sent_keep_their_mark_under_their_new_name(tmp_path: Path) -> None:
    first = replace(HISTORY[1], version=0)
    rows: list[tuple[str, dict[str, Any]]] = [
        ("update", {"id": 1}),
        ("insert", {"id": 2, "old": "x", "gone": "y"}),
        ("update", {"id": 3, "old": "z"}),
        ("delete", {"id": 4}),
        ("update", {"id": 5}),
    ]
    with opened(tmp_path) as journal:
        add(journal, *rows, schema=first, absent={0: ["old", "gone"], 2: ["gone"], 4: ["gone", "old"]})
        segment = journal.window(T, 0, 1).segments[0]
    partition = SegmentRead("main.t", 1, segment, read_columns(HISTORY, 1, HISTORY[3]))
    read = [row for part in read_segment(partition) for row in part.to_pylist()]
    assert [row["_lakefeed_absent"] for row in read] == [["new"], None, None, None, ["new"]]
    assert [(row["id"], row["new"], row["born"]) for row in read] == [
        (1, None, 7),
        (2, "x", 7),
        (3, "z", 7),
        (4, None, None),
        (5, None, 7),
    ]
    assert set(read[0]) == {"id", "new", "born", *(name for name in read[0] if name.startswith("_lakefeed_"))}
    Path(segment.path).unlink()
    with pytest.raises(JournalError, match=r"change set 1 of table main.t, was trimmed before"):
        list(read_segment(partition))


def test_a_segment_with_a_flipped_byte_is_not_read(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        add(journal, ("insert", {"id": 1, "old": "x", "gone": "y"}), schema=replace(HISTORY[1], version=0))
        segment = journal.window(T, 0, 1).segments[0]
    data = bytearray(Path(segment.path).read_bytes())
    data[len(data) // 3] ^= 1
    Path(segment.path).write_bytes(data)
    partition = SegmentRead("main.t", 1, segment, read_columns(HISTORY, 1, HISTORY[3]))
    with pytest.raises(JournalDamagedError, match=segment.path):
        list(read_segment(partition))

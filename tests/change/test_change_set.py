"""Batches, change sets and windows: the values that cross the seams."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakefeed.change.batch import METADATA, ChangeBatch, change_schema
from lakefeed.change.change_set import ChangeSet, RecopyNeeded, TableDropped
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.segment import Counts, Segment, Window
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.errors import DecodeError

TABLE = TableId("main", "users")
USERS = TableSchema(TABLE, (Column("id", pa.int64(), nullable=False), Column("name", pa.string())), key=("id",))


def _batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], type=field.type) for field in schema], schema=schema)


def test_a_batch_has_the_tables_columns_all_nullable_and_then_the_metadata() -> None:
    schema = change_schema(USERS)
    assert schema.names == ["id", "name", *METADATA.names]
    assert schema.field("id").nullable
    batch = ChangeBatch(USERS, _batch(schema))
    assert (batch.table, batch.rows, batch.bytes) == (TABLE, 0, 0)


def test_a_batch_counts_its_rows_and_bytes() -> None:
    rows = pa.RecordBatch.from_pylist(
        [{"id": n, "name": "x", "_lakefeed_op": 1, "_lakefeed_seq": n} for n in range(3)], schema=change_schema(USERS)
    )
    batch = ChangeBatch(USERS, rows)
    assert batch.rows == 3
    assert batch.bytes == rows.nbytes > 0


@pytest.mark.parametrize("wrong", ["missing column", "other order", "no metadata", "other type"])
def test_a_batch_of_another_shape_is_refused_with_the_tables_name(wrong: str) -> None:
    right = change_schema(USERS)
    schema = {
        "missing column": right.remove(1),
        "other order": pa.schema([right.field(1), right.field(0), *METADATA]),
        "no metadata": USERS.arrow,
        "other type": right.set(0, pa.field("id", pa.int32())),
    }[wrong]
    with pytest.raises(DecodeError, match=r"main\.users"):
        ChangeBatch(USERS, _batch(schema))


def test_a_change_set_with_nothing_for_the_lake_is_a_heartbeat() -> None:
    end = PostgresLsn(5)
    assert ChangeSet(None, end).is_heartbeat
    assert not ChangeSet(None, end, rows=1).is_heartbeat
    assert not ChangeSet(None, end, schemas=(USERS,)).is_heartbeat
    assert not ChangeSet(None, end, notices=(TableDropped(TABLE),)).is_heartbeat
    assert not ChangeSet(None, end, notices=(RecopyNeeded(TABLE, "trigger was missing"),)).is_heartbeat


def _segment(first: int, last: int, *, truncated_at: int | None = None, absent: tuple[str, ...] = ()) -> Segment:
    rows = last - first + 1
    counts = Counts(inserted=rows)
    return Segment(TABLE, f"{first}.parquet", rows, 100, 1, first, last, counts, truncated_at, absent)


def test_a_window_adds_up_its_segments() -> None:
    segments = (_segment(10, 12, truncated_at=11), _segment(20, 20, truncated_at=20, absent=("name",)), _segment(5, 6))
    window = Window(TABLE, 0, 3, PostgresLsn(9), segments, USERS)
    assert (window.rows, window.bytes, window.last_seq, window.truncated_at) == (6, 300, 20, 20)
    assert window.counts == Counts(inserted=6)
    assert window.absent == {"name"}


def test_an_empty_window_has_no_last_seq_and_no_truncation() -> None:
    window = Window(TABLE, 3, 3, None, (), USERS)
    assert (window.rows, window.bytes, window.last_seq, window.truncated_at) == (0, 0, None, None)
    assert window.counts == Counts()
    assert window.absent == frozenset()


def test_counts_add_up_by_operation() -> None:
    total = Counts(1, 2, 3, 4) + Counts(10, 20, 30, 40)
    assert total == Counts(11, 22, 33, 44)
    assert total.total == 110

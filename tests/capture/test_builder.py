"""The change set builder alone, on pieces made by hand."""

from __future__ import annotations

import errno
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakefeed.capture.builder import ChangeSetBuilder, Limits, Spill
from lakefeed.capture.log import Announced, Decoded, Rows, Transaction
from lakefeed.change.batch import POSITION, SEQ, TIME, TXN, Operation
from lakefeed.change.change_set import ChangeSet, TableBlocked
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.errors import JournalFullError

T = TableSchema(TableId("public", "t"), (Column("id", pa.int64(), nullable=False),), ("id",))
U = TableSchema(TableId("public", "u"), (Column("id", pa.int64(), nullable=False),), ("id",))


def transaction(end: int) -> Transaction:
    return Transaction(PostgresLsn(end), end * 1_000_000, str(end))


def rows(schema: TableSchema, ids: list[int], codes: list[int], order: list[int] | None = None) -> Rows:
    operations = np.full(len(ids), int(Operation.INSERT), np.int8)
    places = np.array(order if order is not None else range(len(ids)), np.int64)
    return Rows(schema, [pa.array(ids, pa.int64())], operations, places, np.array(codes, np.int32))


def piece(*items: Any, ends: tuple[int, ...] = (10,), width: int = 10, **more: Any) -> Decoded[PostgresLsn]:
    return Decoded([transaction(end) for end in ends], list(items), width, **more)


def builder(**options: Any) -> ChangeSetBuilder[PostgresLsn]:
    return ChangeSetBuilder(PostgresLsn(1), **options)


def found(change_set: Any) -> list[dict[str, Any]]:
    return sorted((row for batch in change_set.batches for row in batch.data.to_pylist()), key=lambda row: row[SEQ])


def test_changes_are_numbered_in_the_order_of_the_log_and_know_their_transaction() -> None:
    made = builder()
    made.add(piece(rows(T, [1, 3], [0, 1], [0, 5]), rows(U, [2], [0], [3]), ends=(10, 20)))
    made.add(piece(rows(T, [4], [0]), ends=(30,)))
    change_set = made.cut()
    assert (change_set.start, change_set.end, change_set.rows) == (PostgresLsn(1), PostgresLsn(30), 4)
    assert [row["id"] for row in found(change_set)] == [1, 2, 3, 4]
    assert [row[SEQ] for row in found(change_set)] == [0, 3, 5, 10]
    assert [row[TXN] for row in found(change_set)] == ["10", "10", "20", "30"]
    assert found(change_set)[3][POSITION] == PostgresLsn(30).encode()
    assert made.time_of(PostgresLsn(30)) == 30.0


def test_a_change_set_is_cut_only_behind_a_commit() -> None:
    made = builder(limits=Limits(rows=1))
    made.add(piece(rows(T, [1], [0]), ends=(0,), open=True))
    assert made.in_transaction
    assert made.due(more=False) is None
    made.add(Decoded(reached=PostgresLsn(99)))
    assert made.reached == PostgresLsn(1), "the commit of the open transaction is still to come"
    made.add(piece(rows(T, [2], [0]), continues=True))
    change_set = made.due(more=True)
    assert [(row["id"], row[TXN]) for row in found(change_set)] == [(1, "10"), (2, "10")]


def test_rows_bytes_linger_or_silence_make_a_change_set_ready() -> None:
    made = builder(limits=Limits(rows=2, linger_seconds=0.05))
    made.add(piece(rows(T, [1], [0])))
    assert made.due(more=True) is None
    assert made.due(more=False) is not None
    made.add(piece(rows(T, [1], [0]), ends=(20,)))
    assert made.due(more=True) is None
    time.sleep(0.06)
    assert made.due(more=True) is not None
    made.add(piece(rows(T, [1, 2], [0, 0]), ends=(30,)))
    assert made.due(more=True) is not None
    sized = builder(limits=Limits(bytes=1))
    sized.add(piece(rows(T, [1], [0])))
    assert sized.due(more=True) is not None


def test_a_spilled_change_set_is_read_again_and_outlives_its_builder() -> None:
    made = builder(memory_bytes=2_000)
    for number in range(20):
        made.add(piece(rows(T, list(range(number * 50, number * 50 + 50)), [0] * 50), ends=(number + 2,), width=50))
    change_set = made.cut()
    del made
    assert change_set.batches.parts._file is not None  # type: ignore[attr-defined]
    assert [row["id"] for row in found(change_set)] == list(range(1000))
    assert found(change_set) == found(change_set)


def test_a_blocked_table_is_reported_once_and_left_out_until_it_is_prepared_again() -> None:
    blocked = Announced(notices=(TableBlocked(T.table, "no", "yes"),))
    made = builder()
    made.add(piece(rows(T, [1], [0]), blocked, rows(T, [2], [0], [1]), rows(U, [3], [0], [2]), blocked))
    change_set = made.cut()
    assert [row["id"] for row in found(change_set)] == [1, 3]
    assert len(change_set.notices) == 1
    made.unblock(T.table)
    made.add(piece(rows(T, [4], [0]), ends=(20,)))
    assert [row["id"] for row in found(made.cut())] == [4]


def test_a_heartbeat_moves_the_position_only_when_it_is_due() -> None:
    made = builder(limits=Limits(heartbeat_seconds=60, heartbeat_bytes=100))
    made.add(Decoded(reached=PostgresLsn(50)))
    assert made.due(more=False, ahead_bytes=49) is None
    assert made.due(more=False, ahead_bytes=49, is_over=True) == ChangeSet(PostgresLsn(1), PostgresLsn(1))
    moved = made.due(more=False, ahead_bytes=100)
    assert moved is not None
    assert (moved.is_heartbeat, moved.end) == (True, PostgresLsn(50))
    assert made.position == PostgresLsn(50)


def test_a_row_may_have_a_time_of_its_own() -> None:
    made = builder()
    one = rows(T, [1, 2], [0, 0])
    timed = Rows(T, one.columns, one.operations, one.order, one.transactions, times=pa.array([7, None], pa.int64()))
    made.add(piece(timed))
    assert [row[TIME].timestamp() for row in found(made.cut())] == [7e-6, 10.0]


def test_spilled_batches_come_back_in_order() -> None:
    spill = Spill(memory_bytes=100)
    for number in range(5):
        spill.append(pa.record_batch({"n": [number] * 50}))
    assert [batch.column(0)[0].as_py() for batch in spill] == [0, 1, 2, 3, 4]
    assert spill._file is not None


def test_a_spill_file_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch meets a full disk: neither a descriptor nor a file stays, also while the spill is kept."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spill = Spill(memory_bytes=10)
    before = sorted(Path("/dev/fd").iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(pa.ipc, "new_stream", full)
        with pytest.raises(JournalFullError, match="no room left"):
            spill.append(pa.record_batch({"n": [1] * 50}))
    assert sorted(Path("/dev/fd").iterdir()) == before
    assert not list(tmp_path.iterdir())
    assert spill._file is None
    spill.append(pa.record_batch({"n": [2] * 50}))
    assert [batch.column(0)[0].as_py() for batch in spill] == [2], "the next attempt works"


@pytest.mark.parametrize("more", [True, False])
def test_nothing_is_never_ready(more: bool) -> None:
    assert builder().due(more=more) is None

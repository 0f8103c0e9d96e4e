"""What a table of changes leaves: the last word on each key."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lakefeed.change.batch import ABSENT, SEQ
from lakefeed.lake.mode.base import OPERATION
from lakefeed.verify.mode import current_rows, last_truncate

COLUMNS: dict[str, pa.DataType] = {
    "id": pa.int64(), "v": pa.string(), OPERATION: pa.string(), SEQ: pa.int64(), ABSENT: pa.list_(pa.string()),
}  # fmt: skip
SCHEMA = pa.schema(COLUMNS)
Change = tuple[str, int | None, str | None]


def log(*changes: Change | tuple[str, int | None, str | None, list[str]]) -> pa.Table:
    """(operation, id, v) and the absent columns, in order; copied rows have seq 0."""
    rows: list[dict[str, Any]] = [
        {
            "id": one[1], "v": one[2], OPERATION: one[0], SEQ: 0 if one[0] == "read" else seq,
            ABSENT: one[3] if len(one) > 3 else None,
        }
        for seq, one in enumerate(changes, 1)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, SCHEMA)


def left(changes: pa.Table, key: tuple[str, ...] = ("id",), truncated_at: int = -1) -> list[tuple[Any, ...]]:
    rows = current_rows(changes, key, ["id", "v"], truncated_at).to_pylist()
    return sorted(((row["id"], row["v"]) for row in rows), key=repr)


def test_the_last_change_of_a_key_is_its_row_unless_it_is_a_delete() -> None:
    changes = log(
        ("read", 1, "a"), ("read", 2, "b"), ("read", 3, "c"), ("update", 1, "a2"), ("delete", 2, None),
        ("insert", 4, None), ("delete", 3, None), ("insert", 3, "again"), ("before", 4, "no change"),
    )  # fmt: skip
    assert left(changes) == [(1, "a2"), (3, "again"), (4, None)]
    assert left(log()) == []


def test_a_column_that_was_not_sent_has_its_newest_value_and_never_another_keys() -> None:
    changes = log(
        ("insert", 1, "big"), ("insert", 2, "other"), ("update", 1, None, ["v"]), ("update", 1, None, ["v"]),
        ("update", 3, None, ["v"]), ("update", 2, None),
    )  # fmt: skip
    assert left(changes) == [(1, "big"), (2, None), (3, None)]


def test_before_a_truncate_nothing_counts_copied_rows_included() -> None:
    changes = log(("read", 1, "a"), ("insert", 2, "b"), ("truncate", None, None), ("insert", 3, "c"))
    assert last_truncate(changes.to_batches()[0]) == 3
    assert last_truncate(changes.slice(0, 2).to_batches()[0]) == -1
    assert left(changes, truncated_at=3) == [(3, "c")]


def test_without_a_key_equal_rows_are_counted() -> None:
    changes = log(
        ("read", 1, "x"), ("insert", 1, "x"), ("insert", 1, "x"), ("delete", 1, "x"), ("insert", 2, None),
        ("delete", 2, None),
    )  # fmt: skip
    assert left(changes, key=()) == [(1, "x"), (1, "x")]

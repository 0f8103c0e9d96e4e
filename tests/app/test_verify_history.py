"""The invariants of a history table, by the reader of ``verify``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from lakefeed.change.batch import SEQ
from lakefeed.lake.mode import Temporal
from lakefeed.verify.mode import fault_sentences, history_faults

INSTANT = pa.timestamp("us", tz="UTC")
COLUMNS: dict[str, pa.DataType] = {
    "id": pa.int64(), "valid_from": INSTANT, "valid_to": INSTANT, "is_current": pa.bool_(), SEQ: pa.int64(),
}  # fmt: skip
SCHEMA = pa.schema(COLUMNS)


def at(hour: int | None) -> datetime | None:
    return None if hour is None else datetime(2024, 1, 1, hour, tzinfo=UTC)


def problems(*versions: tuple[int | None, int | None, int | None, bool, int]) -> list[str]:
    rows: list[dict[str, Any]] = [
        {"id": id_, "valid_from": at(begins), "valid_to": at(ends), "is_current": current, SEQ: seq}
        for id_, begins, ends, current, seq in versions
    ]
    return list(fault_sentences(history_faults(pa.Table.from_pylist(rows, SCHEMA), ("id",), Temporal())))


def test_versions_that_follow_each_other_are_fine_with_and_without_a_gap() -> None:
    assert problems() == []
    assert problems((1, 1, 2, False, 1), (1, 2, 2, False, 2), (1, 5, None, True, 3), (2, 1, None, True, 4)) == []
    assert problems((None, 1, 2, False, 1), (None, 2, None, True, 2)) == []


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ([(1, None, None, True, 1)], "have no beginning"),
        ([(1, 3, 2, False, 1)], "end before they begin"),
        ([(1, 1, 4, False, 1), (1, 3, None, True, 2)], "overlap with the version after them"),
        ([(1, 1, None, True, 1), (1, 3, None, True, 2)], "overlap with the version after them"),
        ([(None, 1, None, True, 1), (None, 3, None, True, 2)], "overlap with the version after them"),
        ([(1, 1, 2, True, 1)], "are current and have an end, or neither"),
        ([(1, 1, None, False, 1)], "are current and have an end, or neither"),
    ],
)
def test_what_is_wrong_is_said(versions: list[tuple[int | None, int | None, int | None, bool, int]], said: str) -> None:
    assert problems(*versions) == [f"versions that {said}: 1"]

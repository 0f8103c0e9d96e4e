"""Rows spread over buckets: nothing is lost, and equal rows meet."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.compare import compare_sqlite_table

from lakefeed.change.table import TableId
from lakefeed.verify import bucket as verify_bucket
from lakefeed.verify.bucket import Buckets, bucket_numbers, buckets_for

ROWS = 20_000
VALUES: dict[str, list[Any]] = {
    "int": [1, None, -(2**63)],
    "text": ["a", None, "žluť"],
    "bytes": [b"", None, b"\xff"],
    "float": [0.5, None, float("nan")],
    "decimal": [Decimal("1.10"), None, Decimal("-2.00")],
    "day": [date(2024, 1, 1), None, date(1, 1, 1)],
    "time": [datetime(2024, 1, 1, tzinfo=UTC), None, datetime(1, 1, 1, tzinfo=UTC)],
    "flag": [True, None, False],
    "list": [["a"], None, []],
}


def test_a_row_has_the_same_bucket_wherever_it_stands_and_whatever_its_types() -> None:
    rows = pa.RecordBatch.from_pydict(VALUES)
    numbers = bucket_numbers(rows, rows.schema.names, 64)
    again = bucket_numbers(rows.take(pa.array([2, 0, 1])), rows.schema.names, 64)
    assert list(again) == [numbers[2], numbers[0], numbers[1]]


def test_neighbouring_keys_are_spread_evenly() -> None:
    rows = pa.RecordBatch.from_pydict({"tenant": [7] * ROWS, "id": list(range(ROWS))})
    counts = np.bincount(bucket_numbers(rows, ["tenant", "id"], 16).astype(int), minlength=16)
    assert counts.min() > ROWS / 16 / 2
    assert counts.max() < ROWS / 16 * 2


def test_what_is_added_comes_back_once_in_the_bucket_of_its_key(tmp_path: Path) -> None:
    batches = [pa.RecordBatch.from_pydict({"id": list(range(start, start + 500))}) for start in range(0, ROWS, 500)]
    buckets = Buckets(tmp_path / "rows", 8, ["id"], batches[0].schema)
    for batch in batches:
        buckets.add(batch)
    buckets.close()
    found: list[list[Any]] = [buckets.table(number)["id"].to_pylist() for number in range(8)]
    assert sorted(id_ for ids in found for id_ in ids) == list(range(ROWS))
    assert all(found)
    assert buckets.rows == ROWS


def test_small_tables_stay_in_memory_and_large_ones_have_a_limit_of_files() -> None:
    assert (buckets_for(0), buckets_for(99_999), buckets_for(10_000_000)) == (1, 1, 101)
    assert buckets_for(10**12) == buckets_for(None) == verify_bucket.MOST_BUCKETS


def test_differences_are_found_and_counted_over_all_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_bucket, "BUCKET_ROWS", 500)
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", ((n, f"v{n}") for n in range(ROWS)))
    lake, table = tmp_path / "lake", TableId("main", "t")
    write_deltalake(str(lake), pa.table({"id": list(range(ROWS)), "v": [f"v{n}" for n in range(ROWS)]}))
    result = compare_sqlite_table(tmp_path / "s.db", table, lake)
    assert result.differences == ()
    assert (result.source_rows, result.lake_rows) == (ROWS, ROWS)
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection, connection:
        connection.execute("UPDATE t SET v = NULL WHERE id % 1000 = 0")
        connection.execute("DELETE FROM t WHERE id % 1000 = 1")
    found = compare_sqlite_table(tmp_path / "s.db", table, lake).differences
    assert found[0] == "20 rows are only in the source, 40 only in the lake"
    assert len([text for text in found if text.startswith("only in the source: ")]) == 3
    assert len([text for text in found if text.startswith("only in the lake: ")]) == 3

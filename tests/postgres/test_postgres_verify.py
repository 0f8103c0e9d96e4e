"""The comparison of a lake table with a PostgreSQL table: in runs, and for values that have no order or no equality."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.compare import compare_postgres_table

from lakefeed.capture.postgres import verify as verify_postgres
from lakefeed.change.table import TableId
from lakefeed.verify import bucket as verify_bucket

T = TableId("public", "t")
ROWS = 3_000


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_bucket, "BUCKET_ROWS", 100)
    monkeypatch.setattr(verify_postgres, "_RUN_ROWS", 250)


def columns(**types: pa.DataType) -> pa.Schema:
    return pa.schema(list(types.items()))


@pytest.mark.usefixtures("small_parts")
def test_a_table_of_many_parts_is_compared_with_arrays_and_nan(tmp_path: Path, dsn: str) -> None:
    schema = columns(id=pa.int32(), tags=pa.list_(pa.string()), rate=pa.float64())
    rows: list[dict[str, Any]] = [
        {"id": n, "tags": [f"t{n}", None] if n % 3 else None, "rate": float("nan") if n % 2 else n / 7}
        for n in range(ROWS)
    ]
    write_deltalake(str(tmp_path / "t"), pa.Table.from_pylist(rows, schema))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, tags text[], rate float8)")
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO t VALUES (%(id)s, %(tags)s, %(rate)s)", rows)
        result = compare_postgres_table(dsn, T, tmp_path / "t")
        assert result.differences == ()
        assert (result.source_rows, result.lake_rows) == (ROWS, ROWS)
        connection.execute("UPDATE t SET tags = '{t1}' WHERE id = 1; UPDATE t SET rate = '-0' WHERE id = 0")
        found = compare_postgres_table(dsn, T, tmp_path / "t").differences
    assert found[0] == "2 rows are only in the source, 2 only in the lake"

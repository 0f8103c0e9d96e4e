"""The comparison of a lake table with a PostgreSQL table: in runs, and for values that have no order or no equality."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.compare import compare_postgres_table

from lakefeed.app.cli import execute
from lakefeed.capture.postgres import dialect
from lakefeed.capture.postgres.dialect import PostgresVerifyReader
from lakefeed.change.table import TableId
from lakefeed.flow.table_state import TableStates
from lakefeed.lake.route import Route
from lakefeed.verify import bucket as verify_bucket

T = TableId("public", "t")
ROWS = 3_000


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_bucket, "BUCKET_ROWS", 100)
    monkeypatch.setattr(dialect, "_RUN_ROWS", 250)


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


def test_rows_of_children_that_inherit_are_not_the_parents(tmp_path: Path, dsn: str) -> None:
    schema = columns(id=pa.int32())
    write_deltalake(str(tmp_path / "t"), pa.Table.from_pylist([{"id": 1}, {"id": 2}], schema))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
        connection.execute("CREATE TABLE child () INHERITS (t); INSERT INTO child VALUES (3)")
        result = compare_postgres_table(dsn, T, tmp_path / "t")
        assert (result.differences, result.source_rows) == ((), 2)
        assert PostgresVerifyReader(dsn, T).count() == 2


def test_rows_of_partitions_are_the_tables_own(tmp_path: Path, dsn: str) -> None:
    schema = columns(id=pa.int32())
    write_deltalake(str(tmp_path / "t"), pa.Table.from_pylist([{"id": 1}, {"id": 12}], schema))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        connection.execute("CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
        connection.execute("CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (20)")
        connection.execute("INSERT INTO t VALUES (1), (12)")
        assert compare_postgres_table(dsn, T, tmp_path / "t").differences == ()


def test_tables_that_a_pattern_matches_and_that_cannot_be_captured_are_named_with_the_statement_that_helps(
    tmp_path: Path, dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(f"pipeline: shop\nsource: {{kind: postgres, dsn: {dsn}}}\nlake: {{path: lake}}\n")
    states = TableStates(tmp_path / "lake" / "_lakefeed" / "shop")
    states.stage(Route.same(T), reason="new")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE UNLOGGED TABLE cache (id int PRIMARY KEY)")
        assert execute(["verify", str(file), "--json"]) == 1
        found = json.loads(capsys.readouterr().out)
        assert set(found["tables"]) == {"public.t"}
        (why,) = found["not_followed"].values()
        assert list(found["not_followed"]) == ["public.cache"]
        assert "is unlogged" in why
        assert not why.startswith("public.cache"), "the table is named before it"
        connection.execute(why.partition("Remedy: ")[2])
        assert execute(["verify", str(file), "--json"]) == 1
        found = json.loads(capsys.readouterr().out)
    assert found["not_followed"] == {}
    assert "has not reached the table yet" in found["tables"]["public.cache"]["differences"][0]

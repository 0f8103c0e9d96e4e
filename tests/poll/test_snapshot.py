"""The kit's key-range snapshot, on the dialects themselves: what no single capture can show."""

from __future__ import annotations

import json
import pickle
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lakefeed.capture.dialect import Dialect
from lakefeed.capture.postgres import dialect as postgres_dialect
from lakefeed.capture.postgres.dialect import PostgresDialect, PostgresSession
from lakefeed.capture.postgres.slot import SnapshotOrigin
from lakefeed.capture.snapshot import TableChunk, TableChunkReader, plan_chunks
from lakefeed.capture.sqlite.dialect import SqliteDialect
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId
from lakefeed.errors import DecodeError, TableStoppedError

T = TableId("public", "t")


@pytest.fixture
def writer(dsn: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def whole(dialect: Dialect, table: TableId = T) -> TableChunk:
    with closing(dialect.connect()) as session:
        source = session.describe([table])[table]
    return TableChunk(dialect, source, source.schema, exact=frozenset(source.schema.key))


def planned(dialect: Dialect, chunk_rows: int, table: TableId = T) -> tuple[TableChunk, ...]:
    with closing(dialect.connect()) as session:
        return plan_chunks(session, whole(dialect, table), chunk_rows)[0]


def take_snapshot(reader: TableChunkReader) -> None:
    """The first query of a transaction takes its snapshot."""
    assert isinstance(reader._session, PostgresSession)
    reader._session._connection.execute("SELECT pg_current_snapshot()")


def rows_of(chunk: TableChunk) -> list[tuple[Any, ...]]:
    restored = TableChunk.from_json(chunk.dialect, json.loads(json.dumps(chunk.to_json())))
    assert restored == chunk == pickle.loads(pickle.dumps(chunk))
    with chunk.open() as reader:
        return [tuple(row.values()) for batch in reader for row in batch.to_pylist()]


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(
    ("extension", "kinds", "values"),
    [
        ("citext", ["citext"], "chr(CASE WHEN i % 2 = 0 THEN 65 ELSE 97 END + i % 26) || i"),
        ("ltree", ["ltree"], "('n' || i || '.x')::ltree"),
        ("cube", ["cube"], "cube(i % 7, i)"),
        ("citext", ["int", "citext"], "i % 3, CASE WHEN i % 2 = 0 THEN 'K' ELSE 'k' END || i"),
        ("citext", ["citext", "int"], "CASE WHEN i % 2 = 0 THEN 'K' ELSE 'k' END || i / 40, i"),
    ],
    ids=["citext", "ltree", "cube", "int-citext", "citext-int"],
)
def test_keys_are_cut_and_compared_by_their_own_operators(
    dsn: str, writer: Any, monkeypatch: pytest.MonkeyPatch, extension: str, kinds: list[str], values: str, sampled: bool
) -> None:
    """Operators of an extension are not in the search path; those of text would give another order."""
    if sampled:
        monkeypatch.setattr(postgres_dialect, "COUNTED_BYTES", 0)
    writer.execute(f"CREATE EXTENSION {extension}")
    columns = ", ".join(f"k{number} {kind}" for number, kind in enumerate(kinds))
    names = ", ".join(f"k{number}" for number in range(len(kinds)))
    writer.execute(f"CREATE TABLE t ({columns}, PRIMARY KEY ({names}))")
    writer.execute(f"INSERT INTO t SELECT {values} FROM generate_series(1, 500) AS i")
    writer.execute("ANALYZE t")
    chunks = planned(PostgresDialect(dsn), 40)
    assert len(chunks) > 5
    found = [row for chunk in chunks for row in rows_of(chunk)]
    expected = [
        tuple(row) for row in writer.execute(f"SELECT {', '.join(f'k{n}::text' for n in range(len(kinds)))} FROM t")
    ]
    assert sorted(tuple(map(str, row)) for row in found) == sorted(expected)
    assert all(len(rows_of(chunk)) <= 40 for chunk in chunks) or sampled


def test_a_domain_is_ordered_like_the_type_under_it(dsn: str, writer: Any) -> None:
    writer.execute("CREATE EXTENSION citext; CREATE DOMAIN mail AS citext")
    writer.execute("CREATE TABLE t (k mail PRIMARY KEY)")
    writer.execute("INSERT INTO t SELECT CASE WHEN i % 2 = 0 THEN 'A' ELSE 'a' END || i FROM generate_series(1, 99) i")
    chunks = planned(PostgresDialect(dsn), 10)
    assert len(chunks) == 10
    assert sum(len(rows_of(chunk)) for chunk in chunks) == 99


def test_a_composite_key_is_read_through_its_index(dsn: str, writer: Any) -> None:
    """One value in the first column must not make every chunk walk the whole table."""
    writer.execute("CREATE TABLE t (a int, b int, PRIMARY KEY (a, b))")
    writer.execute("INSERT INTO t SELECT 1, i FROM generate_series(1, 20000) AS i; ANALYZE t")
    chunk = planned(PostgresDialect(dsn), 1000)[3]
    plan = "\n".join(row[0] for row in writer.execute(f"EXPLAIN {chunk.query().sql}"))
    assert "Index Cond: ((ROW(a, b) > ROW(1, 3000)) AND (ROW(a, b) <= ROW(1, 4000)))" in plan


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE t ALTER v TYPE bigint USING v + 1",
        "TRUNCATE t",
        "DROP TABLE t; CREATE TABLE t (k int PRIMARY KEY, v int)",
    ],
)
def test_a_table_that_was_rewritten_under_the_snapshot_is_planned_again(dsn: str, writer: Any, change: str) -> None:
    """The snapshot sees no row of the new heap: without the check the copy would be empty, and nobody would know."""
    writer.execute("CREATE TABLE t (k int PRIMARY KEY, v int)")
    writer.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 10) AS i")
    (chunk,) = planned(PostgresDialect(dsn), 100)
    with chunk.open() as reader:
        take_snapshot(reader)
        writer.execute(change)
        with pytest.raises(TableStoppedError, match="changed while it was copied") as raised:
            list(reader)
    assert raised.value.table == "public.t"


def test_a_partition_that_is_attached_under_the_snapshot_is_planned_again(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE t (k int PRIMARY KEY) PARTITION BY RANGE (k)")
    writer.execute("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10); INSERT INTO t VALUES (1)")
    writer.execute("CREATE TABLE t2 (k int PRIMARY KEY); INSERT INTO t2 VALUES (11)")
    (chunk,) = planned(PostgresDialect(dsn), 100)
    assert rows_of(chunk) == [(1,)]
    with chunk.open() as reader:
        take_snapshot(reader)
        writer.execute("ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (10) TO (20)")
        with pytest.raises(TableStoppedError, match="changed while it was copied"):
            list(reader)


@pytest.mark.parametrize("change", ["RENAME v TO w", "DROP v", "RENAME TO u"])
def test_a_column_that_is_gone_since_the_plan_stops_the_table_so_that_it_is_planned_again(
    dsn: str, writer: Any, change: str
) -> None:
    writer.execute("CREATE TABLE t (k int PRIMARY KEY, v int)")
    (chunk,) = planned(PostgresDialect(dsn), 100)
    writer.execute(f"ALTER TABLE t {change}")
    with pytest.raises(TableStoppedError, match="its definition changed"), chunk.open() as reader:
        list(reader)


def test_a_chunk_outlives_the_limits_of_its_role(dsn: str, writer: Any) -> None:
    """A role's timeouts are for its own statements; a chunk has limits of its own."""
    writer.execute("CREATE TABLE t (k int PRIMARY KEY); INSERT INTO t SELECT i FROM generate_series(1, 10) AS i")
    name = writer.info.dbname
    for limit in ("statement_timeout", "transaction_timeout", "idle_in_transaction_session_timeout"):
        writer.execute(f"ALTER DATABASE {name} SET {limit} = '50ms'")
    (chunk,) = planned(PostgresDialect(dsn), 100)
    slow = replace(chunk, where=("pg_sleep(0.02) IS NOT NULL",))
    assert len(rows_of(slow)) == 10


def test_a_consistent_read_keeps_the_limits_of_its_connection(dsn: str) -> None:
    """Nothing of ours runs, waits for a lock or keeps a transaction open without a limit."""

    def limits(session: PostgresSession) -> list[str]:
        names = ["lock_timeout", "idle_in_transaction_session_timeout", "statement_timeout"]
        return [str(session._connection.execute(f"SHOW {name}".encode()).fetchone()) for name in names]

    with closing(PostgresDialect(dsn).connect()) as session:
        outside = limits(session)
        assert "('0',)" not in outside
        with session.consistent():
            assert limits(session) == outside


def test_an_exported_snapshot_makes_a_chunk_exact_and_its_loss_gives_it_a_bracket(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE t (k int PRIMARY KEY); INSERT INTO t VALUES (1)")
    with psycopg.connect(dsn, autocommit=True) as keeper:
        keeper.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        row = keeper.execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text").fetchone()
        assert row is not None
        origin = SnapshotOrigin(row[0], row[1], PostgresLsn(77).text())
        chunk = replace(planned(PostgresDialect(dsn), 100)[0], origin=origin._asdict())
        writer.execute("INSERT INTO t VALUES (2)")
        assert rows_of(chunk) == [(1,)]
        with chunk.open() as reader:
            assert reader.low == reader.high == PostgresLsn(77)
        other = replace(chunk, origin=origin._replace(content="1:1:")._asdict())  # a name that was used again
        assert rows_of(other) == [(1,), (2,)]
        keeper.execute("ROLLBACK")
    with chunk.open() as reader:
        assert [row["k"] for batch in reader for row in batch.to_pylist()] == [1, 2]
        assert PostgresLsn(77) < reader.low <= reader.high


def test_a_table_without_columns_or_key_is_one_chunk(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE t (); INSERT INTO t DEFAULT VALUES; INSERT INTO t DEFAULT VALUES")
    (chunk,) = planned(PostgresDialect(dsn), 1)
    assert rows_of(chunk) == [(), ()]
    writer.execute("DROP TABLE t; CREATE TABLE t (v int); INSERT INTO t VALUES (1), (1)")
    (chunk,) = planned(PostgresDialect(dsn), 1)
    assert rows_of(chunk) == [(1,), (1,)]


def test_a_null_in_the_key_stops_the_plan_and_the_remedy_repairs_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as setup:
        setup.execute("CREATE TABLE t (a TEXT, b INT, PRIMARY KEY (a, b))")
        setup.executemany("INSERT INTO t VALUES (?, ?)", [("x", 1), (None, 2), ("y", None)])
    dialect, table = SqliteDialect(str(path)), TableId("main", "t")
    with pytest.raises(TableStoppedError, match="NULL in its key") as raised:
        planned(dialect, 1, table)
    with sqlite3.connect(path) as repair:
        repair.execute(raised.value.remedy.partition(";")[0])
    assert [rows_of(chunk) for chunk in planned(dialect, 1, table)] == [[("x", 1)]]


def test_keys_that_cannot_be_given_exactly_make_one_chunk(tmp_path: Path) -> None:
    """A blob in a text key has a text form, but that has another place in SQLite's order."""
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as setup:
        setup.execute("CREATE TABLE t (k TEXT PRIMARY KEY NOT NULL)")
        setup.executemany("INSERT INTO t VALUES (?)", [("a",), ("zebra",), (b"\x01",), (b"\x02",)])
    (chunk,) = planned(SqliteDialect(str(path)), 1, TableId("main", "t"))
    assert rows_of(replace(chunk, exact=frozenset())) == [("a",), ("zebra",), ("X'01'",), ("X'02'",)]
    with pytest.raises(TableStoppedError, match="several types"):
        rows_of(chunk)


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_reader_that_is_drained_slowly_makes_no_writer_wait(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as writer:
        writer.execute(f"PRAGMA journal_mode = {mode}")
        writer.execute("CREATE TABLE t (k INTEGER PRIMARY KEY)")
        writer.execute("INSERT INTO t VALUES (1)")
        (chunk,) = planned(SqliteDialect(str(path)), 10, TableId("main", "t"))
        with chunk.open() as reader:
            batches = iter(reader)
            assert next(batches).num_rows == 1
            writer.execute("INSERT INTO t VALUES (2)")
            assert list(batches) == []


def test_a_plan_of_another_version_is_an_error_that_plans_again(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match="plan of a copy"):
        TableChunk.from_json(SqliteDialect(str(tmp_path / "a.db")), {"table": {}, "low": None})

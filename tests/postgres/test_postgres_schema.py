"""Schema changes as the stream tells them."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.postgres.rows import PostgresLog, changes, drain, opened

from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.change_set import ChangeSet, RecopyNeeded, TableDropped
from lakefeed.change.schema_change import AddColumn, DropColumn, RenameColumn, diff
from lakefeed.change.table import TableId, TableSchema

T = TableId("public", "t")


@pytest.fixture
def writer(dsn: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        connection.execute("INSERT INTO t VALUES (1, 'a')")
        yield connection


@pytest.fixture
def capture(dsn: str, writer: Any) -> Any:
    with opened(Postgres(dsn)) as capture:
        capture.prepare([T])
        yield capture


def after(capture: PostgresLog, writer: Any, *statements: str) -> tuple[TableSchema, list[ChangeSet]]:
    """What the statements give, and the schema of before."""
    (before,) = [schema for schema in capture.discover() if schema.table == T]
    for statement in statements:
        writer.execute(statement)
    return before, drain(capture, None)


def only(sets: list[ChangeSet]) -> TableSchema:
    (schema,) = [schema for one in sets for schema in one.schemas]
    return schema


def reasons(sets: list[ChangeSet]) -> list[str]:
    return [notice.reason for one in sets for notice in one.notices if isinstance(notice, RecopyNeeded)]


def test_a_new_column_comes_with_the_first_row_that_has_it(capture: PostgresLog, writer: Any) -> None:
    before, sets = after(capture, writer, "ALTER TABLE t ADD n int", "INSERT INTO t VALUES (2, 'b', 5)")
    (change,) = diff(before, only(sets))
    assert isinstance(change, AddColumn)
    assert (change.column.name, change.column.type, change.column.default) == ("n", pa.int32(), None)
    assert [row["n"] for row in changes(sets)] == [5]
    assert reasons(sets) == []


def test_a_constant_default_tells_what_existing_rows_read(capture: PostgresLog, writer: Any) -> None:
    statements = ("ALTER TABLE t ADD n int DEFAULT 7, ADD s text DEFAULT 'it''s'", "INSERT INTO t VALUES (2, 'b')")
    _, sets = after(capture, writer, *statements)
    assert [only(sets).column(name).default for name in ("n", "s")] == [7, "it's"]
    assert reasons(sets) == []


def test_a_computed_default_asks_for_a_new_copy(capture: PostgresLog, writer: Any) -> None:
    _, sets = after(capture, writer, "ALTER TABLE t ADD n float DEFAULT random()", "INSERT INTO t VALUES (2, 'b')")
    assert len(reasons(sets)) == 1


def test_renames_and_drops_are_told_by_stable_ids(capture: PostgresLog, writer: Any) -> None:
    before, sets = after(capture, writer, "ALTER TABLE t RENAME v TO w", "INSERT INTO t VALUES (2, 'b')")
    renamed = only(sets)
    assert diff(before, renamed) == (RenameColumn("v", "w"),)
    capture.confirm(sets[-1].end)
    writer.execute("ALTER TABLE t DROP w")
    writer.execute("INSERT INTO t VALUES (3)")
    assert diff(renamed, only(drain(capture, sets[-1].end))) == (DropColumn("w"),)


def test_several_changes_that_the_catalog_has_already_forgotten(capture: PostgresLog, writer: Any) -> None:
    """The stream is read after all of it: the catalog shows only the end."""
    before, sets = after(
        capture,
        writer,
        "ALTER TABLE t ADD n int",
        "INSERT INTO t VALUES (2, 'b', 1)",
        "ALTER TABLE t RENAME n TO m",
        "INSERT INTO t VALUES (3, 'c', 2)",
        "ALTER TABLE t DROP m",
        "INSERT INTO t VALUES (4, 'd')",
    )
    steps = [schema for one in sets for schema in one.schemas]
    assert [schema.names for schema in steps] == [("id", "v", "n"), ("id", "v", "m"), ("id", "v")]
    assert diff(steps[0], steps[1]) == (RenameColumn("n", "m"),)
    assert [row["id"] for row in changes(sets)] == [2, 3, 4]
    assert before.names == ("id", "v")


def test_a_changed_type_asks_for_a_new_copy(capture: PostgresLog, writer: Any) -> None:
    _, sets = after(capture, writer, "ALTER TABLE t ALTER v TYPE int USING 5", "INSERT INTO t VALUES (2, 6)")
    assert reasons(sets) == ["the type of v changed from text to integer"]
    assert changes(sets)[-1]["v"] == 6


def test_a_changed_key_asks_for_a_new_copy(capture: PostgresLog, writer: Any) -> None:
    statements = ("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (v)", "INSERT INTO t VALUES (2, 'b')")
    _, sets = after(capture, writer, *statements)
    assert reasons(sets) == ["its key changed from (id) to (v)"]


def test_t02_full_replica_identity_keeps_the_primary_key(capture: PostgresLog, writer: Any) -> None:
    statements = ("ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET v = 'b'", "DELETE FROM t")
    _, sets = after(capture, writer, *statements)
    assert reasons(sets) == []
    assert [(row["_lakefeed_op"], row["id"], row["v"]) for row in changes(sets)] == [(2, 1, "b"), (3, 1, None)]


def test_a_replica_identity_index_is_the_key(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE u (id int PRIMARY KEY, code text NOT NULL UNIQUE)")
    writer.execute("ALTER TABLE u REPLICA IDENTITY USING INDEX u_code_key")
    u = TableId("public", "u")
    with opened(Postgres(dsn), "other") as capture:
        start = capture.prepare([u])
        assert {schema.table: schema.key for schema in capture.discover()}[u] == ("code",)
        writer.execute("INSERT INTO u VALUES (1, 'a')")
        writer.execute("UPDATE u SET code = 'b'")
        rows = [(row["_lakefeed_op"], row["id"], row["code"]) for row in changes(drain(capture, start))]
        assert rows == [(1, 1, "a"), (3, None, "a"), (1, 1, "b")]


def test_a_renamed_table_is_a_dropped_one_and_a_new_one(capture: PostgresLog, writer: Any) -> None:
    _, sets = after(capture, writer, "ALTER TABLE t RENAME TO u", "INSERT INTO u VALUES (2, 'b')")
    assert [notice for one in sets for notice in one.notices] == [TableDropped(T)]
    assert TableId("public", "u") in [schema.table for schema in capture.discover()]


def test_a_table_that_was_made_anew_asks_for_a_new_copy(capture: PostgresLog, writer: Any) -> None:
    writer.execute("DROP TABLE t")
    writer.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    writer.execute("ALTER PUBLICATION lakefeed_test ADD TABLE t")
    writer.execute("INSERT INTO t VALUES (2, 'b')")
    assert reasons(drain(capture, None)) == ["the table was dropped and created again"]


def test_t03_a_real_toast_value_is_absent_when_it_is_not_sent(capture: PostgresLog, writer: Any) -> None:
    writer.execute("ALTER TABLE t ADD n int")
    writer.execute("INSERT INTO t SELECT 2, string_agg(md5(i::text), ''), 0 FROM generate_series(1, 2000) i")
    writer.execute("UPDATE t SET n = 1 WHERE id = 2")
    insert, update = changes(drain(capture, None))
    assert len(insert["v"]) == 64_000
    assert (update["n"], update["_lakefeed_absent"]) == (1, ["v"])


def test_a_truncate_is_told(capture: PostgresLog, writer: Any) -> None:
    _, sets = after(capture, writer, "TRUNCATE t RESTART IDENTITY CASCADE")
    assert [row["_lakefeed_op"] for row in changes(sets)] == [4]

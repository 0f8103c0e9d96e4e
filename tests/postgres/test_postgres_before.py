"""Before images by the log: of tables with REPLICA IDENTITY FULL, whole, and of no others."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from deltalake import DeltaTable
from tests.postgres.rows import changes, drain, opened

from lakefeed.capture.base import Finding, Level
from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.batch import ABSENT, OP, SEQ, Operation
from lakefeed.change.segment import Counts
from lakefeed.change.table import TableId
from lakefeed.flow.pipeline import Pipeline
from lakefeed.lake.delta import Delta
from lakefeed.lake.mode import Append
from lakefeed.lake.route import Rule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FULL = "REPLICA IDENTITY FULL"
TABLE = TableId("public", "t")


@pytest.fixture
def writer(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def run(writer: psycopg.Connection[Any], *statements: str) -> None:
    for statement in statements:
        writer.execute(statement.encode())


def told(dsn: str, writer: psycopg.Connection[Any], *statements: str) -> list[dict[str, Any]]:
    """What the statements are delivered as."""
    with opened(Postgres(dsn, before_images=True)) as capture:
        capture.prepare([TABLE])
        run(writer, *statements)
        return changes(drain(capture, None))


def short(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (Operation(row[OP]).name, *(value for name, value in row.items() if not name.startswith("_lakefeed")))
        for row in rows
    ]


def lacking(dsn: str) -> list[Finding]:
    found = Postgres(dsn, before_images=True).bind("check").check()
    return [finding for finding in found if "no before images" in finding.problem]


def test_t03_an_old_row_has_its_large_values_whether_they_changed_or_not(
    dsn: str, writer: psycopg.Connection[Any]
) -> None:
    """Kept beside the table (TOAST), in pieces, and too random to be compressed into one."""
    large = "".join(random.Random(1).choices(string.printable[:90], k=100_000))
    run(writer, "CREATE TABLE t (id int PRIMARY KEY, n int, v text)", f"ALTER TABLE t {FULL}")
    writer.execute("INSERT INTO t VALUES (1, 1, %s)", (large,))
    rows = told(
        dsn, writer, "UPDATE t SET n = 2", "UPDATE t SET id = 7", "UPDATE t SET v = 'small'", "DELETE FROM t"
    )  # fmt: skip
    assert short(rows) == [
        ("BEFORE", 1, 1, large), ("UPDATE", 1, 2, large),
        ("BEFORE", 1, 2, large), ("DELETE", 1, None, None), ("INSERT", 7, 2, large),
        ("BEFORE", 7, 2, large), ("UPDATE", 7, 2, "small"),
        ("BEFORE", 7, 2, "small"), ("DELETE", 7, None, None),
    ]  # fmt: skip
    assert {str(row[ABSENT]) for row in rows} == {"None"}


def test_a_table_with_another_identity_has_none_and_is_named_by_check(
    dsn: str, writer: psycopg.Connection[Any]
) -> None:
    run(writer, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    rows = told(dsn, writer, "UPDATE t SET v = 'b'", "UPDATE t SET id = 2", "DELETE FROM t")
    assert [name for name, *_ in short(rows)] == ["UPDATE", "DELETE", "INSERT", "DELETE"]
    (finding,) = lacking(dsn)
    assert (finding.level, finding.table) == (Level.WARNING, TABLE)
    run(writer, finding.remedy)
    assert lacking(dsn) == []
    assert short(told(dsn, writer, "INSERT INTO t VALUES (1, 'a')", "DELETE FROM t"))[-2:] == [
        ("BEFORE", 1, "a"), ("DELETE", 1, None),
    ]  # fmt: skip


def test_they_begin_and_end_with_the_identity_while_the_stream_runs(dsn: str, writer: psycopg.Connection[Any]) -> None:
    run(writer, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    rows = told(
        dsn, writer,
        "UPDATE t SET v = 'b'", f"ALTER TABLE t {FULL}", "UPDATE t SET v = 'c'",
        "ALTER TABLE t REPLICA IDENTITY DEFAULT", "UPDATE t SET v = 'd'",
    )  # fmt: skip
    assert short(rows) == [("UPDATE", 1, "b"), ("BEFORE", 1, "b"), ("UPDATE", 1, "c"), ("UPDATE", 1, "d")]


def test_a_table_without_a_key_has_them_too(dsn: str, writer: psycopg.Connection[Any]) -> None:
    run(writer, "CREATE TABLE t (v text)", f"ALTER TABLE t {FULL}", "INSERT INTO t VALUES ('a'), ('a')")
    rows = told(dsn, writer, "UPDATE t SET v = 'b'")
    assert short(rows) == [("BEFORE", "a"), ("DELETE", "a"), ("INSERT", "b")] * 2


def test_a_partition_that_does_not_log_whole_rows_gives_none(dsn: str, writer: psycopg.Connection[Any]) -> None:
    """The stream says of all partitions what the identity of the table above them is."""
    run(
        writer,
        "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (20)",
        "INSERT INTO t VALUES (1, 'a'), (11, 'b')", f"ALTER TABLE t {FULL}", f"ALTER TABLE low {FULL}",
    )  # fmt: skip
    rows = told(dsn, writer, "UPDATE t SET v = v || '!'", "DELETE FROM t WHERE id = 11")
    assert short(rows) == [("UPDATE", 1, "a!"), ("UPDATE", 11, "b!"), ("DELETE", 11, None)]
    assert [finding.remedy for finding in lacking(dsn)] == [f'ALTER TABLE "public"."high" {FULL};']
    run(writer, f"ALTER TABLE high {FULL}")
    assert lacking(dsn) == []
    rows = told(dsn, writer, "INSERT INTO t VALUES (11, 'c')", "UPDATE t SET v = v || '!' WHERE id > 9")
    assert short(rows)[-2:] == [("BEFORE", 11, "c"), ("UPDATE", 11, "c!")]


def test_partitions_are_to_be_changed_before_the_table_above_them(dsn: str, writer: psycopg.Connection[Any]) -> None:
    run(
        writer,
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF t FOR VALUES FROM (0) TO (10)",
    )
    assert [finding.remedy for finding in lacking(dsn)] == [
        f'ALTER TABLE "public"."part" {FULL}; ALTER TABLE "public"."t" {FULL};'
    ]


def test_without_being_asked_there_are_none(dsn: str, writer: psycopg.Connection[Any]) -> None:
    run(writer, "CREATE TABLE t (id int PRIMARY KEY, v text)", f"ALTER TABLE t {FULL}", "INSERT INTO t VALUES (1, 'a')")
    with opened(Postgres(dsn)) as capture:
        capture.prepare([TABLE])
        run(writer, "UPDATE t SET v = 'b'")
        assert short(changes(drain(capture, None))) == [("UPDATE", 1, "b")]
    found = Postgres(dsn).bind("check").check()
    assert not [finding for finding in found if "before images" in finding.problem]


@pytest.mark.spark
def test_a_mirror_beside_a_change_log_with_before_images_equals_the_source(
    dsn: str, writer: psycopg.Connection[Any], tmp_path: Path, spark: SparkSession
) -> None:
    run(writer, "CREATE TABLE t (id int PRIMARY KEY, v text)", f"ALTER TABLE t {FULL}")
    run(writer, "CREATE TABLE w (v text)", f"ALTER TABLE w {FULL}")
    run(writer, "INSERT INTO t SELECT n, n FROM generate_series(1, 9) n", "INSERT INTO w VALUES ('a'), ('a'), ('b')")
    lake = Delta(spark, tmp_path, rules=[Rule("*", Append(), "{table}_log")])
    with Pipeline(Postgres(dsn, before_images=True), lake, name="shop") as pipeline:
        assert not pipeline.sync_once().errors
        run(
            writer,
            "UPDATE t SET v = 'x' WHERE id < 4",
            "DELETE FROM t WHERE id = 5",
            "UPDATE t SET id = 77 WHERE id = 6",
        )
        run(writer, "UPDATE w SET v = 'c' WHERE v = 'b'", "DELETE FROM w WHERE v = 'c'")
        result = pipeline.sync_once()
        assert not result.errors
    assert result.tables[TABLE].counts == Counts(inserted=1, updated=3, deleted=2)
    for name in ("t", "w"):
        kept = DeltaTable(str(tmp_path / "public" / name)).to_pyarrow_table().to_pylist()
        there = writer.execute(f"SELECT * FROM {name}".encode()).fetchall()
        assert sorted(tuple(row.values()) for row in kept) == sorted(there)
    log = DeltaTable(str(tmp_path / "public" / "t_log")).to_pyarrow_table().sort_by(SEQ).to_pylist()
    old = [(row["id"], row["v"]) for row in log if row["_lakefeed_operation"] == "before"]
    assert old == [(1, "1"), (2, "2"), (3, "3"), (5, "5"), (6, "6")]


@pytest.mark.parametrize("rows", [20_000])
def test_many_rows_of_two_tables_keep_their_places(dsn: str, writer: psycopg.Connection[Any], rows: int) -> None:
    other = TableId("public", "o")
    for name in ("t", "o"):
        run(writer, f"CREATE TABLE {name} (id int PRIMARY KEY, v int)", f"ALTER TABLE {name} {FULL}")
        run(writer, f"INSERT INTO {name} SELECT n, n FROM generate_series(1, {rows}) n")
    with opened(Postgres(dsn, before_images=True)) as capture:
        capture.prepare([TABLE, other])
        run(writer, "UPDATE t SET v = v + 1", "DELETE FROM o", "UPDATE t SET id = -id")
        found = short(changes(drain(capture, None)))
    expected: list[tuple[Any, ...]] = []
    for number in range(1, rows + 1):
        expected += [("BEFORE", number, number), ("UPDATE", number, number + 1)]
    for number in range(1, rows + 1):
        expected += [("BEFORE", number, number), ("DELETE", number, None)]
    for number in range(1, rows + 1):
        expected += [("BEFORE", number, number + 1), ("DELETE", number, None), ("INSERT", -number, number + 1)]
    assert found == expected

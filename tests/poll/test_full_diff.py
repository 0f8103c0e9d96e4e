"""The comparison itself, on Spark. A25, and what it finds beside deletes: A12."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.poll.world import Clock, T, World, clocked, made

from lakefeed.lake.full_diff import Comparison, FullDiffResult, full_diff

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
ROWS = 300


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return clocked(monkeypatch)


@pytest.fixture
def world(tmp_path: Path, clock: Clock) -> Iterator[World]:
    with made(tmp_path / "s.db", differences=tmp_path / "differences") as world:
        world.writer.execute("BEGIN")
        for key in range(ROWS):
            world.sql(f"INSERT INTO t VALUES ({key}, 'v{key}', '{clock.text}', '{clock.text}', NULL)")
        world.writer.execute("COMMIT")
        clock.tick(60)
        world.seed()
        yield world


class StopError(BaseException):
    """The process is told to end."""


def lake(spark: SparkSession, world: World, place: Path) -> DataFrame:
    """The lake table as it stands: what the replica has."""
    rows = pa.Table.from_pylist(world.replica.rows(T), world.replica.schemas[T].arrow)
    pq.write_table(rows, place / "lake.parquet")
    return spark.read.parquet(str(place / "lake.parquet"))


def compare(spark: SparkSession, world: World, place: Path, **options: Any) -> tuple[FullDiffResult, list[int]]:
    whole, stop_at = options.pop("whole_rows", False), options.pop("stop_at", None)
    plan = world.capture.keys(T, chunk_rows=100, whole_rows=whole)
    names = plan.schema.names if whole else plan.schema.key
    given: dict[str, Any] = {
        "table": T,
        "number": 1,
        "key": plan.schema.key,
        "schema": pa.schema([plan.schema.arrow.field(name) for name in names]),
        "chunks": plan.chunks,
        "work": str(place / "work"),
        "findings": str(world.capture.differences(T)),
    }
    seen: list[int] = []

    def progress(done: int, total: int) -> None:
        seen.append(done)
        if done == stop_at:
            raise StopError

    result = full_diff(lake(spark, world, place), Comparison(**{**given, **options}), progress)
    return result, seen


def test_a25_deleted_rows_are_found_and_go_through_the_capture(
    spark: SparkSession, world: World, tmp_path: Path, clock: Clock
) -> None:
    world.sql("DELETE FROM t WHERE id % 20 = 7")
    result, seen = compare(spark, world, tmp_path)
    assert (result.source_rows, result.lake_rows, result.deleted, result.changed) == (ROWS - 15, ROWS, 15, 0)
    assert result.refused is None
    assert seen[-1] == 3
    world.sql(f"INSERT INTO t VALUES (7, 'reused', '{clock.tick(1)}', '{clock.text}', NULL)")
    world.pull()
    there = dict(world.writer.execute("SELECT id, v FROM t").fetchall())
    assert world.values() == there
    again, _ = compare(spark, world, tmp_path, number=2)
    assert (again.deleted, again.published) == (0, None)


def test_a25_a_source_without_rows_or_with_too_few_is_refused(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    world.sql("DELETE FROM t WHERE id >= 100")
    many, _ = compare(spark, world, tmp_path)
    assert many.refused is not None
    assert "200 of 300 rows" in many.refused
    allowed, _ = compare(spark, world, tmp_path, number=2, max_deleted_share=0.7)
    assert allowed.refused is None
    world.sql("DELETE FROM t")
    none, _ = compare(spark, world, tmp_path, number=3, max_deleted_share=1.0)
    assert none.refused is not None
    assert "returned no rows" in none.refused
    assert many.published is none.published is None


def test_a25_an_interrupted_comparison_reads_only_the_chunks_that_are_missing(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    world.sql("DELETE FROM t WHERE id = 5")
    with pytest.raises(StopError):
        compare(spark, world, tmp_path, stop_at=3)
    (tmp_path / "work" / "1" / "chunk-000002.parquet").unlink()
    result, seen = compare(spark, world, tmp_path)
    assert seen == [2, 3]
    assert (result.deleted, result.refused) == (1, None)
    assert not (tmp_path / "work" / "1").exists()


def test_a12_a25_changes_that_left_updated_at_alone_are_found_by_comparing_rows(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    world.sql("UPDATE t SET v = 'silent' WHERE id = 3", "UPDATE t SET v = NULL WHERE id = 4")
    world.sql("INSERT INTO t VALUES (1000, 'backdated', NULL, '2000-01-01 00:00:00', NULL)")
    world.sql("DELETE FROM t WHERE id = 9")
    assert world.pull() == []
    result, _ = compare(spark, world, tmp_path, whole_rows=True)
    assert (result.deleted, result.changed) == (1, 3)
    world.pull()
    assert world.values() == dict(world.writer.execute("SELECT id, v FROM t").fetchall())


def test_a12_a_value_that_moved_to_a_column_that_was_null_is_found_by_comparing_rows(
    spark: SparkSession, tmp_path: Path, clock: Clock
) -> None:
    """Spark's hash passes over NULL: the same values in other columns are the same number."""
    table = "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b TEXT, updated_at TEXT NOT NULL)"
    with made(tmp_path / "s.db", table, differences=tmp_path / "differences") as world:
        world.sql(f"INSERT INTO t VALUES (1, 'x', NULL, '{clock.text}'), (2, 'x', NULL, '{clock.text}')")
        clock.tick(60)
        world.seed()
        world.sql("UPDATE t SET a = NULL, b = 'x' WHERE id = 2")
        result, _ = compare(spark, world, tmp_path, whole_rows=True)
        assert (result.deleted, result.changed) == (0, 1)

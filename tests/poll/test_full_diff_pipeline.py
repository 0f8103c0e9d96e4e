"""Full comparisons by a pipeline: by hand and on schedule, beside a writer; then the lake equals the source. A25."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.compare import compare_postgres_table, compare_sqlite_table
from tests.poll.actors import iso, now_us

from lakefeed import Delta, FullDiff, Iceberg, Pipeline, PipelineOptions, PostgresPolling, SqlitePolling, TableRule
from lakefeed.capture.poll.source import Pace
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, LakeError, LeaseError
from lakefeed.flow import full_diff as flow
from lakefeed.flow.full_diff import DiffStore, FullDiffs, Interrupted
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.table_state import TableStates
from lakefeed.journal.options import JournalOptions
from lakefeed.lake import full_diff as lake_side
from lakefeed.lake.mode import Mirror, Mode, Temporal
from lakefeed.testing.memory_lake import MemoryLake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

QUICK = PipelineOptions(interval_seconds=0.05, maintenance_seconds=0, journal=JournalOptions(fsync=False))
PACE = Pace(poll_seconds=0.05)
T = TableId("main", "t")
ROWS = 200


class Shop:
    """A SQLite file and a pipeline that polls it."""

    def __init__(self, place: Path) -> None:
        self.path = place / "s.db"
        self.lake = place / "lake"
        self.writer = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self.writer.execute("PRAGMA journal_mode = wal")
        self.writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, updated_at TEXT NOT NULL)")
        self.put(*range(ROWS))

    def put(self, *keys: int, value: str = "a") -> None:
        statement = "INSERT OR REPLACE INTO t (id, v, updated_at) VALUES (?, ?, ?)"
        self.writer.executemany(statement, [(key, value, iso(now_us())) for key in keys])

    def source(self, **full_diff: Any) -> SqlitePolling:
        rule = TableRule(deletes=FullDiff(**full_diff), safety_lag_seconds=0.05)
        return SqlitePolling(self.path, rules={"t": rule}, pace=PACE)

    def assert_equal(self) -> None:
        compared = compare_sqlite_table(self.path, T, self.lake / "main" / "t")
        assert compared.equal, compared.differences


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    made.writer.close()


class Chunks(Listener):
    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def full_diff_progress(self, table: TableId, chunks: int, total: int) -> None:
        self.seen.append((chunks, total))


def test_a25_rows_that_are_gone_are_deleted_and_keys_that_are_used_again_stay(shop: Shop, spark: SparkSession) -> None:
    listener = Chunks()
    with Pipeline(shop.source(), Delta(spark, shop.lake), name="p", options=QUICK, listener=listener) as pipeline:
        pipeline.sync_once()
        shop.writer.execute("DELETE FROM t WHERE id BETWEEN 10 AND 19")
        result = pipeline.full_diff()[T]
        assert (result.source_rows, result.lake_rows, result.deleted, result.refused) == (ROWS - 10, ROWS, 10, None)
        assert listener.seen[-1] == (1, 1)
        shop.put(12, value="again")  # between the comparison and its delivery
        pipeline.sync_once()
        shop.assert_equal()
        last = pipeline.status().tables[T].compared
        assert last is not None
        assert (last.deleted, last.error) == (10, None)
        assert pipeline.full_diff("main.t")[T].published is None
        with pytest.raises(ConfigError, match=r"no table main\.u that can be compared") as caught:
            pipeline.full_diff("main.u")
        assert "main.t" in caught.value.remedy


def test_a25_a_refusal_is_in_the_status_until_somebody_decides(shop: Shop, spark: SparkSession) -> None:
    with Pipeline(shop.source(), Delta(spark, shop.lake), name="p", options=QUICK) as pipeline:
        pipeline.sync_once()
        shop.writer.execute("DELETE FROM t WHERE id >= 100")
        assert pipeline.full_diff()[T].refused is not None
        pipeline.sync_once()
        status = pipeline.status().tables[T]
        assert status.rows == ROWS
        assert "100 of 200 rows of main.t are missing" in str(status.error)
        assert "--max-deleted-share" in str(status.remedy)
        pipeline.full_diff(max_deleted_share=0.5)
        pipeline.sync_once()
        assert pipeline.status().tables[T].error is None
        shop.assert_equal()


@pytest.mark.parametrize("mode", [Mirror(soft_delete="gone_at"), pytest.param(Temporal(), marks=pytest.mark.slow)])
def test_a25_only_current_rows_are_compared(shop: Shop, spark: SparkSession, mode: Mode) -> None:
    lake = Delta(spark, shop.lake, mode=mode)
    with Pipeline(shop.source(), lake, name="p", options=QUICK) as pipeline:
        pipeline.sync_once()
        shop.writer.execute("DELETE FROM t WHERE id < 5")
        shop.put(5, value="other")
        pipeline.sync_once()
        assert pipeline.full_diff()[T].deleted == 5
        pipeline.sync_once()
        again = pipeline.full_diff()[T]
        assert (again.lake_rows, again.deleted) == (ROWS - 5, 0)


def test_a25_a_table_of_iceberg_is_compared_too(shop: Shop, spark: SparkSession) -> None:
    with Pipeline(shop.source(compare_rows=True), Iceberg(spark, shop.lake), name="p", options=QUICK) as pipeline:
        pipeline.sync_once()
        shop.writer.execute("DELETE FROM t WHERE id < 5")
        shop.writer.execute("UPDATE t SET v = 'silent' WHERE id = 7")
        result = pipeline.full_diff()[T]
        assert (result.deleted, result.changed) == (5, 1)
        pipeline.sync_once()
        again = pipeline.full_diff()[T]
        assert (again.lake_rows, again.deleted, again.changed) == (ROWS - 5, 0, 0)


def test_a25_columns_that_came_later_are_no_difference(shop: Shop, spark: SparkSession) -> None:
    with Pipeline(shop.source(compare_rows=True), Delta(spark, shop.lake), name="p", options=QUICK) as pipeline:
        pipeline.sync_once()
        shop.writer.execute("ALTER TABLE t ADD COLUMN w INTEGER")
        assert pipeline.full_diff()[T].changed == 0  # the lake has not heard of it
        shop.writer.execute("UPDATE t SET w = 1 WHERE id = 1")
        shop.put(ROWS)
        pipeline.sync_once()
        pipeline.sync_once()
        pipeline.full_diff()
        pipeline.sync_once()
        shop.assert_equal()


def test_a25_an_interrupted_comparison_goes_on_with_its_plan(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "CHUNK_ROWS", 50)
    monkeypatch.setattr(lake_side, "GROUP_CHUNKS", 1)
    over = threading.Event()

    class Stopping(Chunks):
        def full_diff_progress(self, table: TableId, chunks: int, total: int) -> None:
            super().full_diff_progress(table, chunks, total)
            if chunks == 2:
                over.set()

    lake, source, listener = Delta(spark, shop.lake), shop.source(), Stopping()
    with Pipeline(source, lake, name="p", options=QUICK) as pipeline:
        pipeline.sync_once()
        shop.writer.execute("DELETE FROM t WHERE id IN (1, 199)")
        capture = source.bind("p")
        seeds = TableStates(pipeline.root)
        first = FullDiffs.of(pipeline.root, capture, seeds, lake.bind("p"), listener)
        with pytest.raises(ConfigError):
            FullDiffs.of(pipeline.root, object(), seeds, lake.bind("p"), listener)  # type: ignore[arg-type]
        (record,) = first.chosen(())
        capture.keep_state(pipeline.state)
        with pytest.raises(Interrupted):
            first.compare(record, over=over)
        plan = DiffStore(pipeline.root).load(T).plan
        assert plan is not None
        assert len(plan.chunks) == 4
        listener.seen.clear()
        with DiffStore(pipeline.root).alone(T), pytest.raises(LeaseError, match="is being compared already"):
            pipeline.full_diff()
        shop.writer.execute("DELETE FROM t WHERE id = 2")  # its chunk was read before that
        again = FullDiffs.of(pipeline.root, capture, seeds, lake.bind("p"), listener).compare(record)
        assert listener.seen == [(2, 4), (3, 4), (4, 4)]
        assert again.deleted == 2
        assert DiffStore(pipeline.root).load(T).plan is None
        pipeline.sync_once()
        assert pipeline.full_diff()[T].deleted == 1
        pipeline.sync_once()
        shop.assert_equal()


def test_a25_a_source_that_is_away_is_in_the_status_and_is_tried_again(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    with Pipeline(shop.source(), Delta(spark, shop.lake), name="p", options=QUICK) as pipeline:
        pipeline.sync_once()
        (tmp_path / "s.db").rename(tmp_path / "away.db")
        with pytest.raises(Exception, match=r"s\.db"):
            pipeline.full_diff()
        status = pipeline.status().tables[T]
        assert "full comparison: " in str(status.error)
        assert status.remedy
        (tmp_path / "away.db").rename(tmp_path / "s.db")
        pipeline.full_diff()
        assert pipeline.status().tables[T].error is None


def test_a25_a_lake_in_memory_cannot_be_compared(shop: Shop) -> None:
    with Pipeline(shop.source(), MemoryLake(str(shop.lake)), name="p", options=QUICK) as pipeline:
        pipeline.sync_once()
        with pytest.raises(LakeError, match="cannot be compared on Spark"):
            pipeline.full_diff()


@contextmanager
def running(pipeline: Pipeline, write: Callable[[int], None]) -> Iterator[None]:
    """The pipeline runs, and something writes, each in its thread."""
    over, failed = threading.Event(), list[BaseException]()

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  # the test that started the thread asserts that there is none
                failed.append(error)

        return run

    def writing() -> None:
        turn = 0
        while not over.wait(0.02):
            write(turn)
            turn += 1

    threads = [threading.Thread(target=guarded(work), daemon=True) for work in (pipeline.run, writing)]
    for thread in threads:
        thread.start()
    try:
        yield
        over.set()
        threads[1].join(60)
        assert not threads[1].is_alive()
        settled(pipeline)
    finally:
        over.set()
        pipeline.stop()
        for thread in threads:
            thread.join(240)
    assert failed == []
    assert not any(thread.is_alive() for thread in threads)


def settled(pipeline: Pipeline) -> None:
    """The lake has every change that was polled, then two comparisons begin and end, then it has what they found.

    A comparison sees only rows that have reached the lake: one that was polled before it was deleted, and applied after
    the comparison, is found by the next.
    """
    rest(pipeline)
    for _ in range(2):
        seen = time.time()
        while all(table.compared is None or table.compared.at < seen for table in pipeline.status().tables.values()):
            assert time.time() < seen + 240, "no comparison came to an end"
            time.sleep(0.1)
    rest(pipeline)


def rest(pipeline: Pipeline) -> None:
    """Nothing is left to be applied, twice in a row: a poll may be under way."""
    until, quiet = time.time() + 240, 0
    while quiet < 2:
        status = pipeline.status()
        assert status.verdict != "stopped", status
        assert time.time() < until, status
        waiting = status.verdict != "idle" or any((pipeline.root / "differences").rglob("*.parquet"))
        quiet = 0 if waiting else quiet + 1
        time.sleep(0.5)


@pytest.mark.slow
def test_a25_scheduled_comparisons_beside_a_writer_leave_the_lake_equal_to_sqlite(
    shop: Shop, spark: SparkSession
) -> None:
    def write(turn: int) -> None:
        key = turn * 7 % 150
        shop.writer.execute("DELETE FROM t WHERE id IN (?, ?)", (key, turn % ROWS))
        shop.put((turn - 3) * 7 % 150, value=f"v{turn}")  # used again three turns later
        shop.put(1000 + turn)

    source = shop.source(every_seconds=0.5, max_deleted_share=1.0)
    pipeline = Pipeline(source, Delta(spark, shop.lake), name="p", options=QUICK)
    with running(pipeline, write):
        time.sleep(6)
    shop.assert_equal()


def test_a25_scheduled_comparisons_beside_a_writer_leave_the_lake_equal_to_postgres(
    dsn: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Keys of types that Spark, Parquet and PostgreSQL each have a form of their own for."""
    table = TableId("public", "t")
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute(
            "CREATE TABLE t (at timestamptz, n numeric(20, 3), s smallint, u uuid, d date, v text,"
            " updated_at timestamptz NOT NULL, PRIMARY KEY (at, n, s, u, d))"
        )
        row = (
            "INSERT INTO t SELECT '2024-01-01 00:00:00.000001+02'::timestamptz + g * interval '1.000001 s',"
            " g / 7.0, g, md5(g::text)::uuid, date '2024-01-01' + g, {value}, clock_timestamp()"
            " FROM generate_series({low}, {high}) AS g ON CONFLICT DO NOTHING"
        )
        writer.execute(row.format(low=1, high=ROWS, value="'a'").encode())

        def write(turn: int) -> None:
            writer.execute("DELETE FROM t WHERE s IN (%s, %s)", (turn % ROWS, turn * 7 % ROWS))
            again = (turn - 3) * 7 % ROWS
            writer.execute(row.format(low=again, high=again, value=f"'v{turn}'").encode())

        rule = TableRule(
            deletes=FullDiff(every_seconds=0.5, max_deleted_share=1.0, compare_rows=True), safety_lag_seconds=0.05
        )
        source = PostgresPolling(dsn, rules={"t": rule}, pace=PACE)
        pipeline = Pipeline(source, Delta(spark, tmp_path / "lake"), name="p", options=QUICK)
        with running(pipeline, write):
            time.sleep(6)
    compared = compare_postgres_table(dsn, table, tmp_path / "lake" / "public" / "t")
    assert compared.equal, compared.differences

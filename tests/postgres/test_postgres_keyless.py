"""A table without a key that is written to all the time: its copy is cut at one position of the log, and made once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.compare import compare_postgres_table

from lakefeed.capture.postgres.resume import PostgresResumePoint
from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.batch import OP, POSITION, SEQ, Operation
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.segment import Counts, Segment, Window
from lakefeed.change.table import TableId, TableSchema
from lakefeed.flow.pipeline import Pipeline
from lakefeed.flow.report.listener import Listener
from lakefeed.lake.delta import Delta
from lakefeed.lake.mode.keyless import after_copy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

K = TableId("public", "k")
CHANGES = (
    "INSERT INTO k SELECT i % 7, 'new' FROM generate_series(1, 3) i",
    "UPDATE k SET v = v || '.' WHERE ctid = (SELECT min(ctid) FROM k)",
    "DELETE FROM k WHERE ctid = (SELECT max(ctid) FROM k)",
)


class Copies(Listener):
    def __init__(self) -> None:
        self.begun: list[TableId] = []

    def snapshot_started(self, table: TableId, rows_estimate: int) -> None:
        self.begun.append(table)


@contextmanager
def at_work(dsn: str) -> Iterator[list[int]]:
    """Inserts, updates and deletes of some of many equal rows, one transaction each, until the block ends."""
    over, done = threading.Event(), list[int]()

    def work() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not over.wait(0.005):
                connection.execute(CHANGES[len(done) % len(CHANGES)])
                done.append(len(done))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


@contextmanager
def no_free_slot(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        taken = list[str]()
        try:
            with suppress(psycopg.errors.ConfigurationLimitExceeded):
                while True:
                    name = f"taken_{len(taken)}"
                    connection.execute("SELECT pg_create_physical_replication_slot(%s)", (name,))
                    taken.append(name)
            yield
        finally:
            for name in taken:
                connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))


def wait_for_more(done: list[int]) -> None:
    enough, until = len(done) + 2 * len(CHANGES), time.monotonic() + 60
    while len(done) < enough:
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.fixture
def lake(dsn: str, spark: SparkSession, tmp_path: Path) -> Iterator[tuple[Pipeline, Copies]]:
    """A pipeline that has its slot, and then a table without a key."""
    copies = Copies()
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with Pipeline(Postgres(dsn), Delta(spark, str(tmp_path)), name="shop", listener=copies) as pipeline:
            pipeline.sync_once()
            writer.execute("CREATE TABLE k (n int, v text); ALTER TABLE k REPLICA IDENTITY FULL")
            writer.execute("INSERT INTO k SELECT i % 7, 'old' FROM generate_series(1, 500) i")
            yield pipeline, copies


@pytest.mark.spark
def test_a_table_without_a_key_under_constant_writes_is_copied_once(
    dsn: str, lake: tuple[Pipeline, Copies], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, copies = lake
    origin = PostgresResumePoint.origin
    with at_work(dsn) as done:

        def between(self: PostgresResumePoint, table: TableId, delivered: Any) -> Mapping[str, Any]:
            wait_for_more(done)  # these are in the log, and in the copied rows, too
            made = origin(self, table, delivered)
            wait_for_more(done)  # and these are not
            return made

        monkeypatch.setattr(PostgresResumePoint, "origin", between)
        for _ in range(2):
            assert not pipeline.sync_once().errors
    assert not pipeline.sync_once().errors
    assert copies.begun.count(K) == 1
    compared = compare_postgres_table(dsn, K, tmp_path / "public" / "k")
    assert compared.equal, compared


def test_changes_up_to_the_position_of_the_copy_are_passed_over(tmp_path: Path) -> None:
    """By position, whatever change set they came in. Before images are no changes."""
    insert, delete, before = int(Operation.INSERT), int(Operation.DELETE), int(Operation.BEFORE)
    found = [(1, 0x20, insert), (2, 0x30, insert)], [(3, 0x30, delete), (4, 0x100, before), (5, 0x100, delete)]
    segments = []
    for number, rows in enumerate(found):
        path = tmp_path / f"{number}.parquet"
        table = pa.table(
            {
                SEQ: pa.array([seq for seq, _, _ in rows], pa.int64()),
                POSITION: [PostgresLsn(at).encode() for _, at, _ in rows],
                OP: pa.array([operation for _, _, operation in rows], pa.int8()),
            }
        )
        pq.write_table(table, path)
        segments.append(Segment(K, str(path), len(rows), 1, 1, rows[0][0], rows[-1][0], Counts(inserted=len(rows))))
    whole = Window(K, 0, 2, None, tuple(segments), TableSchema(K, ()), exact=False)
    assert after_copy(whole) == (0, Counts(inserted=5))
    for at, first, counts in (
        (0x10, 1, Counts(inserted=2, deleted=2)),
        (0x20, 2, Counts(inserted=1, deleted=2)),
        (0x30, 4, Counts(deleted=1)),
        (0x99, 4, Counts(deleted=1)),
        (0x100, 6, Counts()),
    ):
        assert after_copy(replace(whole, copied_at=PostgresLsn(at))) == (first, counts)


@pytest.mark.spark
def test_without_a_free_slot_it_is_copied_again_and_the_log_says_why(
    dsn: str, lake: tuple[Pipeline, Copies], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, copies = lake
    origin = PostgresResumePoint.origin
    with at_work(dsn) as done, no_free_slot(dsn):

        def between(self: PostgresResumePoint, table: TableId, delivered: Any) -> Mapping[str, Any]:
            made = origin(self, table, delivered)
            wait_for_more(done)
            return made

        monkeypatch.setattr(PostgresResumePoint, "origin", between)
        errors = pipeline.sync_once().errors
    assert "nobody knows which of these changes the copy has" in (errors[K].error or "")
    assert copies.begun.count(K) > 1
    assert "all replication slots are in use" in caplog.text

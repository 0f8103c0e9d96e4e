"""``stop`` returns within ten seconds when something really hangs: a Spark task, a table that somebody has locked, a
server that is stopped with its sockets open. ``status`` answers within two."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.postgres.conftest import new_database

from lakefeed import Delta, Pipeline, PipelineOptions, Postgres, Sqlite
from lakefeed.errors import StateError
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.base import TableCopy
from lakefeed.lake.table import SparkTable
from lakefeed.testing.memory_lake import MemoryLake, MemoryLakeTable
from lakefeed.testing.server.postgres import PostgresServer, find_binaries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = PipelineOptions(interval_seconds=0.02, enrol_seconds=0.05, journal=JournalOptions(fsync=False))


@contextmanager
def stopped_in_time(pipeline: Pipeline, hangs: threading.Event, left: str) -> Iterator[None]:
    """Runs the block beside ``run``, and stops that once something hangs."""
    thread = threading.Thread(target=pipeline.run, daemon=True)
    thread.start()
    yield
    assert hangs.wait(60)
    started = time.monotonic()
    pipeline.stop()
    thread.join(30)
    assert time.monotonic() - started < 10
    assert pipeline.hanging == (left,)


@pytest.mark.spark
def test_a_spark_task_that_does_not_end_does_not_hold_up_stop(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()

    def hang(*_: Any) -> None:
        hangs.set()
        spark.sparkContext.parallelize([0], 1).map(lambda _: time.sleep(300)).collect()

    connection = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    pipeline = Pipeline(Sqlite(tmp_path / "s.db"), Delta(spark, tmp_path / "lake"), name="p", options=QUICK)
    pipeline.sync_once()
    monkeypatch.setattr(SparkTable, "apply", hang)
    with stopped_in_time(pipeline, hangs, "lakefeed-lake"):
        connection.execute("INSERT INTO t VALUES (1)")
    connection.close()
    monkeypatch.undo()
    monkeypatch.setattr("lakefeed.flow.pipeline._LEFT_SECONDS", 0.1)
    with pytest.raises(StateError, match="lakefeed-lake of the last run still hangs"):
        pipeline.sync_once()
    monkeypatch.undo()
    spark.sparkContext.cancelAllJobs()
    with pipeline:
        assert pipeline.sync_once().counts.inserted == 1


def test_a_chunk_of_a_table_that_is_locked_does_not_hold_up_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, load = threading.Event(), MemoryLakeTable.load
    with (
        PostgresServer.start(max(find_binaries().items())[1]) as server,
        new_database(server) as dsn,
        psycopg.connect(dsn) as locker,
    ):
        locker.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
        locker.commit()

        def locked(table: MemoryLakeTable, copy: TableCopy, progress: Any) -> Any:
            locker.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            hangs.set()
            return load(table, copy, progress)

        monkeypatch.setattr(MemoryLakeTable, "load", locked)
        pipeline = Pipeline(Postgres(dsn), MemoryLake(str(tmp_path / "lake")), name="p", options=QUICK)
        with stopped_in_time(pipeline, hangs, "lakefeed-copies"):
            pass
        locker.rollback()
        monkeypatch.undo()
        with pipeline:
            pipeline.sync_once()
            assert pipeline.status().tables
        pipeline.uninstall()


_OURS = "SELECT pid FROM pg_stat_activity WHERE backend_type IN ('walsender', 'client backend') AND pid <> %s"


@contextmanager
def frozen(server: PostgresServer, admin: psycopg.Connection[Any]) -> Iterator[None]:
    """The server and every process that serves somebody else than ``admin`` stand still; no socket is closed."""
    served = [pid for (pid,) in admin.execute(_OURS, (admin.info.backend_pid,))]
    stopped: list[int] = []
    try:
        for pid in (server.pid, *served):
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def test_a_server_that_stands_still_does_not_hold_up_stop_or_status(tmp_path: Path) -> None:
    lake = MemoryLake(str(tmp_path / "lake"))

    def ids() -> list[int]:
        return [row["id"] for row in lake.rows("public.t")]

    with (
        PostgresServer.start(max(find_binaries().items())[1]) as server,
        new_database(server) as dsn,
        psycopg.connect(dsn, autocommit=True) as writer,
    ):
        writer.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
        pipeline = Pipeline(Postgres(dsn), lake, name="p", options=QUICK)
        pipeline.sync_once()
        thread = threading.Thread(target=pipeline.run, daemon=True)
        thread.start()
        writer.execute("INSERT INTO t VALUES (2)")
        until = time.monotonic() + 60
        while ids() != [1, 2]:
            assert time.monotonic() < until
            time.sleep(0.01)
        with frozen(server, writer):
            for _ in range(2):  # the second finds the first one's question unanswered
                started = time.monotonic()
                status = pipeline.status()
                assert time.monotonic() - started < 2
                assert (status.lag.bytes, [one.state for one in status.tables.values()]) == (None, ["live"])
            started = time.monotonic()
            pipeline.stop()
            thread.join(30)
            assert time.monotonic() - started < 10
        writer.execute("INSERT INTO t VALUES (3)")
        with pipeline:
            pipeline.sync_once()
        assert ids() == [1, 2, 3]
        pipeline.uninstall()

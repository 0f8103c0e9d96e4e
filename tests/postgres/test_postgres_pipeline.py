"""The whole way, from PostgreSQL through the journal into Delta tables, while pgbench is at work."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from tests.compare import compare_postgres_table
from tests.postgres.conftest import new_database

from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.table import TableId
from lakefeed.flow.pipeline import Pipeline
from lakefeed.lake.delta import Delta
from lakefeed.testing.server.postgres import PostgresServer, find_binaries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_history", "pgbench_tellers")
TRANSACTIONS, SYNCS = 100, 3
ROWS = dict(zip(TABLES, (100_000, 1, 4 * TRANSACTIONS * SYNCS, 10), strict=True))


def pgbench_binary() -> tuple[int, Path]:
    """The newest version that brings pgbench."""
    there = {version: place for version, place in find_binaries().items() if (place / "pgbench").is_file()}
    assert there, "no pgbench beside any server"
    return max(there.items())


def pgbench(server: PostgresServer, name: str, *options: str) -> None:
    place = ["-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres"]
    command: list[str | Path] = [server.binaries / "pgbench", *place, *options, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.spark
def test_all_four_tables_of_pgbench_are_equal_in_the_lake(
    servers: Callable[[int], PostgresServer], tmp_path: Path, spark: SparkSession
) -> None:
    """The standard TPC-B script with four clients, from before the copy until after some cycles behind it."""
    server = servers(pgbench_binary()[0])
    with new_database(server) as dsn, psycopg.connect(dsn, autocommit=True) as reader:
        name = reader.info.dbname
        pgbench(server, name, "-i", "-q")
        # Its history has no key; with one, a mirror can tell two equal rows apart.
        reader.execute("ALTER TABLE pgbench_history ADD id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
        with (
            at_work(server, name) as runs,
            Pipeline(Postgres(dsn), Delta(spark, str(tmp_path)), name="bench") as pipeline,
        ):
            for _ in range(SYNCS):
                before = len(runs)
                assert not pipeline.sync_once().errors
                until = time.monotonic() + 300
                while len(runs) == before:  # what the next sync is to find
                    assert time.monotonic() < until
                    time.sleep(0.05)
        with Pipeline(Postgres(dsn), Delta(spark, str(tmp_path)), name="bench") as pipeline:
            pipeline.sync_once()
        for table in TABLES:
            compared = compare_postgres_table(dsn, TableId("public", table), tmp_path / "public" / table)
            assert compared.equal, compared
            assert compared.source_rows >= ROWS[table], compared


@contextmanager
def at_work(server: PostgresServer, name: str) -> Iterator[list[int]]:
    """pgbench, again and again until the block ends; a run that is over is in the list."""
    over, runs, failed = threading.Event(), list[int](), list[BaseException]()

    def work() -> None:
        try:
            while not over.is_set():
                pgbench(server, name, "-c", "4", "-t", str(TRANSACTIONS), "-R", "400", "-n")
                runs.append(TRANSACTIONS)
        except BaseException as error:  # noqa: BLE001  # raised again below, in the test's thread
            failed.append(error)
            runs.extend([0] * SYNCS)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield runs
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]

"""The whole way, from PostgreSQL through the journal into a lake in memory, while pgbench is at work."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from tests.postgres.conftest import new_database

from lakefeed.capture.postgres.source import Postgres
from lakefeed.flow.pipeline import Pipeline
from lakefeed.testing.memory_lake import MemoryLake
from lakefeed.testing.postgres_server import PostgresServer, find_binaries

TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_history", "pgbench_tellers")


def pgbench_binary() -> tuple[int, Path]:
    """The newest version that brings pgbench."""
    there = {version: place for version, place in find_binaries().items() if (place / "pgbench").is_file()}
    assert there, "no pgbench beside any server"
    return max(there.items())


def pgbench(server: PostgresServer, name: str, *options: str) -> None:
    place = ["-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres"]
    command: list[str | Path] = [server.binaries / "pgbench", *place, *options, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_all_four_tables_of_pgbench_are_equal_in_the_lake(
    servers: Callable[[int], PostgresServer], tmp_path: Path
) -> None:
    version, _ = pgbench_binary()
    server = servers(version)
    with new_database(server) as dsn, psycopg.connect(dsn, autocommit=True) as reader:
        name = reader.info.dbname
        pgbench(server, name, "-i", "-q")
        # Its history has no key; with one, a mirror can tell two equal rows apart.
        reader.execute("ALTER TABLE pgbench_history ADD id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
        lake = MemoryLake(str(tmp_path))
        busy = threading.Thread(target=pgbench, args=(server, name, "-c", "4", "-T", "4"))
        busy.start()
        with Pipeline(Postgres(dsn), lake, name="bench") as pipeline:
            while busy.is_alive():
                assert all(result.error is None for result in pipeline.sync_once().tables.values())
                time.sleep(0.05)
            busy.join()
            pipeline.sync_once()
        for table in TABLES:
            assert _by_key(lake.rows(f"public.{table}")) == _by_key(_rows(reader, table)), table
        assert len(lake.rows("public.pgbench_history")) > 10


def _rows(reader: Any, table: str) -> list[dict[str, Any]]:
    cursor = reader.execute(f"SELECT * FROM {table}".encode())
    names = [column.name for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _by_key(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in sorted(row)) for row in rows), key=repr)

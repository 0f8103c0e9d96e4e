"""A transaction of any size passes with bounded memory, in one piece; one that is rolled back leaves no trace."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres.rows import changes, drain, opened

from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.table import TableId

T = TableId("public", "t")
ROW = "INSERT INTO t SELECT i, md5(i::text), i * 1.5, now() FROM generate_series(%s::int, %s::int) i"


@pytest.fixture
def writer(dsn: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(20,2), at timestamptz)")
        with opened(Postgres(dsn)) as capture:
            capture.prepare([T])
        yield connection


def taken(dsn: str, directory: Path, rows: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.postgres.drain", dsn, str(directory / "journal"), str(rows)]
    place = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place, timeout=900)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    print(f"{rows:,} rows in one transaction: {found['seconds']:.1f} s, peak {found['peak_bytes'] / 1e6:.0f} MB")
    return found


@pytest.mark.timeout(600)
def test_a_transaction_of_half_a_million_rows_is_one_change_set(dsn: str, writer: Any, tmp_path: Path) -> None:
    writer.execute(ROW, (1, 500_000))
    found = taken(dsn, tmp_path, 500_000)
    assert (found["rows"], found["change_sets"]) == (500_000, 1)
    # The walsender's buffer, the parts in memory and one run of messages with its columns, each 64 MB or less.
    assert found["peak_bytes"] - found["start_bytes"] < 450e6


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_times_the_rows_do_not_take_ten_times_the_memory(dsn: str, writer: Any, tmp_path: Path) -> None:
    writer.execute(ROW, (1, 500_000))
    small = taken(dsn, tmp_path, 500_000)
    writer.execute(ROW, (500_001, 5_500_000))
    large = taken(dsn, tmp_path, 5_000_000)
    assert (large["rows"], large["change_sets"]) == (5_000_000, 1)
    assert large["peak_bytes"] - small["peak_bytes"] < 200e6  # their messages alone are 500 MB


def test_what_is_rolled_back_in_whole_or_in_part_is_never_seen(dsn: str, writer: Any) -> None:
    with writer.transaction(force_rollback=True):
        writer.execute(ROW, (1, 50_000))
    with writer.transaction():
        writer.execute(ROW, (50_001, 50_010))
        with writer.transaction(force_rollback=True):
            writer.execute(ROW, (60_001, 70_000))
    with opened(Postgres(dsn)) as capture:
        sets = drain(capture, None)
        assert [row["id"] for row in changes(sets)] == list(range(50_001, 50_011))

"""Columns that a rule leaves out of a PostgreSQL table, by log and by polling: what the source is asked for, and what
comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from lakefeed import Pipeline
from lakefeed.capture.poll.source import Pace, PostgresPolling, SoftDelete, TableRule
from lakefeed.capture.postgres.source import Postgres
from lakefeed.lake.route import Rule
from lakefeed.testing.memory_lake import MemoryLake

SECRET = "s3cr3t"


@pytest.fixture
def writer(dsn: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE people (id int PRIMARY KEY, doc text, tax text, gone_at timestamptz,"
            " updated_at timestamptz DEFAULT clock_timestamp());"
            "ALTER TABLE people ALTER doc SET STORAGE EXTERNAL, ALTER tax SET STORAGE EXTERNAL"
        )
        connection.execute(
            f"INSERT INTO people (id, doc, tax) SELECT i, repeat('d', 9000), repeat('{SECRET}', 900)"
            " FROM generate_series(1, 3) i"
        )
        yield connection


def stored(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_large_values_that_were_not_sent_and_are_left_out_do_not_come_back(
    dsn: str, writer: Any, tmp_path: Path
) -> None:
    lake = MemoryLake(str(tmp_path), rules=[Rule("public.*", columns=("!tax*", "!*_at"))])
    for statement in (
        "SELECT 1",
        "UPDATE people SET updated_at = now() WHERE id = 1; UPDATE people SET id = 9 WHERE id = 2",
        f"ALTER TABLE people RENAME tax TO tax_id; UPDATE people SET tax_id = '{SECRET}' WHERE id = 3",
    ):
        writer.execute(statement)
        with Pipeline(Postgres(dsn, tables=["public.*"]), lake, name="p") as pipeline:
            assert not pipeline.sync_once().errors
    rows = sorted(lake.rows("public.people"), key=lambda row: int(row["id"]))
    assert rows == [{"id": number, "doc": "d" * 9000} for number in (1, 3, 9)]
    assert not stored(tmp_path)


def test_the_columns_that_polling_goes_by_need_not_be_taken(dsn: str, writer: Any, tmp_path: Path) -> None:
    lake = MemoryLake(str(tmp_path), rules=[Rule("people", columns=("id", "doc"))])
    rule = TableRule(deletes=SoftDelete("gone_at"), safety_lag_seconds=0)
    source = PostgresPolling(dsn, tables=["people"], rules={"people": rule}, pace=Pace(poll_seconds=0.01))
    with Pipeline(source, lake, name="p") as pipeline:
        pipeline.sync_once()
        writer.execute("UPDATE people SET doc = 'x', updated_at = clock_timestamp() WHERE id = 1")
        writer.execute("UPDATE people SET gone_at = now(), updated_at = clock_timestamp() WHERE id = 2")
        pipeline.sync_once()
    rows = sorted(lake.rows("public.people"), key=lambda row: int(row["id"]))
    assert rows == [{"id": 1, "doc": "x"}, {"id": 3, "doc": "d" * 9000}]
    assert not stored(tmp_path)

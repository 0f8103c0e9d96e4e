"""Tables that leave a pipeline: what they had until then is in the lake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres.rows import facts_of, opened

from lakefeed import Pipeline, PipelineOptions, Postgres
from lakefeed.capture.postgres import facts
from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.slot import head
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId
from lakefeed.journal.options import JournalOptions
from lakefeed.testing.memory_lake import MemoryLake

T = TableId("public", "t")
OPTIONS = PipelineOptions(journal=JournalOptions(fsync=False))
_LAST = "INSERT INTO t VALUES (2, 'last'); UPDATE t SET v = 'b' WHERE id = 1"


@pytest.fixture
def writer(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name in "tu":
            connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
            connection.execute(f"INSERT INTO {name} VALUES (1, 'a')")
        yield connection


@pytest.fixture
def lake(tmp_path: Path) -> MemoryLake:
    return MemoryLake(str(tmp_path / "lake"))


def pipeline_of(dsn: str, lake: MemoryLake, *patterns: str) -> Pipeline:
    return Pipeline(Postgres(dsn, tables=patterns or ("*",)), lake, name="p", options=OPTIONS)


def rows(lake: MemoryLake, name: str) -> dict[int, str]:
    return {row["id"]: row["v"] for row in lake.rows(f"public.{name}")}


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("leaves", ["DROP TABLE t", "ALTER TABLE t RENAME TO s"])
def test_the_last_changes_of_a_table_that_is_dropped_or_renamed_reach_the_lake(
    dsn: str, writer: Any, lake: MemoryLake, leaves: str, stopped: bool
) -> None:
    with pipeline_of(dsn, lake) as pipeline:
        pipeline.sync_once()
        if not stopped:
            writer.execute(f"{_LAST}; {leaves}")
            pipeline.sync_once()
    if stopped:
        writer.execute(f"{_LAST}; {leaves}")
    with pipeline_of(dsn, lake) as pipeline:
        pipeline.sync_once()
        pipeline.sync_once()
        assert pipeline.status().tables[T].state == "dropped"
    assert rows(lake, "t") == {1: "b", 2: "last"}
    assert rows(lake, "u") == {1: "a"}


def test_a_name_that_is_used_again_is_a_new_table(dsn: str, writer: Any, lake: MemoryLake) -> None:
    with pipeline_of(dsn, lake) as pipeline:
        pipeline.sync_once()
        writer.execute(f"{_LAST}; DROP TABLE t")
        writer.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (7, 'new')")
        for number in (8, 9):
            pipeline.sync_once()
            writer.execute("INSERT INTO t VALUES (%s, 'newer')", (number,))
        pipeline.sync_once()
        assert pipeline.status().tables[T].state == "live"
    assert rows(lake, "t") == {7: "new", 8: "newer", 9: "newer"}


def test_that_a_table_left_is_said_behind_commits_that_are_visible_and_not_yet_flushed(
    dsn: str, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after ``synchronous_commit = off``: the stream has them only once they are flushed."""
    looks: list[int] = []

    def late(connection: Connection) -> PostgresLsn:
        looks.append(1)
        return PostgresLsn(1) if len(looks) < 3 else head(connection)

    with opened(Postgres(dsn)) as capture:
        capture.prepare([T])
        writer.execute(f"{_LAST}; ALTER TABLE t RENAME TO s")
        (written,) = writer.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        monkeypatch.setattr(facts, "head", late)
        capture.discover()
        assert facts_of(capture)._due[T][0] >= PostgresLsn.parse(written)

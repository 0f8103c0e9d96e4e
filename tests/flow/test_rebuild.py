"""Rebuilding lake tables from the retained journal, with a real database and journal; the lake is the one in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakefeed import Pipeline, PipelineOptions, Sqlite
from lakefeed.errors import ConfigError, LakeError, LeaseError
from lakefeed.failpoint import FailpointError, armed
from lakefeed.flow.rebuild import Rebuilt
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.mode import Mirror
from lakefeed.lake.route import Rule
from lakefeed.testing.builders import table
from lakefeed.testing.memory_lake import MemoryLake

OPTIONS = PipelineOptions(journal=JournalOptions(fsync=False))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    connection.executescript(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT); INSERT INTO t VALUES (1, 'a'), (2, 'b');"
    )
    yield connection
    connection.close()


@pytest.fixture
def lake(tmp_path: Path) -> MemoryLake:
    return MemoryLake(str(tmp_path / "lake"), rules=[Rule("t", Mirror(), "{table}_too")])


def pipeline_of(tmp_path: Path, lake: MemoryLake) -> Pipeline:
    return Pipeline(Sqlite(tmp_path / "s.db"), lake, name="p", options=OPTIONS)


def test_a_table_is_made_anew_from_another_one_and_then_follows(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
        database.execute("UPDATE t SET v = 'x' WHERE id = 1")
        pipeline.sync_once()
        del lake.tables[table("main.t_too", {}).table]
        made = pipeline.rebuild("main.t_too")
        donor = lake.tables[table("main.t", {}).table]
        assert made == Rebuilt(table=made.table, start=donor.number, donor=donor.schema.table, rows=2)
        assert lake.rows("main.t_too") == [{"id": 1, "v": "x"}, {"id": 2, "v": "b"}]
        database.execute("DELETE FROM t WHERE id = 2")
        pipeline.sync_once()
        assert lake.rows("main.t_too") == lake.rows("main.t") == [{"id": 1, "v": "x"}]


def test_from_the_source_it_is_copied_by_the_next_sync(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
        lake.tables[table("main.t", {}).table].rows.clear()  # somebody broke it
        assert pipeline.rebuild("main.t", from_source=True).start is None
        pipeline.sync_once()
        assert lake.rows("main.t") == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]


def test_an_interrupted_rebuild_ends_as_a_table_that_is_copied_from_the_source(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
        with armed("lake.before_load", "raise"), pytest.raises(FailpointError):
            pipeline.rebuild("main.t_too")
        database.execute("UPDATE t SET v = 'x' WHERE id = 1")
        pipeline.sync_once()
        assert lake.rows("main.t_too") == lake.rows("main.t") == [{"id": 1, "v": "x"}, {"id": 2, "v": "b"}]


def test_a_table_that_is_not_there_is_refused_with_those_that_are(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
        with pytest.raises(ConfigError, match=r"no lake table main\.x") as refused:
            pipeline.rebuild("main.x")
        assert refused.value.remedy == "Choose one of: main.t, main.t_too."


def test_without_a_state_that_the_journal_leads_on_from_the_source_is_the_remedy(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
        lake.tables.clear()
        with pytest.raises(LakeError, match="has a state from which the journal still has every change") as refused:
            pipeline.rebuild("main.t")
        assert "--from-source" in refused.value.remedy


def test_a_pipeline_that_runs_elsewhere_is_not_rebuilt(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    with pipeline_of(tmp_path, lake) as running:
        running.sync_once()
        with pytest.raises(LeaseError):
            pipeline_of(tmp_path, lake).rebuild("main.t")

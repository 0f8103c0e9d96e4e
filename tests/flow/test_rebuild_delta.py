"""Rebuilding Delta tables some of whose states can no longer be read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lakefeed import Delta, Pipeline, PipelineOptions, Sqlite
from lakefeed.errors import LakeError
from lakefeed.journal.options import JournalOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
OPTIONS = PipelineOptions(journal=JournalOptions(fsync=False))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    connection.executescript("CREATE TABLE t (id INTEGER PRIMARY KEY, v INT); INSERT INTO t VALUES (1, 0), (2, 0);")
    yield connection
    connection.close()


def stored(place: Path) -> list[tuple[int, int]]:
    return sorted((row["id"], row["v"]) for row in DeltaTable(place).to_pyarrow_table().to_pylist())


def test_a_table_is_made_anew_from_the_oldest_state_that_has_its_files(
    spark: SparkSession, tmp_path: Path, database: sqlite3.Connection
) -> None:
    place = tmp_path / "lake" / "main" / "t"
    with Pipeline(Sqlite(tmp_path / "s.db"), Delta(spark, tmp_path / "lake"), name="p", options=OPTIONS) as pipeline:
        pipeline.sync_once()
        for value in (1, 2, 3):
            database.execute("UPDATE t SET v = ?", (value,))
            pipeline.sync_once()
        needed = {*DeltaTable(place).file_uris(), *DeltaTable(place, DeltaTable(place).version() - 1).file_uris()}
        kept = {Path(uri.removeprefix("file://")).name for uri in needed}
        lost = [path for path in place.glob("*.parquet") if path.name not in kept]
        assert lost, "the first states have files of their own"
        for path in lost:
            path.unlink()
        head = pipeline.status().journal_head
        assert pipeline.rebuild("main.t").start == head - 1
        pipeline.sync_once()
    assert stored(place) == [(1, 3), (2, 3)]


def test_a_table_with_deletion_vectors_is_no_donor_and_says_so(
    spark: SparkSession, tmp_path: Path, database: sqlite3.Connection
) -> None:
    lake = Delta(spark, tmp_path / "lake", deletion_vectors=True)
    with Pipeline(Sqlite(tmp_path / "s.db"), lake, name="p", options=OPTIONS) as pipeline:
        pipeline.sync_once()
        with pytest.raises(LakeError, match=r"no lake table of .* has deletion vectors") as refused:
            pipeline.rebuild("main.t")
        assert "--from-source" in refused.value.remedy
        database.execute("UPDATE t SET v = 7 WHERE id = 1")
        assert pipeline.sync_once().errors == {}
    assert {status.state for status in pipeline.status().tables.values()} == {"live"}

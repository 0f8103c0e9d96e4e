"""Rebuilding Delta tables some of whose states can no longer be read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.lake.on_delta import read_delta

from lakefeed import Delta, Pipeline, PipelineOptions, Sqlite
from lakefeed.change.table import TableId
from lakefeed.errors import LakeError
from lakefeed.journal.options import JournalOptions
from lakefeed.testing.builders import table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
T = TableId("main", "t")
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


def test_a_state_with_deletion_vectors_is_no_donor_and_deleted_rows_stay_deleted(
    spark: SparkSession, tmp_path: Path, database: sqlite3.Connection
) -> None:
    lake = Delta(spark, tmp_path / "lake", deletion_vectors=True)
    with Pipeline(Sqlite(tmp_path / "s.db"), lake, name="p", options=OPTIONS) as pipeline:
        pipeline.sync_once()
        database.execute("DELETE FROM t WHERE id = 2")
        pipeline.sync_once()
        (status,) = pipeline.status().tables.values()
        assert status.state == "live"
        tables = lake.bind("p")
        lake_table = tables.table(tables.routes(T)[0])
        place = f"delta.`{tmp_path / 'lake' / 'main' / 't'}`"
        spark.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'FALSE')")
        recorded = json.loads(next((tmp_path / "lake/_lakefeed/p/tables").glob("*.json")).read_text())["body"]
        masked = lake_table.states(_generation(recorded))[-1]
        with pytest.raises(LakeError, match="has deletion vectors"):
            lake_table.chunks(masked, table("main.t", {"id": pa.int64(), "v": pa.int64()}, key=("id",)))
        assert pipeline.rebuild("main.t").start is not None, "of the copy, from before the vectors"
        database.execute("UPDATE t SET v = 7 WHERE id = 1")
        assert pipeline.sync_once().errors == {}
    assert read_delta(str(tmp_path / "lake" / "main" / "t")) == [{"id": 1, "v": 7}]


def _generation(recorded: Any) -> int:
    """Wherever the file of a table's state has it."""
    if isinstance(recorded, dict):
        found = [recorded["generation"]] if "generation" in recorded else map(_generation, recorded.values())
        return max(found, default=0)
    return 0


def test_a_history_that_is_made_of_a_mirror_begins_before_the_changes_that_are_replayed(
    spark: SparkSession, tmp_path: Path, database: sqlite3.Connection
) -> None:
    def made(mode: str) -> Pipeline:
        return Pipeline(
            Sqlite(tmp_path / "s.db"), Delta(spark, tmp_path / "lake", mode=mode), name="p", options=OPTIONS
        )

    with made("mirror") as pipeline:
        pipeline.sync_once()
        for value in (1, 2, 3):
            database.execute("UPDATE t SET v = ? WHERE id = 1", (value,))
            pipeline.sync_once()
    with made("temporal") as pipeline:
        pipeline.rebuild("main.t")
        pipeline.sync_once()
    rows = DeltaTable(tmp_path / "lake" / "main" / "t").to_pyarrow_table().to_pylist()
    versions = sorted((row for row in rows if row["id"] == 1), key=lambda row: row["valid_from"])
    assert [row["v"] for row in versions] == [0, 1, 2, 3]
    assert all(row["valid_to"] > row["valid_from"] for row in versions[1:-1]), "the history has not collapsed"
    assert versions[-1]["is_current"]

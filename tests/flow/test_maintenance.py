"""Maintenance beside a running pipeline: it acts when a table has got many files, not only when its time has come."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lakefeed import Delta, Pipeline, PipelineOptions, Sqlite
from lakefeed.flow import maintenance
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.maintenance import MaintenanceOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
APPENDS = 4


def test_many_files_are_packed_long_before_maintenance_is_due_and_nothing_is_removed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_CHECK_SECONDS", 0.2)
    connection = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    options = PipelineOptions(
        maintenance_seconds=3600, maintenance=MaintenanceOptions(most_files=0), journal=JournalOptions(fsync=False)
    )
    place = tmp_path / "lake" / "main" / "t"
    with Pipeline(Sqlite(tmp_path / "s.db"), Delta(spark, tmp_path / "lake"), name="p", options=options) as pipeline:
        for number in range(APPENDS):
            connection.execute("INSERT INTO t VALUES (?)", (number,))
            pipeline.sync_once()
        scattered = DeltaTable(place).file_uris()
        assert len(scattered) > 1
        running = threading.Thread(target=pipeline.run, args=(240.0,))
        running.start()
        deadline = time.monotonic() + 220
        while len(DeltaTable(place).file_uris()) > 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        pipeline.stop()
        running.join()
    connection.close()
    packed = DeltaTable(place)
    assert len(packed.file_uris()) == 1
    assert sorted(row["id"] for row in packed.to_pyarrow_table().to_pylist()) == list(range(APPENDS))
    assert all(Path(uri.removeprefix("file://")).exists() for uri in scattered), "older versions have lost their files"


def test_in_between_more_files_are_put_up_with_and_less_is_written() -> None:
    often = MaintenanceOptions(file_bytes=800, most_files=3).in_between()
    assert (often.file_bytes, often.most_files, often.keep_hours) == (100, 24, None)

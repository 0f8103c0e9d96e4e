"""Pipelines as the benchmarks build them, and how far one has come."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.result import CycleResult
from lakefeed.flow.run_loop import OpenPipeline
from lakefeed.journal.commit import Commit
from lakefeed.lake.base import Lake
from lakefeed.lake.delta import Delta
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.mode import Mirror, Mode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = "bench"
FORMATS = ("delta", "iceberg")
MASKED = "delta, deletion vectors"
"""Delta, where merges mark rows as deleted."""


def lake_of(spark: SparkSession, fmt: str, path: Path, mode: Mode = Mirror()) -> Delta | Iceberg:  # noqa: B008
    """A lake in one of the formats."""
    if fmt == "iceberg":
        return Iceberg(spark, path, mode=mode)
    return Delta(spark, path, mode=mode, deletion_vectors=fmt == MASKED)


def open_session(database: Path, lake: Lake) -> OpenPipeline:
    """Both sides of a pipeline, to be driven one step at a time: a Pipeline would do all of them."""
    root = Path(lake.path) / "_lakefeed" / PIPELINE
    return OpenPipeline(Sqlite(database).bind(PIPELINE), lake.bind(PIPELINE), root, PipelineOptions(), Listener())


class Progress(Listener):
    """Counts what has become durable and what has reached the lake."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.captured_rows = 0
        self.applied_rows = 0
        self.cycles: list[CycleResult] = []

    def captured(self, commit: Commit) -> None:
        with self._lock:
            self.captured_rows += commit.rows

    def applied(self, result: CycleResult) -> None:
        with self._lock:
            self.applied_rows += result.counts.total
            self.cycles.append(result)

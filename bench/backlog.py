"""A Delta table, and changes for it that are captured and not applied: where the lake side's measurements start.

Tables are measured on copies, each in a directory of its own, because Spark remembers what it knows of a path.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from bench.bench import Bench
from bench.pipeline import PIPELINE, open_session
from bench.workload import TABLE, create, write_changes
from lakefeed.change.table import TableId
from lakefeed.flow.run_loop import OpenPipeline
from lakefeed.flow.table_state import TableStates
from lakefeed.lake.base import ChangeLog
from lakefeed.lake.delta import Delta
from lakefeed.lake.engine import Engine, Enrolled
from lakefeed.lake.route import Route

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ID = TableId("main", TABLE)


@dataclass(frozen=True, slots=True)
class Backlog:
    """``session`` is open: its journal is what is to be applied, if it was drained."""

    spark: SparkSession
    database: Path
    session: OpenPipeline
    generation: int
    scratch: Path

    def copy(self, name: str) -> Path:
        """A copy of the lake's table in a lake of its own, replacing an earlier one of that name."""
        root = self.scratch / name
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.scratch / "lake" / "main" / TABLE, table_in(root))
        return root

    def engine(self, root: Path, log: ChangeLog) -> Engine:
        """Lakefeed's lake side over a copy."""
        enrolled = {ID: Enrolled(Route.same(ID), self.generation)}
        return Engine(Delta(self.spark, root).bind(PIPELINE), log, lambda: enrolled)


def backlog(bench: Bench, spark: SparkSession, rows: int, changes: int) -> Backlog:
    """Load a table, change its source."""
    bench.say(f"a table of {rows:,} rows, then {changes:,} changes")
    database = create(bench.scratch / "shop.db", rows)
    lake = Delta(spark, bench.scratch / "lake")
    session = open_session(database, lake)
    session.copies.load()
    write_changes(database, changes, rows)
    return Backlog(spark, database, session, _generation(session), bench.scratch)


def _generation(session: OpenPipeline) -> int:
    record = TableStates(session.root).get(ID)
    assert record is not None
    return record.generation


def table_in(root: Path) -> Path:
    return root / "main" / TABLE


def content(root: Path) -> pa.Table:
    """All rows of a copy, by key, read without Spark."""
    return read(DeltaTable(str(table_in(root)))).sort_by("id").combine_chunks()


def read(table: DeltaTable, columns: list[str] | None = None) -> pa.Table:
    """A table's rows, straight from its files (it has no deletion vectors).

    Not by ``to_pyarrow_table``: its file system is Python code, called by threads that may outlive the interpreter.
    """
    files = [unquote(uri.removeprefix("file://")) for uri in table.file_uris()]
    return pa.concat_tables([pq.read_table(path, columns=columns, partitioning=None) for path in files])

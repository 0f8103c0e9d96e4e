"""What a contract suite of modes needs to run on Delta. Mixed in before the suite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from lakefeed.change.table import TableId
from lakefeed.lake.base import TableFormat
from lakefeed.lake.delta import Delta
from lakefeed.lake.mode import Mode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read_delta(location: str) -> list[dict[str, Any]]:
    """By deltalake's query engine, which also knows deletion vectors."""
    found: Any = QueryBuilder().register("t", DeltaTable(location)).execute("SELECT * FROM t")
    rows: list[dict[str, Any]] = pa.RecordBatchReader.from_stream(found).read_all().to_pylist()
    return rows


class OnDelta:
    deletion_vectors = False

    @pytest.fixture(autouse=True)
    def _spark(self, spark: SparkSession) -> None:
        self.spark = spark

    def make_format(self, root: Path, mode: Mode) -> TableFormat:
        return Delta(self.spark, root, mode=mode, deletion_vectors=self.deletion_vectors).bind("contract")

    def read_rows(self, tables: TableFormat, table: TableId) -> list[dict[str, Any]]:
        location = tables.table(tables.routes(table)[0]).location
        return read_delta(location)

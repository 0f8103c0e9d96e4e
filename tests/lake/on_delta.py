"""What a contract suite of modes needs to run on Delta. Mixed in before the suite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from lakefeed.change.table import TableId
from lakefeed.lake.base import TableFormat
from lakefeed.lake.delta import Delta
from lakefeed.lake.mode import Mode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OnDelta:
    @pytest.fixture(autouse=True)
    def _spark(self, spark: SparkSession) -> None:
        self.spark = spark

    def make_format(self, root: Path, mode: Mode) -> TableFormat:
        return Delta(self.spark, root, mode=mode).bind("contract")

    def read_rows(self, tables: TableFormat, table: TableId) -> list[dict[str, Any]]:
        location = tables.table(tables.routes(table)[0]).location
        rows: list[dict[str, Any]] = DeltaTable(location).to_pyarrow_table().to_pylist()
        return rows

"""Iceberg keeps the contract of every table format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.lake.iceberg_reader import read_iceberg

from lakefeed.change.table import TableId
from lakefeed.lake.base import TableFormat
from lakefeed.lake.iceberg import Iceberg
from lakefeed.testing.format_contract import TableFormatContract

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class TestIceberg(TableFormatContract):
    @pytest.fixture(autouse=True)
    def _spark(self, spark: SparkSession) -> None:
        self.spark = spark

    def make_format(self, root: Path) -> TableFormat:
        return Iceberg(self.spark, root).bind("contract")

    def read_rows(self, tables: TableFormat, table: TableId) -> list[dict[str, Any]]:
        return read_iceberg(tables.table(tables.routes(table)[0]).location)

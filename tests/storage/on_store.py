"""Delta tables in an object store, for contract suites. Mixed in before the suite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from lakefeed.change.table import TableId
from lakefeed.lake.base import TableFormat
from lakefeed.lake.delta import Delta
from lakefeed.lake.mode import Mirror, Mode
from lakefeed.testing.server.object_store import Seaweed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read_store(location: str, options: dict[str, str]) -> list[dict[str, Any]]:
    """By deltalake's query engine, which also knows deletion vectors."""
    table = DeltaTable(location, storage_options=options)
    found: Any = QueryBuilder().register("t", table).execute("SELECT * FROM t")
    rows: list[dict[str, Any]] = pa.RecordBatchReader.from_stream(found).read_all().to_pylist()
    return rows


class OnStore:
    deletion_vectors = False

    @pytest.fixture(autouse=True)
    def _store(self, spark: SparkSession, seaweed: Seaweed, address: str) -> None:
        self.spark, self.options, self.address = spark, seaweed.options, address

    def make_format(self, root: Path, mode: Mode = Mirror()) -> TableFormat:  # noqa: B008
        lake = Delta(
            self.spark,
            f"{self.address}/{root.parent.name}/{root.name}",
            mode=mode,
            deletion_vectors=self.deletion_vectors,
            storage_options=self.options,
        )
        return lake.bind("contract")

    def read_rows(self, tables: TableFormat, table: TableId) -> list[dict[str, Any]]:
        return read_store(tables.table(tables.routes(table)[0]).location, self.options)

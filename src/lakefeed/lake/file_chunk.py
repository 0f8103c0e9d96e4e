"""A chunk that is a Parquet file of a lake table: how one lake table's rows become another's. Picklable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.lake.location import filesystem


@dataclass(frozen=True, slots=True)
class CurrentRows:
    """Which rows of a lake table are current: all, or those whose ``column`` is true (or NULL)."""

    column: str | None = None
    null: bool = False

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if self.column is None else batch.filter(self._chosen(batch.column(self.column)))

    def of_table(self, rows: pa.Table) -> pa.Table:
        return rows if self.column is None else rows.filter(self._chosen(rows.column(self.column)))

    def _chosen(self, values: Any) -> Any:
        return pc.is_null(values) if self.null else values


@dataclass(frozen=True, slots=True)
class FileChunk:
    """The current rows of one file, with the columns of ``schema``. Is its own reader; ``high`` is the same for all."""

    schema: TableSchema
    path: str
    current: CurrentRows
    high: Position | None

    @property
    def table(self) -> TableId:
        return self.schema.table

    @contextmanager
    def open(self) -> Iterator[Self]:
        yield self

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        files, place = filesystem(self.path)
        with pq.ParquetFile(place, filesystem=files) as file:
            for batch in file.iter_batches():
                yield self._own(self.current.of(batch))

    def _own(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A column that was added after the file was written reads as NULL, as the table itself reads it."""
        wanted = self.schema.arrow
        columns = [
            batch.column(field.name).cast(field.type) if field.name in batch.schema.names
            else pa.nulls(batch.num_rows, field.type)
            for field in wanted
        ]  # fmt: skip
        return pa.RecordBatch.from_arrays(columns, schema=wanted)

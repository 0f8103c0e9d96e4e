"""Reads a lake table's rows without Spark: for comparisons, never on the data path.

It reads Delta tables with deltalake, Iceberg tables with pyiceberg. Neither shares code with what Spark has written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.lake.formats import FORMATS, format_at, imported
from lakefeed.lake.location import lake_root
from lakefeed.lake.route import Part


class StoredRows(Protocol):
    """The rows that a table has now. They come in batches, so that memory does not grow with the table."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def estimate(self) -> int | None:
        """About how many rows there are, by the table's own statistics."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, in any order, each batch with ``schema``."""


class PartRows:
    """The rows of a part of a union, under some of the table's columns."""

    def __init__(self, rows: StoredRows, part: Part, columns: Collection[str]) -> None:
        self._rows = rows
        self._part = part
        self.schema = pa.schema([field for field in rows.schema if field.name in columns])
        self.estimate: int | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._rows.batches():
            own: Any = pc.equal(batch.column(self._part.column), pa.scalar(self._part.value))
            yield batch.filter(own).select(self.schema.names)


def rows_at(path: str) -> StoredRows | None:
    """The rows of the table at a path, whatever its format; None if there is none."""
    path = lake_root(path)  # absolute: some readers take a relative path for a host name
    name = format_at(path)
    if name is None:
        return None
    rows: StoredRows = imported(FORMATS[name].rows)(path)
    return rows


def read_table(path: Path) -> pa.Table | None:
    """The rows of the table at a path as one Arrow table in memory; None if there is no table."""
    found = rows_at(str(path))
    return pa.Table.from_batches(list(found.batches()), found.schema) if found is not None else None

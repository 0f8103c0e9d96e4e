"""A chunk that is a data file of an Iceberg table: how one lake table's rows become another's. Picklable.

Read through pyiceberg, which knows deleted rows, renamed columns and defaults.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import LakeError
from lakefeed.lake.base import ChunkSource, TableVersion
from lakefeed.lake.file_chunk import CurrentRows


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """The current rows of one data file of one snapshot, with the columns of ``schema``. Is its own reader."""

    schema: TableSchema
    metadata_file: str
    snapshot: int
    data_file: str
    current: CurrentRows
    high: Position | None

    @property
    def table(self) -> TableId:
        return self.schema.table

    @contextmanager
    def open(self) -> Iterator[Self]:
        yield self

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        from pyiceberg.io.pyarrow import ArrowScan

        table, scan = _scanned(self.metadata_file, self.snapshot)
        tasks = [task for task in scan.plan_files() if task.file.file_path == self.data_file]
        rows = ArrowScan(table.metadata, table.io, scan.projection(), scan.row_filter)
        for batch in rows.to_record_batches(tasks):
            yield self._own(self.current.of(batch))

    def _own(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        wanted = self.schema.arrow
        return pa.RecordBatch.from_arrays(
            [batch.column(field.name).cast(field.type) for field in wanted], schema=wanted
        )


def chunks_of(
    metadata_file: str | None, state: TableVersion, schema: TableSchema, current: CurrentRows
) -> tuple[ChunkSource, ...]:
    """The files of a state. LakeError if they are gone, or if there is nothing here to read them with."""
    if metadata_file is None:
        raise LakeError(f"there is no Iceberg table of {schema.table} any more")
    try:
        _, scan = _scanned(metadata_file, state.version)
        files = [task.file.file_path for task in scan.plan_files()]
    except ImportError as error:
        raise LakeError(
            f"the rows of {schema.table} are read through pyiceberg, which is not installed ({error})",
            remedy="pip install 'lakefeed[iceberg]'",
        ) from error
    except (OSError, ValueError) as error:
        raise LakeError(f"the files of {schema.table} at change set {state.number} are gone: {error}") from error
    return tuple(SnapshotChunk(schema, metadata_file, state.version, file, current, state.position) for file in files)


def _scanned(metadata_file: str, snapshot: int) -> tuple[Any, Any]:
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(metadata_file)
    return table, table.scan(snapshot_id=snapshot)

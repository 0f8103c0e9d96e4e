"""A lake table's rows by a reader that is not Spark: for comparisons, never on the data path.

Delta tables are read with deltalake, Iceberg tables with pyiceberg: neither shares code with what has written them.
Rows come in batches, so that memory does not follow the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from lakefeed.lake.iceberg_metadata import HadoopMetadata, is_delta, is_iceberg
from lakefeed.lake.location import delta_uri, lake_root


class StoredRows(Protocol):
    """The rows that a table has now."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def estimate(self) -> int | None:
        """About how many there are, by the table's own statistics."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, in any order, each batch with ``schema``."""


class DeltaRows:
    """By deltalake's query engine, which also knows deletion vectors. ``storage`` are its options."""

    def __init__(self, path: str, storage: Mapping[str, str] | None = None) -> None:
        from deltalake import DeltaTable

        self._table = DeltaTable(delta_uri(path), storage_options=dict(storage or {}))
        described: Any = self._table.schema().to_arrow()  # another library's schema, by the Arrow C interface
        self.schema: pa.Schema = pa.schema(described)

    @property
    def estimate(self) -> int | None:
        counts = self._table.get_add_actions(flatten=True).column("num_records").to_pylist()
        return sum(counts) if None not in counts else None

    def batches(self) -> Iterator[pa.RecordBatch]:
        from deltalake import QueryBuilder

        found: Any = QueryBuilder().register("t", self._table).execute("SELECT * FROM t")
        for batch in pa.RecordBatchReader.from_stream(found):
            yield batch.select(self.schema.names).cast(self.schema)


class IcebergRows:
    """By pyiceberg, file by file: it would otherwise hold all of them. ``table`` is pyiceberg's."""

    def __init__(self, table: Any) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        self._table = table
        columns: pa.Schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
        self.schema: pa.Schema = pa.schema([pa.field(field.name, _short(field.type)) for field in columns])

    @property
    def estimate(self) -> int | None:
        snapshot = self._table.current_snapshot()
        told = snapshot.summary.get("total-records") if snapshot is not None and snapshot.summary else None
        return int(told) if told is not None else None

    def batches(self) -> Iterator[pa.RecordBatch]:
        from pyiceberg.io.pyarrow import ArrowScan

        scan = self._table.scan()
        rows = ArrowScan(self._table.metadata, self._table.io, scan.projection(), scan.row_filter)
        for task in scan.plan_files():
            for batch in rows.to_record_batches([task]):
                yield batch.select(self.schema.names).cast(self.schema)


def rows_at(path: str) -> StoredRows | None:
    """The rows of the table at a path, whatever its format; None if there is none."""
    path = lake_root(path)  # absolute: readers take a relative one for a host
    if is_delta(path):
        return DeltaRows(path)
    if is_iceberg(path):
        return IcebergRows(HadoopMetadata(path).table())
    return None


def read_table(path: Path) -> pa.Table | None:
    """The same as one table in memory."""
    found = rows_at(str(path))
    return pa.Table.from_batches(list(found.batches()), found.schema) if found is not None else None


def _short(kind: Any) -> Any:
    """pyiceberg likes types with long offsets, which the lake's tables have nowhere else."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_short(kind.value_type))
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)

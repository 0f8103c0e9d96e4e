"""A lake table's rows by a reader that is not Spark: for comparisons, never on the data path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from lakefeed.errors import LakeError
from lakefeed.lake.iceberg_metadata import HadoopMetadata


def read_table(path: Path) -> pa.Table | None:
    """The rows of the table at a path, whatever its format; None if there is none."""
    if (path / "_delta_log").exists():
        return read_delta(path)
    if (path / "metadata").exists():
        return read_iceberg(path)
    return None


def read_delta(path: Path) -> pa.Table:
    """A Delta table's rows by an independent reader, which also knows deletion vectors."""
    from deltalake import DeltaTable, QueryBuilder

    table = DeltaTable(str(path))
    rows = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all())
    described: Any = table.schema().to_arrow()  # another library's schema, by the Arrow C interface
    wanted = pa.schema(described)
    return rows.select(wanted.names).cast(wanted)


def read_iceberg(path: Path) -> pa.Table:
    """An Iceberg table's rows by pyiceberg. LakeError if that is not installed."""
    try:
        from pyiceberg.table import StaticTable
    except ImportError as error:
        raise LakeError(
            f"Iceberg tables are read for a comparison with pyiceberg, which is not installed ({error})",
            remedy="pip install 'lakefeed[iceberg]'",
        ) from error
    metadata = HadoopMetadata(str(path))
    if metadata.current() is None or metadata.place is None:
        raise LakeError(f"there is no Iceberg table at {path}")
    rows: pa.Table = StaticTable.from_metadata(metadata.place).scan().to_arrow()
    return rows.cast(pa.schema([pa.field(field.name, _short(field.type)) for field in rows.schema]))


def _short(kind: Any) -> Any:
    """pyiceberg gives columns that it fills with a default types with long offsets."""
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)

"""A Delta table's rows by a reader that is not Spark: for comparisons, never on the data path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa


def read_delta(path: Path) -> pa.Table:
    """A Delta table's rows by an independent reader, which also knows deletion vectors."""
    from deltalake import DeltaTable, QueryBuilder

    table = DeltaTable(str(path))
    rows = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all())
    described: Any = table.schema().to_arrow()  # another library's schema, by the Arrow C interface
    wanted = pa.schema(described)
    return rows.select(wanted.names).cast(wanted)

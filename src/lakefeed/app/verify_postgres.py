"""Proof that a lake table equals its PostgreSQL table, row by row, by readers that the pipeline does not use.

The source is read with plain SELECTs by the driver's own conversions, and as PostgreSQL prints it where the lake has
text; the pipeline reads the log and COPY. See ``verify`` for the comparison itself.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pyarrow as pa
from psycopg import sql

from lakefeed.app.verify import Comparison, Rows, compare_rows
from lakefeed.change.table import TableId
from lakefeed.lake.mode import Mirror
from lakefeed.lake.shape import Shape

_MIRROR = Shape(Mirror())
_SESSION = (
    "SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET timezone = 'UTC'; SET extra_float_digits = 1;"
    " SET bytea_output = 'hex'; SET search_path = pg_catalog"
)


def compare_postgres_table(dsn: str, table: TableId, lake_table: Path, shape: Shape = _MIRROR) -> Comparison:
    """Compare one table. Nothing may be writing to either side meanwhile."""
    return compare_rows(table, lake_table, lambda lake: _read(dsn, table, lake), shape)


def _read(dsn: str, table: TableId, lake: pa.Table) -> Rows:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_SESSION)
        place = sql.Identifier(table.schema, table.name)
        stored = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
            " AND attgenerated = '' ORDER BY attnum",
            (place.as_string(connection),),
        )
        own = [str(name) for (name,) in stored]
        names = [name for name in lake.column_names if name in own]
        listed = [_selected(name, lake.schema.field(name).type) for name in names]
        query = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(listed), place)
        rows = connection.execute(query).fetchall()
    columns = zip(*rows, strict=True) if rows else iter([()] * len(names))
    return own, dict(zip(names, columns, strict=True)), len(rows)


def _selected(name: str, kind: pa.DataType) -> sql.Composable:
    """As printed where the lake has text: a cast to text would strip the padding of char(n)."""
    column = sql.Identifier(name)
    if kind != pa.string():
        return column
    return sql.SQL("CASE WHEN {0} IS NULL THEN NULL ELSE format('%s', {0}) END").format(column)

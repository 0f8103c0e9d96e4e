"""A PostgreSQL table by plain SQL, for comparisons.

The source is read with one SELECT by the driver's own conversions, and as PostgreSQL prints it where the lake has text;
the pipeline reads the log and COPY.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pyarrow as pa
from psycopg import sql

from lakefeed.app.verify import Comparison, Subject, compare_table, missing_table
from lakefeed.app.verify_rows import Row
from lakefeed.change.table import TableId
from lakefeed.lake.mode import Mirror, Mode
from lakefeed.lake.reader import rows_at

_MIRROR = Mirror()
_RUN_ROWS = 50_000
_SESSION = (
    "SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET timezone = 'UTC'; SET extra_float_digits = 1;"
    " SET bytea_output = 'hex'; SET search_path = pg_catalog"
)


class PostgresTable:
    """See ``verify.SourceTable``. Read through a cursor of the server, so that it does not hold the table here."""

    def __init__(self, dsn: str, table: TableId) -> None:
        self._dsn = dsn
        self._place = sql.Identifier(table.schema, table.name)

    def columns(self, lake: Sequence[str]) -> list[str]:  # noqa: ARG002  # every one has a name of its own
        with psycopg.connect(self._dsn) as connection:
            stored = connection.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
                " AND attgenerated = '' ORDER BY attnum",
                (self._place.as_string(connection),),
            )
            return [str(name) for (name,) in stored]

    def count(self) -> int:
        with psycopg.connect(self._dsn) as connection:
            found = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(self._place)).fetchone()
            return int(found[0]) if found is not None else 0

    def rows(self, columns: pa.Schema, names: Sequence[str]) -> Iterator[Sequence[Row]]:
        listed = [_selected(name, field.type) for name, field in zip(names, columns, strict=True)]
        query = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(listed), self._place)
        with psycopg.connect(self._dsn) as connection:
            connection.execute(_SESSION)
            with connection.cursor("lakefeed_verify") as cursor:
                cursor.execute(query)
                while rows := cursor.fetchmany(_RUN_ROWS):
                    yield rows


def compare_postgres_table(dsn: str, table: TableId, lake_table: Path, mode: Mode = _MIRROR) -> Comparison:
    """Compare one table with the lake table at a path. Nothing may be writing to either side meanwhile."""
    stored = rows_at(str(lake_table))
    if stored is None:
        return missing_table(table, lake_table)
    return compare_table(Subject(table=table, mode=mode), stored, PostgresTable(dsn, table))


def _selected(name: str, kind: pa.DataType) -> sql.Composable:
    """As printed where the lake has text: a cast to text would strip the padding of char(n)."""
    column = sql.Identifier(name)
    if kind != pa.string():
        return column
    return sql.SQL("CASE WHEN {0} IS NULL THEN NULL ELSE format('%s', {0}) END").format(column)

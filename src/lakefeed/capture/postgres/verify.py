"""The verify reader of PostgreSQL: names from the kit's session, values by plain SELECT as psycopg converts them.

It does not read through ``Session.read``: that is the COPY decoder whose work ``lakefeed verify`` proves. Where the
lake has text, the value is taken as PostgreSQL prints it. Rows of children that inherit from the table are not its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from psycopg import sql

from lakefeed.capture.postgres.database import Database
from lakefeed.capture.postgres.dialect import PostgresDialect
from lakefeed.change.table import TableId

_RUN_ROWS = 50_000
_NAME = "lakefeed_verify"


class PostgresVerifyReader:
    """See ``capture.registry.VerifyReader``. A cursor of the server gives the rows, so that memory stays bounded."""

    def __init__(self, dsn: str, table: TableId) -> None:
        self._database = Database(dsn)
        self._dialect = PostgresDialect(dsn)
        self._table = table

    def columns(self) -> Sequence[str]:
        return self._dialect.described(self._table).schema.names

    def count(self) -> int:
        query = sql.SQL("SELECT count(*) FROM {}").format(sql.SQL(self._dialect.described(self._table).origin))
        with self._database.connection(_NAME) as connection:
            found = connection.execute(query).fetchone()
            return int(found[0]) if found is not None else 0

    def rows(self, columns: pa.Schema, names: Sequence[str]) -> Iterator[Sequence[tuple[Any, ...]]]:
        # As printed where the lake has text: a cast to text would strip the padding of char(n).
        printed = sql.SQL("CASE WHEN {0} IS NULL THEN NULL ELSE format('%s', {0}) END")
        listed = [
            (printed if field.type == pa.string() else sql.SQL("{0}")).format(sql.Identifier(name))
            for name, field in zip(names, columns, strict=True)
        ]
        query = sql.SQL("SELECT {} FROM {}").format(
            sql.SQL(", ").join(listed), sql.SQL(self._dialect.described(self._table).origin)
        )
        with (
            self._database.connection(_NAME) as connection,
            connection.transaction(),
            connection.cursor(_NAME) as cursor,
        ):
            cursor.execute(query)
            while rows := cursor.fetchmany(_RUN_ROWS):
                yield rows

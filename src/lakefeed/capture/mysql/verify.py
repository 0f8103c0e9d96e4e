# ruff: noqa: S608 (names in SQL are quoted)
"""The verify reader of MySQL and MariaDB: values by plain SELECT, as PyMySQL converts them from text.

It does not read through ``Session.read``: that is the decoder whose work ``lakefeed verify`` proves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import Any

import pyarrow as pa
from pymysql.cursors import SSCursor

from lakefeed.capture.mysql.database import READING, Database, quoted
from lakefeed.capture.mysql.dialect import MysqlDialect, read_columns
from lakefeed.change.table import TableId

_RUN_ROWS = 20_000


class MysqlVerifyReader:
    """See ``capture.registry.VerifyReader``. Rows are not buffered, so that memory stays bounded."""

    def __init__(self, dialect: MysqlDialect, table: TableId) -> None:
        self._dialect = dialect
        self._database = Database(dialect.dsn, dialect.flavour)
        self._table = table

    def columns(self) -> Sequence[str]:
        return self._dialect.described(self._table).schema.names

    def count(self) -> int:
        origin = self._dialect.described(self._table).origin
        with self._database.connection(READING) as connection:
            return int(connection.value(f"SELECT count(*) FROM {origin}"))

    def rows(self, columns: pa.Schema, names: Sequence[str]) -> Iterator[Sequence[tuple[Any, ...]]]:
        origin = self._dialect.described(self._table).origin
        with self._database.connection(READING) as connection:
            kinds = {one.name: one.kind for one in read_columns(connection, [self._table])[self._table][0]}
            listed = []
            for name, field in zip(names, columns, strict=True):
                kind, sql = kinds[name], quoted(name)
                if kind is not None and kind.name == "geometry":
                    sql = f"SUBSTRING(CAST({sql} AS BINARY), 5)"
                elif kind is not None and kind.name in ("float", "bit"):
                    sql = f"{sql} + {'0e0' if kind.name == 'float' else '0'}"
                elif field.type == pa.string():
                    sql = f"CAST({sql} AS CHAR)"
                listed.append(sql)
            zoned = [index for index, field in enumerate(columns) if getattr(field.type, "tz", None) is not None]
            flags = [index for index, field in enumerate(columns) if pa.types.is_boolean(field.type)]
            with connection.driver.cursor(SSCursor) as cursor:
                cursor.execute(f"SELECT {', '.join(listed)} FROM {origin}")
                while rows := cursor.fetchmany(_RUN_ROWS):
                    yield [_converted(row, zoned, flags) for row in rows]


def _converted(row: tuple[Any, ...], zoned: list[int], flags: list[int]) -> tuple[Any, ...]:
    """Timestamps are in UTC, as the session is; a bit is a truth value."""
    found = list(row)
    for index in zoned:
        found[index] = found[index].replace(tzinfo=UTC) if hasattr(found[index], "tzinfo") else found[index]
    for index in flags:
        found[index] = None if found[index] is None else bool(found[index])
    return tuple(found)

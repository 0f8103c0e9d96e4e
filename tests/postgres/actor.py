"""The application that writes to the database, for the contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from lakefeed.change.table import TableId


class PostgresActor:
    """See ``lakefeed.testing.capture_contract.Actor``."""

    table = TableId("public", "people")
    other = TableId("public", "things")

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        for table in (self.table, self.other):
            self.run(f"CREATE TABLE {table} (id int PRIMARY KEY, name text)")

    def run(self, sql: str) -> None:
        self._connection.execute(sql.encode())

    def put(self, table: TableId, key: int, name: str | None) -> None:
        statement = f"INSERT INTO {table} VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET name = excluded.name"
        self._connection.execute(statement.encode(), (key, name))

    def delete(self, table: TableId, key: int) -> None:
        self._connection.execute(f"DELETE FROM {table} WHERE id = %s".encode(), (key,))

    def rekey(self, table: TableId, key: int, other: int) -> None:
        self._connection.execute(f"UPDATE {table} SET id = %s WHERE id = %s".encode(), (other, key))

    @contextmanager
    def together(self) -> Iterator[None]:
        with self._connection.transaction():
            yield

    def rows(self, table: TableId) -> dict[int, str | None]:
        return dict(self._connection.execute(f"SELECT id, name FROM {table}".encode()).fetchall())

    def close(self) -> None:
        self._connection.close()

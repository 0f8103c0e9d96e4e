"""The application that writes to the database, for the contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lakefeed.change.table import TableId
from lakefeed.testing.server.mysql import MysqlServer


class MysqlActor:
    """See ``lakefeed.testing.capture_contract.Actor``. ``timed``: with the columns that polling needs."""

    def __init__(self, server: MysqlServer, database: str, *, timed: bool = False) -> None:
        self.table, self.other = TableId(database, "people"), TableId(database, "things")
        self._connection = server.connect()
        times = "created_at datetime(6) DEFAULT now(6), updated_at datetime(6) DEFAULT now(6) ON UPDATE now(6)"
        for table in (self.table, self.other):
            self.run(f"CREATE TABLE {table} (id int PRIMARY KEY, name mediumtext{', ' + times if timed else ''})")

    def run(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            return list(cursor.fetchall())

    def put(self, table: TableId, key: int, name: str | None) -> None:
        self.run(
            f"INSERT INTO {table} (id, name) VALUES (%s, %s) ON DUPLICATE KEY UPDATE name = VALUES(name)", (key, name)
        )

    def delete(self, table: TableId, key: int) -> None:
        self.run(f"DELETE FROM {table} WHERE id = %s", (key,))

    def rekey(self, table: TableId, key: int, other: int) -> None:
        self.run(f"UPDATE {table} SET id = %s WHERE id = %s", (other, key))

    @contextmanager
    def together(self) -> Iterator[None]:
        self.run("BEGIN")
        yield
        self.run("COMMIT")

    def rows(self, table: TableId) -> dict[int, str | None]:
        return dict(self.run(f"SELECT id, name FROM {table}"))

    def close(self) -> None:
        self._connection.close()

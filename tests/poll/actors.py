"""Applications that keep ``created_at`` and ``updated_at``, as polling needs it, for the contract and the workloads."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from lakefeed.change.table import TableId


def iso(us: int) -> str:
    """Microseconds since 1970 as SQLite applications write them."""
    return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def now_us() -> int:
    return time.time_ns() // 1_000


class SqliteSoftActor:
    """Deletes by a mark in ``deleted_at``; the row stays. See ``lakefeed.testing.capture_subject.Actor``."""

    table = TableId("main", "people")
    other = TableId("main", "places")

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = wal")
        for table in (self.table, self.other):
            self._connection.execute(
                f"CREATE TABLE {table.name} (id INTEGER PRIMARY KEY, name TEXT, created_at TEXT NOT NULL,"
                " updated_at TEXT NOT NULL, deleted_at TEXT)"
            )

    def put(self, table: TableId, key: int, name: str | None) -> None:
        now = iso(now_us())
        self._connection.execute(
            f"INSERT INTO {table.name} VALUES (?, ?, ?, ?, NULL) ON CONFLICT DO UPDATE"
            " SET name = excluded.name, updated_at = excluded.updated_at, deleted_at = NULL",
            (key, name, now, now),
        )

    def delete(self, table: TableId, key: int) -> None:
        self._connection.execute(f"UPDATE {table.name} SET deleted_at = ? WHERE id = ?", (iso(now_us()), key))

    @contextmanager
    def together(self) -> Iterator[None]:
        self._connection.execute("BEGIN")
        yield
        self._connection.execute("COMMIT")

    def rows(self, table: TableId) -> dict[int, str | None]:
        query = f"SELECT id, name FROM {table.name} WHERE deleted_at IS NULL"
        return dict(self._connection.execute(query).fetchall())

    def close(self) -> None:
        self._connection.close()


class PostgresPlainActor:
    """Deletes rows for good, which polling does not see."""

    table = TableId("public", "people")
    other = TableId("public", "things")

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        for table in (self.table, self.other):
            self.run(
                f"CREATE TABLE {table} (id int PRIMARY KEY, name text,"
                " created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL)"
            )

    def run(self, sql: str) -> None:
        self._connection.execute(sql.encode())

    def put(self, table: TableId, key: int, name: str | None) -> None:
        statement = (
            f"INSERT INTO {table} SELECT %s, %s, c, c FROM clock_timestamp() AS c"
            " ON CONFLICT (id) DO UPDATE SET name = excluded.name, updated_at = excluded.updated_at"
        )
        self._connection.execute(statement.encode(), (key, name))

    def delete(self, table: TableId, key: int) -> None:
        self._connection.execute(f"DELETE FROM {table} WHERE id = %s".encode(), (key,))

    @contextmanager
    def together(self) -> Iterator[None]:
        with self._connection.transaction():
            yield

    def rows(self, table: TableId) -> dict[int, str | None]:
        return dict(self._connection.execute(f"SELECT id, name FROM {table}".encode()).fetchall())

    def close(self) -> None:
        self._connection.close()

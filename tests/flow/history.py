"""Random histories of a SQLite database: data changes of every kind and changes of its schema."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from lakefeed.testing.memory_lake import MemoryLake

TABLES = """
CREATE TABLE plain (id INTEGER PRIMARY KEY, a TEXT, b INTEGER, u TEXT UNIQUE);
CREATE TABLE pair (k1 TEXT NOT NULL, k2 INTEGER NOT NULL, v REAL, PRIMARY KEY (k1, k2)) WITHOUT ROWID;
CREATE TABLE loose (x TEXT, y BLOB);
"""


class Database:
    """One writer on one file."""

    def __init__(self, path: Path, *, wal: bool) -> None:
        self.path = path
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute(f"PRAGMA journal_mode={'WAL' if wal else 'DELETE'}")
        self.connection.executescript(TABLES)

    def execute(self, statement: str, *values: Any) -> None:
        self.connection.execute(statement, values)

    def columns(self, table: str) -> list[str]:
        return [row[1] for row in self.connection.execute(f"PRAGMA table_xinfo({table})")]

    def tables(self) -> list[str]:
        found = self.connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '%lakefeed%' ESCAPE '\\'"
        )
        return sorted(name for (name,) in found)

    def close(self) -> None:
        self.connection.close()


def text_form(value: Any) -> str:
    """How a value of a column with mixed types is stored."""
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    return value if isinstance(value, str) else repr(value)


def assert_equal(database: Database, lake: MemoryLake, table: str) -> None:
    """Every row of the table is in the lake as it is, and no other."""
    schema = next(found.schema for name, found in lake.tables.items() if name.name == table)
    columns = database.columns(table)
    assert [name for name in schema.names if name != "_rowid"] == columns
    rows = database.connection.execute(f"SELECT * FROM {table}").fetchall()
    text = [str(schema.column(name).type) == "string" for name in columns]
    expected = [
        tuple(
            text_form(value) if mixed and value is not None else value for value, mixed in zip(row, text, strict=True)
        )
        for row in rows
    ]
    found = [tuple(row[name] for name in columns) for row in lake.rows(f"main.{table}")]
    assert sorted(map(repr, found)) == sorted(map(repr, expected)), f"table {table} differs"

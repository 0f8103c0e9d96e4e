"""The table that everything is measured with, and the changes to it: 60 % updates, 30 % inserts, 10 % deletes.

Every change is of a row that is there, so that a number of changes asked for is the number captured. Keys are spread
over the whole table; a tenth of the updates go to a thousand hot rows, so that some keys change several times.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

COLUMNS = "id INTEGER PRIMARY KEY, owner TEXT, balance INTEGER, score REAL, note TEXT, tick INTEGER"
TABLE = "account"
TRANSACTION = 100
_HOT = 1_000
_STRIDE = 1_000_003
"""A prime, so that steps of it visit every even id once before they repeat."""


@contextlib.contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, timeout=60, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("COMMIT")


def create(path: Path, rows: int, tables: Sequence[str] = (TABLE,)) -> Path:
    """A database in WAL mode with so many rows in each table."""
    with connected(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        for table in tables:
            connection.execute(f"CREATE TABLE {table} ({COLUMNS})")
            with transaction(connection):
                connection.execute(
                    f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) INSERT INTO {table} "
                    "SELECT i, 'owner ' || (i * 7919 % 100003), i * 31 % 1000000, i / 7.0, 'note of row ' || i, 0 FROM "
                    "n WHERE ? > 0",
                    (rows, rows),
                )
        settle(connection)
    return path


def settle(connection: sqlite3.Connection) -> None:
    """Everything into the database file, so that copies of it are whole and alike."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


class Mix:
    """Changes one table that had ``rows`` rows, with ids from 1. Even ids are deleted, odd ones updated."""

    def __init__(self, rows: int, table: str = TABLE, seed: int = 1) -> None:
        self._table = table
        self._half = rows // 2
        self._next = rows + 1
        self._deleted = 0
        self._chance = random.Random(seed)

    def change(self, connection: sqlite3.Connection, count: int, tick: int = 0) -> None:
        """So many changes, inside the caller's transaction. ``tick`` goes into every row that is written."""
        inserts, deletes = count * 3 // 10, count // 10
        first = self._next
        self._next += inserts
        added = [(i, f"owner {i * 7919 % 100003}", i % 1000, i / 3, "new", tick) for i in range(first, self._next)]
        connection.executemany(f"INSERT INTO {self._table} VALUES (?, ?, ?, ?, ?, ?)", added)
        updated = [
            (self._chance.randrange(10**6), f"note {tick}", tick, self._odd(i))
            for i in range(count - inserts - deletes)
        ]
        connection.executemany(f"UPDATE {self._table} SET balance = ?, note = ?, tick = ? WHERE id = ?", updated)
        gone = [(self._even(self._deleted + i),) for i in range(deletes)]
        connection.executemany(f"DELETE FROM {self._table} WHERE id = ?", gone)
        self._deleted += deletes

    def _odd(self, place: int) -> int:
        odd_ids = self._next // 2
        return 2 * self._chance.randrange(min(odd_ids, _HOT) if place % 10 == 0 else odd_ids) + 1

    def _even(self, number: int) -> int:
        return 2 * (1 + (number * _STRIDE % self._half if number < self._half else number))


def write_changes(path: Path, changes: int, rows: int, tables: Sequence[str] = (TABLE,)) -> None:
    """So many changes over all tables, in transactions of 100 that touch every one of them."""
    mixes = [Mix(rows, table, seed) for seed, table in enumerate(tables)]
    each = TRANSACTION // len(tables)
    with connected(path) as connection:
        for tick in range(1, changes // (each * len(tables)) + 1):
            with transaction(connection):
                for mix in mixes:
                    mix.change(connection, each, tick)
        settle(connection)

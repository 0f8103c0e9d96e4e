"""A database that is only ever read by the pipeline: one table deletes softly, one for good, which comparisons find."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path

from tests.crash.sqlite_shop import SqliteShop, write_until_told

TABLES = """
CREATE TABLE account (
    id INTEGER PRIMARY KEY, owner TEXT, balance INTEGER, created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
    deleted_at TEXT);
CREATE TABLE entry (
    account INTEGER, line INTEGER, amount REAL, updated_at TEXT NOT NULL, PRIMARY KEY (account, line)) WITHOUT ROWID;
CREATE INDEX account_updated ON account (updated_at, id);
CREATE INDEX account_deleted ON account (deleted_at, id);
"""
NAMES = ("account", "entry")
LIVE = {"account": "deleted_at IS NULL", "entry": "1"}

CONFIG = """
pipeline: crash
source:
  kind: sqlite
  path: shop.db
  capture: poll
  poll_seconds: 0.1
  rules:
    account: {soft_delete: deleted_at, safety_lag_seconds: 1, batch_rows: 200}
    entry: {safety_lag_seconds: 1, full_diff: {every_seconds: 5, max_deleted_share: 1}}
lake: {path: ./lake, format: delta, mode: mirror, deletion_vectors: [account]}
sync: {interval_seconds: 0.2, warm_up: false}
journal: {keep_change_sets: 2, keep_seconds: 0}
"""

NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
UPSERT = f"""
INSERT INTO account VALUES (:k, :o, 1, {NOW}, {NOW}, NULL)
ON CONFLICT DO UPDATE SET balance = balance + 1, updated_at = {NOW}, deleted_at = NULL
"""  # also brings a row back
STATEMENTS = (
    UPSERT,
    f"UPDATE account SET owner = :o, updated_at = {NOW} WHERE id BETWEEN :k AND :k + 20",
    f"UPDATE account SET deleted_at = {NOW} WHERE id = :k AND deleted_at IS NULL",
    f"UPDATE account SET deleted_at = {NOW}, updated_at = {NOW} WHERE id BETWEEN :k AND :k + 5",
    f"INSERT OR REPLACE INTO entry VALUES (:k, :j % 5, :j / 7.0, {NOW})",
    f"INSERT OR REPLACE INTO entry VALUES (:k, :j % 5, :j / 3.0, {NOW})",
    f"UPDATE entry SET amount = amount * 1.1, updated_at = {NOW} WHERE account = :k",
    "DELETE FROM entry WHERE account = :k AND line = :j % 5",
)


class PollShop(SqliteShop):
    """See ``SqliteShop``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, CONFIG, tables=TABLES, module="tests.crash.poll_shop")
        self.fill(change, 600)

    def live(self) -> Path:
        """A database with the rows that are not softly deleted: what the lake is to have."""
        path = self.directory / "live.db"
        path.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.executescript(TABLES)
            connection.execute("ATTACH ? AS shop", (str(self.database),))
            with connection:
                for name in NAMES:
                    connection.execute(f"INSERT INTO main.{name} SELECT * FROM shop.{name} WHERE {LIVE[name]}")
        return path


def change(connection: sqlite3.Connection, chance: random.Random, statements: int) -> None:
    for _ in range(statements):
        key, other = chance.randrange(300), chance.randrange(300)
        connection.execute(chance.choice(STATEMENTS), {"k": key, "j": other, "o": f"o{other}"})


if __name__ == "__main__":
    write_until_told(change, 20)

"""A small database under constant change, in a process of its own, and the pipeline that follows it, in another."""

from __future__ import annotations

import os
import random
import sqlite3
from pathlib import Path
from typing import Any

from tests.crash.sqlite_shop import SqliteShop, write_until_told

TABLES = """
CREATE TABLE account (id INTEGER PRIMARY KEY, owner TEXT UNIQUE, balance INTEGER NOT NULL, note TEXT);
CREATE TABLE entry (account INTEGER, line INTEGER, amount REAL, data BLOB, PRIMARY KEY (account, line)) WITHOUT ROWID;
CREATE TABLE event (what TEXT, at REAL);
"""

CONFIG = """
pipeline: crash
source: {kind: sqlite, path: shop.db, capture: trigger, tables: ["*"]}
lake: {path: ./lake, format: delta, mode: mirror, deletion_vectors: [account]}
sync: {interval_seconds: 0.2, warm_up: false}
spark: {conf: {spark.sql.codegen.wholeStage: "false", spark.sql.codegen.factoryMode: NO_CODEGEN}}
journal: {keep_change_sets: 2, keep_seconds: 0}
"""


REPLACE = "INSERT OR REPLACE INTO account (id, owner, balance, note) VALUES (?, ?, ?, ?)"
UPSERT = """
INSERT INTO account (id, owner, balance, note) VALUES (?, ?, 1, '')
ON CONFLICT (id) DO UPDATE SET balance = balance + 1 ON CONFLICT DO NOTHING
"""


class Shop(SqliteShop):
    """See ``SqliteShop``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, CONFIG, tables=TABLES, module="tests.crash.shop")
        self.fill(change, 200)


def change(connection: sqlite3.Connection, chance: random.Random, statements: int) -> None:
    """Inserts, updates, deletes, key changes, replaces and upserts over all three tables."""
    for _ in range(statements):
        key, other = chance.randrange(500), chance.randrange(500)
        value: Any = chance.choice([None, "", "O'Hara \u00fcber \U0001f40b", chance.random(), -(2**62) + key])
        statement, values = chance.choice(
            [
                (REPLACE, (key, f"o{other}", 2**60 + key, str(value))),
                ("INSERT OR IGNORE INTO account (id, owner, balance) VALUES (?, ?, 1)", (key, f"o{other}")),
                (UPSERT, (key, f"o{other}")),
                ("UPDATE OR REPLACE account SET id = ?, owner = ? WHERE id = ?", (key, f"o{key}", other)),
                ("DELETE FROM account WHERE id = ?", (key,)),
                ("INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?)", (key, other % 5, key / 7, os.urandom(key % 9))),
                ("UPDATE entry SET amount = amount * 1.1 WHERE account = ?", (key,)),
                ("UPDATE OR IGNORE entry SET line = line + 1 WHERE account = ?", (key,)),
                ("DELETE FROM entry WHERE account = ?", (key,)),
                ("INSERT INTO event VALUES (?, ?)", (f"e{key}", chance.random())),
                ("DELETE FROM event WHERE what = ?", (f"e{key}",)),
            ]
        )  # fmt: skip
        connection.execute(statement, values)


if __name__ == "__main__":
    write_until_told(change, 30)

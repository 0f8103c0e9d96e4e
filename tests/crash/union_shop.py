"""Two shards under constant change, and the pipeline that brings both into one lake table."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from tests.crash.sqlite_shop import SqliteShop, write_until_told

SHARDS = ("orders_a", "orders_b")
TABLES = "".join(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, item TEXT, price REAL);" for name in SHARDS)
CONFIG = """
pipeline: crash
source: {kind: sqlite, path: shop.db}
lake:
  path: ./lake
  format: delta
  tables:
    - {match: "orders_*", name: orders, only: true, union: {column: shard, value: "{table}"}}
sync: {interval_seconds: 0.2, warm_up: false}
spark: {conf: {spark.sql.codegen.wholeStage: "false", spark.sql.codegen.factoryMode: NO_CODEGEN}}
journal: {keep_change_sets: 2}
"""


class UnionShop(SqliteShop):
    """See ``SqliteShop``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, CONFIG, tables=TABLES, module="tests.crash.union_shop")
        self.fill(change, 200)

    def source_rows(self) -> set[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.database)) as connection:
            query = " UNION ALL ".join(f"SELECT '{name}', id, item, price FROM {name}" for name in SHARDS)
            return set(connection.execute(query).fetchall())

    def lake_rows(self) -> list[tuple[Any, ...]]:
        table = DeltaTable(self.directory / "lake" / "main" / "orders").to_pyarrow_table()
        return [(row["shard"], row["id"], row["item"], row["price"]) for row in table.to_pylist()]


def change(connection: sqlite3.Connection, chance: random.Random, statements: int) -> None:
    """The same keys in both shards: a row that is taken for another shard's shows."""
    for _ in range(statements):
        shard, key, other = chance.choice(SHARDS), chance.randrange(300), chance.randrange(300)
        statement, values = chance.choice(
            [
                (f"INSERT OR REPLACE INTO {shard} VALUES (?, ?, ?)", (key, f"{shard} {other}", other / 7)),
                (f"UPDATE {shard} SET price = price + 1 WHERE id BETWEEN ? AND ? + 3", (key, key)),
                (f"UPDATE OR IGNORE {shard} SET id = ? WHERE id = ?", (key, other)),
                (f"DELETE FROM {shard} WHERE id = ?", (key,)),
            ]
        )
        connection.execute(statement, values)


if __name__ == "__main__":
    write_until_told(change, 30)

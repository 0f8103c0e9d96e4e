"""Three shards with the same keys, under constant change: they feed one lake table as it is, one as a change log."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

from deltalake import DeltaTable
from tests.crash.sqlite_shop import SqliteShop, write_until_told

SHARDS = ("orders_a", "orders_b", "orders_c")
TABLES = "".join(
    f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, item TEXT, amount INTEGER{more});"
    for name, more in zip(SHARDS, ("", ", note TEXT", ""), strict=True)
)
CONFIG = """
pipeline: crash
source: {kind: sqlite, path: shop.db, capture: trigger, tables: ["*"]}
lake:
  path: ./lake
  format: delta
  tables:
    - {match: "orders_*", name: orders, only: true, union: {column: shard, value: "{table}"}}
    - {match: "orders_*", name: log, only: true, mode: append, union: {column: shard, value: "{table}"}}
sync: {interval_seconds: 0.2, warm_up: false}
spark: {conf: {spark.sql.codegen.wholeStage: "false", spark.sql.codegen.factoryMode: NO_CODEGEN}}
journal: {keep_change_sets: 2, keep_seconds: 0}
"""
STATEMENTS = (
    "INSERT OR REPLACE INTO {} (id, item, amount) VALUES (:k, :t, :j)",
    "INSERT OR IGNORE INTO {} (id, item, amount) VALUES (:j, :t, :k)",
    "UPDATE {} SET amount = amount + 1 WHERE id BETWEEN :k AND :k + 10",
    "UPDATE OR REPLACE {} SET id = :j WHERE id = :k",
    "DELETE FROM {} WHERE id = :k",
)

Rows = dict[tuple[str, int], tuple[str, int]]


class UnionShop(SqliteShop):
    """See ``SqliteShop``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, CONFIG, tables=TABLES, module="tests.crash.union_shop")
        self.fill(change, 600)

    def source(self) -> Rows:
        """The rows of all shards, by shard and key, read by SQL."""
        with closing(sqlite3.connect(self.database)) as connection:
            return {
                (name, row[0]): (row[1], row[2])
                for name in SHARDS
                for row in connection.execute(f"SELECT id, item, amount FROM {name}")
            }

    def assert_lake_equals_source(self) -> None:
        """Both lake tables, as deltalake reads them. No row is there twice, and the last word of the log is the source.

        A log shows a change that was committed twice, which a mirror does not.
        """
        source, lake = self.source(), self.directory / "lake" / "main"
        assert len(source) > 100, "the writer has left too little to compare"
        rows = DeltaTable(lake / "orders").to_pyarrow_table().to_pylist()
        found = {(row["shard"], row["id"]): (row["item"], row["amount"]) for row in rows}
        assert len(rows) == len(found), "a row is there twice"
        assert found == source
        logged = DeltaTable(lake / "log").to_pyarrow_table().to_pylist()
        changes = [(row["shard"], row["_lakefeed_seq"], row["id"]) for row in logged]
        assert len(changes) == len(set(changes)), "a change is there twice"
        last: Rows = {}
        for row in sorted(logged, key=lambda row: row["_lakefeed_seq"]):
            last.pop((row["shard"], row["id"]), None)
            if row["_lakefeed_operation"] != "delete":
                last[row["shard"], row["id"]] = (row["item"], row["amount"])
        assert last == source


def change(connection: sqlite3.Connection, chance: random.Random, statements: int) -> None:
    """Inserts, updates, deletes, key changes and replaces over all shards."""
    for _ in range(statements):
        values = {"k": chance.randrange(300), "j": chance.randrange(300), "t": f"i{chance.random()}"}
        connection.execute(chance.choice(STATEMENTS).format(chance.choice(SHARDS)), values)


if __name__ == "__main__":
    write_until_told(change, 30)

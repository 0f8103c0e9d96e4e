"""A source with a table, and a configuration that feeds lake tables of it through a Spark Connect server.

Each command is a process of its own: pyspark has classic sessions or those of Spark Connect in one process, not both.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable

from lakefeed.testing.server.spark_connect import SparkConnect

CONFIG = """
pipeline: shop
source: {source}
lake:
  path: ./lake
  deletion_vectors: [marked]
  tables:
    - {{match: account}}
    - {{match: account, name: marked}}
    - {{match: account, name: history, mode: temporal}}
    - {{match: account, name: log, mode: append}}
    - {{match: account, name: even, where: "id % 2 = 0", transform: {{twice: "balance * 2"}}}}
spark: {{remote: "{remote}"}}
"""
SQLITE = "{kind: sqlite, path: shop.db}"
MANY = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) {what}"
FILL = "INSERT INTO account SELECT i, i FROM n"
CHUNK = 250_000


class Shop:
    """A source with a table account, and a configuration that feeds five lake tables from it."""

    schema = "main"

    def __init__(self, directory: Path, server: SparkConnect, source: str = SQLITE, config: str = CONFIG) -> None:
        self.directory = directory
        (directory / "shop.yaml").write_text(config.format(source=source, remote=server.remote))

    def sql(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.directory / "shop.db", isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    def query(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.directory / "shop.db")) as connection:
            return connection.execute(statement).fetchall()

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *command], cwd=self.directory, env={**os.environ, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def python(self, *command: str, expected: int = 0, **environment: str) -> str:
        process = self.start(*command, **environment)
        said, _ = process.communicate(timeout=600)
        assert process.returncode == expected, said
        return said

    def lakefeed(self, *command: str, expected: int = 0, **environment: str) -> str:
        return self.python("-m", "lakefeed", *command, expected=expected, **environment)

    def sync(self) -> str:
        return self.lakefeed("sync", "shop.yaml")

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Of a lake table, by Python's deltalake or, where rows are marked as deleted, by its query engine."""
        path = str(self.directory / "lake" / self.schema / table)
        if table != "marked":
            return DeltaTable(path).to_pyarrow_table().to_pylist()
        import pyarrow as pa
        from deltalake import QueryBuilder

        found: Any = QueryBuilder().register("t", DeltaTable(path)).execute("SELECT * FROM t")
        return pa.RecordBatchReader.from_stream(found).read_all().to_pylist()

    def require_equal(self, *names: str) -> None:
        """All five tables show the source, each in its way; the mirrors with ``names`` besides."""

        def source(*names: str) -> list[Any]:
            return sorted(map(tuple, self.query(f"SELECT {', '.join(names)} FROM account")))

        def shown(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
            return sorted(tuple(row[name] for name in names) for row in rows)

        keys = ("id", "balance")
        assert shown(self.rows("account"), *keys, *names) == source(*keys, *names)
        assert shown(self.rows("marked"), *keys, *names) == source(*keys, *names)
        assert shown([row for row in self.rows("history") if row["is_current"]], *keys) == source(*keys)
        newest: dict[int, dict[str, Any]] = {}
        for row in sorted(self.rows("log"), key=lambda row: int(row["_lakefeed_seq"])):
            newest[row["id"]] = row
        left = [row for row in newest.values() if row["_lakefeed_operation"] != "delete"]
        assert shown(left, *keys) == source(*keys)
        even = self.rows("even")
        assert shown(even, *keys) == [row for row in source(*keys) if row[0] % 2 == 0]
        assert all(row["twice"] == row["balance"] * 2 for row in even)


class PostgresShop(Shop):
    schema = "public"

    def __init__(self, directory: Path, server: SparkConnect, dsn: str) -> None:
        super().__init__(directory, server, f'{{kind: postgres, dsn: "{dsn}", tables: ["public.account"]}}')
        self.dsn = dsn

    def sql(self, *statements: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def query(self, statement: str) -> list[Any]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(statement).fetchall()


def shop_with_rows(shop: Shop, rows: int = CHUNK + 10) -> Shop:
    shop.sql("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)", MANY.format(rows=rows, what=FILL))
    return shop


def change_everything(shop: Shop) -> None:
    """Rows, then columns: added, added with a default, renamed, dropped; each in a sync of its own."""
    shop.sql("UPDATE account SET balance = -balance WHERE id % 1000 = 0", "DELETE FROM account WHERE id % 1777 = 0")
    shop.sync()
    shop.require_equal()
    shop.sql("ALTER TABLE account ADD COLUMN note TEXT DEFAULT 'x'", "UPDATE account SET note = 'y' WHERE id < 10")
    shop.sync()
    shop.require_equal("note")
    shop.sql("ALTER TABLE account RENAME COLUMN note TO remark", "UPDATE account SET remark = 'z' WHERE id < 5")
    shop.sync()
    shop.require_equal("remark")
    shop.sql("ALTER TABLE account ADD COLUMN short INTEGER", "INSERT INTO account VALUES (-2, 3, 'new', 4)")
    shop.sync()
    shop.sql("ALTER TABLE account DROP COLUMN short", "UPDATE account SET balance = 7 WHERE id = 8")
    shop.sync()
    shop.require_equal("remark")

"""A small SQLite database that a real pipeline keeps in a lake."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from lakefeed import Delta, Iceberg, Pipeline, Sqlite
from lakefeed.journal.journal import Journal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[tuple[int, str | None]]


class Shop:
    """Tables ``main.goods`` and ``main.other`` of (id, name). ``kind`` is the lake's format."""

    def __init__(self, spark: SparkSession, place: Path, kind: type[Delta] | type[Iceberg] = Delta) -> None:
        self.lake = place / "lake"
        self.state = self.lake / "_lakefeed" / "shop"
        self._spark = spark
        self._kind = kind
        self._database = place / "shop.db"
        for table in ("goods", "other"):
            self.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, name TEXT)")

    def execute(self, *statements: str) -> None:
        with closing(sqlite3.connect(self._database)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def sync(self) -> int:
        """Bring the lake up to date. Returns the number of the newest change set."""
        with Pipeline(Sqlite(self._database), self._kind(self._spark, self.lake), name="shop") as pipeline:
            result = pipeline.sync_once()
        assert all(table.error is None for table in result.tables.values())
        return Journal.read(self.state).head

    def goods(self) -> Rows:
        with closing(sqlite3.connect(self._database)) as connection:
            return [(row[0], row[1]) for row in connection.execute("SELECT id, name FROM goods ORDER BY id")]

"""A thousand small SQLite tables in one pipeline: as ``thousand``, of a database that has no server."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from bench.bench import Bench
from bench.case.thousand import ROWS, measured, table_count
from bench.report import Report
from lakefeed.capture.sqlite.source import Sqlite

_ROWS = f"""
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})
SELECT i, 'a', 1.5, 'x', 1 FROM n"""


def run(bench: Bench) -> Report:
    count, place = table_count(bench), bench.scratch / "shop.db"
    with closing(sqlite3.connect(place)) as database:
        database.execute("PRAGMA journal_mode = wal")
        for number in range(count):
            columns = "id INTEGER PRIMARY KEY, a TEXT NOT NULL, b REAL, c TEXT, d INTEGER"
            database.execute(f"CREATE TABLE t{number} ({columns})")
            database.execute(f"INSERT INTO t{number} {_ROWS}")
        database.commit()
    source = '{kind: sqlite, path: shop.db, capture: trigger, tables: ["*"]}'
    return measured(bench, "SQLite", source, lambda: Sqlite(str(place)), count)

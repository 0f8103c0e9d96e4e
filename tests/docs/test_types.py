"""The page of types is what the code does. The servers' own tests compare it with tables that they make."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from scripts.types import PAGE, page, sqlite

from lakefeed.capture.sqlite.dialect import SqliteDialect
from lakefeed.change.table import TableId


def test_the_page_of_types_is_current() -> None:
    assert PAGE.read_text() == page(PAGE.read_text()), "run `make types`"


def test_the_page_of_types_says_what_sqlite_gives(tmp_path: Path) -> None:
    rows = list(sqlite())
    columns = ", ".join(f"c{place} {one.declared}" for place, one in enumerate(rows))
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        connection.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, {columns})")
    found = SqliteDialect(str(tmp_path / "t.db")).described(TableId("main", "t")).schema.columns[1:]
    assert [one.type for one in found] == [one.lake for one in rows]

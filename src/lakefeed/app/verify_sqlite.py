"""A SQLite table by plain SQL, for comparisons."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa

from lakefeed.app.verify import Comparison, Subject, compare_table, missing_table
from lakefeed.app.verify_rows import Row
from lakefeed.change.table import TableId
from lakefeed.lake.mode import Mirror, Mode
from lakefeed.lake.reader import rows_at

_MIRROR = Mirror()
_ROWID = re.compile("_+rowid")
_RUN_ROWS = 50_000


class SqliteTable:
    """See ``verify.SourceTable``. One SELECT reads one moment."""

    def __init__(self, database: Path, table: TableId) -> None:
        self._database = database
        self._from = f"{_quoted(table.schema)}.{_quoted(table.name)}"

    def columns(self, lake: Sequence[str]) -> list[str]:
        with self._connection() as connection:
            own = self._own(connection)
        if lake and lake[0] != own[0] and _ROWID.fullmatch(lake[0]):
            own.insert(0, lake[0])  # a table without a key: the lake has the rowid as its first column
        return own

    def count(self) -> int:
        with self._connection() as connection:
            return int(connection.execute(f"SELECT count(*) FROM {self._from}").fetchone()[0])  # noqa: S608  # quoted

    def rows(self, columns: pa.Schema, names: Sequence[str]) -> Iterator[Sequence[Row]]:  # noqa: ARG002  # as they are
        with self._connection() as connection:
            own = self._own(connection)
            listed = ", ".join(_quoted(name) if name in own else "rowid" for name in names)
            cursor = connection.execute(f"SELECT {listed} FROM {self._from}")  # noqa: S608  # quoted names
            while rows := cursor.fetchmany(_RUN_ROWS):
                yield rows

    def _own(self, connection: sqlite3.Connection) -> list[str]:
        query = f"SELECT * FROM {self._from} LIMIT 0"  # noqa: S608  # quoted names
        return [column[0] for column in connection.execute(query).description]

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        address = f"{self._database.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=30)) as connection:
            # Text that is not UTF-8 must not stop the comparison: it comes as bytes, which have a text form.
            connection.text_factory = _text
            yield connection


def compare_sqlite_table(database: Path, table: TableId, lake_table: Path, mode: Mode = _MIRROR) -> Comparison:
    """Compare one table with the lake table at a path. Nothing may be writing to either side meanwhile."""
    stored = rows_at(str(lake_table))
    if stored is None:
        return missing_table(table, lake_table)
    return compare_table(Subject(table=table, mode=mode), stored, SqliteTable(database, table))


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

"""The verify reader of SQLite: names from the kit's session, values by plain SELECT as Python's sqlite3 gives them.

It does not read through ``Session.read``: that is the decoder whose work ``lakefeed verify`` proves.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakefeed.capture.sqlite.dialect import SqliteDialect
from lakefeed.change.table import TableId

_RUN_ROWS = 50_000


class SqliteVerifyReader:
    """See ``capture.registry.VerifyReader``. One SELECT reads one moment."""

    def __init__(self, path: str | PathLike[str], table: TableId) -> None:
        self._path = str(path)
        self._dialect = SqliteDialect(self._path)
        self._table = table

    def columns(self) -> Sequence[str]:
        return self._dialect.described(self._table).schema.names

    def count(self) -> int:
        with self._connection() as connection:
            query = f"SELECT count(*) FROM {self._dialect.described(self._table).origin}"  # noqa: S608  # quoted by the session
            return int(connection.execute(query).fetchone()[0])

    def rows(self, columns: pa.Schema, names: Sequence[str]) -> Iterator[Sequence[tuple[Any, ...]]]:  # noqa: ARG002
        described = self._dialect.described(self._table)
        listed = ", ".join(described.sql_names.get(name) or self._dialect.quoted(name) for name in names)
        with self._connection() as connection:
            cursor = connection.execute(f"SELECT {listed} FROM {described.origin}")  # noqa: S608  # quoted names
            while rows := cursor.fetchmany(_RUN_ROWS):
                yield rows

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        address = f"{Path(self._path).absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=30)) as connection:
            # Text that is not UTF-8 must not stop the comparison: it comes as bytes, which have a text form.
            connection.text_factory = _text
            yield connection


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw

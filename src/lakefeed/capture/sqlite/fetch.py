"""Rows of a query in portions that fit into memory, whatever the size of a value.

SQLite gives the size of a row only with the row. So rows are taken in short runs, their texts and blobs are
weighed, and a portion ends when it has enough rows or bytes. A run is shortened where rows are large.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakefeed.capture.sqlite.database import Row
from lakefeed.capture.sqlite.values import lenient_text

PORTION_ROWS = 65_536
PORTION_BYTES = 64 * 1024 * 1024
_RUN_ROWS = 256
_FIRST_ROWS = 16


@dataclass(frozen=True, slots=True)
class Portion:
    """Values by column, never none. ``is_last``: there are no more for certain."""

    columns: list[list[Any]]
    is_last: bool


def portions(
    connection: sqlite3.Connection, sql: str, parameters: Sequence[Any], kinds: Sequence[pa.DataType]
) -> Generator[Portion, None, None]:
    """The rows of ``sql``, whose columns become ``kinds``. Inside one transaction, or over rows that never change.

    Text that is no UTF-8 makes the connection lenient, and reading goes on where it failed.
    """
    pile = _Pile(kinds)
    runs, rows = _Runs(connection, sql, parameters), _FIRST_ROWS
    while run := runs.next(rows):
        columns = list(zip(*run, strict=True))
        weight = pile.weigh(columns)
        # A quarter: the next run may be heavier than this one.
        rows = max(1, min(_RUN_ROWS, 2 * rows, len(run) * PORTION_BYTES // (4 * weight + 1)))
        for part in [columns] if weight < PORTION_BYTES else [[(value,) for value in row] for row in run]:
            pile.add(part, weight if part is columns else pile.weigh(part))
            if pile.is_full:
                yield Portion(pile.taken(), is_last=False)
    if pile.rows:
        yield Portion(pile.taken(), is_last=True)


class _Pile:
    """Rows column by column, with their weight."""

    def __init__(self, kinds: Sequence[pa.DataType]) -> None:
        self._heavy = [at for at, kind in enumerate(kinds) if pa.types.is_string(kind) or pa.types.is_binary(kind)]
        self._width = len(kinds)
        self._columns: list[list[Any]] = [[] for _ in kinds]
        self._weight = 0

    @property
    def rows(self) -> int:
        return len(self._columns[0])

    @property
    def is_full(self) -> bool:
        return self._weight >= PORTION_BYTES or self.rows >= PORTION_ROWS

    def weigh(self, columns: list[Row]) -> int:
        return sum(_weight(columns[at]) for at in self._heavy)

    def add(self, columns: list[Row], weight: int) -> None:
        for values, more in zip(self._columns, columns, strict=True):
            values.extend(more)
        self._weight += weight

    def taken(self) -> list[list[Any]]:
        full, self._columns, self._weight = self._columns, [[] for _ in range(self._width)], 0
        return full


class _Runs:
    """The cursor of a query, made again where text cannot be decoded."""

    def __init__(self, connection: sqlite3.Connection, sql: str, parameters: Sequence[Any]) -> None:
        self._connection = connection
        self._sql = sql
        self._parameters = parameters
        self._cursor = connection.execute(sql, parameters)
        self._done = 0

    def next(self, rows: int) -> list[Row]:
        try:
            run = self._cursor.fetchmany(rows)
        except sqlite3.OperationalError as error:
            # SQLite's own errors have a code. One without is Python's: text that is no UTF-8.
            if hasattr(error, "sqlite_errorcode") or self._connection.text_factory is lenient_text:
                raise
            self._connection.text_factory = lenient_text
            rest = f"SELECT * FROM ({self._sql}) LIMIT -1 OFFSET {self._done}"  # noqa: S608  # the query is ours
            self._cursor = self._connection.execute(rest, self._parameters)
            run = self._cursor.fetchmany(rows)
        self._done += len(run)
        return run


def _weight(values: Sequence[Any]) -> int:
    """Bytes of blobs and characters of texts. Text columns may have numbers, too."""
    try:
        return sum(map(len, filter(None, values)))
    except TypeError:
        return sum(len(value) for value in values if isinstance(value, str | bytes))

# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""The copy of one table: key ranges that any process can read on its own, each exact at one place in the log."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from lakefeed.capture.sqlite.aside import put_aside
from lakefeed.capture.sqlite.catalog import SourceTable
from lakefeed.capture.sqlite.database import Database, quoted
from lakefeed.capture.sqlite.fetch import portions
from lakefeed.capture.sqlite.meta import read_head
from lakefeed.capture.sqlite.names import Names
from lakefeed.capture.sqlite.values import MismatchError, to_arrow
from lakefeed.change.position import SqliteSequence
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import SourceError, StateError, TableStoppedError

_COPY_AGAIN = "Run `lakefeed sync` again: it plans the copy of this table anew."

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class TableChunk:
    """The rows with low < key <= high; None is open-ended. ``rowid`` is its name in SQL where it is the key."""

    database: Database
    names: Names
    schema: TableSchema
    rowid: str | None = None
    low: Key | None = None
    high: Key | None = None

    @property
    def table(self) -> TableId:
        return self.schema.table

    def open(self) -> TableChunkReader:
        return TableChunkReader(self)

    def to_json(self) -> Mapping[str, Any]:
        bounds = {"low": _bound_to_json(self.low), "high": _bound_to_json(self.high)}
        return {"schema": self.schema.to_json(), "rowid": self.rowid, **bounds}

    @classmethod
    def from_json(cls, database: Database, names: Names, data: Mapping[str, Any]) -> TableChunk:
        low, high = _bound_from_json(data["low"]), _bound_from_json(data["high"])
        return cls(database, names, TableSchema.from_json(data["schema"]), data["rowid"], low, high)

    def query(self) -> tuple[str, Key]:
        """SQL and its parameters."""
        # With the table's name before it: SQLite takes a quoted name that is no column any more for a piece of text.
        columns = ", ".join(f"t.{self._sql_name(name)}" for name in self.schema.names)
        key = f"({', '.join(f't.{self._sql_name(name)}' for name in self.schema.key)})"
        marks = f"({', '.join('?' for _ in self.schema.key)})"
        conditions = [f"{key} > {marks}"] if self.low is not None else []
        conditions += [f"{key} <= {marks}"] if self.high is not None else []
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"SELECT {columns} FROM {quoted(self.table.name)} AS t{where}", (*(self.low or ()), *(self.high or ()))

    def _sql_name(self, name: str) -> str:
        return quoted(self.rowid if self.rowid is not None and name == self.schema.key[0] else name)


class TableChunkReader:
    """An open chunk: one read transaction sees the log's head and the rows, so the bracket is a point.

    A writer in rollback-journal mode waits while the transaction is open; there, the rows are put aside first.
    """

    def __init__(self, chunk: TableChunk) -> None:
        self._chunk = chunk
        self._connection: sqlite3.Connection | None = None
        self._head: SqliteSequence | None = None

    def __enter__(self) -> Self:
        database = self._chunk.database
        self._connection = database.connect("ro")
        try:
            with database.errors():
                self._connection.execute("BEGIN")
                self._head = read_head(self._connection, self._chunk.names)
        except SourceError:
            self._connection.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        connection = self._opened()
        with self._chunk.database.errors():
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode == "wal":
            yield from self._batches(connection)
            return
        with put_aside(self._batches(connection)) as batches:
            connection.execute("COMMIT")
            yield from batches

    @property
    def low(self) -> SqliteSequence:
        return self.high

    @property
    def high(self) -> SqliteSequence:
        if self._head is None:
            raise StateError("a chunk has a bracket once it is open", remedy="Enter the reader first.")
        return self._head

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StateError("a chunk is read inside its with block", remedy="Enter the reader first.")
        return self._connection

    def _batches(self, connection: sqlite3.Connection) -> Iterator[pa.RecordBatch]:
        sql, parameters = self._chunk.query()
        kinds = [column.type for column in self._chunk.schema.columns]
        with self._chunk.database.errors():
            try:
                for portion in portions(connection, sql, parameters, kinds):
                    yield self._batch(portion.columns)
            except sqlite3.OperationalError as error:
                if not str(error).startswith("no such"):
                    raise
                raise self._stopped(f"its definition changed ({error})") from error

    def _batch(self, columns: list[list[Any]]) -> pa.RecordBatch:
        schema = self._chunk.schema
        arrays = []
        for column, values in zip(schema.columns, columns, strict=True):
            try:
                array = to_arrow(values, column.type)
            except MismatchError as error:
                raise self._stopped(f"a value that is not {column.type} appeared in {column.name}") from error
            if array.null_count and column.name in schema.key:
                raise self._stopped(f"there is a NULL in the key column {column.name}")
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)

    def _stopped(self, what: str) -> TableStoppedError:
        table = self._chunk.table
        return TableStoppedError(f"{table}: {what} while it was copied", table=str(table), remedy=_COPY_AGAIN)


def plan_chunks(
    connection: sqlite3.Connection, whole: TableChunk, source: SourceTable, chunk_rows: int
) -> tuple[tuple[TableChunk, ...], int]:
    """Cut the table into ranges of about ``chunk_rows`` keys. Returns them with the number of rows.

    Ranges are over the key and not over the rowid, since REPLACE gives a row with a declared key a new rowid: it would
    be in two chunks that are read at different times, or in none.
    """
    table = quoted(source.name)
    key = [quoted(name) for name in (source.key or (source.rowid or "",))]
    if source.nullable_key:
        _refuse_null_key(connection, source)
    (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    if rows <= chunk_rows:
        return (whole,), rows
    listed, marks = ", ".join(key), ", ".join("?" * len(key))
    cuts: list[tuple[Any, ...]] = []
    for _ in range((rows - 1) // chunk_rows):  # from cut to cut through the index, which is faster than to number rows
        after = f"WHERE ({listed}) > ({marks})" if cuts else ""
        cuts += connection.execute(
            f"SELECT {listed} FROM {table} {after} ORDER BY {listed} LIMIT 1 OFFSET ?",
            (*(cuts[-1] if cuts else ()), chunk_rows - 1),
        ).fetchall()
    bounds = [None, *cuts, None]
    chunks = tuple(
        TableChunk(whole.database, whole.names, whole.schema, whole.rowid, low, high) for low, high in pairwise(bounds)
    )
    return chunks, rows


def _refuse_null_key(connection: sqlite3.Connection, source: SourceTable) -> None:
    nulls = " OR ".join(f"{quoted(name)} IS NULL" for name in source.key)
    if connection.execute(f"SELECT 1 FROM {quoted(source.name)} WHERE {nulls} LIMIT 1").fetchone():
        raise TableStoppedError(
            f"{source.id} has rows with NULL in its key ({', '.join(source.key)})",
            table=str(source.id),
            remedy=f"DELETE FROM {quoted(source.name)} WHERE {nulls}; or give these rows a key; then sync again.",
        )


def _bound_to_json(bound: Key | None) -> list[Any] | None:
    return None if bound is None else [{"hex": v.hex()} if isinstance(v, bytes) else v for v in bound]


def _bound_from_json(bound: list[Any] | None) -> Key | None:
    return None if bound is None else tuple(bytes.fromhex(v["hex"]) if isinstance(v, dict) else v for v in bound)

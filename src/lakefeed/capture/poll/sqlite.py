"""SqliteConnector: a SQLite file, opened to be read only. Nothing is ever created or changed in it.

Rows are decoded a column at a time, by the same rule as the trigger capture's (``capture.trigger.values``).
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakefeed.capture.poll.connector import Horizon, MisfitError, PollTable, Query
from lakefeed.capture.trigger.catalog import SCHEMA, SourceTable, capturable, read_table, refusals
from lakefeed.capture.trigger.database import Database, Row, opened_file, quoted, transaction
from lakefeed.capture.trigger.log import is_undecodable
from lakefeed.capture.trigger.shape import rowid_column, table_schema
from lakefeed.capture.trigger.values import MismatchError, is_untyped, lenient_text, to_arrow
from lakefeed.change.table import Column, TableId
from lakefeed.change.watermark import KeyValue
from lakefeed.errors import SourceSetupError

_FETCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class SqliteConnector:
    """``immutable`` promises that nobody writes while it is read: for a file on read-only media."""

    path: str
    busy_timeout_seconds: float = 5.0
    immutable: bool = False

    default_schema = SCHEMA
    folds_case = True

    def connect(self) -> SqliteSession:
        database = Database(self.path, self.busy_timeout_seconds)
        with database.errors():
            if self.immutable:
                return SqliteSession(self, database, self._opened("mode=ro&immutable=1"))
            try:
                return SqliteSession(self, database, self._opened("mode=ro"))
            except sqlite3.OperationalError as error:
                if not os.access(self.path, os.W_OK):
                    raise SourceSetupError(
                        f"{self.path} cannot be opened to be read ({error})",
                        remedy="If nobody writes to it (read-only media), say so: immutable: true.",
                    ) from error
                # Nobody has this WAL database open, and its shared memory file can be made by a writer only.
                connection = self._opened("mode=rw")
                connection.execute("PRAGMA query_only = 1")
                return SqliteSession(self, database, connection)

    def quoted(self, name: str) -> str:
        return quoted(name)

    def bound(self, column: Column, value: KeyValue, query: Query) -> str:
        exact: Any = float(value) if isinstance(value, Decimal) and pa.types.is_floating(column.type) else value
        query.values.append(exact)
        return "?"

    def after(self, left: Sequence[str], right: Sequence[str]) -> str:
        return f"({', '.join(left)}) > ({', '.join(right)})"

    def _opened(self, options: str) -> sqlite3.Connection:
        return opened_file(self.path, options, self.busy_timeout_seconds)


class SqliteSession:
    """See ``PollSession``. The source's clock is this machine's: SQLite has no other."""

    def __init__(self, connector: SqliteConnector, database: Database, connection: sqlite3.Connection) -> None:
        self._connector = connector
        self._database = database
        self._connection = connection
        self._in_wal = connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"

    def identity(self) -> str:
        """By its place: a file that may not be written to cannot be given a name of its own."""
        return f"sqlite:{Path(self._connector.path).absolute()}"

    def tables(self) -> Mapping[TableId, str | None]:
        with self._database.errors():
            found: dict[TableId, str | None] = {TableId(SCHEMA, name): None for name in capturable(self._connection)}
            return found | {TableId(SCHEMA, name): reason for name, reason in refusals(self._connection).items()}

    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, PollTable]:
        with self._database.errors():
            found = {table: read_table(self._connection, table.name) for table in tables}
        return {table: _described(source) for table, source in found.items() if source is not None}

    def horizon(self) -> Horizon:
        now = time.time_ns() // 1_000
        return Horizon(now, now)

    def read(self, query: Query, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        batches = (_batch(rows, schema) for rows in self._rows(query))
        # A writer in rollback-journal mode waits while a read is under way, so it is not drawn out by the caller.
        yield from batches if self._in_wal else list(batches)

    @contextmanager
    def consistent(self) -> Iterator[None]:
        with self._database.errors(), transaction(self._connection, "DEFERRED"):
            yield

    def cancel(self) -> None:
        self._connection.interrupt()

    def close(self) -> None:
        self._connection.close()

    def _rows(self, query: Query) -> Iterator[list[Row]]:
        done = 0
        with self._database.errors():
            cursor = self._connection.execute(query.sql, query.values)
        while True:
            with self._database.errors():
                try:
                    rows = cursor.fetchmany(_FETCH_ROWS)
                except sqlite3.OperationalError as error:
                    if not is_undecodable(error) or self._connection.text_factory is lenient_text:
                        raise
                    self._connection.text_factory = lenient_text
                    rest = f"SELECT * FROM ({query.sql}) LIMIT -1 OFFSET {done}"  # noqa: S608  # the query is ours
                    cursor = self._connection.execute(rest, query.values)
                    continue
            if not rows:
                return
            done += len(rows)
            yield rows


def _described(source: SourceTable) -> PollTable:
    untyped = {
        column.name: "it has no declared type, so its values may be of several"
        for column in source.columns
        if is_untyped(column.declared)
    }
    own = {} if source.key or source.rowid is None else {rowid_column(source): source.rowid}
    if not source.key and source.rowid is None:
        untyped[rowid_column(source)] = "the columns of the table hide every name of the rowid"
    return PollTable(table_schema(source), quoted(source.name), own, untyped)


def _batch(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field, values in zip(schema, zip(*rows, strict=True), strict=True):
        try:
            arrays.append(to_arrow(values, field.type))
        except MismatchError as error:
            raise MisfitError(field.name) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)

"""SqliteDialect: a SQLite file, opened to be read only. Nothing is ever created or changed in it.

Rows are decoded a column at a time, by the same rule as the change log's (``values``).
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakefeed.capture.builder import Spill
from lakefeed.capture.dialect import Bracket, DescribedTable, Dialect, Horizon, Query, Refusal, Session
from lakefeed.capture.fit import MisfitError
from lakefeed.capture.sqlite.catalog import SCHEMA, SourceTable, all_tables, read_table
from lakefeed.capture.sqlite.database import Database, OpenedFile, opened_file, quoted
from lakefeed.capture.sqlite.fetch import portions
from lakefeed.capture.sqlite.meta import Names, read_head, schema_version
from lakefeed.capture.sqlite.shape import rowid_column, table_schema
from lakefeed.capture.sqlite.values import is_untyped, misfit, stores_numbers, text_form, to_arrow
from lakefeed.change.table import Column, TableId
from lakefeed.change.watermark import KeyValue
from lakefeed.errors import SourceSetupError

MEMORY_BYTES = 64 << 20
"""Of what is read at once, because writers without WAL wait meanwhile. What is more goes to a temporary file."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class SqliteDialect(Dialect):
    """``immutable`` promises that nobody writes while it is read: for a file on read-only media."""

    path: str
    busy_timeout_seconds: float = 5.0
    immutable: bool = False

    default_schema = SCHEMA
    folds_case = True

    def connect(self) -> SqliteSession:
        database, file = Database(self.path, self.busy_timeout_seconds), OpenedFile.at(self.path)
        with database.errors():
            if self.immutable:
                return SqliteSession(database, file, self._opened("mode=ro&immutable=1"))
            try:
                return SqliteSession(database, file, self._opened("mode=ro"))
            except sqlite3.OperationalError as error:
                if not file.is_there:
                    raise
                if not os.access(self.path, os.W_OK):
                    raise SourceSetupError(
                        f"{self.path} cannot be opened to be read ({error})",
                        remedy="If nobody writes to it (read-only media), say so: immutable: true.",
                    ) from error
                # Nobody has this WAL database open, and its shared memory file can be made by a writer only.
                connection = self._opened("mode=rw")
                connection.execute("PRAGMA query_only = 1")
                return SqliteSession(database, file, connection)

    def quoted(self, name: str) -> str:
        return quoted(name)

    def bound(self, column: Column, value: KeyValue, query: Query) -> str:
        query.values.append(_as_stored(column, value))
        return "?"

    def _opened(self, options: str) -> sqlite3.Connection:
        return opened_file(self.path, options, self.busy_timeout_seconds)


class SqliteSession(Session):
    """See ``Session``. The source's clock is this machine's: SQLite has no other."""

    def __init__(self, database: Database, file: OpenedFile, connection: sqlite3.Connection) -> None:
        self._database = database
        self._file = file
        self._connection = connection
        self._version: int | None = None
        self._described: dict[TableId, DescribedTable | None] = {}  # under that version of the schema
        self._in_wal = connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"

    def identity(self) -> str:
        """By its path: a file that may not be written to cannot be given a name of its own."""
        return f"sqlite:{Path(self._database.path).absolute()}"

    def tables(self) -> Mapping[TableId, Refusal | None]:
        with self._database.errors():
            return all_tables(self._connection)

    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, DescribedTable]:
        with self._database.errors():
            version = schema_version(self._connection)
            if version != self._version:
                self._version, self._described = version, {}
            for table in tables:
                if table not in self._described:
                    source = read_table(self._connection, table.name)
                    self._described[table] = None if source is None else described(source)
        found = {table: self._described[table] for table in tables}
        return {table: one for table, one in found.items() if one is not None}

    def horizon(self) -> Horizon:
        self._file.require()  # nothing is settled in a file that has been replaced
        now = time.time_ns() // 1_000
        return Horizon(now, now)

    def read(self, query: Query, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if self._in_wal:
            yield from self._batches(query, schema)
            return
        # A writer in rollback-journal mode waits while a read is under way, so the caller does not draw it out.
        kept = Spill(memory_bytes=MEMORY_BYTES)
        for batch in self._batches(query, schema):
            kept.append(batch)
        if query.ends_read and self._connection.in_transaction:
            self._connection.execute("COMMIT")
        yield from kept

    @contextmanager
    def consistent(self, origin: Mapping[str, Any] | None = None) -> Iterator[Bracket | None]:
        """``origin`` is ``{"pipeline": name}`` for a pipeline with triggers: the bracket is the head of its log."""
        with self._database.errors():
            self._connection.execute("BEGIN")
            try:
                head = None if origin is None else read_head(self._connection, Names(origin["pipeline"]))
                yield None if head is None else Bracket(head, head)
            finally:
                with suppress(sqlite3.Error):  # nothing was written
                    self._connection.execute("ROLLBACK")

    def cancel(self) -> None:
        self._connection.interrupt()

    def close(self) -> None:
        self._connection.close()

    def _batches(self, query: Query, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        size = 0
        with (
            self._database.errors(),
            closing(portions(self._connection, query.sql, query.values, schema.types)) as found,
        ):
            for portion in found:
                batch = _batch(portion.columns, schema, query.exact)
                yield batch
                size += batch.nbytes
                if query.enough_bytes is not None and size >= query.enough_bytes:
                    return


def _as_stored(column: Column, value: KeyValue) -> Any:
    """A value in the storage class that it has in the column.

    SQLite converts what a plain column is compared with, but not what coalesce or CASE is: there, every number comes
    before every text.
    """
    if isinstance(value, Decimal) and pa.types.is_floating(column.type):
        return float(value)
    if isinstance(value, str) and stores_numbers(column.source_type) and _NUMBER.fullmatch(value):
        return int(value) if value.lstrip("-").isdigit() else float(value)
    return value


def described(source: SourceTable) -> DescribedTable:
    """The table as queries see it. Without a declared key, its key is the rowid."""
    untyped = {
        column.name: "it has no declared type, so its values may be of several"
        for column in source.columns
        if is_untyped(column.declared)
    }
    own = {} if source.key or source.rowid is None else {rowid_column(source): source.rowid}
    if not source.key and source.rowid is None:
        untyped[rowid_column(source)] = "the columns of the table hide every name of the rowid"
    schema = table_schema(source)
    tests = {
        column.name: test
        for column in source.columns
        if (test := misfit(schema.column(column.name).type, f"t.{quoted(column.name)}")) is not None
    }
    return DescribedTable(schema, quoted(source.name), own, untyped, tests)


def _batch(columns: list[list[Any]], schema: pa.Schema, exact: frozenset[str]) -> pa.RecordBatch:
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        if field.name in exact and pa.types.is_string(field.type) and not all(map(_is_text, values)):
            raise MisfitError("a blob or text that is no UTF-8", column=field.name)
        try:
            arrays.append(to_arrow(values, field.type))
        except MisfitError as error:
            raise error.of(field.name) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _is_text(value: Any) -> bool:
    """Not for a blob, nor for text that is no UTF-8: their text form is the value of another row."""
    if isinstance(value, str):
        return value.isascii() or text_form(value) is value
    return not isinstance(value, bytes)

# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""SqliteDialect: a SQLite file, opened read-only. Nothing is ever created or changed in it. Rows are decoded column by
column, by the same rules as those of the change log (``values``)."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakefeed.capture.base import TableSize
from lakefeed.capture.builder import Spill
from lakefeed.capture.dialect import Bracket, DescribedTable, Dialect, Horizon, Query, Refusal, Session
from lakefeed.capture.fit import MisfitError
from lakefeed.capture.sqlite.database import Database, OpenedFile, inode_of, quoted
from lakefeed.capture.sqlite.installation import Installation, OwnTables
from lakefeed.capture.sqlite.table import SCHEMA, SourceTable, all_tables, read_table, schema_version
from lakefeed.capture.sqlite.values import is_untyped, misfits, portions, stores_numbers, text_form, to_arrow
from lakefeed.change.choice import NOTHING_CHOSEN, Choices
from lakefeed.change.table import Column, TableId
from lakefeed.change.watermark import KeyValue

MEMORY_BYTES = 64 << 20
"""Without WAL, writers wait during a read, so everything is read at once: up to this much in memory, the rest in a
temporary file."""
_VERIFIED_ROWS = 50_000
COUNTED_BYTES = 256 << 20
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class SqliteDialect(Dialect):
    """``immutable`` promises that nobody writes while the file is read, as on read-only media."""

    path: str
    busy_timeout_seconds: float = 5.0
    immutable: bool = False
    choices: Choices = NOTHING_CHOSEN

    default_schema = SCHEMA
    folds_case = True

    def connect(self) -> SqliteSession:
        return SqliteSession(Database(self.path, self.busy_timeout_seconds, self.immutable), self.choices)

    def represent(self, choices: Choices) -> SqliteDialect:
        return replace(self, choices=choices)

    def quoted(self, name: str) -> str:
        return quoted(name)

    def bound(self, column: Column, value: KeyValue, query: Query) -> str:
        """The value in the storage class that it has in the column. SQLite converts a value that is compared with a
        plain column, but not one compared with coalesce or CASE: there, every number sorts before every text."""
        stored: Any = value
        if isinstance(value, Decimal) and pa.types.is_floating(column.type):
            stored = float(value)
        elif isinstance(value, str) and stores_numbers(column.source_type) and _NUMBER.fullmatch(value):
            stored = int(value) if value.lstrip("-").isdigit() else float(value)
        query.values.append(stored)
        return "?"


class SqliteSession(Session):
    """See ``Session``. The source's clock is that of this machine: SQLite has no other."""

    def __init__(self, database: Database, choices: Choices = NOTHING_CHOSEN) -> None:
        self._database, self._choices = database, choices
        self._file = OpenedFile(database, inode_of(database.path))
        self._connection = database.connect("ro")
        self._version: int | None = None
        self._described: dict[TableId, DescribedTable | None] = {}  # under this version of the schema
        with database.errors():
            self._in_wal = self._connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"

    def identity(self) -> str:
        """The path: a read-only file cannot be given an id."""
        return f"sqlite:{Path(self._database.path).absolute()}"

    def tables(self) -> Mapping[TableId, Refusal | None]:
        with self._database.errors():
            return all_tables(self._connection)

    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, DescribedTable]:
        """Asks the catalog only about tables not yet read under the current schema version."""
        with self._database.errors():
            version = schema_version(self._connection)
            if version != self._version:
                self._version, self._described = version, {}
            for table in tables:
                if table not in self._described:
                    source = read_table(self._connection, table.name)
                    self._described[table] = None if source is None else described(source, self._choices)
        return {table: one for table in tables if (one := self._described[table]) is not None}

    def horizon(self) -> Horizon:
        self._file.require()  # a file that was replaced has no horizon
        now = time.time_ns() // 1_000
        return Horizon(now, now)

    def read(self, query: Query, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if self._in_wal:
            yield from self._batches(query, schema)
            return
        # In rollback-journal mode writers wait during a read, so the read must not last as long as the caller works.
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
                head = None if origin is None else OwnTables(self._connection, Installation(origin["pipeline"])).head()
                yield None if head is None else Bracket(head, head)
            finally:
                with suppress(sqlite3.Error):  # the transaction wrote nothing
                    self._connection.execute("ROLLBACK")

    def sizes(self, tables: Sequence[TableId]) -> Mapping[TableId, TableSize]:
        """Counts rows in a file of moderate size; otherwise as of the last ANALYZE."""
        found = {}
        with self._database.errors():
            (size,) = self._connection.execute(
                "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
            ).fetchone()
            is_analyzed = self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'").fetchone()
            for table in tables:
                rows, name = None, table.name
                if size <= COUNTED_BYTES:
                    (rows,) = self._connection.execute(f"SELECT count(*) FROM {quoted(name)}").fetchone()
                elif is_analyzed:
                    row = self._connection.execute("SELECT stat FROM sqlite_stat1 WHERE tbl = ?", (name,)).fetchone()
                    rows = int(str(row[0]).split()[0]) if row is not None else None
                found[table] = TableSize(rows)
        return found

    def is_reusable(self) -> bool:
        """A connection reads the whole schema: in a file of a thousand tables that takes a tenth of a second."""
        return self._file.is_there and not self._connection.in_transaction

    def cancel(self) -> None:
        self._connection.interrupt()

    def close(self) -> None:
        self._connection.close()

    def _batches(self, query: Query, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        size, found = 0, portions(self._connection, query.sql, query.values, schema.types)
        with self._database.errors(), closing(found):
            for portion in found:
                arrays = []
                for field, values in zip(schema, portion.columns, strict=True):
                    # The text form of a blob, or of text that is not UTF-8, may be the value of another row.
                    changed = (one for one in values if isinstance(one, str | bytes) and text_form(one) is not one)
                    if field.name in query.exact and pa.types.is_string(field.type) and any(True for _ in changed):
                        raise MisfitError("a blob, or a text that is not UTF-8", column=field.name)
                    try:
                        arrays.append(to_arrow(values, field.type))
                    except MisfitError as error:
                        raise error.of(field.name) from error
                batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
                yield batch
                size += batch.nbytes
                if query.enough_bytes is not None and size >= query.enough_bytes:
                    return


def described(source: SourceTable, choices: Choices = NOTHING_CHOSEN) -> DescribedTable:
    """The table as queries see it. Without a declared key, the rowid is its key. A column that a rule makes text has
    the text form of its values; key columns stay as they are, because they order rows."""
    reason = "it has no declared type, so its values may be of several"
    unordered = {column.name: reason for column in source.columns if is_untyped(column.declared)}
    own = {} if source.key or source.rowid is None else {source.rowid_column: source.rowid}
    if not source.key and source.rowid is None:
        unordered[source.rowid_column] = "the columns of the table hide every name of the rowid"
    schema = source.schema()
    texts = [name for name in schema.names if name not in schema.key and choices.is_text(schema.table, name)]
    columns = tuple(replace(one, type=pa.string()) if one.name in texts else one for one in schema.columns)
    schema = replace(schema, columns=columns)
    typed = ((one.name, schema.column(one.name).type, f"t.{quoted(one.name)}") for one in source.columns)
    return DescribedTable(schema, quoted(source.name), own, unordered, misfits(typed))


class SqliteVerifyReader:
    """See ``capture.registry.VerifyReader``. One SELECT reads one moment, with values as Python's sqlite3 returns
    them."""

    def __init__(self, path: str | PathLike[str], table: TableId) -> None:
        self._database, self._dialect = Database(str(path), busy_timeout_seconds=30), SqliteDialect(str(path))
        self._table = table

    def columns(self) -> Sequence[str]:
        return self._dialect.described(self._table).schema.names

    def count(self) -> int:
        with self._database.connection() as connection:
            origin = self._dialect.described(self._table).origin
            return int(connection.execute(f"SELECT count(*) FROM {origin}").fetchone()[0])

    def rows(self, columns: pa.Schema, names: Sequence[str]) -> Iterator[Sequence[tuple[Any, ...]]]:  # noqa: ARG002
        described = self._dialect.described(self._table)
        listed = ", ".join(described.sql_names.get(name) or quoted(name) for name in names)
        with self._database.connection() as connection:
            # Text that is not UTF-8 must not stop the comparison: it is returned as bytes, which have a text form.
            connection.text_factory = _text_or_bytes
            cursor = connection.execute(f"SELECT {listed} FROM {described.origin}")
            while rows := cursor.fetchmany(_VERIFIED_ROWS):
                yield rows


def _text_or_bytes(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw

# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""``lakefeed check`` for a SQLite source: what stands in the way, and the statement that repairs it."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lakefeed.capture.base import Finding, Level
from lakefeed.capture.sqlite.catalog import SourceTable, read_table
from lakefeed.capture.sqlite.database import Database, quoted
from lakefeed.capture.sqlite.shape import WIDEST
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, LakefeedError

_REFUSED_BY_DELTA = re.compile(r"[ ,;{}()\n\t=]")


def check_source(database: Database, choose: Callable[[sqlite3.Connection], Sequence[TableId]]) -> tuple[Finding, ...]:
    """All findings. ``choose`` tells which tables the configured patterns match; its ConfigError is a finding."""
    path = Path(database.path)
    unreadable = _file_findings(path)
    if unreadable:
        return tuple(unreadable)
    try:
        with database.connection("ro") as connection:
            return (*_journal_mode(connection, path), *_tables(connection, choose))
    except LakefeedError as error:
        if isinstance(error, ConfigError) or error.retry.value == "never":
            return (Finding(level=Level.ERROR, problem=error.message, remedy=error.remedy),)
        raise


def _file_findings(path: Path) -> list[Finding]:
    if not path.is_file():
        return [Finding(level=Level.ERROR, problem=f"there is no file {path}", remedy="Correct source.path.")]
    found = []
    if not os.access(path, os.R_OK | os.W_OK):
        problem = f"{path} is not readable and writable by this user; triggers need both"
        found.append(Finding(level=Level.ERROR, problem=problem, remedy=f"chmod u+rw {path}"))
    elif not os.access(path.absolute().parent, os.W_OK):
        problem = f"the directory of {path} is not writable; SQLite keeps its journal beside the file"
        found.append(Finding(level=Level.ERROR, problem=problem, remedy=f"chmod u+w {path.absolute().parent}"))
    return found


def _journal_mode(connection: sqlite3.Connection, path: Path) -> Iterator[Finding]:
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":
        yield Finding(
            level=Level.WARNING,
            problem=f"{path} is in {mode} journal mode: readers and writers wait for each other",
            remedy="PRAGMA journal_mode=WAL;",
        )


def _tables(
    connection: sqlite3.Connection, choose: Callable[[sqlite3.Connection], Sequence[TableId]]
) -> Iterator[Finding]:
    for table in choose(connection):
        source = read_table(connection, table.name)
        if source is not None:
            yield from _table(source)


def _table(source: SourceTable) -> Iterator[Finding]:
    for level, problem, remedy in _problems(source):
        yield Finding(level=level, problem=f"{source.id}: {problem}", remedy=remedy, table=source.id)


def _problems(source: SourceTable) -> Iterator[tuple[Level, str, str]]:
    name = quoted(source.name)
    if not source.key and source.rowid is None:
        yield Level.ERROR, "no key, and its columns hide every name of the rowid", "Declare a primary key."
    elif not source.key:
        problem = "no declared key; the rowid becomes the key, and VACUUM can make a new copy necessary"
        yield Level.WARNING, problem, f"Re-create {name} with a column id INTEGER PRIMARY KEY."
    if source.nullable_key:
        nulls = " OR ".join(f"{quoted(column)} IS NULL" for column in source.key)
        problem = f"its key ({', '.join(source.key)}) may be NULL; the table stops when a row has such a key"
        yield Level.WARNING, problem, f"SELECT count(*) FROM {name} WHERE {nulls}; and declare the key NOT NULL."
    for index in source.opaque:
        problem = f"the unique index {index} is on an expression; rows that REPLACE removes through it are not seen"
        yield Level.WARNING, problem, "Write with ON CONFLICT DO UPDATE or DELETE instead of REPLACE."
    if len(source.columns) > WIDEST:
        yield Level.ERROR, f"{len(source.columns)} columns; {WIDEST} can be captured", "Leave the table out."
    for column in source.columns:
        yield from _column_problems(name, column.name)


def _column_problems(table: str, column: str) -> Iterator[tuple[Level, str, str]]:
    fixed = _REFUSED_BY_DELTA.sub("_", column)
    if fixed != column:
        yield (
            Level.ERROR,
            f"the column name '{column}' has characters that lake tables refuse",
            _rename(table, column, fixed),
        )
    if column.lower().startswith("_lakefeed"):
        yield Level.ERROR, f"the column name '{column}' is reserved", _rename(table, column, fixed.lstrip("_"))


def _rename(table: str, column: str, better: str) -> str:
    return f"ALTER TABLE {table} RENAME COLUMN {quoted(column)} TO {quoted(better)};"

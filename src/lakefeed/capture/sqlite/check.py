# ruff: noqa: S608 (names in SQL are quoted by database.quoted)
"""``lakefeed check`` for a SQLite source: what stands in the way, and the statement that repairs it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from lakefeed.capture.base import Finding, Level
from lakefeed.capture.log import Choose
from lakefeed.capture.sqlite.catalog import SourceTable, all_tables, read_table
from lakefeed.capture.sqlite.database import Database, quoted
from lakefeed.capture.sqlite.shape import WIDEST
from lakefeed.errors import LakefeedError, Retry

_REFUSED_BY_DELTA = re.compile(r"[ ,;{}()\n\t=]")


def check_source(database: Database, choose: Choose) -> tuple[Finding, ...]:
    """All findings. What is wrong with the patterns, or with the file itself, is one, too."""
    path = Path(database.path)
    folder = path.absolute().parent
    if not path.is_file():
        return (_error(f"there is no file {path}", "Correct source.path."),)
    if not os.access(path, os.R_OK | os.W_OK):
        problem = f"{path} is not readable and writable by this user; triggers need both"
        return (_error(problem, f"chmod u+rw {path}"),)
    if not os.access(folder, os.W_OK):
        problem = f"the directory of {path} is not writable; SQLite keeps its journal beside the file"
        return (_error(problem, f"chmod u+w {folder}"),)
    found: list[Finding] = []
    try:
        with database.connection() as connection:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            if mode != "wal":
                problem = f"{path} is in {mode} journal mode: readers and writers wait for each other"
                found.append(Finding(level=Level.WARNING, problem=problem, remedy="PRAGMA journal_mode=WAL;"))
            for table in choose(all_tables(connection)):
                source = read_table(connection, table.name)
                for level, problem, remedy in _problems(source) if source is not None else ():
                    found.append(Finding(level=level, problem=f"{table}: {problem}", remedy=remedy, table=table))
    except LakefeedError as error:
        if error.retry is not Retry.NEVER:
            raise
        return (_error(error.message, error.remedy),)
    return tuple(found)


def _error(problem: str, remedy: str) -> Finding:
    return Finding(level=Level.ERROR, problem=problem, remedy=remedy)


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
    for column in (one.name for one in source.columns):
        fixed = _REFUSED_BY_DELTA.sub("_", column)
        rename = f"ALTER TABLE {name} RENAME COLUMN {quoted(column)} TO"
        if fixed != column:
            problem = f"the column name '{column}' has characters that lake tables refuse"
            yield Level.ERROR, problem, f"{rename} {quoted(fixed)};"
        if column.lower().startswith("_lakefeed"):
            yield Level.ERROR, f"the column name '{column}' is reserved", f"{rename} {quoted(fixed.lstrip('_'))};"

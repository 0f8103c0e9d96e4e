# ruff: noqa: S608 (names in SQL are quoted by database.quoted)
"""``Sqlite``: what a user writes to capture a SQLite database, by triggers that fill a change log beside the tables.

Guarantees, beyond the contract of ChangeCapture (limits: docs/sqlite.md):
- The triggers write the log in the user's own transaction: what is committed is logged, what is rolled back is not.
- A change set ends at a commit, because SQLite shows only committed transactions. It has everything that was committed
  when it was cut.
- ``prepare``, ``confirm`` and ``uninstall`` write to the source. ``live`` does only to adapt the triggers to a changed
  schema, or to announce that a column holds values of several types or that a key is NULL.
- With ``before_images`` the triggers also log rows as they were. There is no before image for a row that REPLACE
  replaces by one with the same key, which is an insert here, and none for changes between the addition of a column and
  its discovery.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from os import PathLike
from pathlib import Path

from lakefeed.capture.base import Capabilities, ChangeCapture, Finding, Level, Statement
from lakefeed.capture.log import Choose
from lakefeed.capture.log_capture import LogCapture
from lakefeed.capture.select import refused_names
from lakefeed.capture.sqlite.database import Database, quoted
from lakefeed.capture.sqlite.dialect import SqliteDialect
from lakefeed.capture.sqlite.drift import WIDEST
from lakefeed.capture.sqlite.installation import Installation
from lakefeed.capture.sqlite.log import LogDecoder, SqliteFacts, SqliteResumePoint
from lakefeed.capture.sqlite.table import SourceTable, all_tables, null_in, read_table
from lakefeed.change.position import SqliteSequence
from lakefeed.errors import ConfigError, LakefeedError, Retry, SourceSetupError


@dataclass(frozen=True)
class Sqlite:
    """A SQLite database file. ``tables`` are glob patterns (see ``capture.select``). ``busy_timeout_seconds`` is how
    long to wait for a lock that another connection holds. With ``before_images`` rows are also delivered as they were
    before each update and delete, at the expense of the writers. ConfigError if the path is not a file or the mechanism
    does not exist."""

    path: str | PathLike[str]
    _: KW_ONLY
    tables: Sequence[str] = ("*",)
    capture: str = "trigger"
    busy_timeout_seconds: float = 5.0
    before_images: bool = False

    def __post_init__(self) -> None:
        if not Path(self.path).is_file():
            raise ConfigError(f"source.path: there is no file '{self.path}'")
        if self.capture != "trigger":
            raise ConfigError(f"source.capture: '{self.capture}' is not a way to capture SQLite; there is trigger")
        if isinstance(self.tables, str) or not self.tables:
            raise ConfigError(f"source.tables: must be a list of patterns with at least one, not {self.tables!r}")
        if self.busy_timeout_seconds < 0:
            raise ConfigError(f"source.busy_timeout_seconds: {self.busy_timeout_seconds} is negative")
        object.__setattr__(self, "tables", tuple(self.tables))  # hashable, whatever sequence was given

    def bind(self, pipeline: str) -> ChangeCapture:
        path = str(Path(self.path).absolute())  # other processes, which read chunks, may have another directory
        database, images = Database(path, self.busy_timeout_seconds), self.before_images
        resume = SqliteResumePoint(database, Installation(pipeline, before_images=images))
        return LogCapture(
            SqliteSequence,
            Capabilities(before_images=images, schema_changes=True, exact_snapshot=True, snapshot_resume=True),
            tables=self.tables,
            dialect=SqliteDialect(path, self.busy_timeout_seconds),
            resume=resume,
            decoder=LogDecoder,
            facts=SqliteFacts(resume),
            check=partial(check_source, database),
        )


def check_source(database: Database, choose: Choose) -> tuple[Finding, ...]:
    """What prevents capture, and the statements that repair it. Includes the file itself and the patterns."""
    path, folder, found = Path(database.path), Path(database.path).absolute().parent, list[Finding]()
    try:
        if not path.is_file():
            raise SourceSetupError(f"there is no file {path}", remedy="Correct source.path.")
        if not os.access(path, os.R_OK | os.W_OK):
            problem = f"this user cannot read and write {path}; triggers need both"
            raise SourceSetupError(problem, remedy=f"chmod u+rw {path}")
        if not os.access(folder, os.W_OK):
            problem = f"this user cannot write to the directory of {path}, where SQLite keeps its journal"
            raise SourceSetupError(problem, remedy=f"chmod u+w {folder}")
        with database.connection() as connection:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            if mode != "wal":
                problem = f"{path} is in {mode} journal mode: readers and writers wait for each other"
                found.append(
                    Finding(level=Level.WARNING, problem=problem, remedy=Statement("PRAGMA journal_mode=WAL;"))
                )
            for table in choose(all_tables(connection)):
                source = read_table(connection, table.name)
                for level, problem, remedy in _problems(source) if source is not None else ():
                    found.append(Finding(level=level, problem=f"{table}: {problem}", remedy=remedy, table=table))
    except LakefeedError as error:
        if error.retry is not Retry.NEVER:
            raise
        return (Finding(level=Level.ERROR, problem=error.message, remedy=error.remedy),)
    return tuple(found)


def _problems(source: SourceTable) -> Iterator[tuple[Level, str, str]]:
    name = quoted(source.name)
    if not source.key and source.rowid is None:
        yield Level.ERROR, "no key, and its columns hide every name of the rowid", "Declare a primary key."
    elif not source.key:
        problem = "no declared key; the rowid becomes the key, and VACUUM may make a new copy necessary"
        yield Level.WARNING, problem, f"Re-create {name} with a column id INTEGER PRIMARY KEY."
    if source.nullable_key:
        problem = f"its key ({', '.join(source.key)}) may be NULL; such a row blocks the table"
        count = f"SELECT count(*) FROM {name} WHERE {null_in(source.key)};"
        yield Level.WARNING, problem, Statement(f"{count} -- then declare the key NOT NULL")
    for index in source.opaque:
        problem = f"the unique index {index} is on an expression; rows that REPLACE removes through it are missed"
        yield Level.WARNING, problem, "Write with ON CONFLICT DO UPDATE or DELETE instead of REPLACE."
    if len(source.columns) > WIDEST:
        yield Level.ERROR, f"{len(source.columns)} columns; {WIDEST} can be captured", "Leave the table out."
    for column, problem, better in refused_names(one.name for one in source.columns):
        rename = Statement(f"ALTER TABLE {name} RENAME COLUMN {quoted(column)} TO {quoted(better)};")
        yield Level.ERROR, problem, rename

"""``Sqlite``: what a user writes to capture a SQLite database, by triggers that fill a change log beside the tables.

Guarantees and limits, beyond the contract of ChangeCapture:
- The log is written in the user's own transaction: what is committed is logged, what is rolled back is not.
- A change set ends at a commit, because SQLite shows only committed transactions. It has all that was committed when
  it was cut.
- The time of a change is when its statement ran, by the clock of the writer's machine, in milliseconds.
- The source is written to by ``prepare``, ``confirm``, ``uninstall``, and by ``live`` only to bring the triggers in
  line with a changed schema or to announce that a column holds values of several types or a key is NULL.
- With ``before_images`` the triggers log rows as they were, too. There is none for a row that REPLACE replaces by one
  of the same key, which is an insert here, and none for changes between the addition of a column and its being noticed.
- Tables without a declared key get the rowid as key, in an extra first column ``_rowid``.
- Not seen: rows that REPLACE removes through a unique index on an expression (``check`` warns), or because an INSERT
  gives an explicit rowid to a row of a table whose key is another one; writers that switch triggers off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from os import PathLike
from pathlib import Path

from lakefeed.capture.base import Capabilities, ChangeCapture
from lakefeed.capture.log_capture import LogCapture
from lakefeed.capture.sqlite.check import check_source
from lakefeed.capture.sqlite.database import Database
from lakefeed.capture.sqlite.dialect import SqliteDialect
from lakefeed.capture.sqlite.log import LogDecoder
from lakefeed.capture.sqlite.meta import Names
from lakefeed.capture.sqlite.resume import SqliteFacts, SqliteResumePoint
from lakefeed.change.position import SqliteSequence
from lakefeed.errors import ConfigError

_MECHANISMS = ("trigger",)


@dataclass(frozen=True)
class Sqlite:
    """A SQLite database file.

    ``tables`` are glob patterns (see ``capture.select``). ``busy_timeout_seconds`` is how long to wait for a lock
    that another connection holds. With ``before_images`` rows are delivered as they were before each update and delete,
    too, which the writer pays for. ConfigError for a path that is no file and for a mechanism that there is not.
    """

    path: str | PathLike[str]
    _: KW_ONLY
    tables: Sequence[str] = ("*",)
    capture: str = "trigger"
    busy_timeout_seconds: float = 5.0
    before_images: bool = False

    def __post_init__(self) -> None:
        if not Path(self.path).is_file():
            raise ConfigError(f"source.path: there is no file '{self.path}'")
        if self.capture not in _MECHANISMS:
            choices = ", ".join(_MECHANISMS)
            raise ConfigError(f"source.capture: '{self.capture}' is not a way to capture SQLite; there is {choices}")
        if isinstance(self.tables, str) or not self.tables:
            raise ConfigError(f"source.tables: must be a list of patterns with at least one, not {self.tables!r}")
        if self.busy_timeout_seconds < 0:
            raise ConfigError(f"source.busy_timeout_seconds: {self.busy_timeout_seconds} is negative")
        object.__setattr__(self, "tables", tuple(self.tables))  # frozen and hashable, whatever the user gave

    def bind(self, pipeline: str) -> ChangeCapture:
        path = str(Path(self.path).absolute())  # chunks are read by processes that may have another directory
        database = Database(path, self.busy_timeout_seconds)
        resume = SqliteResumePoint(database, Names(pipeline), before_images=self.before_images)
        return LogCapture(
            SqliteSequence,
            Capabilities(
                deletes=True,
                before_images=self.before_images,
                transactions=True,
                schema_changes=True,
                exact_snapshot=True,
                snapshot_resume=True,
            ),
            tables=self.tables,
            dialect=SqliteDialect(path, self.busy_timeout_seconds),
            resume=resume,
            decoder=LogDecoder,
            facts=SqliteFacts(resume),
            check=partial(check_source, database),
        )

"""``SqlitePolling`` and ``PostgresPolling``: what a user writes to follow a database with nothing but SELECT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from os import PathLike
from pathlib import Path

from lakefeed.capture.base import ChangeCapture
from lakefeed.capture.dialect import Dialect
from lakefeed.capture.poll.capture import Polling
from lakefeed.capture.poll.rule import TableRule
from lakefeed.capture.poll.stream import Pace
from lakefeed.errors import ConfigError


@dataclass(frozen=True)
class PollingSource:
    """Any database, by its connector.

    ``tables`` are glob patterns (see ``capture.select``), ``rules`` are by such patterns too.
    """

    connector: Dialect
    _: KW_ONLY
    tables: Sequence[str] = ("*",)
    rules: Mapping[str, TableRule] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        check_patterns(self.tables)

    def bind(self, pipeline: str) -> ChangeCapture:  # noqa: ARG002  # nothing in the source has the pipeline's name
        return Polling(self.connector, tables=self.tables, rules=self.rules, pace=self.pace)


@dataclass(frozen=True)
class SqlitePolling:
    """A SQLite database file, only ever read. ``immutable``: nobody writes to it (read-only media)."""

    path: str | PathLike[str]
    _: KW_ONLY
    tables: Sequence[str] = ("*",)
    rules: Mapping[str, TableRule] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)
    busy_timeout_seconds: float = 5.0
    immutable: bool = False

    def __post_init__(self) -> None:
        check_patterns(self.tables)
        if not Path(self.path).is_file():
            raise ConfigError(f"source.path: there is no file '{self.path}'")

    def bind(self, pipeline: str) -> ChangeCapture:
        from lakefeed.capture.sqlite.dialect import SqliteDialect

        path = str(Path(self.path).absolute())  # chunks are read by processes that may have another directory
        connector = SqliteDialect(path, self.busy_timeout_seconds, self.immutable)
        return _bound(connector, self, pipeline)


@dataclass(frozen=True)
class PostgresPolling:
    """A PostgreSQL database or replica, for a role that may SELECT.

    ``dsn`` is a libpq connection string or URI and is not shown by ``repr``. ``text_columns`` are patterns over
    ``schema.table.column``: those columns are kept as PostgreSQL prints them.
    """

    dsn: str = field(repr=False)
    _: KW_ONLY
    tables: Sequence[str] = ("public.*",)
    rules: Mapping[str, TableRule] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)
    text_columns: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_patterns(self.tables)

    def bind(self, pipeline: str) -> ChangeCapture:
        from lakefeed.capture.postgres.dialect import PostgresDialect

        return _bound(PostgresDialect(self.dsn, tuple(self.text_columns)), self, pipeline)


def _bound(connector: Dialect, source: SqlitePolling | PostgresPolling, pipeline: str) -> ChangeCapture:
    made = PollingSource(connector, tables=source.tables, rules=source.rules, pace=source.pace)
    return made.bind(pipeline)


def check_patterns(tables: Sequence[str]) -> None:
    if isinstance(tables, str) or not tables:
        raise ConfigError(f"source.tables: must be a list of patterns with at least one, not {tables!r}")

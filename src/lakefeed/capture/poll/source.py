"""``SqlitePolling`` and ``PostgresPolling``: what a user writes to follow a database with nothing but SELECT."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from lakefeed.capture.base import ChangeCapture
from lakefeed.capture.dialect import Dialect
from lakefeed.capture.poll.capture import Polling
from lakefeed.capture.poll.rule import Pace, TableRule
from lakefeed.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class _PolledDatabase(ABC):
    """``tables`` are glob patterns (see ``capture.select``), ``rules`` are by such patterns too."""

    tables: Sequence[str] = ("*",)
    rules: Mapping[str, TableRule] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        if isinstance(self.tables, str) or not self.tables:
            raise ConfigError(f"source.tables: must be a list of patterns with at least one, not {self.tables!r}")

    def bind(self, pipeline: str) -> ChangeCapture:  # noqa: ARG002  # nothing in the source has the pipeline's name
        return Polling(self._dialect(), tables=self.tables, rules=self.rules, pace=self.pace)

    @abstractmethod
    def _dialect(self) -> Dialect: ...


@dataclass(frozen=True)
class PollingSource(_PolledDatabase):
    """Any database, by its connector.

    ``tables`` are glob patterns (see ``capture.select``), ``rules`` are by such patterns too.
    """

    connector: Dialect

    def _dialect(self) -> Dialect:
        return self.connector


@dataclass(frozen=True)
class SqlitePolling(_PolledDatabase):
    """A SQLite database file, only ever read. ``immutable``: nobody writes to it (read-only media)."""

    path: str | PathLike[str]
    busy_timeout_seconds: float = field(default=5.0, kw_only=True)
    immutable: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not Path(self.path).is_file():
            raise ConfigError(f"source.path: there is no file '{self.path}'")

    def _dialect(self) -> Dialect:
        from lakefeed.capture.sqlite.dialect import SqliteDialect

        path = str(Path(self.path).absolute())  # chunks are read by processes that may have another directory
        return SqliteDialect(path, self.busy_timeout_seconds, self.immutable)


@dataclass(frozen=True)
class PostgresPolling(_PolledDatabase):
    """A PostgreSQL database or replica, for a role that may SELECT.

    ``dsn`` is a libpq connection string or URI and is not shown by ``repr``. ``text_columns`` are patterns over
    ``schema.table.column``: those columns are kept as PostgreSQL prints them.
    """

    dsn: str = field(repr=False)
    tables: Sequence[str] = field(default=("public.*",), kw_only=True)
    text_columns: Sequence[str] = field(default=(), kw_only=True)

    def _dialect(self) -> Dialect:
        from lakefeed.capture.postgres.dialect import PostgresDialect

        return PostgresDialect(self.dsn, tuple(self.text_columns))

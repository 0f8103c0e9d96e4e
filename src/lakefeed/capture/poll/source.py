"""What a user writes to capture a database with nothing but SELECT: the source, and how its tables are polled.
Everything has a default; the catalog supplies what is left out. Nothing here imports Arrow or a driver before
``bind``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from lakefeed.errors import ConfigError

if TYPE_CHECKING:
    from lakefeed.capture.base import ChangeCapture
    from lakefeed.capture.dialect import Dialect


class NullPolicy(StrEnum):
    """What happens to rows whose ``updated_at`` is NULL, which no comparison ever finds."""

    STOP = "stop"  # the table stops, with an error that says how many there are
    CREATED_AT = "created_at"  # created_at is used, for applications that set updated_at only with the first update
    IGNORE = "ignore"  # they are copied, but their changes are not captured; check says how many there are


@dataclass(frozen=True, slots=True)
class SoftDelete:
    """Rows are deleted by a mark in ``column``: a time (deleted if not NULL), or a boolean or number (if true)."""

    column: str


@dataclass(frozen=True, slots=True)
class FullDiff:
    """Lakefeed finds deleted rows by comparing all keys with the lake's, on Spark, every ``every_seconds``. At most
    ``max_deleted_share`` of the lake's rows may be missing at once; more is refused, because a source that lost its
    rows looks the same. With ``compare_rows`` it compares whole rows, which also finds changes that left ``updated_at``
    alone, and rows that the lake lacks."""

    _: KW_ONLY
    every_seconds: float = 86_400.0
    max_deleted_share: float = 0.1
    compare_rows: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.max_deleted_share <= 1.0:
            raise ConfigError(f"max_deleted_share: {self.max_deleted_share} is not a share; it is above 0, up to 1")
        if self.every_seconds <= 0:
            raise ConfigError(f"every_seconds: {self.every_seconds} is not a time to wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRule:
    """How one table is polled. ``updated_at``, ``created_at`` and ``key`` name columns; None and () mean: find them.
    ``columns`` are those to deliver; () means all. The key is always delivered, and the columns that polling needs are
    always read. ``where`` is an SQL condition on every read of the table. ``batch_rows`` is the maximum number of rows
    that one query reads. ``safety_lag_seconds`` is how long after its time stamp a row may become visible without being
    missed; it must exceed the resolution of the stamp (one second for SQLite's CURRENT_TIMESTAMP). Rows are delivered
    at once all the same, and read again until the lag has passed."""

    created_at: str | None = None
    updated_at: str | None = None
    key: Sequence[str] = ()
    columns: Sequence[str] = ()
    deletes: SoftDelete | FullDiff | None = None
    where: str | None = None
    batch_rows: int = 50_000
    safety_lag_seconds: float = 5.0
    null_updated_at: NullPolicy = NullPolicy.STOP

    def __post_init__(self) -> None:
        for name in ("key", "columns"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise ConfigError(f"{name}: must be a list of columns, not {value!r}")
            object.__setattr__(self, name, tuple(value))
        object.__setattr__(self, "null_updated_at", NullPolicy(self.null_updated_at))
        if self.batch_rows < 1:
            raise ConfigError(f"batch_rows: {self.batch_rows} is not a number of rows")
        if self.safety_lag_seconds < 0:
            raise ConfigError(f"safety_lag_seconds: {self.safety_lag_seconds} is negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """``poll_seconds`` is the pause after a cycle that found nothing. ``parallel`` tables are read at a time. A table
    that takes longer than ``patience_seconds`` does not hold up the others."""

    poll_seconds: float = 1.0
    parallel: int = 4
    patience_seconds: float = 1.0


@dataclass(frozen=True, kw_only=True)
class _PolledDatabase(ABC):
    """``tables`` are glob patterns (see ``capture.select``); ``rules`` are by such patterns, too."""

    tables: Sequence[str] = ("*",)
    rules: Mapping[str, TableRule] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        if isinstance(self.tables, str) or not self.tables:
            raise ConfigError(f"source.tables: must be a list of patterns with at least one, not {self.tables!r}")

    def bind(self, pipeline: str) -> ChangeCapture:  # noqa: ARG002  # nothing in the source has the pipeline's name
        from lakefeed.capture.poll.capture import Polling

        return Polling(self._dialect(), tables=self.tables, rules=self.rules, pace=self.pace)

    @abstractmethod
    def _dialect(self) -> Dialect: ...


@dataclass(frozen=True)
class PollingSource(_PolledDatabase):
    """Any database that has a Dialect."""

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

        path = str(Path(self.path).absolute())  # other processes, which read chunks, may have another directory
        return SqliteDialect(path, self.busy_timeout_seconds, self.immutable)


@dataclass(frozen=True)
class PostgresPolling(_PolledDatabase):
    """A PostgreSQL database or replica, for a role that may SELECT. ``dsn`` is a libpq connection string or URI, which
    ``repr`` does not show. ``text_columns`` are patterns over ``schema.table.column``: these columns are kept as
    PostgreSQL prints them."""

    dsn: str = field(repr=False)
    tables: Sequence[str] = field(default=("public.*",), kw_only=True)
    text_columns: Sequence[str] = field(default=(), kw_only=True)

    def _dialect(self) -> Dialect:
        from lakefeed.capture.postgres.dialect import PostgresDialect

        return PostgresDialect(self.dsn, tuple(self.text_columns))

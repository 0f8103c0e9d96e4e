"""How tables are polled, as a user configures it. Everything has a default; the catalog fills in what is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum

from lakefeed.errors import ConfigError


class NullPolicy(StrEnum):
    """What happens to rows whose ``updated_at`` is NULL: no comparison ever finds them."""

    STOP = "stop"
    """The table stops and says how many there are."""
    CREATED_AT = "created_at"
    """``created_at`` stands in for it, as in applications that set ``updated_at`` with the first update only."""
    IGNORE = "ignore"
    """They are copied with the table, but their changes are not followed. ``check`` says how many there are."""


@dataclass(frozen=True, slots=True)
class SoftDelete:
    """Rows are deleted by a mark in ``column``: a time (deleted if not NULL), a boolean or a number (if true)."""

    column: str


@dataclass(frozen=True, slots=True)
class FullDiff:
    """Deleted rows are found by comparing all keys with the lake's, on Spark, every ``every_seconds``.

    ``max_deleted_share`` of the lake's rows may be found missing at once; more is refused, since a source that lost its
    rows looks the same. With ``compare_rows`` whole rows are compared, which also finds changes that left
    ``updated_at`` as it was, and rows that the lake lacks.
    """

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
    """How one table is polled.

    ``updated_at``, ``created_at`` and ``key`` name columns; None and () mean: find them. ``columns`` are those to
    deliver; () means all. The key is always delivered; the columns that polling itself needs are always read.
    ``where`` is an SQL condition on every read of the table. ``batch_rows`` is how many rows one poll reads at most.
    ``safety_lag_seconds`` is how long after its time stamp a row may become visible without being missed; it must be
    longer than the stamp's own resolution (one second for SQLite's CURRENT_TIMESTAMP). Rows are delivered at once
    all the same, and read again until the lag is over.
    """

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

    @property
    def lag_us(self) -> int:
        return round(self.safety_lag_seconds * 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """``poll_seconds`` lie between two cycles that find nothing. ``parallel`` tables are read at a time. A table that
    takes longer than ``patience_seconds`` is not waited for: the others go on without it."""

    poll_seconds: float = 1.0
    parallel: int = 4
    patience_seconds: float = 1.0

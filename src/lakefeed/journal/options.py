"""How a journal writes and how much it keeps."""

from __future__ import annotations

from dataclasses import dataclass

from lakefeed.errors import ConfigError

_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions:
    """``keep_change_sets``: so many of the newest stay even if every table has them, for rebuilds and second modes.

    ``keep_seconds``: younger ones stay, too, for readers: a query that was planned before a merge reads the change sets
    that the merge has applied meanwhile. 0 keeps none for their age.

    ``keep_schemas``: versions kept for each table beyond those in use; None keeps all, and logs a warning at open.
    ``segment_bytes``: a Parquet file of a change set that reaches this size is closed, and another one started.
    ``lease_seconds``: on an object store, how long the writer may be silent before another one takes over.
    ``fsync=False`` survives a crash of the process but not of the machine: for tests and benchmarks.
    """

    segment_bytes: int = 128 * _MEBIBYTE
    keep_change_sets: int = 256
    keep_seconds: float = 120.0
    keep_schemas: int | None = 256
    lease_seconds: float = 45.0
    fsync: bool = True

    def __post_init__(self) -> None:
        if self.segment_bytes < 1:
            raise ConfigError(f"segment_bytes is {self.segment_bytes}; it must be at least 1")
        if self.keep_change_sets < 0:
            raise ConfigError(f"keep_change_sets is {self.keep_change_sets}; it must be 0 or more")
        if not 3 <= self.lease_seconds <= 3600:
            raise ConfigError(f"lease_seconds is {self.lease_seconds}; it must be between 3 and 3600")
        if self.keep_seconds < 0:
            raise ConfigError(f"keep_seconds is {self.keep_seconds}; it must be 0 or more")
        if self.keep_schemas is not None and self.keep_schemas < 1:
            raise ConfigError(f"keep_schemas is {self.keep_schemas}; it must be 1 or more, or left out for no limit")

"""What an embedder gives a Runtime and gets from it: options, states, counters, deliveries, traces, errors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position
from lakefeed.change.table import TableId
from lakefeed.embed.barrier import Token
from lakefeed.errors import ConfigError

T = TypeVar("T")

_ERRORS_KEPT = 256
"""Enough to see how a failure began; bounded, because a source that is down for a week fails every few seconds."""


class RuntimeState(Enum):
    """Idle → Running → Stopping → Stopped, and from Stopped to Running again."""

    IDLE = "idle"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalSnapshot:
    """Copy ``tables`` while the stream runs. A higher ``generation`` copies all of them once more."""

    tables: tuple[TableId, ...]
    generation: int = 1

    def __post_init__(self) -> None:
        if not self.tables:
            raise ConfigError("an incremental snapshot needs at least one table")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOptions:
    """How a runtime starts and how much it delivers at a time.

    ``snapshot_tables``   copied before the stream, if there is no checkpoint yet
    ``incremental``       copied beside the stream; instead of ``snapshot_tables``
    ``tables``            captured when nothing is copied; empty: all that the capture discovers
    ``schema_history_retention``  schemas of each table that checkpoints keep; None: all of them, with a warning
    ``max_events``, ``max_bytes``  a delivery ends before the change set that would exceed them (never inside one)
    ``wait_seconds``      how long a poll waits for the source
    ``linger_seconds``    how long a poll that has something goes on collecting; 0: it delivers at once, unless it
                          never waits anyway
    ``max_in_flight``     how many deliveries may be uncommitted at a time
    ``chunk_rows``        rows of one snapshot chunk, which is kept in memory
    """

    snapshot_tables: tuple[TableId, ...] = ()
    incremental: IncrementalSnapshot | None = None
    tables: tuple[TableId, ...] = ()
    schema_history_retention: int | None = 256
    max_events: int = 50_000
    max_bytes: int = 64 * 2**20
    wait_seconds: float = 1.0
    linger_seconds: float = 0.0
    max_in_flight: int = 1
    chunk_rows: int = 50_000
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        for name in ("max_events", "max_bytes", "max_in_flight", "chunk_rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.schema_history_retention is not None and self.schema_history_retention < 1:
            raise ConfigError(f"schema_history_retention must be at least 1, not {self.schema_history_retention}")
        for name in ("wait_seconds", "linger_seconds"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeStats:
    """Counters of one run (events are rows) and times in Unix seconds, None before the first event."""

    polled: int = 0
    committed: int = 0
    deduplicated: int = 0
    started_at: float | None = None
    last_poll_at: float | None = None
    last_event_at: float | None = None
    last_commit_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Change sets that the caller makes durable and then commits with ``token``.

    ``bracket`` is set for a snapshot chunk: its rows are states of the table between the two positions. Such a delivery
    is one change set whose start and end are the stream's position, because the stream continues from there.
    """

    token: Token
    change_sets: tuple[ChangeSet, ...]
    bracket: tuple[Position, Position] | None = None

    @property
    def is_snapshot(self) -> bool:
        return self.bracket is not None

    @property
    def rows(self) -> int:
        return sum(change_set.rows for change_set in self.change_sets)


class Tracer(Protocol):
    """Called as things happen, in the thread of the runtime's caller. Must return quickly and must not raise."""

    def checkpoint_barrier(self, state: str) -> None:
        """``open`` from when commits are accepted, ``stopped`` from when they are not."""

    def event_end(self, event: str, outcome: str) -> None:
        """A change set left the runtime without a commit: ``force_stopped``."""


class NullTracer:
    """Does nothing."""

    def checkpoint_barrier(self, state: str) -> None:
        pass

    def event_end(self, event: str, outcome: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class TaggedError:
    """An error and the step it came from, such as ``runtime.start.connect``."""

    tag: str
    error: Exception


class ErrorLog:
    """The last errors, oldest first. Recording an error does not replace raising it.

    An error that passes through several steps is recorded once, by the innermost one, which knows most about it.
    """

    def __init__(self) -> None:
        self._records: deque[TaggedError] = deque(maxlen=_ERRORS_KEPT)

    def record(self, tag: str, error: Exception) -> Exception:
        """Returns the error, so that it can be raised in the same statement."""
        if not self._records or self._records[-1].error is not error:
            self._records.append(TaggedError(tag, error))
        return error

    def tagged(self, tag: str, call: Callable[[], T]) -> T:
        """Run ``call``, and record its error on the way out."""
        try:
            return call()
        except Exception as error:
            self.record(tag, error)
            raise

    def tags(self) -> tuple[str, ...]:
        return tuple(record.tag for record in self._records)

    def __iter__(self) -> Iterator[TaggedError]:
        return iter(tuple(self._records))

    def __len__(self) -> int:
        return len(self._records)

"""What an embedder tells a Runtime, and what it answers: options, states, counters, deliveries."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError
from lakefeed.flow.barrier import Token


class RuntimeState(Enum):
    """Idle → Running → Stopping → Stopped, and from Stopped to Running again."""

    IDLE = "idle"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalSnapshot:
    """Copy ``tables`` while the stream runs. A higher ``generation`` asks for the copy of all of them once more."""

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
    ``max_events``, ``max_bytes``  a delivery ends before the change set that would exceed them (never inside one)
    ``wait_seconds``      how long a poll waits for the source
    ``linger_seconds``    how long a poll that has something goes on gathering; 0: it delivers at once, unless it
                          never waits anyway
    ``max_in_flight``     deliveries that may be uncommitted at a time
    ``chunk_rows``        rows of one snapshot chunk, which is held in memory
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
        for name in ("wait_seconds", "linger_seconds"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeStats:
    """Counters of one run (events are rows) and times in unix seconds, None before the first."""

    polled: int = 0
    committed: int = 0
    deduplicated: int = 0
    started_at: float | None = None
    last_poll_at: float | None = None
    last_event_at: float | None = None
    last_commit_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Change sets to be made durable by the caller and then committed with ``token``.

    ``bracket`` is set for a snapshot chunk: its rows are states of the table between the two positions. Such a
    delivery is one change set whose start and end are the stream's position, because the stream goes on from there.
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

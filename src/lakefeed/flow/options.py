"""What can be set on a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field

from lakefeed.errors import ConfigError
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.maintenance import MaintenanceOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """``parallel_tables``: concurrent merges; None means one per core, from two to eight.

    ``enrol_seconds``: how often ``run`` checks for new tables.
    ``max_backlog_bytes``: how much of the journal may wait for the lake before capture waits, too, so that a lake that
    is down for a week fills neither this disk nor memory; the source's own log then keeps what is not captured yet. A
    single table that fails is blocked instead, and copied again at a later start.
    ``hang_seconds``: how long a thread of ``run`` may show no sign of life before ``run`` ends with a HangError and
    gives the lease up: see ``flow.watchdog``.
    ``interval_seconds``: what ``run`` leaves at least between the starts of two merges; after a quiet time none waits.
    ``maintenance_seconds``: how often ``run`` packs small files and removes old ones; 0 for never.
    ``warm_up``: ``run`` starts Spark at once, and merges into a table in a temporary directory, so that the first
    changes find it warm.
    """

    interval_seconds: float = 1.0
    parallel_tables: int | None = None
    max_backlog_bytes: int = 16 * 2**30
    enrol_seconds: float = 5.0
    maintenance_seconds: float = 1800.0
    warm_up: bool = False
    hang_seconds: float = 600.0
    maintenance: MaintenanceOptions = field(default_factory=MaintenanceOptions)
    journal: JournalOptions = field(default_factory=JournalOptions)

    def __post_init__(self) -> None:
        if self.hang_seconds <= 0:
            raise ConfigError(f"hang_seconds is {self.hang_seconds}; it must be above 0")

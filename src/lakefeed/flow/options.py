"""What can be set on a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field

from lakefeed.journal.options import JournalOptions
from lakefeed.lake.maintenance import MaintenanceOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """``parallel_tables``: merges at the same time. ``enrol_seconds``: how often ``run`` checks for new tables.

    ``max_backlog_bytes``: how much journal may wait for the lake before capture waits too, so that a lake that is
    down for a week fills neither this disk nor memory; the source's own log then keeps what is not captured yet. A
    single table that fails is blocked instead, and copied again at a later start.
    ``maintenance_seconds``: how often ``run`` packs small files and removes old ones; 0 for never.
    """

    interval_seconds: float = 1.0
    parallel_tables: int = 2
    max_backlog_bytes: int = 16 * 2**30
    enrol_seconds: float = 5.0
    maintenance_seconds: float = 1800.0
    maintenance: MaintenanceOptions = field(default_factory=MaintenanceOptions)
    journal: JournalOptions = field(default_factory=JournalOptions)

"""What can be set on a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field

from lakefeed.journal.options import JournalOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """``parallel_tables``: merges at the same time. ``enrol_seconds``: how often ``run`` looks for new tables.

    ``max_backlog_bytes``: how much journal may wait for the lake before capture waits too, so that a lake that is
    down for a week fills neither this disk nor memory; the source's own log then keeps what is not captured yet.
    """

    interval_seconds: float = 1.0
    parallel_tables: int = 2
    max_backlog_bytes: int = 16 * 2**30
    enrol_seconds: float = 5.0
    journal: JournalOptions = field(default_factory=JournalOptions)

"""Status: one look at a pipeline, from inside or from another process, without Spark and without the lease.

The process that runs a pipeline leaves a small pulse file beside the journal once a cycle. Everything else is read
from where it lives: states, journal, the tables' own commits, the source.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lakefeed.capture.base import Lag
from lakefeed.change.table import TableId
from lakefeed.durable import replace_file
from lakefeed.errors import JournalError, LakefeedError
from lakefeed.flow.full_diff_record import Compared, DiffStore
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.journal.lease import lease_holder
from lakefeed.lake.base import Applied, TableFormat

STALE_SECONDS = 60.0
"""A running process that has not finished a cycle for so long is stalled: the slowest merges take a few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """``state``: staged, copying, catching up, live, blocked, dropped. ``applied``: complete up to this change set.

    ``reason`` says why a table is staged or dropped; it waits for nobody. ``compared``: how the last full comparison
    with the source went, if there was one.
    """

    state: str
    applied: int | None = None
    rows: int | None = None
    error: str | None = None
    remedy: str | None = None
    reason: str | None = None
    compared: Compared | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """``verdict``: healthy, idle (running, nothing to do), stalled (needs a look) or stopped; ``reason`` says why."""

    verdict: str
    reason: str
    journal_head: int = 0
    lag: Lag = field(default_factory=Lag)
    tables: Mapping[TableId, TableStatus] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """What the running process last said: when, what holds everything up, and the tables that wait for a person."""

    at: float = 0.0
    error: str | None = None
    remedy: str | None = None
    tables: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def write(self, root: Path) -> None:
        """Without fsync, and on a full disk not at all: a pulse that is lost is a pulse that has stopped.

        It is written because of an error, too, and that one must not be hidden by another.
        """
        body = {"at": self.at, "error": self.error, "remedy": self.remedy, "tables": dict(self.tables)}
        with suppress(JournalError):
            replace_file(root / "pulse.json", json.dumps(body).encode(), fsync=False)

    @classmethod
    def read(cls, root: Path) -> Pulse:
        try:
            body: dict[str, Any] = json.loads((root / "pulse.json").read_text())
            return cls(**{**body, "tables": {name: (text[0], text[1]) for name, text in body["tables"].items()}})
        except FileNotFoundError:
            return cls()


def read_status(root: Path, tables: TableFormat, lag: Lag, *, now: float | None = None) -> PipelineStatus:
    """The status of the pipeline whose state is at ``root``."""
    if not (root / "commits").exists():
        return PipelineStatus(verdict="stopped", reason="the pipeline has never run", lag=lag)
    pulse, journal = Pulse.read(root), Journal.read(root)
    try:
        states = TableStates(root).all()
        diffs = DiffStore(root)
        found = {
            table: _with_comparison(_table_status(record, journal, tables, pulse), diffs, record)
            for table, record in sorted(states.items())
        }
        verdict, reason = _verdict(root, pulse, found, journal.head, lag, time.time() if now is None else now)
        return PipelineStatus(verdict=verdict, reason=reason, journal_head=journal.head, lag=lag, tables=found)
    finally:
        journal.close()


def _table_status(record: TableState, journal: Journal, tables: TableFormat, pulse: Pulse) -> TableStatus:
    error, remedy = pulse.tables.get(str(record.table), (None, None))
    if record.phase is Phase.BLOCKED:
        error, remedy = record.reason, record.remedy
    reason = record.reason if record.phase in (Phase.STAGED, Phase.DROPPED) and record.reason else None
    try:
        applied = tables.table(record.route).applied(record.generation)
    except LakefeedError as problem:
        return TableStatus(state=record.phase.value, error=problem.message, remedy=problem.remedy)
    if applied is None:
        return TableStatus(state=record.phase.value, error=error, remedy=remedy, reason=reason)
    number = effective(record, applied, journal)
    state = "catching up" if catching_up(record, number, journal) else record.phase.value
    return TableStatus(state=state, applied=number, rows=applied.rows, error=error, remedy=remedy, reason=reason)


def _with_comparison(status: TableStatus, diffs: DiffStore, record: TableState) -> TableStatus:
    """A comparison that was refused, or fails, waits for a person as other errors of a table do."""
    last = diffs.load(record.source).last
    if last is None or record.phase is Phase.DROPPED:
        return status
    if status.error is None and last.error is not None:
        status = replace(status, error=f"full comparison: {last.error}", remedy=last.remedy)
    return replace(status, compared=last)


def effective(record: TableState, applied: Applied, journal: Journal) -> int:
    """Up to which change set the table is complete: its own number, or more where nothing for it came after that."""
    settled = record.settled_effective if applied.number == record.settled_recorded else 0
    number = max(applied.number, settled)
    if number < journal.trimmed:
        return number  # a table that somebody has put back to an older version
    window = journal.window(record.source, number, journal.head)
    version = applied.schema_version
    something_new = window.segments or window.target.version > version or window.open_doubts(version)
    return number if something_new else journal.head


def catching_up(record: TableState, applied: int, journal: Journal) -> bool:
    """True while a live table has not yet passed the newest state that its copy was read at."""
    if record.phase is not Phase.LIVE or record.high is None:
        return False
    reached = journal.position(applied) or record.low
    return reached is not None and not max(reached, record.low or reached) >= record.high


def _verdict(
    root: Path, pulse: Pulse, tables: Mapping[TableId, TableStatus], head: int, lag: Lag, now: float
) -> tuple[str, str]:
    holder = lease_holder(root)
    followed = {table: status for table, status in tables.items() if status.state != Phase.DROPPED.value}
    behind = [table for table, status in followed.items() if status.applied is not None and status.applied < head]
    failed = [table for table, status in tables.items() if status.error]
    if pulse.error and (holder is not None or now - pulse.at < STALE_SECONDS):
        return "stalled", pulse.error  # between two tries nobody holds the lease
    if holder is None:
        last = f"; the last error was: {pulse.error}" if pulse.error else ""
        return "stopped", f"no process runs it; {len(behind)} of {len(tables)} tables are behind the journal{last}"
    if failed:
        first = failed[0]
        return "stalled", f"{len(failed)} of {len(tables)} tables cannot go on, {first} first: {tables[first].error}"
    if now - max(pulse.at, holder.since.timestamp()) > STALE_SECONDS:
        return "stalled", f"process {holder.pid} has not finished a cycle for {now - pulse.at:.0f} s"
    copying = [table for table, status in tables.items() if status.state in ("staged", "copying")]
    if copying:
        return "healthy", f"{len(copying)} of {len(tables)} tables are being copied"
    if behind or lag.rows:
        return "healthy", f"process {holder.pid} is applying changes"
    return "idle", "every table has every change there is"

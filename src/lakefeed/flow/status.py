"""Status: how a pipeline stands, asked from inside or from another process, without Spark and without the lease.

The process that runs a pipeline writes a small liveness file beside the journal once a cycle. Everything else is read
from where it lives: table states, journal, the tables' own commits, the source.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lakefeed.capture.base import Lag
from lakefeed.change.table import TableId
from lakefeed.durable import replace_file
from lakefeed.errors import JournalDamagedError, JournalError
from lakefeed.flow.full_diff import Compared, DiffStore
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.journal.lease import lease_holder
from lakefeed.lake.base import Applied, TableFormat
from lakefeed.lake.spark.error import explained

log = logging.getLogger(__name__)

_TRIES = 5

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
class BlockedSource:
    """A source table that is to feed a lake table with the rows of another one, and therefore does not."""

    table: TableId
    source: TableId
    error: str
    remedy: str

    def to_json(self) -> dict[str, str]:
        own = {"table": str(self.table), "source": str(self.source)}
        return {**own, "error": self.error, "remedy": self.remedy}

    @classmethod
    def from_json(cls, data: Mapping[str, str]) -> BlockedSource:
        own = {"table": TableId.parse(data["table"]), "source": TableId.parse(data["source"])}
        return cls(**own, error=data["error"], remedy=data["remedy"])


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """``verdict``: healthy, idle (running, nothing to do), stalled (needs a person) or stopped; ``reason`` says why.

    ``tables`` are the lake tables; ``blocked`` has what is to feed one of them beside the table that does.
    """

    verdict: str
    reason: str
    journal_head: int = 0
    lag: Lag = field(default_factory=Lag)
    tables: Mapping[TableId, TableStatus] = field(default_factory=dict)
    blocked: tuple[BlockedSource, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """What the running process last reported: when, what stops everything, and the tables that cannot go on.

    ``blocked`` is as in PipelineStatus. ``capture_waits``: the backlog is full, and no table fails.
    """

    at: float = 0.0
    error: str | None = None
    remedy: str | None = None
    tables: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    blocked: tuple[BlockedSource, ...] = ()
    capture_waits: bool = False

    def write(self, root: Path) -> None:
        """Without fsync. It is often written because of an error, which must not be hidden by another one.

        On a full disk the file that is there is written over: it has its room already.
        """
        content = {
            "at": self.at,
            "error": self.error,
            "remedy": self.remedy,
            "tables": dict(self.tables),
            "blocked": [one.to_json() for one in self.blocked],
            "capture_waits": self.capture_waits,
        }
        data, path = json.dumps(content).encode(), root / "liveness.json"
        try:
            replace_file(path, data, fsync=False)
        except JournalError:
            with suppress(OSError), path.open("r+b") as file:
                file.write(data)
                file.truncate()

    @classmethod
    def read(cls, root: Path) -> Liveness:
        """One that cannot be read reports nothing: the next one is a second away."""
        try:
            content: dict[str, Any] = json.loads((root / "liveness.json").read_bytes())
            tables = {name: (text[0], text[1]) for name, text in content["tables"].items()}
            blocked = tuple(BlockedSource.from_json(one) for one in content.get("blocked", ()))
            return cls(**{**content, "tables": tables, "blocked": blocked})
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return cls()


def read_status(root: Path, tables: TableFormat, lag: Lag, *, now: float | None = None) -> PipelineStatus:
    """The status of the pipeline whose state is at ``root``.

    Read again where the running process has trimmed what was just about to be read.
    """
    for _ in range(_TRIES - 1):
        try:
            return _read_once(root, tables, lag, now)
        except JournalDamagedError:
            raise
        except JournalError as error:
            log.debug("the status is read again: %s", error)
    return _read_once(root, tables, lag, now)


def _read_once(root: Path, tables: TableFormat, lag: Lag, now: float | None) -> PipelineStatus:
    liveness, now = Liveness.read(root), time.time() if now is None else now
    if not (root / "commits").exists():
        if liveness.error and now - liveness.at < STALE_SECONDS:
            return PipelineStatus(verdict="stalled", reason=liveness.error, lag=lag)
        return PipelineStatus(verdict="stopped", reason="the pipeline has never run", lag=lag)
    journal = Journal.read(root)
    try:
        diffs = DiffStore(root)
        found: dict[TableId, TableStatus] = {}
        for table, state in sorted(TableStates(root).all().items()):
            error, remedy = liveness.tables.get(str(table), (None, None))
            if state.phase is Phase.BLOCKED:
                error, remedy = state.reason, state.remedy
            reason = state.reason if state.phase in (Phase.STAGED, Phase.DROPPED) and state.reason else None
            status = TableStatus(state=state.phase.value, error=error, remedy=remedy, reason=reason)
            try:
                applied = tables.table(state.route).applied(state.generation)
            except Exception as problem:  # noqa: BLE001  # one table must not break the status of the others
                applied, why = None, explained(problem, table)
                status = TableStatus(state=state.phase.value, error=why.message, remedy=why.remedy)
            if applied is not None:
                number = complete_upto(state, applied, journal)
                phase = "catching up" if is_catching_up(state, number, journal) else state.phase.value
                status = replace(status, state=phase, applied=number, rows=applied.rows)
            compared = diffs.load(state.source).last
            if compared is not None and state.phase is not Phase.DROPPED:
                if status.error is None and compared.error is not None:  # it waits for a person as other errors do
                    text = f"full comparison: {compared.error}"
                    status = replace(status, error=text, remedy=compared.remedy)
                status = replace(status, compared=compared)
            found[table] = status
        verdict, reason = _verdict(root, liveness, found, journal.head, lag, now)
        return PipelineStatus(
            verdict=verdict,
            reason=reason,
            journal_head=journal.head,
            lag=lag,
            tables=found,
            blocked=liveness.blocked,
        )
    finally:
        journal.close()


def complete_upto(state: TableState, applied: Applied, journal: Journal) -> int:
    """Up to which change set the table is complete: its own number, or more where nothing for it came after that."""
    at_trim = state.complete_at_trim if applied.number == state.recorded_at_trim else 0
    number = max(applied.number, at_trim)
    if number < journal.trimmed:
        return number  # a table that somebody has put back to an older version
    window = journal.window(state.source, number, journal.head)
    version = applied.schema_version
    something_new = window.segments or window.target.version > version or window.open_stale_reasons(version)
    return number if something_new else journal.head


def is_catching_up(state: TableState, applied: int, journal: Journal) -> bool:
    """True while a live table has not yet passed the newest state that its copy was read at."""
    if state.phase is not Phase.LIVE or state.high is None:
        return False
    reached = journal.position(applied) or state.low
    return reached is not None and not max(reached, state.low or reached) >= state.high


def _verdict(
    root: Path, liveness: Liveness, tables: Mapping[TableId, TableStatus], head: int, lag: Lag, now: float
) -> tuple[str, str]:
    holder = lease_holder(root)
    followed = {table: status for table, status in tables.items() if status.state != Phase.DROPPED.value}
    behind = [table for table, status in followed.items() if status.applied is not None and status.applied < head]
    failed = [table for table, status in tables.items() if status.error]
    if liveness.error and (holder is not None or now - liveness.at < STALE_SECONDS):
        return "stalled", liveness.error  # between two tries nobody has the lease
    if holder is None:
        last = f"; the last error was: {liveness.error}" if liveness.error else ""
        return "stopped", f"no process runs it; {len(behind)} of {len(tables)} tables are behind the journal{last}"
    if failed:
        first = failed[0]
        return "stalled", f"{len(failed)} of {len(tables)} tables cannot go on, {first} first: {tables[first].error}"
    if liveness.blocked:
        return "stalled", f"{liveness.blocked[0].source} does not reach the lake: {liveness.blocked[0].error}"
    silent_seconds = now - max(liveness.at, holder.since.timestamp())
    if silent_seconds > STALE_SECONDS:
        return "stalled", f"process {holder.pid} has not finished a cycle for {silent_seconds:.0f} s"
    copying = [table for table, status in tables.items() if status.state in ("staged", "copying")]
    waits = (
        "; capture waits for it, because max_backlog_bytes of changes wait already" if liveness.capture_waits else ""
    )
    if copying:
        return "healthy", f"{len(copying)} of {len(tables)} tables are being copied{waits}"
    if behind or lag.rows:
        return "healthy", f"process {holder.pid} is applying changes{waits}"
    return "idle", "every table has every change there is"

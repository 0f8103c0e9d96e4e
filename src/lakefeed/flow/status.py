"""Status: how a pipeline stands, asked from inside or from another process, without Spark and without the lease.

The process that runs a pipeline writes a small liveness file beside the journal once a cycle. Everything else is read
from where it lives: table states, journal, the tables' own commits, the source.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakefeed.capture.base import Lag
from lakefeed.change.table import ByTable, TableId
from lakefeed.durable import replace_file
from lakefeed.errors import JournalDamagedError, JournalError
from lakefeed.flow.full_diff import Compared, DiffStore
from lakefeed.flow.result import table_frame
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.journal.lease import lease_holder
from lakefeed.journal.segment_file import newest_time
from lakefeed.lake.base import Applied, TableFormat
from lakefeed.lake.spark.error import explained

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

_TRIES, _RECENT = 5, 256
"""How often a status is read that a trim comes between, and how many change sets are searched for the newest change."""

STALE_SECONDS = 60.0
"""A running process that has not finished a cycle for so long is stalled: the slowest merges take a few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """``state``: staged, copying, catching up, live, blocked, dropped. ``applied``: complete up to this change set.

    ``reason`` says why a table is staged or dropped; it waits for nobody. ``compared``: how the last full comparison
    with the source went, if there was one. ``age_seconds``: how long ago the newest change in the lake table was
    committed in the source; None if the journal has none of it any more.
    """

    state: str
    applied: int | None = None
    rows: int | None = None
    error: str | None = None
    remedy: str | None = None
    reason: str | None = None
    compared: Compared | None = None
    age_seconds: float | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PipelineStatus:
    """``verdict``: healthy, idle (running, nothing to do), stalled (needs a person) or stopped; ``reason`` says why.

    ``remedy``: what to do where an error of the whole pipeline is the reason. ``age_seconds``: how long ago the newest
    change in any lake table was committed in the source. ``tables`` are the lake tables; ``blocked`` has what is to
    feed one of them beside the table that does.
    """

    verdict: str
    reason: str
    remedy: str | None = None
    journal_head: int = 0
    lag: Lag = field(default_factory=Lag)
    tables: Mapping[TableId, TableStatus] = field(default_factory=dict)
    blocked: tuple[BlockedSource, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", ByTable(self.tables))

    def __repr__(self) -> str:
        tables = "".join(
            f"\n  {table}: {one.state}, {'?' if one.rows is None else f'{one.rows:,}'} rows"
            + (f", error: {one.error}" if one.error else "")
            for table, one in sorted(self.tables.items())
        )
        return f"<PipelineStatus: {self.verdict}, {self.reason}{tables}>"

    def to_dict(self) -> dict[str, Any]:
        """As plain values, ready for JSON: what ``lakefeed status --json`` prints."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "remedy": self.remedy,
            "age_seconds": self.age_seconds,
            "journal_head": self.journal_head,
            "lag": {"rows": self.lag.rows, "bytes": self.lag.bytes, "seconds": self.lag.seconds},
            "source": dict(self.lag.source),
            "tables": {str(table): asdict(one) for table, one in sorted(self.tables.items())},
            "blocked": [{**one.to_json(), "state": "blocked"} for one in self.blocked],
        }

    def to_pandas(self) -> pd.DataFrame:
        """A row for each table. Needs pandas."""
        return table_frame(self.to_dict()["tables"])

    @property
    def age_seconds(self) -> float | None:
        return min((one.age_seconds for one in self.tables.values() if one.age_seconds is not None), default=None)


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
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
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
        if not liveness.error:
            return PipelineStatus(verdict="stopped", reason="the pipeline has never run", lag=lag)
        if now - liveness.at < STALE_SECONDS:
            return PipelineStatus(verdict="stalled", reason=liveness.error, remedy=liveness.remedy, lag=lag)
        last = f"no process runs it; the last error was: {liveness.error}"
        return PipelineStatus(verdict="stopped", reason=last, remedy=liveness.remedy, lag=lag)
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
                newest = newest_change(state.source, journal, number)
                age = None if newest is None else max(0.0, now - newest)
                status = replace(status, state=phase, applied=number, rows=applied.rows, age_seconds=age)
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
            remedy=liveness.remedy if liveness.error else None,
            journal_head=journal.head,
            lag=lag,
            tables=found,
            blocked=liveness.blocked,
        )
    finally:
        journal.close()


def complete_upto(state: TableState, applied: Applied, journal: Journal) -> int:
    """Up to which change set the table is complete: its own number, or the last one before there is more for it.

    It never goes down: an idle table is at the head, and then at the one before the first that has changes of it.
    """
    at_trim = state.complete_at_trim if applied.number == state.recorded_at_trim else 0
    number = max(applied.number, at_trim)
    if number < journal.trimmed:
        return number  # a table that somebody has put back to an older version
    window = journal.window(state.source, number, journal.head)
    version = applied.schema_version
    if not (window.segments or window.target.version > version or window.open_stale_reasons(version)):
        return journal.head
    for commit in journal.commits(number):
        entry = commit.tables.get(state.source)
        has_notice = any(notice.table == state.source for notice in commit.notices)
        if has_notice or (entry is not None and (entry.segments or entry.schema_version > version)):
            return commit.number - 1
    return number


def newest_change(table: TableId, journal: Journal, upto: int) -> float | None:
    """When the newest of a table's changes up to a change set was committed in the source. None: not known any more."""
    for commit in reversed(list(journal.commits(max(0, upto - _RECENT), upto))):
        if (entry := commit.tables.get(table)) is not None and entry.segments:
            return newest_time(entry.segments[-1])
    return None


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
    if holder is None and not (liveness.error or behind or failed or lag.rows or lag.bytes) and followed:
        return "stopped", "no process runs it; every table has every change there is"
    if holder is None:
        last = f"; the last error was: {liveness.error}" if liveness.error else ""
        return "stopped", f"no process runs it; {_of(behind, tables, 'is', 'are')} behind the journal{last}"
    if failed:
        first = failed[0]
        return "stalled", f"{_of(failed, tables, 'cannot', 'cannot')} go on, {first} first: {tables[first].error}"
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
        return "healthy", f"{_of(copying, tables, 'is', 'are')} being copied{waits}"
    if behind or lag.rows:
        return "healthy", f"process {holder.pid} is applying changes{waits}"
    return "idle", "every table has every change there is"


def _of(some: Sequence[TableId], tables: Mapping[TableId, TableStatus], one: str, many: str) -> str:
    """``1 of 3 tables is``, ``2 of 3 tables are``: with the verb for one and the verb for many."""
    return f"{len(some)} of {len(tables)} table{'' if len(tables) == 1 else 's'} {one if len(some) == 1 else many}"

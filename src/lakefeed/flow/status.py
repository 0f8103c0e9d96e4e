"""Status: the state of a pipeline, asked from inside or from another process, without Spark and without the lease.

The process that runs a pipeline writes a small liveness file next to the journal once per cycle. Everything else is
read from where it is kept: table states, journal, the tables' own commits, the source.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakefeed.capture.base import Lag
from lakefeed.change.table import ByTable, TableId
from lakefeed.errors import JournalDamagedError, JournalError, LakefeedError
from lakefeed.flow.full_diff import Compared, DiffStore
from lakefeed.flow.report.answer import Asker
from lakefeed.flow.report.recorded import Recorded, load_recorded
from lakefeed.flow.report.verified import Verified, load_verified
from lakefeed.flow.result import table_frame
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.journal.lease import lease_holder
from lakefeed.journal.segment_file import oldest_time
from lakefeed.lake.base import Applied, TableFormat
from lakefeed.lake.spark.error import explained
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

_TRIES, _RECENT = 5, 256
"""How often a status is read again because of a trim, and how many change sets are searched for the newest change."""

_ASK_SECONDS = 1.5
_UNANSWERED = TimeoutError("no answer in time")

STALE_SECONDS = 60.0
"""A running process that has not finished a cycle for this long is stalled: the slowest merges take a few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyProgress:
    """A running copy. ``rows`` are those that the running process has copied; after a restart it counts from 0.

    ``share`` is from 0 to 1 and never quite 1, because ``rows_estimate`` is an estimate. None: not known.
    """

    rows: int
    rows_estimate: int
    share: float | None = None
    seconds_left: float | None = None

    @classmethod
    def of(cls, report: Mapping[str, Any], now: float) -> CopyProgress:
        """``report`` is that of ``Activity``."""
        rows, estimate, share, left = int(report["rows"]), int(report["rows_estimate"]), None, None
        if estimate > 0:
            share = min(0.99, rows / estimate)
            if rows > 0:
                left = round((now - report["began"]) * max(0, estimate - rows) / rows, 1)
        return cls(rows=rows, rows_estimate=estimate, share=share, seconds_left=left)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """``state``: staged, copying, catching up, live, blocked, dropped. ``applied``: complete up to this change set.

    ``reason`` says why a table is staged or dropped, or that it did not answer; no person is needed. ``compared``: the
    result of the last full comparison with the source, if there was one; ``verified``: that of ``lakefeed verify``.
    ``age_seconds``: how long ago the newest change in the lake table was committed in the source; None if the journal
    no longer has any of its changes. ``lag_rows``, ``lag_bytes`` and ``lag_seconds``: the changes that the journal has
    and the lake table does not, and how long ago the oldest of them was committed; 0 if there are none, None if that is
    not known. ``rows_per_second``: changes applied, mean over the last minute. ``copy``: the progress of a running
    copy. ``rules``: how many values the table's rule has changed, by kind, and how many rows its condition has left
    out. ``layout``: where the configuration now differs from the table's layout on disk, and how to apply that.
    """

    state: str
    applied: int | None = None
    rows: int | None = None
    error: str | None = None
    remedy: str | None = None
    reason: str | None = None
    compared: Compared | None = None
    age_seconds: float | None = None
    lag_rows: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    rows_per_second: float = 0.0
    copy: CopyProgress | None = None
    verified: Verified | None = None
    rules: Mapping[str, int] = field(default_factory=dict)
    layout: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedSource:
    """A source table that would feed a lake table with the rows of another one, and therefore does not."""

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

    ``remedy``: what to do if the reason is an error of the whole pipeline. ``age_seconds``: how long ago the newest
    change in any lake table was committed in the source. ``tables`` are the lake tables; ``blocked`` are second source
    tables for one of them. ``unanswered`` names what did not answer: ``source``, lake tables; ``source_error`` is what
    the source or its driver returned instead of its lag. ``reported_at``: when the running process last reported, in
    seconds since 1970; ``activity``: what it reported about itself (totals since its start, recent errors, the last
    hour in steps), as plain values.
    """

    verdict: str
    reason: str
    remedy: str | None = None
    journal_head: int = 0
    lag: Lag = field(default_factory=Lag)
    tables: Mapping[TableId, TableStatus] = field(default_factory=dict)
    blocked: tuple[BlockedSource, ...] = ()
    unanswered: tuple[str, ...] = ()
    source_error: str | None = None
    reported_at: float | None = None
    activity: Mapping[str, Any] = field(default_factory=dict)

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
        """As plain values, ready for JSON, as ``lakefeed status --json`` prints it."""
        kept = {name: getattr(self.lag, name) for name in ("retained_bytes", "left_bytes", "left_seconds")}
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "remedy": self.remedy,
            "age_seconds": self.age_seconds,
            "journal_head": self.journal_head,
            "lag": {"rows": self.lag.rows, "bytes": self.lag.bytes, "seconds": self.lag.seconds},
            "source": {**{name: value for name, value in kept.items() if value is not None}, **self.lag.source},
            "unanswered": list(self.unanswered),
            "source_error": self.source_error,
            "reported_at": self.reported_at,
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

    ``blocked`` as in PipelineStatus. ``capture_waits``: the backlog is full, and no table fails. ``is_complete``: a
    sync has just brought everything into the lake that was committed before it began. ``activity`` is the report of
    ``Activity``.
    """

    at: float = 0.0
    error: str | None = None
    remedy: str | None = None
    tables: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    blocked: tuple[BlockedSource, ...] = ()
    capture_waits: bool = False
    is_complete: bool = False
    activity: Mapping[str, Any] = field(default_factory=dict)

    def write(self, root: Path | str | Storage) -> None:
        """Without fsync. It is often written because of an error, which another error must not hide."""
        content = {
            "at": self.at,
            "error": self.error,
            "remedy": self.remedy,
            "tables": dict(self.tables),
            "blocked": [one.to_json() for one in self.blocked],
            "capture_waits": self.capture_waits,
            "is_complete": self.is_complete,
            "activity": dict(self.activity),
        }
        storage_at(root).report("liveness.json", json.dumps(content).encode())

    @classmethod
    def read(cls, root: Path | str | Storage) -> Liveness:
        """An unreadable one counts as empty: the next one follows within a second."""
        try:
            content: dict[str, Any] = json.loads(storage_at(root).read("liveness.json"))
            tables = {name: (text[0], text[1]) for name, text in content["tables"].items()}
            blocked = tuple(BlockedSource.from_json(one) for one in content.get("blocked", ()))
            return cls(**{**content, "tables": tables, "blocked": blocked})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, JournalError):
            return cls()


def read_status(
    root: Path | Storage,
    tables: TableFormat,
    lag: Lag | Callable[[], object],
    asker: Asker | None = None,
    until: float | None = None,
    *,
    now: float | None = None,
) -> PipelineStatus:
    """The status of the pipeline whose state is at ``root``.

    ``lag`` may be a function that returns a Lag, an error, or None if the source has not answered. Lake tables that
    have not answered by ``until`` (monotonic clock) are reported as such. Reads again if the running process has
    trimmed what was about to be read.
    """
    state = storage_at(root)
    asker, until = asker or Asker(), time.monotonic() + _ASK_SECONDS if until is None else until
    for _ in range(_TRIES - 1):
        try:
            return _read_once(state, tables, lag, asker, until, now)
        except JournalDamagedError:
            raise
        except JournalError as error:
            log.debug("the status is read again: %s", error)
    return _read_once(state, tables, lag, asker, until, now)


def _read_once(
    root: Storage, tables: TableFormat, asked: Lag | Callable[[], object], asker: Asker, until: float, now: float | None
) -> PipelineStatus:
    """1 what the running process reported, 2 what each lake table records, in parallel, 3 the lag, 4 the verdict"""
    liveness, now = Liveness.read(root), time.time() if now is None else now  # 1
    if not root.has_folder("commits"):
        lag, why = _lag_of(asked)
        never = PipelineStatus(
            verdict="stopped",
            reason="the pipeline has never run",
            lag=lag,
            unanswered=("source",) if why else (),
            source_error=why,
        )
        if not liveness.error:
            return never
        failed = replace(never, verdict="stalled", reason=liveness.error, remedy=liveness.remedy)
        if now - liveness.at < STALE_SECONDS:
            return failed
        return replace(failed, verdict="stopped", reason=f"no process runs it; the last error was: {liveness.error}")
    journal = Journal.read(root)
    try:
        states = sorted(TableStates(root).all().items())
        kept = load_recorded(root)
        questions = {table: partial(_recorded, tables, state, kept.get(table)) for table, state in states}
        answers = asker.begin(questions, seconds=until - time.monotonic()).answers(until)  # 2
        diffs, verified = DiffStore(root), load_verified(root)
        found: dict[TableId, TableStatus] = {}
        for table, state in states:
            status = _table_status(state, answers.get(table, _UNANSWERED), liveness, journal, now)
            compared = diffs.load(state.source).last
            if compared is not None and state.phase is not Phase.DROPPED:
                if status.error is None and compared.error is not None:  # it waits for a person, like other errors
                    text = f"full comparison: {compared.error}"
                    status = replace(status, error=text, remedy=compared.remedy)
                status = replace(status, compared=compared)
            touched = tables.table(state.route).touched(state.generation)
            found[table] = replace(status, verified=verified.get(table), rules=dict(touched))
            if state.phase is Phase.LIVE and not isinstance(answers.get(table, _UNANSWERED), Exception):
                otherwise = tables.table(state.route).laid_out_otherwise()
                found[table] = replace(found[table], layout=tuple(one.with_command(table) for one in otherwise))
        lag, why = _lag_of(asked)  # 3
        verdict, reason = _verdict(root, liveness, found, journal.head, lag, now)  # 4
        return PipelineStatus(
            verdict=verdict,
            reason=reason,
            remedy=liveness.remedy if liveness.error else None,
            journal_head=journal.head,
            lag=lag,
            tables=found,
            blocked=liveness.blocked,
            unanswered=(*(("source",) if why else ()), *(str(table) for table, _ in states if table not in answers)),
            source_error=why,
            reported_at=liveness.at or None,
            activity=liveness.activity,
        )
    finally:
        journal.close()


def _lag_of(asked: Lag | Callable[[], object]) -> tuple[Lag, str | None]:
    """The lag, and why it is not known: a source that does not answer must not break the status."""
    lag = asked() if callable(asked) else asked
    if isinstance(lag, Lag):
        return lag, None
    why = "it did not answer in time" if lag is None else lag.message if isinstance(lag, LakefeedError) else str(lag)
    log.info("the source cannot say how far behind the pipeline is: %s", why)
    return Lag(), why


def _recorded(tables: TableFormat, state: TableState, kept: Recorded | None) -> Applied | None:
    return kept.ask(tables, state) if kept is not None else tables.table(state.route).applied(state.generation)


def _table_status(
    state: TableState, answer: Applied | Exception | None, liveness: Liveness, journal: Journal, now: float
) -> TableStatus:
    """``answer`` is what the lake table records, or an error: one table must not break the status of the others."""
    activity = liveness.activity.get("tables", {}).get(str(state.table), {})
    error, remedy = liveness.tables.get(str(state.table), (None, None))
    if state.phase is Phase.BLOCKED:
        error, remedy = state.reason, state.remedy
    reason = state.reason if state.phase in (Phase.STAGED, Phase.DROPPED) and state.reason else None
    copying = state.phase is Phase.COPYING and "copy" in activity
    status = TableStatus(
        state=state.phase.value,
        error=error,
        remedy=remedy,
        reason=reason,
        rows_per_second=activity.get("rows_per_second", 0.0) if now - liveness.at < STALE_SECONDS else 0.0,
        copy=CopyProgress.of(activity["copy"], now) if copying else None,
    )
    if answer is _UNANSWERED:
        return replace(status, reason=reason or "the lake table did not answer in time; status asks again each time")
    if isinstance(answer, Exception):
        why = explained(answer, state.table)
        return replace(status, error=why.message, remedy=why.remedy)
    if answer is None:
        return status
    number = complete_upto(state, answer, journal)
    newest = newest_change(state.source, journal, number)
    # A sync that was complete has read the source's log to its end, also where the journal records an older position.
    has_all = liveness.is_complete and number == journal.head
    status = replace(
        status,
        state="catching up" if not has_all and is_catching_up(state, number, journal) else state.phase.value,
        applied=number,
        rows=answer.rows,
        age_seconds=None if newest is None else max(0.0, now - newest),
    )
    if number < journal.trimmed or state.phase is not Phase.LIVE:
        return status
    waiting = journal.window(state.source, number, journal.head).segments
    oldest = oldest_time(waiting[0]) if waiting else None
    return replace(
        status,
        lag_rows=sum(segment.counts.total for segment in waiting),
        lag_bytes=sum(segment.bytes for segment in waiting),
        lag_seconds=max(0.0, now - oldest) if oldest is not None else None if waiting else 0.0,
    )


def complete_upto(state: TableState, applied: Applied, journal: Journal) -> int:
    """Up to which change set the table is complete: its own number, or the last one before the next change for it.

    It never goes down: an idle table is at the head, and later at the one before the first that has changes for it.
    """
    at_trim = state.complete_at_trim if applied.number == state.recorded_at_trim else 0
    number = max(applied.number, at_trim)
    if number < journal.trimmed:
        return number  # somebody has restored an older version of the table
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
    """When the newest of a table's changes up to a change set was committed in the source. None: no longer known."""
    for commit in reversed(list(journal.commits(max(0, upto - _RECENT), upto))):
        if (entry := commit.tables.get(table)) is not None and entry.segments:
            return journal.newest_time(entry.segments[-1])
    return None


def is_catching_up(state: TableState, applied: int, journal: Journal) -> bool:
    """Whether a live table has not yet passed the newest state that its copy was read at."""
    if state.phase is not Phase.LIVE or state.high is None:
        return False
    reached = journal.position(applied) or state.low
    return reached is not None and not max(reached, state.low or reached) >= state.high


def _verdict(
    root: Storage, liveness: Liveness, tables: Mapping[TableId, TableStatus], head: int, lag: Lag, now: float
) -> tuple[str, str]:
    holder = lease_holder(root)
    followed = {table: status for table, status in tables.items() if status.state != Phase.DROPPED.value}
    behind = [table for table, status in followed.items() if status.applied is not None and status.applied < head]
    failed = [table for table, status in tables.items() if status.error]
    if liveness.error and (holder is not None or now - liveness.at < STALE_SECONDS):
        return "stalled", liveness.error  # between two tries nobody holds the lease
    if holder is None:
        return "stopped", f"no process runs it; {_left_behind(liveness, tables, behind, failed, lag, now)}"
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


def _left_behind(
    liveness: Liveness,
    tables: Mapping[TableId, TableStatus],
    behind: Sequence[TableId],
    failed: Sequence[TableId],
    lag: Lag,
    now: float,
) -> str:
    """What the last running process has left undone. PostgreSQL's log grows even if no table changes."""
    if liveness.error:
        return f"the last error was: {liveness.error}"
    if failed:
        return f"{_of(failed, tables, 'cannot', 'cannot')} go on"
    if behind:
        return f"{_of(behind, tables, 'is', 'are')} behind the journal"
    if lag.rows:
        return f"{lag.rows:,} change{' waits' if lag.rows == 1 else 's wait'} in the source"
    if lag.rows == 0 or lag.bytes == 0:
        return "every table has every change there is"
    if liveness.is_complete:
        since = f"; the source has written {lag.bytes:,} bytes of log since" if lag.bytes else ""
        return f"every table had every change when the last sync ended, {now - liveness.at:,.0f} s ago{since}"
    return "every table has every change of the journal, and the source may have more"


def _of(some: Sequence[TableId], tables: Mapping[TableId, TableStatus], one: str, many: str) -> str:
    """``1 of 3 tables is``, ``2 of 3 tables are``: with the verb for one and the verb for many."""
    return f"{len(some)} of {len(tables)} table{'' if len(tables) == 1 else 's'} {one if len(some) == 1 else many}"

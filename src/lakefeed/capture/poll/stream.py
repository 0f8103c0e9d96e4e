"""PollStream: one cycle after another over all tables, each a change set if it found anything.

Steps of one cycle:
  1. the catalog: definitions that changed, tables that are gone
  2. the horizon, before any row is read
  3. every table that is not still being read is polled, several at a time
  4. what has ended within the patience becomes one change set; a slow table's rows are in a later one
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from lakefeed.capture.dialect import DescribedTable, Dialect, Horizon, Session
from lakefeed.capture.poll.choice import Choice
from lakefeed.capture.poll.crew import Crew
from lakefeed.capture.poll.drift import recopy_notice, text_columns
from lakefeed.capture.poll.event import Events, change_batches
from lakefeed.capture.poll.findings import FindingsDirectory
from lakefeed.capture.poll.followed import Followed, follow, unordered
from lakefeed.capture.poll.follower import Follower, Step
from lakefeed.capture.poll.reading import Cursor
from lakefeed.change.change_set import ChangeSet, RecopyNeeded, TableBlocked, TableDropped, TableNotice
from lakefeed.change.table import TableId, TableSchema
from lakefeed.change.watermark import Mark, Watermark
from lakefeed.errors import ConfigError, LakefeedError, Retry, StateError

_CATALOG_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """``poll_seconds`` lie between two cycles that find nothing. ``parallel`` tables are read at a time. A table that
    takes longer than ``patience_seconds`` is not waited for: the others go on without it."""

    poll_seconds: float = 1.0
    parallel: int = 4
    patience_seconds: float = 1.0


@dataclass(slots=True)
class _Cycle:
    """What one cycle has found so far."""

    events: list[Events] = field(default_factory=list)
    schemas: list[TableSchema] = field(default_factory=list)
    notices: list[TableNotice] = field(default_factory=list)
    marks: dict[str, Mark] = field(default_factory=dict)


class PollStream:
    """Belongs to one thread. ``position`` is where the last change set ended.

    ``stale``: tables that go on from a new mark once they are prepared again, because changes were missed or they were
    stopped. One whose definition changed is not among them: a lake table may go on without a copy.
    """

    def __init__(self, connector: Dialect, choice: Choice, findings: Path | None, pace: Pace) -> None:
        self._connector = connector
        self._choice = choice
        self.findings = findings
        self._pace = pace
        self._followers: dict[TableId, Follower] = {}
        self._blocked: set[TableId] = set()
        self._polled: dict[TableId, Follower] = {}
        self._looked_at = 0.0
        self._crew: Crew | None = None
        self.known: dict[TableId, TableSchema] = {}
        self.stale: set[TableId] = set()
        self.position = Watermark()

    @property
    def tables(self) -> tuple[TableId, ...]:
        return tuple(self._followers)

    @property
    def is_reading(self) -> bool:
        """A table takes longer than the patience, and is still being read."""
        return self._crew is not None and self._crew.is_working

    def followed(self) -> list[tuple[Followed, Mark]]:
        """What is followed, and from where. Any thread."""
        return [(one.followed, one.cursor.mark) for one in list(self._followers.values())]

    def seek(self, session: Session, position: Watermark, tables: Iterable[TableId]) -> None:
        """Go on after ``position`` with ``tables``; one that it has no mark of is read from its beginning."""
        self.close()
        self._crew = Crew(self._connector, self._pace.parallel)
        self.position = position
        self._blocked -= set(tables)
        self._followers = {}
        for table, source in session.describe(list(tables)).items():
            self.add(source, dict(position.marks).get(str(table), Mark.start()))

    def add(self, source: DescribedTable, mark: Mark) -> None:
        """Follow a table, from ``mark`` on, as it was delivered last or as it is now."""
        known = self.known.get(source.id)
        followed = follow(source, self._choice.rule(source.id), text_columns(known, source))
        self.known.setdefault(source.id, followed.schema)
        if mark.key and len(mark.key) != len(followed.key):
            mark = Mark.start(mark.era + 1)  # the table was made anew with another key while nobody looked
        follower = Follower(self._connector, followed, self.findings)
        follower.seek(mark, dict(self.position.marks).get(FindingsDirectory.mark_name(source.id)))
        self._followers[source.id] = follower
        self._blocked.discard(source.id)
        self.stale.discard(source.id)

    def cut(self, session: Session) -> ChangeSet | None:
        """One cycle. None: nothing has changed, and nothing has moved."""
        cycle = _Cycle()
        self._follow_catalog(session, cycle)
        horizon = session.horizon()
        crew = self._working_crew()
        for table, follower in self._followers.items():
            if table not in self._blocked and not crew.is_busy(table):
                self._polled[table] = follower
                crew.start(table, partial(follower.poll, horizon=horizon))
        for table, outcome in crew.gather(self._pace.patience_seconds).items():
            self._take(session, table, outcome, cycle)
        return self._change_set(cycle, horizon)

    def forget(self, confirmed: Watermark) -> None:
        """Findings up to ``confirmed`` are durable elsewhere."""
        marks = dict(confirmed.marks)
        for table, follower in self._followers.items():
            if (mark := marks.get(FindingsDirectory.mark_name(table))) is not None:
                follower.forget(mark)

    def close(self) -> None:
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.close()

    def _working_crew(self) -> Crew:
        if self._crew is None:
            raise StateError("the capture is not open", remedy="Call open first.")
        return self._crew

    def _take(self, session: Session, table: TableId, outcome: Step | LakefeedError, cycle: _Cycle) -> None:
        follower = self._followers.get(table)
        if follower is None or follower is not self._polled.get(table):
            return  # dropped, or begun anew while it was read
        if isinstance(outcome, LakefeedError):
            self._failed(session, follower, outcome, cycle)
            return
        if outcome.misfit is not None:
            self._retype(follower, outcome.misfit, cycle)
            return
        cycle.marks[str(table)] = outcome.mark
        if outcome.found is not None:
            cycle.marks[FindingsDirectory.mark_name(table)] = outcome.found
        cycle.events += outcome.events
        self._note(outcome.notices, cycle)

    def _failed(self, session: Session, follower: Follower, error: LakefeedError, cycle: _Cycle) -> None:
        """One table's own error stops that table; the database's is the caller's."""
        if error.retry is Retry.BACKOFF or isinstance(error, StateError):
            raise error
        now = session.describe([follower.id]).get(follower.id)
        if now is None or now != follower.followed.table:
            self._looked_at = 0.0  # its definition changed under the query: the next cycle follows that first
            return
        self._block(follower.id, error, cycle)

    def _block(self, table: TableId, error: LakefeedError, cycle: _Cycle) -> None:
        self._blocked.add(table)
        self._note([TableBlocked(table, error.message, error.remedy)], cycle)

    def _note(self, notices: Sequence[TableNotice], cycle: _Cycle) -> None:
        cycle.notices += notices
        self.stale |= {
            notice.table for notice in notices if not isinstance(notice, RecopyNeeded) or notice.columns is None
        }

    def _follow_catalog(self, session: Session, cycle: _Cycle) -> None:
        interval = min(_CATALOG_SECONDS, self._pace.poll_seconds)
        if time.monotonic() - self._looked_at < interval:
            return
        crew = self._working_crew()
        idle = [table for table in self._followers if table not in self._blocked and not crew.is_busy(table)]
        described = session.describe(idle)
        self._looked_at = time.monotonic()
        for table in idle:
            if table not in described:
                del self._followers[table]
                self._note([TableDropped(table)], cycle)
            else:
                self._follow(session, self._followers[table], described[table], cycle)

    def _follow(self, session: Session, follower: Follower, source: DescribedTable, cycle: _Cycle) -> None:
        known = self.known[follower.id]
        if source == follower.followed.table and known.same_shape(follower.followed.schema):
            return
        try:
            new = follow(source, self._choice.rule(source.id), text_columns(known, source))
        except ConfigError as error:
            self._block(source.id, error, cycle)
            return
        follower.followed = new
        if new.schema.same_shape(known):
            return
        if new.schema.key != known.key:
            follower.cursor = Cursor(Mark.start(follower.cursor.era + 1))
        notice = recopy_notice(known, new.schema, partial(follower.is_filled, session))
        self._reshape(follower, new, notice, cycle)

    def _retype(self, follower: Follower, column: str, cycle: _Cycle) -> None:
        """Values of several types make a column text for good, so that nothing is rounded, cut or nulled."""
        old = follower.followed
        if column in old.ordering or column not in old.schema.names:
            self._block(old.id, unordered(old.id, column), cycle)
            return
        texts = text_columns(self.known[old.id], old.table) | {column}
        new = follow(old.table, old.rule, texts)
        follower.followed = new
        reason = f"values that the declared type does not fit make it text: {column}"
        self._reshape(follower, new, RecopyNeeded(new.id, reason, (column,)), cycle)

    def _reshape(self, follower: Follower, new: Followed, notice: RecopyNeeded | None, cycle: _Cycle) -> None:
        follower.cursor = replace(follower.cursor, fresh=None)
        self.known[new.id] = new.schema
        cycle.schemas.append(new.schema)
        if notice is not None:
            self._note([notice], cycle)

    def _change_set(self, cycle: _Cycle, horizon: Horizon) -> ChangeSet | None:
        marks: Mapping[str, Mark] = {**dict(self.position.marks), **cycle.marks}
        end = Watermark.of(marks)
        rows = sum(events.count for events in cycle.events)
        start, self.position = self.position, end
        if not rows and not cycle.schemas and not cycle.notices and end == start:
            return None
        batches = change_batches(cycle.events, end, horizon.now_us)
        return ChangeSet(start, end, batches, rows, tuple(cycle.schemas), tuple(cycle.notices))

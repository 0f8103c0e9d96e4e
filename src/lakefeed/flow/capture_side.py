"""The source's side of a pipeline: which tables take part, and their changes into the journal.

Belongs to one thread at a time. The order at the start is the one of ``ChangeCapture``; between any two steps the
process may die, and the next start goes on from what is durable:
  1. continuity       a position that the source has lost stops the pipeline, loudly
  2. stage            tables that the lake does not have get a copy, before the source is touched
  3. prepare, plan    the resume point exists, then the plan of the copy; both durable (copy COPYING)
  4. poll, append     a change set is durable in the journal …
  5. notices          … what it says about tables is in the states …
  6. commit           … and only then is the source told that it may forget
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator

from lakefeed.capture.base import ChangeCapture, Continuity
from lakefeed.change.change_set import RecopyNeeded, TableBlocked, TableDropped, TableNotice
from lakefeed.change.position import Position
from lakefeed.change.table import TableId
from lakefeed.embed.runtime import Runtime
from lakefeed.errors import (
    ConfigError,
    DecodeError,
    LakefeedError,
    PositionLostError,
    SourceSetupError,
    TableStoppedError,
)
from lakefeed.flow.journal_checkpoint import JournalCheckpoint
from lakefeed.flow.listener import Listener
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.journal.commit import Commit
from lakefeed.journal.journal import Journal
from lakefeed.lake.base import TableFormat
from lakefeed.lake.mode import described
from lakefeed.lake.route import Route

log = logging.getLogger(__name__)

_A_LITTLE_ROWS = 1_000

_A_TABLES_OWN = (SourceSetupError, TableStoppedError, DecodeError)
"""Errors of ``prepare`` and ``snapshot`` that are one table's, and must not hold up the others."""


_NOT_THERE = "no table pattern of the configuration matches its source table, or the source has it no more"
_GONE = "the source table was dropped or renamed"
_AGAIN = "the source table is there again"

_FOLLOWED = (Phase.STAGED, Phase.COPYING, Phase.LIVE, Phase.BLOCKED)


class CaptureSide:
    """See the module. ``tables`` is only asked what it has: whether a table needs a copy is the lake's answer."""

    def __init__(
        self, capture: ChangeCapture, journal: Journal, states: TableStates, tables: TableFormat, listener: Listener
    ) -> None:
        self._capture = capture
        self._journal = journal
        self._states = states
        self._tables = tables
        self._listener = listener
        self._runtime: Runtime | None = None
        self._copying: set[TableId] = set()

    def open(self) -> None:
        """Steps 1 to 3, then ready to poll."""
        self._capture.open()
        self._adopt()
        self._resume()
        self._stage_again(self._leave_out())
        self.enrol()
        self._adopt()
        store = JournalCheckpoint(self._journal, self._capture.kind)
        self._runtime = Runtime(self._capture, store, key="journal")
        self._runtime.start()

    def close(self) -> None:
        """What was polled and not committed is delivered again next time: force_stop loses nothing."""
        if self._runtime is not None:
            self._runtime.force_stop()
            self._runtime = None
        self._capture.close()

    def enrol(self) -> bool:
        """Take in tables that are new to the pipeline, and plan the copy of all that are staged.

        A table that cannot be prepared or planned is blocked, with the reason and the remedy; the others go on.
        Returns whether there is something new to copy.
        """
        there = {schema.table for schema in self._capture.discover()}
        routes = {route.table: route for table in sorted(there) for route in self._tables.routes(table)}
        for route in routes.values():
            self._take_in(route)
        for record in self._states.in_phase(*_FOLLOWED):
            if record.source in there and record.table not in routes and not record.leaving:
                self._leave(record, "it is no longer in the configuration", ends_at=self._journal.head)
        staged = self._states.in_phase(Phase.STAGED)
        for record in staged:
            if record.source not in there:
                self._end(record)
        wanted = [record for record in staged if record.source in there]
        planned = [self._plan(record, low) for record, low in self._prepared(wanted)]
        return any(planned)

    def _take_in(self, route: Route) -> None:
        record = self._states.get(route.table)
        if record is None:
            self._states.stage(route, reason="new in the pipeline")
        elif record.phase is Phase.DROPPED:
            self._states.stage(route, reason=_AGAIN)
        elif record.route != route:
            raise ConfigError(
                f"lake table {route.table} was made as {described(record.mode)} of {record.source}; the configuration "
                f"now says {described(route.mode)} of {route.source}",
                remedy=f"Put the configuration back, or make the table anew: lakefeed rebuild FILE {route.table}",
            )

    @property
    def has_staged(self) -> bool:
        """Some table waits for ``enrol``: a change set said that it must be copied anew."""
        return bool(self._states.in_phase(Phase.STAGED))

    def take(self, *, wait_seconds: float) -> list[Commit]:
        """Steps 4 to 6, once: what the source has to give now, or nothing after the wait."""
        assert self._runtime is not None  # noqa: S101  # open() comes first
        self._end_copies()
        delivery = self._runtime.poll(wait_seconds=wait_seconds)
        if delivery is None and wait_seconds > 0 and self._leaving():
            delivery = self._runtime.poll(wait_seconds=0.0)  # only without a wait "nothing" is all there is
        if delivery is None:
            self._end_leaving()
            return []
        commits = []
        for done, change_set in enumerate(delivery.change_sets, start=1):
            commit = self._journal.append(change_set)
            self._act_on_notices(commit)
            self._runtime.commit(delivery.token, prefix=done)
            self._listener.captured(commit)
            commits.append(commit)
        return commits

    def drain(self) -> int:
        """Take all that is there now. Returns the number of change sets.

        A source that is written to all the time always has a little more: small change sets end it after a second.
        """
        total, started = 0, time.monotonic()
        while commits := self.take(wait_seconds=0.0):
            total += len(commits)
            if time.monotonic() - started > 1.0 and sum(commit.rows for commit in commits) < _A_LITTLE_ROWS:
                break
        return total

    def _end_copies(self) -> None:
        """Tell the source which of the copies planned here are over: the lake's side, in another thread, ends them."""
        copying = {record.source for record in self._states.in_phase(Phase.COPYING)}
        for table in self._copying - copying:
            self._capture.copied(table)
        self._copying &= copying

    def _resume(self) -> None:
        captured = sorted({record.source for record in self._states.in_phase(Phase.COPYING, Phase.LIVE)})
        continuity = self._capture.continuity(self._journal.end, captured)
        if continuity is Continuity.FRESH and self._journal.head > 0:
            raise PositionLostError(
                f"the journal ends at {self._journal.end}, but the source knows nothing of this pipeline",
                remedy="Restore the source, or move the pipeline's state directory away to copy every table anew.",
            )
        if continuity is Continuity.FRESH:
            for record in self._states.in_phase(Phase.COPYING, Phase.LIVE):
                self._states.stage(record.route, reason="the source has no resume point")
        self._recall(Phase.COPYING, Phase.LIVE, Phase.BLOCKED)
        if self._journal.head > 0:
            # The process may have died between the append of the newest change set and its notices.
            self._act_on_notices(self._journal.commit(self._journal.head))

    def _recall(self, *phases: Phase) -> None:
        """A blocked table too: the source then knows that it is one of ours, and says what is wrong with it now."""
        sources = sorted({record.source for record in self._states.in_phase(*phases)})
        self._capture.recall([schema for schema in map(self._journal.latest_schema, sources) if schema is not None])

    def _adopt(self) -> None:
        """Another database than the journal's is refused before anything is changed in it.

        A source has its identity from ``prepare`` at the latest, so this is done before and after it.
        """
        identity = self._capture.identity()
        if identity is not None:
            self._journal.adopt(identity)

    def _leave_out(self) -> set[TableId]:
        """Tables that are not among those to follow. Only at the start, when the patterns may be other ones.

        A table that is dropped while we run is told by the stream, after its last changes. Returns those there are.
        """
        there = {schema.table for schema in self._capture.discover()}
        for record in self._states.in_phase(Phase.COPYING, Phase.LIVE, Phase.BLOCKED):
            if record.ends_at is None and record.source not in there:
                self._end(record)
            elif record.ends_at is None and record.leaving:  # there again, and a new table: this one has ended
                self._states.update(record.table, ends_at=self._journal.head)
        return there

    def _end(self, record: TableState) -> None:
        """A table that the source does not offer: it waits for a person if the source says what is wrong with it.

        The source may have changes of it yet to give, and the journal some that the lake table does not have.
        """
        found = [finding for finding in self._capture.check() if finding.table == record.source]
        if found:
            self._states.update(record.table, phase=Phase.BLOCKED, reason=found[0].problem, remedy=found[0].remedy)
        else:
            # One that is not wanted any more gets no more than what was captured while it was.
            self._leave(record, _NOT_THERE, ends_at=None if self._capture.wants(record.source) else self._journal.head)

    def _leave(self, record: TableState, reason: str, *, ends_at: int | None, **noticed: int) -> None:
        """The table is not followed any more; one that is live first gets its changes up to ``ends_at``, or all."""
        if record.phase is Phase.LIVE:
            self._states.update(record.table, leaving=True, ends_at=ends_at, reason=reason, **noticed)
        else:
            log.warning("lake table %s stays as it is: %s", record.table, reason)
            self._states.update(record.table, phase=Phase.DROPPED, reason=reason, **noticed)

    def _end_leaving(self) -> None:
        """The source has nothing more to give now: what has left by then has had its last change."""
        for record in self._leaving():
            self._states.update_if(record, ends_at=self._journal.head)

    def _leaving(self) -> list[TableState]:
        """Tables that have left, and may have changes that the source has yet to give."""
        return [record for record in self._states.in_phase(Phase.LIVE) if record.leaving and record.ends_at is None]

    def _stage_again(self, there: Collection[TableId]) -> None:
        """Tables that the lake has lost; and those that were blocked: a person may have followed the remedy."""
        for record in self._states.in_phase(Phase.LIVE, Phase.BLOCKED):
            if record.phase is Phase.BLOCKED and record.source not in there:
                continue
            if record.phase is Phase.BLOCKED:
                self._states.stage(record.route, reason=f"tried again after: {record.reason}")
            elif self._tables.table(record.route).applied(record.generation) is None:
                log.warning("table %s is gone from the lake; it is copied anew", record.table)
                self._states.stage(record.route, reason="the lake table is gone")

    def _prepared(self, staged: list[TableState]) -> Iterator[tuple[TableState, Position]]:
        """All at once if the source lets us; one by one to find the table that it does not."""
        if not staged:
            return
        try:
            low = self._capture.prepare(sorted({record.source for record in staged}))
            yield from ((record, low) for record in staged)
        except _A_TABLES_OWN as error:
            if len(staged) == 1:
                self._block(staged[0], error)
                return
            for record in staged:
                yield from self._prepared([record])

    def _plan(self, record: TableState, low: Position) -> bool:
        try:
            plan = self._capture.snapshot(record.source)
        except _A_TABLES_OWN as error:
            self._block(record, error)
            return False
        schema = self._journal.record_schema(plan.schema, low)
        self._capture.recall([schema])
        self._states.update(
            record.table,
            phase=Phase.COPYING,
            schema=schema,
            base=self._journal.head,
            low=low,
            chunks=tuple(chunk.to_json() for chunk in plan.chunks),
            rows_estimate=plan.rows_estimate,
        )
        self._copying.add(record.source)
        return True

    def _block(self, record: TableState, error: LakefeedError) -> None:
        self._states.update(record.table, phase=Phase.BLOCKED, reason=error.message, remedy=error.remedy)

    def _act_on_notices(self, commit: Commit) -> None:
        """Idempotent: a copy remembers up to which change set it has been told."""
        for notice in commit.notices:
            fed = [record for record in self._states.all().values() if record.source == notice.table]
            for record in fed:
                if record.noticed < commit.number:
                    self._act_on(notice, record, commit.number)

    def _act_on(self, notice: TableNotice, record: TableState, number: int) -> None:
        if isinstance(notice, RecopyNeeded):
            # A table that is live has the notice in its next window, and the lake's policy says what becomes of it.
            outdated = record.phase is Phase.COPYING and record.base < number
            if outdated or record.phase is Phase.BLOCKED:
                log.warning("table %s is copied anew: %s", record.table, notice.reason)
                self._states.stage(record.route, reason=notice.reason, noticed=number)
        elif isinstance(notice, TableDropped):
            self._leave(record, _GONE, ends_at=number, noticed=number)
        elif isinstance(notice, TableBlocked):
            blocked = {"phase": Phase.BLOCKED, "reason": notice.reason, "remedy": notice.remedy}
            self._states.update(record.table, noticed=number, **blocked)

"""The lake's side of a pipeline: applies the journal to the live tables, then trims it.

Belongs to one thread at a time. It runs beside the stream, which only ever adds to the journal, and beside the copies,
which work on other tables. Nothing here moves progress by itself: a table's own commit does, and only what every table
has is trimmed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from lakefeed.change.table import TableId
from lakefeed.errors import LakeError, RebuildCause
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.result import CycleResult
from lakefeed.flow.retry import Backoff, TableErrors
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.lake.base import TableFormat, TableResult
from lakefeed.lake.engine import Engine, Enrolled

log = logging.getLogger(__name__)

TRIM_EVERY = 64
"""Change sets between two trims: a trim lists directories and writes the states, which a sync should not."""


_RECOPY_SECONDS = (5.0, 3600.0)
"""The first and the longest pause between copies of a table that copying does not help."""


class LakeSide:
    """See the module. ``may_trim`` is asked before a trim: see ``TableCopies.is_planning``."""

    def __init__(
        self,
        tables: TableFormat,
        journal: Journal,
        states: TableStates,
        errors: TableErrors,
        options: PipelineOptions,
        listener: Listener,
        *,
        may_trim: Callable[[], bool],
    ) -> None:
        self._tables = tables
        self._journal = journal
        self._states = states
        self._errors = errors
        self._listener = listener
        self._may_trim = may_trim
        self._keep = options.journal.keep_change_sets
        self._most_bytes = options.max_backlog_bytes
        parallel = options.parallel_tables or max(2, min(8, os.cpu_count() or 2))
        self.engine = Engine(tables, journal, self._enrolled, parallel=parallel)
        self._applying: frozenset[TableId] = frozenset()
        self._reported: set[tuple[TableId, int]] = set()
        self._recopies: dict[TableId, Backoff] = {}  # pauses of tables that their copies do not help
        self.ended = False
        """The last sync has brought a table to its end. If its name is used again, that is a new table."""

    def is_applying(self, table: TableId) -> bool:
        """Whether the current sync may be writing to that lake table. Any thread."""
        return table in self._applying

    def recorded(self, state: TableState) -> int | None:
        """The change set that the table's own newest commit has; None if no sync has asked it yet. Any thread."""
        known = self.engine.known(state.table, state.generation)
        return known.applied.number if known is not None else None

    @property
    def is_full(self) -> bool:
        """Whether more than ``max_backlog_bytes`` of the journal wait for some table. Any thread."""
        return self._journal.backlog_bytes(self._complete_everywhere()) > self._most_bytes

    def backlog(self) -> tuple[int, float]:
        """What waits in the journal for live tables: bytes on disk, and the age of the oldest in seconds. Any thread.

        A table that no sync has asked yet counts as complete, because it is not known what it has.
        """
        live = self._states.in_phase(Phase.LIVE)
        known = (self.engine.known(state.table, state.generation) for state in live)
        complete = min((one.complete for one in known if one is not None), default=self._journal.head)
        if complete >= self._journal.head or complete < self._journal.trimmed:
            return 0, 0.0
        oldest = self._journal.commit(complete + 1).written_at
        return self._journal.backlog_bytes(complete), max(0.0, time.time() - oldest.timestamp())

    def full_error(self, *, is_running: bool = False) -> LakeError | None:
        """Why capture waits, if the backlog is full because of tables that cannot be written. Any thread.

        ``is_running``: the tables are retried, so the error says what happens next.
        """
        failed = self._errors.all()
        if not failed or not self.is_full:
            return None
        first, remedy = next(iter(failed.values()))
        rest, then = self._errors.alone_seconds(), ""
        if is_running and rest is None:
            then = ". Several tables fail, so the lake may be down: capture waits, and no changes are given up"
        elif is_running:
            then = f". If it goes on, the changes of this table are given up in {rest:.0f} s, and capture goes on"
        return LakeError(
            f"capture has stopped: more than {self._most_bytes:,} bytes of changes wait for tables that "
            f"cannot be written ({', '.join(map(str, sorted(failed)))}): {first.rstrip('.')}{then}",
            remedy=remedy,
        )

    def sync(self) -> CycleResult:
        """Apply what is new, trim what all tables have."""
        try:
            synced = self.engine.sync_once()
            applied = self._applying
        finally:
            self._applying = frozenset()
        for table in sorted(applied, key=lambda table: table not in synced.tables or not synced.tables[table].error):
            result = synced.tables.get(table)  # failed tables come first: see ``TableErrors.is_its_own``
            if result is None:
                self._errors.forget(table)  # it has everything, whatever its last commit returned
            elif result.rebuild is not None and self._copies_again(table, result.rebuild):
                # A new generation of the table, which the copies' thread plans in its next turn.
                state = self._states.get(table)
                if state is not None and state.phase is Phase.LIVE:
                    self._states.stage_if(state, reason=result.error or "")
                self._errors.forget(table)
                self._listener.table_error(table, result.error or "", result.remedy or "")
            else:
                self._errors.record(table, result)
                if result.error is None:
                    self._recopies.pop(table, None)
        self.ended = False
        for state in self._states.in_phase(Phase.LIVE):
            complete = self.engine.complete(state.table, state.generation)
            if state.last_change_set is not None and complete is not None and complete >= state.last_change_set:
                log.warning("lake table %s stays as it is: %s", state.table, state.reason)
                self.ended = self._states.update_if(state, phase=Phase.DROPPED) or self.ended
        self.trim(at_least=1 if self._let_go() else TRIM_EVERY)
        results = dict(synced.tables)
        for state in self._states.in_phase(Phase.BLOCKED):  # by either side; each is reported once
            if (state.table, state.generation) not in self._reported:
                self._reported.add((state.table, state.generation))
                self._listener.table_error(state.table, state.reason, state.remedy)
                results[state.table] = TableResult(applied=0, error=state.reason, remedy=state.remedy)
        return CycleResult.of(results, self._journal.end if results else None, last_seq=synced.last_seq)

    def _copies_again(self, table: TableId, cause: RebuildCause) -> bool:
        """Whether the table is copied again now. Copies that do not help are made less and less often.

        One copy settles what the source did: if the same cause comes again, the source has done something else since.
        """
        if cause is RebuildCause.SOURCE:
            return True
        pause = self._recopies.setdefault(table, Backoff(*_RECOPY_SECONDS))
        is_over = pause.is_over
        if is_over:
            pause.failed()
        return is_over

    def _let_go(self) -> bool:
        """Block a table that fails while the backlog is full of its changes: one table's trouble stays its own.

        The journal then keeps no changes for it, capture goes on for the others, and the next start copies it again.
        """
        found = False
        for state in self._states.in_phase(Phase.LIVE, Phase.COPYING):
            if not self._errors.is_its_own(state.table):
                continue
            if self._journal.backlog_bytes(self._complete(state)) <= self._most_bytes:
                continue
            error, remedy = self._errors.all()[state.table]
            reason = (
                f"{error.rstrip('.')}. More than {self._most_bytes:,} bytes of changes waited for it: they are given up"
            )
            after = "Then start the pipeline again: it copies the table again."
            if self._states.update_if(state, phase=Phase.BLOCKED, reason=reason, remedy=f"{remedy} {after}"):
                self._errors.forget(state.table)
                found = True
        return found

    def trim(self, *, at_least: int = 1) -> None:
        """Trim what every table has, if that is ``at_least`` this many change sets more than retention keeps."""
        head = self._journal.head
        if not self._may_trim():  # a base that is chosen from here on is not below ``head`` …
            return
        upto = min(head, self._complete_everywhere())  # … and one that was chosen before is in its table's state
        if upto - self._journal.trimmed < at_least + self._keep:  # a cheap first test
            return
        if self._journal.trim_mark(upto) - self._journal.trimmed < at_least:
            return
        needed: dict[TableId, set[int]] = {}
        for state in self._states.in_phase(Phase.LIVE, Phase.COPYING):
            needed.setdefault(state.source, set()).update({state.schema.version} if state.schema else ())
            known = self.engine.known(state.table, state.generation)
            if known is None:
                continue
            # Save what only the journal knows before it is trimmed.
            reached = self._journal.position(known.complete)
            is_past = state.high is not None and reached is not None and reached >= state.high
            self._states.update_if(
                state,
                recorded_at_trim=known.applied.number,
                complete_at_trim=known.complete,
                high=None if is_past else state.high,  # a table that has passed its copy stays past it
            )
            needed[state.source].add(known.applied.schema_version)
        self._journal.trim(upto, needed=needed)

    def _enrolled(self) -> dict[TableId, Enrolled]:
        """The tables of one sync. One that stops being live after this is not copied until the sync is over."""
        with self._states.lock:
            live = [state for state in self._states.in_phase(Phase.LIVE) if not self._errors.is_paused(state.table)]
            self._applying = frozenset(state.table for state in live)
            for state in live:  # the configuration may have changed since the last start
                if state.evolution != (evolution := self._tables.evolution(state.route)):
                    self._states.update(state.table, evolution=evolution)
        return {
            state.table: Enrolled(
                state.route,
                state.generation,
                state.recorded_at_trim,
                state.complete_at_trim,
                copied_from=state.low,
                exact_at=state.high,
                is_exact=state.high is not None and (state.is_exact or state.high == state.exact_at),
                ends_at=state.last_change_set,
            )
            for state in live
        }

    def _complete_everywhere(self) -> int:
        """The change set up to which every table is complete."""
        followed = self._states.in_phase(Phase.LIVE, Phase.COPYING)
        return min([self._journal.head, *(self._complete(state) for state in followed)])

    def _complete(self, state: TableState) -> int:
        """The change set up to which a table is complete; a table being copied starts at its base."""
        known = self.engine.known(state.table, state.generation)
        return max(state.base, state.complete_at_trim, known.complete if known else 0)

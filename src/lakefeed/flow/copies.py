"""Which tables take part, and their copies: discover, prepare, plan, read. Beside the stream, never in its way.

Belongs to one thread at a time; in ``run`` that is a thread of its own (``ChangeCapture`` has the contract). The steps
of one copy, each of which makes the next one safe while the stream appends to the journal at the same time:
  1. STAGED    the copy is decided, durably, before the source is touched
  2. prepare   from here on the source's log, and so a later change set, has every change of the table
  3. base      the journal's head is read, not before this step
  4. plan      the capture says which chunks to read, no older than what the stream has delivered by now
  5. COPYING   base and plan are durable; nothing is trimmed between 3 and 5, so that the journal continues from base
  6. read      each chunk is read at some state of the source, none older than the plan
  7. LIVE      the lake table has the rows, and its commit records ``applied = base``

Why this is right: change sets up to base were delivered before the plan, so every chunk includes their changes. Change
sets after base are applied on top, whether or not a chunk already has their changes: the journal has every change of
the table since 2, and applying a change to a row that already has it leaves the row as it is. How far the stream moves
between 3 and 7 does not matter: base can only be too low, which costs applying changes twice, and never too high, which
would lose changes. A notice between 3 and 7 is in the table's first window, or stages the table again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

from lakefeed.capture.base import ChangeCapture
from lakefeed.change.choice import Choices
from lakefeed.change.position import Position
from lakefeed.change.segment import Counts
from lakefeed.change.table import TableId
from lakefeed.errors import (
    ConfigError,
    DecodeError,
    LakefeedError,
    SourceSetupError,
    StateError,
    TableStoppedError,
)
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.result import CycleResult
from lakefeed.flow.retry import TableErrors
from lakefeed.flow.shape import UNUSED, Shape
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.lake.base import TableCopy, TableFormat, TableResult
from lakefeed.lake.engine import CONCERNS_ALL
from lakefeed.lake.route import Clash, settled
from lakefeed.lake.spark.error import explained, first_line

log = logging.getLogger(__name__)

_A_TABLES_OWN = (SourceSetupError, TableStoppedError, DecodeError)
"""Errors of ``prepare`` and ``snapshot`` that concern one table, and must not stop the others."""

_APPLYING_SECONDS = 0.05


class _Stopped(BaseException):  # nothing is wrong, and no handler of errors is to take it for one
    """The copy stops after the current group of chunks. It continues the next time."""


def wanted_of_source(choices: Choices, journal: Journal, states: TableStates) -> Choices:
    """The rules, with the types that tables have now: they keep them until somebody rebuilds them."""
    kept = {state.source for state in states.all().values() if not state.renewed or state.phase is not Phase.STAGED}
    schemas = [journal.latest_schema(source) for source in sorted(kept)]
    return choices.keeping([schema.whole for schema in schemas if schema is not None])


class TableCopies:
    """See the module. ``tables`` says what the lake has: the lake decides whether a table needs a copy.

    ``is_applying``: whether the lake's side is writing to that lake table right now (to an earlier generation of it).
    ``report`` is called while rows arrive, to show that the process is alive.
    """

    def __init__(
        self,
        capture: ChangeCapture,
        journal: Journal,
        states: TableStates,
        tables: TableFormat,
        shape: Shape,
        errors: TableErrors,
        listener: Listener,
        *,
        is_applying: Callable[[TableId], bool],
        report: Callable[[], None],
    ) -> None:
        self._capture = capture
        self._journal = journal
        self._states = states
        self._tables = tables
        self._shape = shape
        self._errors = errors
        self._listener = listener
        self._is_applying = is_applying
        self._report = report
        self._planned: set[TableId] = set()
        self._refusals: set[tuple[TableId, int]] = set()
        self.clashes: tuple[Clash, ...] = ()
        """Second source tables for a lake table that already has one, as of the last ``enrol``. Any thread."""
        self._planning = threading.Event()

    @property
    def is_planning(self) -> bool:
        """Whether a base is chosen and not durable yet (steps 3 to 5), so that nothing may be trimmed. Any thread."""
        return self._planning.is_set()

    def begin(self) -> None:
        """Called at a start, before the stream: finds what changed in configuration, source and lake meanwhile.

        The stream itself reports a table that is dropped while it runs, after the table's last changes.
        """
        schemas = self._capture.discover()
        there = {schema.table for schema in schemas}
        # A rule that has matched before is not a mistake in the file: a missing column concerns its table only.
        sources = {state.source for state in self._states.all().values()}
        known = [one.whole for source in sources for one in self._journal.schemas.versions(source).values()]
        unused = self._tables.unused([*schemas, *known])
        if unused:
            raise ConfigError("; ".join(unused), remedy=UNUSED)
        for state in self._states.in_phase(Phase.COPYING, Phase.LIVE, Phase.BLOCKED):
            if state.last_change_set is None and state.source not in there:
                self._end(state)
            elif state.last_change_set is None and state.leaving:  # it exists again, as a new table: the old one ended
                self._states.update(state.table, last_change_set=self._journal.head)
        for state in self._states.in_phase(Phase.COPYING, Phase.LIVE):
            self._require_same_columns(state)
        for state in self._states.in_phase(Phase.LIVE, Phase.BLOCKED):
            if state.phase is Phase.BLOCKED and state.source in there:  # a person may have followed the remedy
                self._states.stage(state.route, reason=f"tried again after: {state.reason}")
            elif state.phase is Phase.LIVE and self._is_gone(state):
                log.warning("table %s is gone from the lake; it is copied again", state.table)
                self._states.stage(state.route, reason="the lake table is gone")

    def enrol(self) -> bool:
        """Steps 1 to 5 for tables that are new to the pipeline and for all that are staged.

        A table that cannot be prepared or planned, twice, is blocked, with reason and remedy; the others go on. Returns
        whether there is something new to copy.
        """
        self._end_copies()
        there = {schema.table for schema in self._capture.discover()}
        every = (route for table in there for route in self._tables.routes(table))
        routes, clashes = settled(every, self._states.fed())
        for clash in set(clashes) - set(self.clashes):  # the second is blocked, with its remedy; the others go on
            log.warning("%s. %s", clash.problem, clash.remedy)
            self._listener.table_error(clash.second.source, clash.problem, clash.remedy)
        self.clashes = clashes
        for route in routes.values():
            state = self._states.get(route.table)
            if state is None:
                self._states.stage(route, reason="new in the pipeline")
            elif state.phase is Phase.DROPPED:
                self._states.stage(route, reason="the source table is there again")
            elif state.route != route:
                raise ConfigError(
                    f"lake table {route.table} was made as {state.mode.describe()} of {state.source}; the "
                    f"configuration now says {route.mode.describe()} of {route.source}",
                    remedy=f"Put the configuration back, or rebuild the table: lakefeed rebuild FILE {route.table}",
                )
        for state in self._states.in_phase(Phase.STAGED, Phase.COPYING, Phase.LIVE, Phase.BLOCKED):
            if state.source in there and state.table not in routes and not state.leaving:
                reason = "it is no longer in the configuration"
                self._states.leave(state.table, reason, last_change_set=self._journal.head)
        wanted = []
        for state in self._states.in_phase(Phase.STAGED):
            if state.source not in there:
                self._end(state)
            elif not self._errors.is_held(state.table):
                wanted.append(state)
        planned = [self._plan(state, low) for state, low in self._prepared(wanted)]
        return any(planned)

    @property
    def has_staged(self) -> bool:
        """Whether some table waits for ``enrol``, to be copied for the first time or again."""
        return any(not self._errors.is_held(state.table) for state in self._states.in_phase(Phase.STAGED))

    def load(self, is_stopping: Callable[[], bool] = lambda: False) -> CycleResult:
        """Steps 6 and 7 for every planned table. Stops after the current group of chunks."""
        results: dict[TableId, TableResult] = {}
        try:
            for state in self._states.in_phase(Phase.COPYING):
                if is_stopping():
                    break
                if not self._errors.is_paused(state.table):
                    results[state.table] = self._copy(state, is_stopping)
                    self._errors.record(state.table, results[state.table])
        except _Stopped:
            log.info("copies stop here and go on at the next start")
        self._end_copies()
        return CycleResult.of(results, self._journal.end)

    def _require_same_columns(self, state: TableState) -> None:
        """ConfigError if the configuration now takes other columns of a table than before: the lake would have columns
        that it should not have, or rows without those that it should."""
        taken = self._journal.latest_schema(state.source)
        wanted = taken and self._shape.schema(taken.whole)
        if taken is not None and wanted is not None and taken.columns != wanted.columns:
            was, now = ((", ".join(one.names)) for one in (taken, wanted))
            if taken.names == wanted.names:  # the masks before the journal have changed
                was, now = (
                    (", ".join(f"{column.name} {column.type}" for column in one.columns)) for one in (taken, wanted)
                )
            raise ConfigError(
                f"lake table {state.table} was made with the columns {was} of {state.source}; the configuration now "
                f"takes {now}",
                remedy="Put columns and masks back, or copy the table again: "
                f"lakefeed rebuild FILE {state.table} --from-source",
            )
        if taken is not None and (unfit := self._tables.choices.of(state.source).unfit_type(taken.whole)) is not None:
            raise ConfigError(
                f"lake table {state.table} no longer matches its rule: {unfit[0]}",
                remedy=f"{unfit[1]} Or copy the table again: lakefeed rebuild FILE {state.table} --from-source",
            )

    def _end(self, state: TableState) -> None:
        """Handle a table that the source does not offer: block it if the source says what is wrong with it.

        The source may still have to deliver changes of it, and the journal may have some that the lake table lacks.
        """
        found = [finding for finding in self._capture.check() if finding.table == state.source]
        if found:
            self._states.update(state.table, phase=Phase.BLOCKED, reason=found[0].problem, remedy=found[0].remedy)
            return
        # A table that is no longer wanted gets only what was captured while it was.
        last = None if self._capture.wants(state.source) else self._journal.head
        reason = "no table pattern of the configuration matches its source table, or the source no longer has it"
        self._states.leave(state.table, reason, last_change_set=last)

    def _is_gone(self, state: TableState) -> bool:
        """Whether the lake no longer has the table. One that cannot be read exists: its next sync fails and says
        why."""
        try:
            return self._tables.table(state.route).applied(state.generation) is None
        except CONCERNS_ALL:
            raise
        except Exception as error:  # noqa: BLE001  # one table must not keep the others from starting
            log.warning("table %s cannot be read: %s", state.table, first_line(error))
            return False

    def _prepared(self, staged: list[TableState]) -> Iterator[tuple[TableState, Position]]:
        """Step 2: all at once if the source allows it; otherwise one by one, to find the table that it refuses."""
        if not staged:
            return
        try:
            low = self._capture.prepare(sorted({state.source for state in staged}))
        except _A_TABLES_OWN as error:
            if len(staged) == 1:
                self._refused(staged[0], error)
                return
            for state in staged:
                yield from self._prepared([state])
            return
        for state in staged:
            yield state, low

    def _plan(self, state: TableState, low: Position) -> bool:
        """Steps 3 to 5. Does nothing if the stream has dropped or blocked the table meanwhile."""
        self._planning.set()
        try:
            base = self._journal.head
            whole = self._capture.snapshot(state.source)
            if (unfit := self._tables.choices.of(state.source).unfit(whole.schema)) is not None:
                text = f"table {state.source}: in its rule, {unfit[0]}"
                raise TableStoppedError(text, remedy=f"Correct lake.tables. {unfit[1]}", table=str(state.source))
            plan = self._shape.planned(whole)
            self._planned.add(state.source)
            schema = self._journal.record_schema(plan.schema, low)
            self._capture.recall([schema.whole])
            return self._states.update_if(
                state,
                phase=Phase.COPYING,
                schema=schema,
                base=base,
                low=low,
                chunks=tuple(chunk.to_json() for chunk in plan.chunks),
                exact_at=plan.exact_at,
                is_exact=plan.is_exact,
                rows_estimate=plan.rows_estimate,
            )
        except _A_TABLES_OWN as error:
            self._refused(state, error)
            return False
        except StateError as error:  # prepared above, but since then the stream has found it dropped and re-created
            self._refused(state, error)
            return False
        finally:
            self._planning.clear()

    def _refused(self, state: TableState, error: LakefeedError) -> None:
        """The source refuses to prepare or plan the table. It is tried once more, then blocked.

        Somebody may have dropped or altered it since it was discovered; the next ``enrol`` sees its current state.
        """
        if (state.table, state.generation) in self._refusals:
            self._states.update_if(state, phase=Phase.BLOCKED, reason=error.message, remedy=error.remedy)
        else:
            self._refusals.add((state.table, state.generation))
            log.warning("table %s cannot be copied and is tried once more: %s", state.table, error.message)

    def _copy(self, state: TableState, is_stopping: Callable[[], bool]) -> TableResult:
        """Steps 6 and 7 for one table. Its error is in the result; it is retried."""
        assert state.schema is not None  # noqa: S101  # a COPYING state has its plan

        def progress(rows: int) -> None:
            self._listener.snapshot_progress(state.table, rows)
            self._report()
            if is_stopping():
                raise _Stopped

        while self._is_applying(state.table):
            if is_stopping():
                raise _Stopped
            time.sleep(_APPLYING_SECONDS)
        started = time.monotonic()
        self._listener.snapshot_started(state.table, state.rows_estimate)
        try:
            copy = TableCopy(
                schema=state.schema,
                generation=state.generation,
                base=state.base,
                position=state.low,
                chunks=[self._shape.chunk(chunk, self._capture.chunk) for chunk in state.chunks],
                comments=self._capture.comments(state.source),
            )
            loaded = self._tables.table(state.route).load(copy, progress)
        except (DecodeError, TableStoppedError) as error:
            # The table may have changed under the plan: it is planned again, from its new definition.
            self._states.stage_if(state, reason=error.message)
            return TableResult(applied=0, error=error.message, remedy=error.remedy)
        except Exception as error:  # one table must not stop the others
            failed = explained(error, state.table)
            if isinstance(failed, CONCERNS_ALL) and failed is not error:
                raise failed from error
            return TableResult(applied=0, error=failed.message, remedy=failed.remedy)
        # If it was staged again meanwhile, this copy is obsolete.
        self._states.update_if(state, phase=Phase.LIVE, rows=loaded.rows, high=loaded.high, chunks=())
        self._listener.snapshot_done(state.table, loaded.rows, time.monotonic() - started)
        return TableResult(applied=state.base, counts=Counts(inserted=loaded.rows))

    def _end_copies(self) -> None:
        """Tell the source which of the copies planned here are over, so that it releases what it keeps open for
        them."""
        copying = {state.source for state in self._states.in_phase(Phase.COPYING)}
        for table in self._planned - copying:
            self._capture.copied(table)
        self._planned &= copying

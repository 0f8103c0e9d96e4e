"""The lake's side of a pipeline: copies that are planned, then the journal onto the tables, then trim.

Belongs to one thread at a time; it may run beside the capture side, which only ever adds to the journal and to the
states. Nothing here moves progress by itself: a table's own commit does, and what is trimmed is what every table has.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from lakefeed.change.segment import Counts
from lakefeed.change.table import TableId
from lakefeed.errors import DecodeError, LakefeedError, TableStoppedError
from lakefeed.flow.listener import Listener
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.result import CycleResult
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.lake.base import ChunkSource, SyncResult, TableCopy, TableFormat, TableResult
from lakefeed.lake.engine import CONCERNS_ALL, Engine, Enrolled, Known
from lakefeed.lake.spark.error import explained

log = logging.getLogger(__name__)

TRIM_EVERY = 64
"""Change sets between two trims: trimming lists directories and writes the states, a sync should not."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0


class LakeSide:
    """See the module. ``chunk`` turns a planned chunk's JSON back into a chunk (``ChangeCapture.chunk``, pure)."""

    def __init__(
        self,
        tables: TableFormat,
        journal: Journal,
        states: TableStates,
        chunk: Callable[[Mapping[str, Any]], ChunkSource],
        options: PipelineOptions,
        listener: Listener,
    ) -> None:
        self._tables = tables
        self._journal = journal
        self._states = states
        self._chunk = chunk
        self._listener = listener
        self._keep = options.journal.keep_change_sets
        self._engine = Engine(tables, journal, self._enrolled, parallel=options.parallel_tables)
        self._pauses: dict[TableId, tuple[float, float]] = {}
        self._errors: dict[TableId, tuple[str, str]] = {}
        self._told: set[tuple[TableId, int]] = set()
        self.ended = False
        """The last sync has brought a table to its end. If its name is used again, that is a new table."""

    @property
    def errors(self) -> dict[TableId, tuple[str, str]]:
        """Tables that cannot go on now: what is wrong and the remedy. They are tried again, less and less often."""
        return dict(self._errors)

    @property
    def backlog_bytes(self) -> int:
        """Journal that not every table has yet."""
        return self._journal.backlog_bytes(self._complete_everywhere())

    def load(self) -> dict[TableId, TableResult]:
        """Copy what is planned."""
        results: dict[TableId, TableResult] = {}
        for record in self._states.in_phase(Phase.COPYING):
            if not self._paused(record.table):
                results[record.table] = self._load(record)
                self._note(record.table, results[record.table])
        return results

    def sync(self, loaded: Mapping[TableId, TableResult]) -> CycleResult:
        """Apply what is new, trim what all have; the answer includes what was ``loaded`` before."""
        synced = self._engine.sync_once()
        self.ended = False
        for table, result in synced.tables.items():
            if result.rebuild:
                self._stage(table, result)
            else:
                self._note(table, result)
        self._end_tables()
        self._trim(force=False)
        return self._result({**self._newly_blocked(), **loaded}, synced)

    def finish(self) -> None:
        """Before a clean stop: trim what can be trimmed."""
        self._trim(force=True)

    def _enrolled(self) -> dict[TableId, Enrolled]:
        return {
            record.table: Enrolled(
                record.route,
                record.generation,
                record.settled_recorded,
                record.settled_effective,
                copied_from=record.low,
                exact_at=record.high,
                ends_at=record.ends_at,
            )
            for record in self._states.in_phase(Phase.LIVE)
            if not self._paused(record.table)
        }

    def _newly_blocked(self) -> dict[TableId, TableResult]:
        """Tables that the source's side has blocked, each told once."""
        blocked = {
            r.table: r for r in self._states.in_phase(Phase.BLOCKED) if (r.table, r.generation) not in self._told
        }
        self._told |= {(record.table, record.generation) for record in blocked.values()}
        for record in blocked.values():
            self._listener.table_error(record.table, record.reason, record.remedy)
        return {table: TableResult(applied=0, error=r.reason, remedy=r.remedy) for table, r in blocked.items()}

    def _paused(self, table: TableId) -> bool:
        until, _ = self._pauses.get(table, (0.0, 0.0))
        return until > time.monotonic()

    def _load(self, record: TableState) -> TableResult:
        try:
            return self._copy(record)
        except (DecodeError, TableStoppedError) as error:
            # The table may have changed under the plan: it is planned again, and that plan will know.
            self._states.stage_if(record, reason=error.message)
            return _failed(error)
        except Exception as error:  # one table must not hold up the others; it is tried again
            failed = explained(error, record.table)
            if isinstance(failed, CONCERNS_ALL) and failed is not error:
                raise failed from error
            return _failed(failed)

    def _copy(self, record: TableState) -> TableResult:
        assert record.schema is not None  # noqa: S101  # a COPYING record has its plan
        started = time.monotonic()
        self._listener.snapshot_started(record.table, record.rows_estimate)
        copy = TableCopy(
            schema=record.schema,
            generation=record.generation,
            base=record.base,
            position=record.low,
            chunks=[self._chunk(chunk) for chunk in record.chunks],
        )
        lake_table = self._tables.table(record.route)
        loaded = lake_table.load(copy, lambda rows: self._listener.snapshot_progress(record.table, rows))
        # If it was staged anew meanwhile, this copy is out of date.
        self._states.update_if(record, phase=Phase.LIVE, rows=loaded.rows, high=loaded.high, chunks=())
        self._listener.snapshot_done(record.table, loaded.rows, time.monotonic() - started)
        return TableResult(applied=record.base, counts=Counts(inserted=loaded.rows))

    def _stage(self, table: TableId, result: TableResult) -> None:
        """A new life of the table, which the source's side plans in its next turn."""
        record = self._states.get(table)
        if record is not None and record.phase is Phase.LIVE:
            self._states.stage_if(record, reason=result.error or "")
        self._errors.pop(table, None)
        self._pauses.pop(table, None)
        self._listener.table_error(table, result.error or "", result.remedy or "")

    def _note(self, table: TableId, result: TableResult) -> None:
        """Remember what stopped a table and when to try it again; forget it once it works."""
        record = self._states.get(table)
        if result.error is None or record is None or record.phase in (Phase.BLOCKED, Phase.DROPPED):
            self._errors.pop(table, None)
            self._pauses.pop(table, None)
            return
        self._errors[table] = (result.error, result.remedy or "")
        if record.phase is Phase.STAGED and table not in self._pauses:
            self._pauses[table] = (0.0, FIRST_PAUSE_SECONDS / 2)  # a new plan may well be right: tried at once, once
            return
        _, last = self._pauses.get(table, (0.0, FIRST_PAUSE_SECONDS / 2))
        pause = min(LONGEST_PAUSE_SECONDS, last * 2)
        self._pauses[table] = (time.monotonic() + pause, pause)
        self._listener.table_error(table, result.error, result.remedy or "")

    def _complete_everywhere(self) -> int:
        """The change set up to which every live table is complete; states that are being copied start at their base."""
        numbers = [self._journal.head]
        for record in self._states.in_phase(Phase.LIVE, Phase.COPYING):
            known = self._engine.known(record.table, record.generation)
            numbers.append(max(record.base, record.settled_effective, known.complete if known else 0))
        return min(numbers)

    def _trim(self, *, force: bool) -> None:
        bound = self._complete_everywhere()
        if bound - self._journal.trimmed < (1 if force else TRIM_EVERY) + self._keep:
            return
        needed: dict[TableId, set[int]] = {}
        for record in self._states.in_phase(Phase.LIVE, Phase.COPYING):
            needed.setdefault(record.source, set()).update({record.schema.version} if record.schema else ())
            known = self._engine.known(record.table, record.generation)
            if known is not None:
                self._settle(record, known)
                needed[record.source].add(known.applied.schema_version)
        self._journal.trim(bound, needed=needed)

    def _settle(self, record: TableState, known: Known) -> None:
        """What only the journal knows now is kept, before it is trimmed."""
        changes: dict[str, Any] = {"settled_recorded": known.applied.number, "settled_effective": known.complete}
        reached = self._journal.position(known.complete)
        if record.high is not None and reached is not None and reached >= record.high:
            changes["high"] = None  # the table is past its copy, for good
        self._states.update_if(record, **changes)

    def _end_tables(self) -> None:
        """Tables that have left, and have the last of their changes now."""
        for record in self._states.in_phase(Phase.LIVE):
            complete = self._engine.complete(record.table, record.generation)
            if record.ends_at is not None and complete is not None and complete >= record.ends_at:
                log.warning("lake table %s stays as it is: %s", record.table, record.reason)
                self.ended = self._states.update_if(record, phase=Phase.DROPPED) or self.ended

    def _result(self, loaded: Mapping[TableId, TableResult], synced: SyncResult) -> CycleResult:
        tables = {**loaded, **synced.tables}
        for table in loaded.keys() & synced.tables.keys():
            both = loaded[table].counts + synced.tables[table].counts
            tables[table] = TableResult(
                applied=synced.tables[table].applied,
                counts=both,
                error=synced.tables[table].error or loaded[table].error,
                remedy=synced.tables[table].remedy or loaded[table].remedy,
            )
        counts = sum((result.counts for result in tables.values()), Counts())
        return CycleResult(
            change_sets=synced.change_sets,
            counts=counts,
            tables=tables,
            last_position=self._journal.end if tables else synced.last_position,
            last_seq=synced.last_seq,
        )


def _failed(error: LakefeedError) -> TableResult:
    return TableResult(applied=0, error=error.message, remedy=error.remedy)

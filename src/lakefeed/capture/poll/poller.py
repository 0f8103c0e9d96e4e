"""TablePoller: one table, from poll to poll: what is new after its mark, and how far the mark may move.

  1. the horizon was read before: nothing at or below it, less the safety lag, can become visible any more
  2. read the rows after the mark in (time, key) order, in batches, until one has something new
  3. rows up to the horizon are settled: the mark moves to the last of them
  4. rows above it are delivered too, but the mark stays before them: the next poll reads them again, with whatever has
     been committed late between them, and delivers only what it does not know yet

So a late commit is never behind the mark, nothing waits for the lag, and after a restart only rows that were not yet
settled are delivered a second time. Rows after the mark are kept for that comparison: some batches for each table.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.dialect import Dialect, Horizon, Session
from lakefeed.capture.fit import MisfitError
from lakefeed.capture.poll.differences import DifferencesDirectory, looked_up
from lakefeed.capture.poll.event import Events, classified, unchanged, without
from lakefeed.capture.poll.query import Queries
from lakefeed.capture.poll.rule import NullPolicy
from lakefeed.capture.poll.stamp import Instants
from lakefeed.capture.poll.table import PolledTable
from lakefeed.capture.snapshot import NUMBER, combined, read_number
from lakefeed.change.change_set import RecopyNeeded, TableNotice
from lakefeed.change.table import TableId
from lakefeed.change.watermark import Mark
from lakefeed.errors import TableStoppedError

log = logging.getLogger(__name__)

BATCH_BYTES = 64 * 1024 * 1024
_UNSETTLED_BATCHES = 10
_UNSETTLED_BYTES = 512 * 1024 * 1024
_NEWEST_ROWS = 1_000
_COUNT_SECONDS = 60.0
"""How often rows without a time are counted: it may need a scan."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where reading of a table stands. ``unsettled`` are rows after the mark that have been delivered already."""

    mark: Mark = field(default_factory=Mark.start)
    unsettled: pa.RecordBatch | None = None


@dataclass(frozen=True, slots=True)
class PollResult:
    """What one poll of one table found, and where the table stands behind it.

    ``compared`` is the mark of the differences that are delivered. ``misfit`` names a column that must become text.
    """

    mark: Mark
    compared: Mark | None
    events: tuple[Events, ...] = ()
    notices: tuple[TableNotice, ...] = ()
    misfit: str | None = None


class TablePoller:
    """Its state belongs to one thread at a time, which need not be the same one."""

    def __init__(
        self, dialect: Dialect, table: PolledTable, differences: Path | None, mark: Mark, compared: Mark | None
    ) -> None:
        """Goes on from a position: what was delivered after it and is not settled yet is delivered again."""
        self._dialect = dialect
        self._differences = DifferencesDirectory(differences, table.id) if differences is not None else None
        self._counted_at: float | None = None
        self._timeless = 0
        self.table = table
        self.cursor = Cursor(mark)
        self.compared = compared

    @property
    def id(self) -> TableId:
        return self.table.id

    def poll(self, session: Session, horizon: Horizon) -> PollResult:
        """Steps 2 to 4, and then the next differences, if a comparison has found some."""
        self._counted_at, self._timeless = refuse_timeless(
            self._dialect, session, self.table, self._counted_at, self._timeless
        )
        mark = self.cursor.mark
        if not mark.is_start and horizon.now_us < mark.instant_us:
            # The source's clock went back: rows that are written now lie behind the mark. All are read again.
            seconds = (mark.instant_us - horizon.now_us) / 1e6
            reason = (
                f"the source's clock went back by {seconds:.0f} s or more, so that rows may lie behind the watermark"
            )
            self.cursor = Cursor(Mark.start(mark.era + 1))
            return PollResult(self.cursor.mark, self.compared, notices=(RecopyNeeded(self.id, reason),))
        try:
            cursor, events, is_all = self._read_changes(session, horizon)
            waiting = self._differences.next(self.compared) if self._differences is not None and is_all else None
            if waiting is not None:
                found = looked_up(self._dialect, session, self.table, waiting.keys, horizon.now_us)
                for one in found:
                    if cursor.unsettled is not None:
                        left = without(cursor.unsettled, one.rows, self.table.key)
                        cursor = replace(cursor, unsettled=left)
                events, self.compared = [*events, *found], waiting.mark
        except MisfitError as error:
            if error.remedy is not None:
                raise error.stopped(self.id) from error
            return PollResult(mark, self.compared, misfit=error.column)
        self.cursor = cursor
        return PollResult(cursor.mark, self.compared, tuple(events))

    def is_filled(self, session: Session, column: str) -> bool:
        """Whether a row that has been delivered has a value in ``column``."""
        query = Queries(self._dialect, self.table).filled(column, self.cursor.mark)
        return any(batch.num_rows for batch in session.read(query, NUMBER))

    def forget(self, confirmed: Mark) -> None:
        """The differences up to ``confirmed`` are durable elsewhere."""
        if self._differences is not None:
            self._differences.forget(confirmed)

    def _read_changes(self, session: Session, horizon: Horizon) -> tuple[Cursor, list[Events], bool]:
        """The cursor behind what was read, the events, and whether that was all there is."""
        table, before = self.table, self.cursor.unsettled
        rows, is_all = self._after_mark(session)
        if rows.num_rows == 0:
            return Cursor(self.cursor.mark), [], is_all
        times = table.times(rows)
        settled = settled_rows(times, horizon, table)
        mark = table.mark(rows, settled - 1, self.cursor.mark) if settled else self.cursor.mark
        parts = [rows.slice(settled)]
        if not is_all and before is not None:
            # Delivered rows that lie behind what was read this time are still delivered ones.
            later = before.filter(pa.array(table.times(before, expect_order=False) >= times[-1]))
            parts.append(without(later, rows, table.key))
        unsettled = combined(parts, rows.schema) if any(part.num_rows for part in parts) else None
        new = pc.invert(unchanged(rows, before, table.key))
        is_new = new.to_numpy(zero_copy_only=False)
        events = [classified(table, rows.filter(new), times[is_new])] if is_new.any() else []
        return Cursor(mark, unsettled), events, is_all

    def _after_mark(self, session: Session) -> tuple[pa.RecordBatch, bool]:
        """Batch after batch until one has something new, and whether that was all there is.

        While the horizon stands still (a transaction is open), what has been delivered already is passed over, so that
        it does not fill the batch; up to a number of batches, since all of it is kept in memory. Then new rows wait.
        """
        table, limit = self.table, self.table.rule.batch_rows
        queries, schema = Queries(self._dialect, table), table.arrow(table.read_names)
        found: list[pa.RecordBatch] = []
        mark, size = self.cursor.mark, 0
        while True:
            query = queries.changes(mark, limit)
            query.enough_bytes = BATCH_BYTES
            read = list(session.read(query, schema))
            batch, read_bytes = combined(read, schema), sum(one.nbytes for one in read)
            found.append(batch)
            size += read_bytes
            if batch.num_rows < limit and read_bytes < BATCH_BYTES:
                return combined(found, schema), True
            passed = pc.all(unchanged(batch, self.cursor.unsettled, table.key)).as_py()
            if not passed or len(found) == _UNSETTLED_BATCHES or size >= _UNSETTLED_BYTES:
                return combined(found, schema), False
            mark = table.mark(batch, batch.num_rows - 1, mark)


def settled_rows(times: Instants, horizon: Horizon, table: PolledTable) -> int:
    """How many of the rows, from the first on, nothing can come before any more."""
    if horizon.settled_us is None:
        return 0
    return int(np.searchsorted(times, horizon.settled_us - table.rule.lag_us, side="right"))


def resume_mark(dialect: Dialect, session: Session, table: PolledTable, horizon: Horizon, era: int) -> Mark:
    """The last settled row: whatever is copied from now on has everything up to it."""
    schema = table.arrow(table.mark_names)
    with session.consistent():
        rows = combined(session.read(Queries(dialect, table).newest(_NEWEST_ROWS), schema), schema)
    rows = rows.take(np.arange(rows.num_rows - 1, -1, -1))  # the order of reading
    settled = settled_rows(table.times(rows), horizon, table)
    if not settled:
        return Mark.start(era)
    return replace(table.mark(rows, settled - 1, Mark.start(era)), place=0)  # not all rows of its time were counted


def mixed_columns(dialect: Dialect, session: Session, table: PolledTable) -> frozenset[str]:
    """Columns with values that their declared type does not fit. One pass over the table."""
    schema = pa.schema([pa.field(name, pa.int64()) for name in table.source.misfits])
    rows = combined(session.read(Queries(dialect, table).misfits(), schema), schema)
    return frozenset(name for name in schema.names if rows.column(name)[0].as_py())


def refuse_timeless(
    dialect: Dialect, session: Session, table: PolledTable, counted_at: float | None = None, before: int = 0
) -> tuple[float | None, int]:
    """Count the rows that no poll would find, if that was not done lately; TableStoppedError if the rule forbids them.

    Returns when they were counted last and how many there were.
    """
    key_nullable = any(table.source.schema.column(name).nullable for name in table.key)
    is_time = counted_at is None or time.monotonic() - counted_at > _COUNT_SECONDS
    if not (table.nullable_time or key_nullable) or not is_time:
        return counted_at, before
    count = read_number(session, Queries(dialect, table).without_time())
    if count and table.rule.null_updated_at is not NullPolicy.IGNORE:
        names = ", ".join((table.updated_at, *table.key))
        raise TableStoppedError(
            f"{table.id}: {count} rows have NULL in {names}, and would never be seen",
            table=str(table.id),
            remedy=f"Give them values, or set null_updated_at to created_at or ignore in the rule of {table.id}.",
        )
    if count and count != before:
        log.warning("%s: %d rows have no %s; their changes are not seen", table.id, count, table.updated_at)
    return time.monotonic(), count

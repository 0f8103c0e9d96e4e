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
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.dialect import Dialect, Horizon, Session
from lakefeed.capture.fit import MisfitError
from lakefeed.capture.poll.differences import DifferencesDirectory, looked_up
from lakefeed.capture.poll.event import Events, classified, in_keys, unchanged
from lakefeed.capture.poll.query import Queries
from lakefeed.capture.poll.rule import NullPolicy
from lakefeed.capture.poll.table import Instants, PolledTable
from lakefeed.capture.snapshot import NUMBER, combined, read_number
from lakefeed.change.change_set import RecopyNeeded, TableNotice
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
class PollResult:
    """What one poll of one table found. ``is_end``: it had everything that was there when it began.

    ``misfit`` names a column that must become text; then nothing was read.
    """

    events: tuple[Events, ...] = ()
    notices: tuple[TableNotice, ...] = ()
    misfit: str | None = None
    is_end: bool = False


class TablePoller:
    """``mark``: where reading stands. ``compared``: how far differences are delivered. Another poller that begins there
    delivers again what was not settled. The state belongs to one thread at a time, which may change."""

    def __init__(
        self, dialect: Dialect, table: PolledTable, differences: Path | None, mark: Mark, compared: Mark | None
    ) -> None:
        self._dialect = dialect
        self._differences = DifferencesDirectory(differences, table.id) if differences is not None else None
        self._counted_at: float | None = None
        self._timeless = 0
        self.table = table
        self.mark = mark
        self.compared = compared
        self.unsettled: pa.RecordBatch | None = None
        """Rows after the mark that have been delivered already."""

    def poll(self, session: Session, horizon: Horizon) -> PollResult:
        """Steps 2 to 4, and then the next differences, if a comparison has found some."""
        if self._counted_at is None or time.monotonic() - self._counted_at > _COUNT_SECONDS:
            self._timeless = refuse_timeless(self._dialect, session, self.table, self._timeless)
            self._counted_at = time.monotonic()
        start = self.mark
        if not start.is_start and horizon.now_us < start.instant_us:
            # The source's clock went back: rows that are written now lie behind the mark. All are read again.
            self.begin_again()
            seconds = (start.instant_us - horizon.now_us) / 1e6
            reason = (
                f"the source's clock went back by {seconds:.0f} s or more, so that rows may lie behind the watermark"
            )
            return PollResult(notices=(RecopyNeeded(self.table.id, reason),))
        try:
            mark, unsettled, events, is_all = self._read_changes(session, horizon)
            waiting = self._differences.next(self.compared) if self._differences is not None and is_all else None
            if waiting is not None:
                keys, compared = waiting
                found = looked_up(self._dialect, session, self.table, keys, horizon.now_us)
                for one in found:
                    if unsettled is not None:
                        unsettled = unsettled.filter(pc.invert(in_keys(unsettled, one.rows, self.table.key)))
                events, self.compared = [*events, *found], compared
        except MisfitError as error:
            if error.remedy is not None:
                raise error.stopped(self.table.id) from error
            return PollResult(misfit=error.column)
        self.mark, self.unsettled = mark, unsettled
        # A poll that can read no further until the horizon moves is at its end too.
        is_end = waiting is None and (is_all or (not events and mark == start))
        return PollResult(tuple(events), is_end=is_end)

    def begin_again(self) -> None:
        """Read the whole table again, from its beginning."""
        self.mark, self.unsettled = Mark.start(self.mark.era + 1), None

    def is_filled(self, session: Session, column: str) -> bool:
        """Whether a row that has been delivered has a value in ``column``."""
        query = Queries(self._dialect, self.table).filled(column, self.mark)
        return any(batch.num_rows for batch in session.read(query, NUMBER))

    def forget(self, confirmed: Mark) -> None:
        """The differences up to ``confirmed`` are durable elsewhere."""
        if self._differences is not None:
            self._differences.forget(confirmed)

    def _read_changes(
        self, session: Session, horizon: Horizon
    ) -> tuple[Mark, pa.RecordBatch | None, list[Events], bool]:
        """The mark and the unsettled rows behind what was read, the events, and whether that was all there is."""
        table, before = self.table, self.unsettled
        rows, is_all = self._after_mark(session)
        if rows.num_rows == 0:
            return self.mark, None, [], is_all
        times = table.times(rows)
        settled = settled_rows(times, horizon, table)
        mark = table.mark(rows, settled - 1, self.mark) if settled else self.mark
        unsettled = rows.slice(settled)
        if not is_all and before is not None:
            # Delivered rows that lie behind what was read this time are still delivered ones.
            later = before.filter(pa.array(table.times(before, expect_order=False) >= times[-1]))
            later = later.filter(pc.invert(in_keys(later, rows, table.key)))
            unsettled = combined([unsettled, later], rows.schema)
        new = pc.invert(unchanged(rows, before, table.key))
        is_new = new.to_numpy(zero_copy_only=False)
        events = [classified(table, rows.filter(new), times[is_new])] if is_new.any() else []
        return mark, unsettled if unsettled.num_rows else None, events, is_all

    def _after_mark(self, session: Session) -> tuple[pa.RecordBatch, bool]:
        """Batch after batch until one has something new, and whether that was all there is.

        While the horizon stands still (a transaction is open), what has been delivered already is passed over, so that
        it does not fill the batch; up to a number of batches, since all of it is kept in memory. Then new rows wait.
        """
        table, limit = self.table, self.table.rule.batch_rows
        queries, schema = Queries(self._dialect, table), table.arrow(table.read_names)
        found: list[pa.RecordBatch] = []
        mark, size = self.mark, 0
        while True:
            query = queries.changes(mark, limit)
            query.enough_bytes = BATCH_BYTES
            read = list(session.read(query, schema))
            batch, read_bytes = combined(read, schema), sum(one.nbytes for one in read)
            found.append(batch)
            size += read_bytes
            if batch.num_rows < limit and read_bytes < BATCH_BYTES:
                return combined(found, schema), True
            passed = pc.all(unchanged(batch, self.unsettled, table.key)).as_py()
            if not passed or len(found) == _UNSETTLED_BATCHES or size >= _UNSETTLED_BYTES:
                return combined(found, schema), False
            mark = table.mark(batch, batch.num_rows - 1, mark)


def settled_rows(times: Instants, horizon: Horizon, table: PolledTable) -> int:
    """How many of the rows, from the first on, nothing can come before any more."""
    if horizon.settled_us is None:
        return 0
    return int(np.searchsorted(times, horizon.settled_us - table.rule.lag_us, side="right"))


def resume_mark(dialect: Dialect, session: Session, table: PolledTable, horizon: Horizon, before: Mark | None) -> Mark:
    """The last settled row: whatever is copied from now on has everything up to it. Never behind ``before``."""
    schema, start = table.arrow(table.mark_names), Mark.start(before.era if before is not None else 0)
    try:
        with session.consistent():
            rows = combined(session.read(Queries(dialect, table).newest(_NEWEST_ROWS), schema), schema)
    except MisfitError as error:
        raise error.stopped(table.id) from error
    rows = rows.take(np.arange(rows.num_rows - 1, -1, -1))  # the order of reading
    settled = settled_rows(table.times(rows), horizon, table)
    # Not all rows of its time were counted, so it has no place.
    mark = replace(table.mark(rows, settled - 1, start), place=0) if settled else start
    return before if before is not None and mark.compare(before) == -1 else mark


def mixed_columns(dialect: Dialect, session: Session, table: PolledTable) -> frozenset[str]:
    """Columns with values that their declared type does not fit. One pass over the table."""
    schema = pa.schema([pa.field(name, pa.int64()) for name in table.source.misfits])
    rows = combined(session.read(Queries(dialect, table).misfits(), schema), schema)
    return frozenset(name for name in schema.names if rows.column(name)[0].as_py())


def count_timeless(dialect: Dialect, session: Session, table: PolledTable) -> int:
    """How many rows no poll would find."""
    if not table.nullable_time and not any(table.source.schema.column(name).nullable for name in table.key):
        return 0
    return read_number(session, Queries(dialect, table).without_time())


def refuse_timeless(dialect: Dialect, session: Session, table: PolledTable, before: int = 0) -> int:
    """The same; TableStoppedError if there are some and the rule forbids them, else a warning about a new number."""
    count = count_timeless(dialect, session, table)
    if count and table.rule.null_updated_at is not NullPolicy.IGNORE:
        names = ", ".join((table.updated_at, *table.key))
        raise TableStoppedError(
            f"{table.id}: {count} rows have NULL in {names}, and would never be seen",
            table=str(table.id),
            remedy=f"Give them values, or set null_updated_at to created_at or ignore in the rule of {table.id}.",
        )
    if count not in (0, before):
        log.warning("%s: %d rows have no %s; their changes are not seen", table.id, count, table.updated_at)
    return count

"""One poll of one table: what is new after its mark, and how far the mark may move.

  1. the horizon was read before: nothing at or below it, less the safety lag, can become visible any more
  2. read the rows after the mark in (time, key) order, in batches, until one has something new
  3. rows up to the horizon are settled: the mark moves to the last of them
  4. rows above it are delivered too, but the mark stays before them: the next poll looks at them again, with whatever
     has been committed late between them, and delivers only what it does not know yet

So a late commit is never behind the mark, nothing waits for the lag, and after a restart only rows that were not yet
settled are delivered a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.dialect import Dialect, Horizon, Session
from lakefeed.capture.fit import MisfitError
from lakefeed.capture.poll.event import Events, classified
from lakefeed.capture.poll.followed import Followed, unordered
from lakefeed.capture.poll.marking import Marking
from lakefeed.capture.poll.query import Queries
from lakefeed.capture.poll.stamp import Instants
from lakefeed.capture.poll.window import unchanged, without
from lakefeed.change.table import TableId
from lakefeed.change.watermark import Mark
from lakefeed.errors import DecodeError

_NEWEST_ROWS = 1_000
BATCH_BYTES = 64 * 1024 * 1024
_WINDOW_BATCHES = 10
_WINDOW_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where reading of a table stands. ``fresh`` are rows after the mark that have been delivered already."""

    mark: Mark = field(default_factory=Mark.start)
    fresh: pa.RecordBatch | None = None

    @property
    def era(self) -> int:
        return self.mark.era


@dataclass(frozen=True, slots=True)
class Reading:
    """What one poll found. ``is_full``: there may be more at once."""

    cursor: Cursor
    events: Events | None = None
    is_full: bool = False


def read_changes(connector: Dialect, session: Session, followed: Followed, cursor: Cursor, horizon: Horizon) -> Reading:
    """Steps 2 to 4."""
    marking = Marking(followed)
    rows, is_whole = _after_mark(connector, session, followed, cursor)
    if rows.num_rows == 0:
        return Reading(replace(cursor, fresh=None))
    times = marking.times(rows)
    settled = settled_rows(times, horizon, followed)
    mark = marking.mark(rows, settled - 1, cursor.mark) if settled else cursor.mark
    fresh = rows.slice(settled) if settled < rows.num_rows else None
    if not is_whole:
        fresh = _with_later(fresh, cursor.fresh, rows, marking)
    new = pc.invert(unchanged(rows, cursor.fresh, followed.key))
    events = None
    if pc.any(new).as_py():
        events = classified(followed, marking, rows.filter(new), times[new.to_numpy(zero_copy_only=False)])
    return Reading(Cursor(mark, fresh), events, is_full=not is_whole)


def _after_mark(
    connector: Dialect, session: Session, followed: Followed, cursor: Cursor
) -> tuple[pa.RecordBatch, bool]:
    """Batch after batch until one has something new, and whether that was all there is.

    While the horizon stands still (a transaction is open), what has been delivered already is passed over, so that it
    does not fill the batch; up to a number of batches, since all of it is kept in memory. Then new rows wait.
    """
    queries, limit = Queries(connector, followed), followed.rule.batch_rows
    found: list[pa.RecordBatch] = []
    mark, size = cursor.mark, 0
    while True:
        query = queries.changes(mark, limit)
        query.enough_bytes = BATCH_BYTES
        read = list(session.read(query, followed.reading))
        batch, read_bytes = combined(read, followed.reading), sum(one.nbytes for one in read)
        found.append(batch)
        size += read_bytes
        if batch.num_rows < limit and read_bytes < BATCH_BYTES:
            return combined(found, followed.reading), True
        passed = pc.all(unchanged(batch, cursor.fresh, followed.key)).as_py()
        if not passed or len(found) == _WINDOW_BATCHES or size >= _WINDOW_BYTES:
            return combined(found, followed.reading), False
        mark = Marking(followed).mark(batch, batch.num_rows - 1, mark)


def _with_later(
    fresh: pa.RecordBatch | None, before: pa.RecordBatch | None, rows: pa.RecordBatch, marking: Marking
) -> pa.RecordBatch | None:
    """``fresh`` and those of ``before`` that lie behind what was read this time: they are still delivered ones."""
    if before is None:
        return fresh
    last = int(marking.times(rows.slice(rows.num_rows - 1))[0])
    later = before.filter(pa.array(marking.times(before, expect_order=False) >= last))
    kept = without(later, rows, marking.key)
    parts = [part for part in (fresh, kept) if part is not None and part.num_rows]
    return combined(parts, rows.schema) if parts else None


def settled_rows(times: Instants, horizon: Horizon, followed: Followed) -> int:
    """How many of the rows, from the first on, nothing can come before any more."""
    if horizon.settled_us is None:
        return 0
    return int(np.searchsorted(times, horizon.settled_us - followed.rule.lag_us, side="right"))


def resume_mark(connector: Dialect, session: Session, followed: Followed, horizon: Horizon, era: int) -> Mark:
    """The last settled row: whatever is copied from now on has everything up to it."""
    queries = Queries(connector, followed)
    schema = pa.schema([pa.field(name, followed.column(name).type) for name in queries.mark_names])
    rows = combined(session.read(queries.newest(_NEWEST_ROWS), schema), schema)
    if rows.num_rows == 0:
        return Mark.start(era)
    marking = Marking(followed)
    rows = rows.take(np.arange(rows.num_rows - 1, -1, -1))  # the order of reading
    settled = settled_rows(marking.times(rows), horizon, followed)
    if not settled:
        return Mark.start(era)
    return replace(marking.mark(rows, settled - 1, Mark.start(era)), place=0)  # not all rows of its time were counted


def went_back(horizon: Horizon, mark: Mark) -> bool:
    """The source's clock shows a time before the mark, which it had passed: rows that are written now lie behind it."""
    return not mark.is_start and horizon.now_us < mark.instant_us


def count_without_time(connector: Dialect, session: Session, followed: Followed) -> int:
    """Rows that no poll finds, because their time or a part of their key is NULL."""
    schema = pa.schema([pa.field("n", pa.int64())])
    rows = combined(session.read(Queries(connector, followed).without_time(), schema), schema)
    return int(rows.column("n")[0].as_py())


def mixed_columns(connector: Dialect, session: Session, followed: Followed) -> frozenset[str]:
    """Columns with values that their declared type does not fit. One pass over the table."""
    schema = pa.schema([pa.field(name, pa.int64()) for name in followed.table.misfits])
    rows = combined(session.read(Queries(connector, followed).misfits(), schema), schema)
    return frozenset(name for name in schema.names if rows.column(name)[0].as_py())


@contextmanager
def fitting(table: TableId) -> Iterator[None]:
    """Around reads of what rows are put in order by: a value that does not fit stops the table."""
    try:
        yield
    except MisfitError as error:
        raise unordered(table, error.column) from error


def combined(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """All batches as one."""
    table = pa.Table.from_batches(list(batches), schema).combine_chunks()
    found = table.to_batches()
    if len(found) > 1:  # what Arrow does where the texts of a column are more than one array can hold
        raise DecodeError("rows that were read at once hold more than 2 GiB", remedy="Lower batch_rows in their rule.")
    return found[0] if found else pa.RecordBatch.from_arrays([pa.array([], one.type) for one in schema], schema=schema)

"""TablePoller: polls one table, again and again: what is new after its mark, and how far the mark may move.

  1. the horizon was read before: nothing at or below it, minus the safety lag, can become visible any more
  2. read the rows after the mark in (time, key) order, in batches, until one has something new
  3. rows up to the horizon are settled: the mark moves to the last of them
  4. rows above it are delivered too, but the mark stays before them: the next poll reads them again, together with
     whatever was committed late between them, and delivers only what is new

So a late commit never falls behind the mark, no row waits for the lag, and after a restart only rows that were not yet
settled are delivered a second time. The comparison keeps the rows after the mark in memory: some batches per table.

An event is the row as a poll found it. Polling does not see what happened to the row between two polls; the transaction
id of an event names the poll, so that nobody takes it for a transaction of the source."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakefeed.capture.builder import Batches, Spill
from lakefeed.capture.dialect import Horizon, Session, key_rows
from lakefeed.capture.fit import MisfitError
from lakefeed.capture.log import Rows, Transaction
from lakefeed.capture.poll.source import NullPolicy
from lakefeed.capture.poll.table import Instants, PolledTable, TableReads
from lakefeed.capture.snapshot import combined
from lakefeed.change.batch import CHANGED, FOUND, Operation
from lakefeed.change.change_set import RecopyNeeded, TableNotice
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.change.watermark import Mark
from lakefeed.errors import TableStoppedError

log = logging.getLogger(__name__)

BATCH_BYTES = 64 * 1024 * 1024
SLICE_ROWS = 10_000
_UNSETTLED_BATCHES = 10
_UNSETTLED_BYTES = 512 * 1024 * 1024
_NEWEST_ROWS = 1_000
_COUNT_SECONDS = 60.0
"""How often rows without a time are counted, which may need a scan."""


@dataclass(frozen=True, slots=True)
class Events:
    """Changes of one table in the order in which to apply them. ``rows`` has the delivered columns."""

    schema: TableSchema
    rows: pa.RecordBatch
    operations: npt.NDArray[np.int8]
    times: Instants


@dataclass(frozen=True, slots=True)
class PollResult:
    """What one poll of one table found. ``is_end``: it read everything that existed when it began."""

    events: tuple[Events, ...] = ()
    notices: tuple[TableNotice, ...] = ()
    is_end: bool = False


class TablePoller:
    """``mark``: how far the table has been read. ``compared``: how far differences have been delivered. Another poller
    that starts there delivers rows again that were not settled. The state belongs to one thread at a time."""

    def __init__(self, table: PolledTable, differences: Path | None, mark: Mark, compared: Mark | None) -> None:
        self.differences = DifferencesDirectory(differences, table.id) if differences is not None else None
        self._counted_at: float | None = None
        self._timeless = 0
        self.table = table
        self.mark = mark
        self.compared = compared
        self.unsettled: pa.RecordBatch | None = None
        """Rows after the mark that have been delivered."""

    def poll(self, session: Session, horizon: Horizon) -> PollResult:
        """Steps 2 to 4, then the next differences, if a comparison has found some. After an error nothing has
        changed."""
        if self._counted_at is None or time.monotonic() - self._counted_at > _COUNT_SECONDS:
            self._timeless = refuse_timeless(session, self.table, self._timeless)
            self._counted_at = time.monotonic()
        start = self.mark
        if not start.is_start and horizon.now_us < start.instant_us:
            # The source's clock went back: rows written now are behind the mark. Read everything again.
            self.begin_again()
            back = f"{(start.instant_us - horizon.now_us) / 1e6:.0f} s or more"
            reason = f"the source's clock went back by {back}, so rows may be behind the watermark"
            return PollResult(notices=(RecopyNeeded(self.table.id, reason),))
        table, mark, unsettled, events = self.table, start, None, list[Events]()
        rows, is_all = self._after_mark(session)  # 2
        if rows.num_rows:
            times = table.times(rows)
            settled = settled_rows(times, horizon, table)
            mark = table.mark(rows, settled - 1, start) if settled else start  # 3
            unsettled = rows.slice(settled)  # 4
            if not is_all and self.unsettled is not None:
                # Delivered rows after the end of what was read this time still count as delivered.
                later = self.unsettled.filter(pa.array(table.times(self.unsettled, expect_order=False) >= times[-1]))
                later = later.filter(pc.invert(in_keys(later, rows, table.key)))
                unsettled = combined([unsettled, later], rows.schema)
            new = pc.invert(unchanged(rows, self.unsettled, table.key))
            is_new = new.to_numpy(zero_copy_only=False)
            events += [classified(table, rows.filter(new), times[is_new])] if is_new.any() else []
        waiting = self.differences.next(self.compared) if self.differences is not None and is_all else None
        if waiting is not None:
            keys, compared = waiting
            for found in looked_up(session, table, keys, horizon.now_us):
                events.append(found)
                if unsettled is not None:
                    unsettled = unsettled.filter(pc.invert(in_keys(unsettled, found.rows, table.key)))
            self.compared = compared
        self.mark, self.unsettled = mark, unsettled
        # A poll that cannot read further until the horizon moves is at its end, too.
        is_end = waiting is None and (is_all or (not events and mark == start))
        return PollResult(tuple(events), is_end=is_end)

    def begin_again(self) -> None:
        """Read the whole table again, from the start."""
        self.mark, self.unsettled = Mark.start(self.mark.era + 1), None

    def _after_mark(self, session: Session) -> tuple[pa.RecordBatch, bool]:
        """Read batch after batch until one has something new. Returns the rows, and whether they were all there are.
        While the horizon does not move (a transaction is open), rows that have been delivered are skipped, so that they
        do not fill the batch; but only up to a number of batches, since all of them are kept in memory. Beyond that,
        new rows wait."""
        table, limit = self.table, self.table.rule.batch_rows
        reads, schema = TableReads(table, session), table.arrow(table.read_names)
        found: list[pa.RecordBatch] = []
        mark, size = self.mark, 0
        while True:
            batch, read_bytes = reads.changes(mark, limit, BATCH_BYTES)
            found.append(batch)
            size += read_bytes
            if batch.num_rows < limit and read_bytes < BATCH_BYTES:
                return combined(found, schema), True
            passed = pc.all(unchanged(batch, self.unsettled, table.key)).as_py()
            if not passed or len(found) == _UNSETTLED_BATCHES or size >= _UNSETTLED_BYTES:
                return combined(found, schema), False
            mark = table.mark(batch, batch.num_rows - 1, mark)


class DifferencesDirectory:
    """Differences of one table: what a full comparison found, as files that polling picks up and sends to the journal.

        <root>/<schema.table>/<number>/*.parquet     the key columns, and ``_lakefeed_found``: deleted or changed

    A directory appears by one rename, complete. Its number is its time in milliseconds. The position includes how far
    it has been delivered, so that it is delivered completely and once, in spite of crashes; then it is removed."""

    def __init__(self, root: Path, table: TableId) -> None:
        self.path = root / quote(str(table), safe=" .")

    def next(self, after: Mark | None) -> tuple[pa.RecordBatch, Mark] | None:
        """The next keys that have not been delivered, and the mark that records their delivery."""
        for number, path, offset in self._numbered(after):
            if offset is not None:
                part = pq.read_table(path, partitioning=None).combine_chunks().slice(offset, SLICE_ROWS).to_batches()
                if part:
                    return part[0], Mark(number, (offset + part[0].num_rows,))
        return None

    def forget(self, confirmed: Mark) -> None:
        """Remove what is durable elsewhere: everything up to ``confirmed``."""
        for _, path, offset in self._numbered(confirmed):
            if offset is None or 0 < sum(pq.read_metadata(file).num_rows for file in path.glob("*.parquet")) <= offset:
                shutil.rmtree(path, ignore_errors=True)

    def _numbered(self, mark: Mark | None) -> Iterator[tuple[int, Path, int | None]]:
        """Each directory, and how many of its keys are delivered at ``mark``; None means all."""
        there = self.path.iterdir() if self.path.is_dir() else ()
        for number, path in sorted((int(path.name), path) for path in there if path.name.isdigit()):
            delivered: int | None = 0
            if mark is not None and number <= mark.instant_us:
                delivered = None if number < mark.instant_us else int(mark.key[0])
            yield number, path, delivered


def mark_name(table: TableId) -> str:
    """The name under which a position records how far the differences of a table have been delivered."""
    return f"{table}#full-diff"


def looked_up(session: Session, table: PolledTable, found: pa.RecordBatch, now_us: int) -> list[Events]:
    """What the source has under the keys that a comparison found, in one consistent read. The comparison ran while the
    source was written to. So a key that no longer exists is a delete, whatever was found; an existing one is delivered
    as it is now if it was found to differ, and ignored if it was found to be missing."""
    # Cast to the source's types: Spark wrote the keys, and has other types for some (times in nanoseconds).
    keys = found.select(list(table.key)).cast(table.arrow(table.key))
    rows = TableReads(table, session).by_key(key_rows(keys, table.key))
    alive = rows.filter(pa.array(~table.are_deleted(rows)))
    gone = keys.filter(pc.invert(in_keys(keys, alive, table.key)))
    changed = keys.filter(pc.equal(found.column(FOUND), pa.scalar(CHANGED)))
    now = alive.filter(in_keys(alive, changed, table.key))
    events = []
    if count := gone.num_rows:
        nothing: dict[str, Any] = {one.name: pa.array([None] * count, one.type) for one in table.schema.columns}
        deleted = pa.RecordBatch.from_pydict({**nothing, **{name: gone.column(name) for name in table.key}})
        operations = np.full(count, Operation.DELETE, np.int8)
        events.append(Events(table.schema, deleted, operations, np.full(count, now_us, np.int64)))
    if now.num_rows:
        events.append(classified(table, now, table.times(now, expect_order=False)))
    return events


def classified(table: PolledTable, rows: pa.RecordBatch, times: Instants) -> Events:
    """A deleted row is a delete; one created and updated at the same instant is an insert; all others are updates. Do
    not rely on the difference when applying them: a row inserted and updated between two polls is an update of a row
    that the lake has never seen. Only the key of a deleted row is delivered."""
    deleted, inserted = table.are_deleted(rows), table.are_inserts(rows)
    operations = np.select([deleted, inserted], [Operation.DELETE, Operation.INSERT], Operation.UPDATE)
    delivered: Any = rows.select(list(table.schema.names))
    for index, column in enumerate(table.schema.columns if deleted.any() else ()):
        if column.name not in table.key:
            values = pc.if_else(pa.array(deleted), pa.scalar(None, column.type), delivered.column(index))
            delivered = delivered.set_column(index, column.name, values)
    return Events(table.schema, delivered, operations.astype(np.int8), times)


def change_batches(found: Sequence[Events], end: Position, polled_us: int) -> Batches:
    """All events as one run, numbered by time over all tables, with each table's events in their own order."""
    # A late event must not get a lower number than those it follows in its table, in the same piece or another one.
    latest: dict[TableId, np.int64] = {}
    pieces = [np.empty(0, np.int64)]
    for events in found:
        piece = np.maximum.accumulate(events.times)
        if len(piece):
            piece = np.maximum(piece, latest.get(events.schema.table, piece[0]))
            latest[events.schema.table] = piece[-1]
        pieces.append(piece)
    everything = np.concatenate(pieces)
    numbers = np.empty(len(everything), np.int64)
    numbers[np.argsort(everything, kind="stable")] = np.arange(len(everything))

    poll = datetime.fromtimestamp(polled_us / 1e6, UTC).isoformat(timespec="milliseconds")
    batches = Batches(Spill(), transactions=[Transaction(end, polled_us, f"poll {poll}")])
    counts = [len(events.times) for events in found]
    for events, own in zip(found, np.split(numbers, np.cumsum(counts)), strict=False):
        first = np.zeros(len(own), np.int32)
        batches.append(Rows(events.schema, events.rows.columns, events.operations, own, first, times=events.times))
    return batches


def unchanged(rows: pa.RecordBatch, before: pa.RecordBatch | None, key: Sequence[str]) -> Any:
    """A boolean array: which of ``rows`` are in ``before``, equal in every column. It compares content, not only time,
    so that a row that changed twice within one time stamp is delivered twice."""
    if before is None or before.num_rows == 0 or not rows.schema.equals(before.schema):
        return pa.array([False] * rows.num_rows, pa.bool_())
    index: Any = pc.index_in(key_texts(rows, key), value_set=key_texts(before, key))
    same: Any = pc.is_valid(index)
    for mine, theirs in zip(rows.columns, before.columns, strict=True):
        other: Any = theirs.take(index)
        if pa.types.is_nested(mine.type):  # Arrow has no comparison of lists
            mine, other = (pa.array(map(repr, values.to_pylist()), pa.string()) for values in (mine, other))
        # NULL equals NULL here, and NaN equals NaN: a row that never equals itself would be delivered for ever.
        is_float = pa.types.is_floating(mine.type)
        nothing = [pc.is_null(values, nan_is_null=is_float) for values in (mine, other)]
        equal: Any = pc.equal(mine, other)
        same = pc.and_(same, pc.or_(pc.fill_null(equal, False), pc.and_(*nothing)))
    return same


def in_keys(rows: pa.RecordBatch, others: pa.RecordBatch, key: Sequence[str]) -> Any:
    """A boolean array: which of ``rows`` have a key that is also in ``others``."""
    return pc.is_in(key_texts(rows, key), value_set=key_texts(others, key))


def key_texts(rows: pa.RecordBatch, key: Sequence[str]) -> Any:
    """One value per row, equal only for equal keys. A single key column is its own."""
    if len(key) == 1:
        return rows.column(key[0])
    parts: list[Any] = []
    for name in key:
        value = rows.column(name)
        text: Any = value if pa.types.is_binary(value.type) else value.cast(pa.string()).cast(pa.binary())
        # Each part is preceded by its length, to tell ('a:b', 'c') from ('a', 'b:c').
        size = pc.binary_length(text).cast(pa.string()).cast(pa.binary())
        parts += [size, pa.scalar(b":"), text]
    return pc.binary_join_element_wise(*parts, pa.scalar(b""))


def settled_rows(times: Instants, horizon: Horizon, table: PolledTable) -> int:
    """How many of the rows, from the first on, are settled: nothing can appear before them any more."""
    if horizon.settled_us is None:
        return 0
    return int(np.searchsorted(times, horizon.settled_us - round(table.rule.safety_lag_seconds * 1e6), side="right"))


def resume_mark(session: Session, table: PolledTable, horizon: Horizon, before: Mark | None) -> Mark:
    """The last settled row: a copy from now on includes everything up to it. Never before ``before``."""
    start = Mark.start(before.era if before is not None else 0)
    try:
        with session.consistent():
            rows = TableReads(table, session).newest(_NEWEST_ROWS)
    except MisfitError as error:
        raise error.stopped(table.id) from error
    rows = rows.take(np.arange(rows.num_rows - 1, -1, -1))  # into reading order
    settled = settled_rows(table.times(rows), horizon, table)
    # Not all rows with its time were counted, so its place is not known.
    mark = replace(table.mark(rows, settled - 1, start), place=0) if settled else start
    return before if before is not None and mark.compare(before) == -1 else mark


def refuse_timeless(session: Session, table: PolledTable, before: int = 0) -> int:
    """How many rows no poll would find. TableStoppedError if the rule forbids them; otherwise logs a new number."""
    count = TableReads(table, session).count_timeless()
    if count and table.rule.null_updated_at is not NullPolicy.IGNORE:
        problem = f"{count} rows have NULL in {', '.join((table.updated_at, *table.key))}, and would never be found"
        remedy = f"Give them values, or set null_updated_at to created_at or ignore in the rule of {table.id}."
        raise TableStoppedError(f"{table.id}: {problem}", table=str(table.id), remedy=remedy)
    if count not in (0, before):
        log.warning("%s: %d rows have no %s; their changes are not seen", table.id, count, table.updated_at)
    return count

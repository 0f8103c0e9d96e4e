"""Feed: where a runtime's change sets come from. PendingQueue: cuts deliveries from what the feed returns.

Every pull carries the progress that holds once it is committed, so the runtime saves what the pull says and never
derives it. After a lost connection a feed is made from its progress, the same way as at a start: a snapshot that was
running continues as a snapshot, and never silently as a plain stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from lakefeed.capture.base import ChangeCapture
from lakefeed.change.batch import METADATA, OP, POSITION, SEQ, ChangeBatch, Operation, change_schema
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position
from lakefeed.change.table import TableSchema
from lakefeed.embed.barrier import events
from lakefeed.embed.options import RuntimeOptions
from lakefeed.embed.progress import Progress
from lakefeed.errors import DecodeError, SourceError, StateError

_STALE_READS_MAX = 100


@dataclass(frozen=True, slots=True)
class Pulled:
    """One pull. Without a change set it only moves progress (``idle``: the source has nothing more right now).

    ``bracket``: the change set is a snapshot chunk whose rows are states of the table between the two positions.
    """

    progress: Progress
    change_set: ChangeSet | None = None
    bracket: tuple[Position, Position] | None = None
    idle: bool = False
    deduplicated: int = 0

    @property
    def rows(self) -> int:
        return self.change_set.rows if self.change_set else 0


class Feed:
    """Live changes strictly after a position; before them, or alternating with them, the chunks still to be copied.

    ``progress`` is that after the last pull. In a snapshot all chunks come first, then the stream from the position
    before the first chunk. With ``options.incremental`` chunks and stream alternate, and the stream never waits while
    chunks remain: an idle source must not slow down the copy. Otherwise a cursor is carried along unchanged. After an
    error a feed must not be used again.
    """

    def __init__(self, capture: ChangeCapture, progress: Progress, options: RuntimeOptions) -> None:
        self._capture = capture
        self._options = options
        self._live: Iterator[ChangeSet] | None = None
        self._wait_seconds = 0.0
        self._chunk_turn = False
        self._stale_reads = 0
        self.progress = progress

    def pull(self, wait_seconds: float) -> Pulled:
        progress, retention = self.progress, self._options.schema_history_retention
        beside = self._options.incremental is not None and progress.cursor is not None and not progress.cursor.done
        self._chunk_turn = progress.in_snapshot or (beside and not self._chunk_turn)
        if self._chunk_turn:
            pulled = self._pull_chunk()
        elif beside:
            pulled = replace(self._pull_stream(0.0), idle=False)
        else:
            pulled = self._pull_stream(wait_seconds)
        if pulled.change_set is None:
            return pulled
        schemas = progress.schemas.seen(pulled.change_set, retention, is_chunk=self._chunk_turn)
        self.progress = replace(self.progress, schemas=schemas)
        return replace(pulled, progress=self.progress)

    def close(self) -> None:
        if isinstance(self._live, Generator):
            self._live.close()
        self._live = None

    def _pull_stream(self, wait_seconds: float) -> Pulled:
        if self._live is None or wait_seconds != self._wait_seconds:
            self.close()
            self._live = self._capture.live(self.progress.position, wait_seconds=wait_seconds)
            self._wait_seconds = wait_seconds
        change_set = next(self._live, None)
        if change_set is None:  # the iterator ended, which a real source's never does: start another one next time
            self._live = None
            return Pulled(self.progress, idle=True)
        position, start = self.progress.position, change_set.start
        # Everything in it is before the position. Judged by positions, never by content: equal rows may be two rows. A
        # change set that starts and ends at the position is new: a poll can find late rows without moving on.
        if position is not None and start is not None and start < position and change_set.end <= position:
            return Pulled(self.progress, deduplicated=change_set.rows)
        if position is None or not change_set.end < position:
            self.progress = replace(self.progress, position=change_set.end)
        if change_set.is_heartbeat:
            return Pulled(self.progress, idle=True)
        return Pulled(self.progress, change_set)

    def _pull_chunk(self) -> Pulled:
        """The next chunk, as a change set of rows with the operation READ.

        The log may reach a position before its rows are visible to a reader. A chunk from before the stream's position
        would overwrite delivered changes with old values, so the next pull reads it again; a chunk from after it is
        corrected by the changes that follow. Positions without an order cannot be judged: a capture that uses them must
        read its chunks no earlier than what ``live`` has delivered.
        """
        stream, cursor = self.progress.position, self.progress.cursor
        if stream is None or cursor is None:
            raise StateError("a snapshot chunk cannot be read before the stream has a position")
        if cursor.schema is None:
            plan = self._capture.snapshot(cursor.current, chunk_rows=self._options.chunk_rows)
            self._capture.recall([plan.schema])
            cursor = cursor.planned(plan)
        schema, first = cursor.schema, cursor.chunk == 0
        assert schema is not None  # noqa: S101  # set by planned()
        rows: list[pa.RecordBatch] = []
        low = high = stream
        if cursor.chunks:
            with self._capture.chunk(cursor.chunks[cursor.chunk]).open() as reader:
                rows = [batch for batch in reader if batch.num_rows]
                low, high = reader.low, reader.high
        if self._capture.capabilities.current_chunks:  # current rows, whatever the plan's position is
            low, high = stream, stream if high < stream else high
        if low < stream:
            self._stale_reads += 1
            if self._stale_reads >= _STALE_READS_MAX:
                raise SourceError(
                    f"a snapshot chunk was read {self._stale_reads} times and was older than the stream each time",
                    remedy="Use snapshot_tables instead of an incremental snapshot: this source copies from a fixed "
                    "state.",
                )
            self.progress = replace(self.progress, cursor=cursor)
            return Pulled(self.progress, idle=True)
        self._stale_reads = 0
        cursor = cursor.advanced()
        if cursor.schema is None:  # that was the table's last chunk
            self._capture.copied(schema.table)
        if self.progress.in_snapshot and cursor.done:
            self.progress = replace(self.progress, cursor=None, in_snapshot=False)
        else:
            self.progress = replace(self.progress, cursor=cursor)
        if not rows and not first:
            return Pulled(self.progress, None, (low, high))
        batches, total = [], 0
        for batch in rows:
            batches.append(read_batch(schema, batch, total, low))
            total += batch.num_rows
        # A table's first change set has its schema, so that an empty table is seen, too.
        change_set = ChangeSet(stream, stream, tuple(batches), total, schemas=(schema,) if first else ())
        return Pulled(self.progress, change_set, (low, high))


def read_batch(schema: TableSchema, batch: pa.RecordBatch, start: int, low: Position) -> ChangeBatch:
    """Rows of a chunk in the layout of changes. Their seq counts from ``start``."""
    if tuple(batch.schema.names) != schema.names:
        raise DecodeError(
            f"a chunk of {schema.table} has the columns {', '.join(batch.schema.names)}; "
            f"{', '.join(schema.names)} were planned",
            remedy="The table was altered during its snapshot: delete the checkpoint to start the snapshot again.",
        )
    rows = batch.num_rows
    layout = change_schema(schema)
    known = {
        OP: pa.array(np.full(rows, int(Operation.READ), dtype=np.int8)),
        SEQ: pa.array(np.arange(start, start + rows, dtype=np.int64)),
        POSITION: pa.DictionaryArray.from_arrays(np.zeros(rows, dtype=np.int32), pa.array([low.encode()])),
    }
    metadata = [known.get(field.name, pa.nulls(rows, field.type)) for field in METADATA]
    own = [column.cast(layout.field(index).type) for index, column in enumerate(batch.columns)]
    return ChangeBatch(schema, pa.RecordBatch.from_arrays([*own, *metadata], schema=layout))


class PendingQueue:
    """What a runtime has pulled, or was given, and has not delivered yet.

    Everything from the source is in one queue, in source order, so that it cannot be delivered or drained out of order.
    Injected change sets come after whatever the source had returned by then. ``tail`` is the progress after the last
    delivered pull; injected change sets do not move it. It is None if there is no source: then the embedder's own
    positions count.
    """

    def __init__(self, options: RuntimeOptions) -> None:
        self._options = options
        self._pulled: deque[Pulled] = deque()
        self._injected: deque[ChangeSet] = deque()
        self._rows = 0  # of what is pulled; kept up to date, so that many small sets need not be counted each time
        self._bytes = 0
        self._chunk_before = False
        self.tail: Progress | None = None

    def add(self, pulled: Pulled) -> None:
        self._pulled.append(pulled)
        self._rows += pulled.rows
        self._bytes += self._size(pulled.change_set)

    def inject(self, change_set: ChangeSet) -> None:
        self._injected.append(change_set)

    @property
    def events(self) -> int:
        return sum(map(events, self._pulled)) + sum(map(events, self._injected))

    @property
    def empty(self) -> bool:
        return not self._pulled and not self._injected

    @property
    def has_pulled(self) -> bool:
        return bool(self._pulled)

    @property
    def full(self) -> bool:
        """Whether there is enough for a delivery. A chunk is a delivery of its own, and nothing is pulled after it."""
        if self._pulled and self._pulled[-1].bracket:
            return True
        return self._rows >= self._options.max_events or self._bytes >= self._options.max_bytes

    def take(self) -> list[Pulled]:
        """The next delivery; empty if there is nothing. A chunk goes alone; injected sets alternate with chunks."""
        taken: list[Pulled] = []
        if self._chunk_is_next and not (self._chunk_before and self._injected):
            self._chunk_before = True
            taken = [self._pop()]
        else:
            self._chunk_before = False
            rows = size = 0

            def fits(change_set: ChangeSet | None) -> bool:
                """Whether it fits into this delivery; if so, counts it. The first one always fits."""
                nonlocal rows, size
                more_rows, more = change_set.rows if change_set else 0, self._size(change_set)
                if taken and (rows + more_rows > self._options.max_events or size + more > self._options.max_bytes):
                    return False
                rows, size = rows + more_rows, size + more
                return True

            while self._pulled and not self._chunk_is_next and fits(self._pulled[0].change_set):
                taken.append(self._pop())
            if not self._pulled or self._chunk_is_next:  # otherwise the source's rest precedes anything injected
                progress = taken[-1].progress if taken else self.tail
                while self._injected and fits(self._injected[0]):
                    change_set = self._injected.popleft()
                    taken.append(Pulled(progress or Progress(change_set.end), change_set))
        if taken and self.tail is not None:
            self.tail = taken[-1].progress
        return taken

    def drain(self) -> list[ChangeSet]:
        """Everything, in delivery order."""
        sets = [pulled.change_set for pulled in self._pulled if pulled.change_set is not None]
        drained = [*sets, *self._injected]
        self._pulled.clear()
        self._injected.clear()
        self._rows = self._bytes = 0
        return drained

    @property
    def _chunk_is_next(self) -> bool:
        return bool(self._pulled) and self._pulled[0].bracket is not None

    def _pop(self) -> Pulled:
        pulled = self._pulled.popleft()
        self._rows -= pulled.rows
        self._bytes -= self._size(pulled.change_set)
        return pulled

    def _size(self, change_set: ChangeSet | None) -> int:
        """A lazily read set is too big to keep, so it fills a delivery: measuring it would read all of it."""
        if change_set is None:
            return 0
        if not isinstance(change_set.batches, Sequence):
            return self._options.max_bytes
        return sum(batch.bytes for batch in change_set.batches)

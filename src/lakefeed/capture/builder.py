"""ChangeSetBuilder: turns decoded pieces into change sets that end at a commit. Every log source uses it.

``add`` takes pieces as they arrive, even in the middle of a transaction; ``cut`` hands out what is complete. The
builder numbers the changes (``_lakefeed_seq`` grows with the log, with gaps), adds the metadata columns, and spills to
disk what does not fit into memory. A change set owns its data: it can be iterated again, and outlives ``confirm`` and
the builder.
"""

from __future__ import annotations

import errno
import hashlib
import secrets
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.log import Announced, Decoded, P, Rows, Transaction
from lakefeed.change.batch import METADATA, ChangeBatch, change_schema
from lakefeed.change.change_set import ChangeSet, TableBlocked, TableNotice
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import JournalFullError

MEMORY_BYTES = 64 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_ABSENT = pa.list_(pa.string())
_TIME = METADATA.field("_lakefeed_time").type
_PART = pa.schema(  # a NULL time means the transaction's time
    [("op", pa.int8()), ("seq", pa.int64()), ("transaction", pa.int32()), ("absent", _ABSENT), ("time", pa.int64())]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to cut a change set, and how far an idle source may get ahead before a heartbeat moves its resume point."""

    rows: int = 200_000
    bytes: int = 64 << 20
    linger_seconds: float = 0.5
    heartbeat_seconds: float = 10.0
    heartbeat_bytes: int = 16 << 20


class Spill:
    """Arrow batches: in memory while they are small, then in a temporary file. Append first, then iterate as often as
    you like, from one thread at a time. The file has no name: it disappears with the last reference or with the
    process. It is encrypted with a key that exists only in memory: masks are applied later, and no clear text may be
    stored."""

    def __init__(self, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._items: list[pa.RecordBatch | tuple[int, int]] = []  # a batch, or its offset and size in the file
        self._file: Any = None
        self._key = secrets.token_bytes(32)

    def append(self, batch: pa.RecordBatch) -> None:
        """JournalFullError, which is retried like the journal's own, if the disk has no room for the file."""
        if batch.nbytes <= self._memory_bytes:
            self._memory_bytes -= batch.nbytes
            self._items.append(batch)
            return
        is_first = self._file is None
        try:
            if is_first:
                self._file = tempfile.TemporaryFile(prefix="lakefeed-")  # noqa: SIM115  # lives as long as the object
                self._closing = weakref.finalize(self, _close, self._file)
            offset, kept = self._file.seek(0, 2), pa.BufferOutputStream()
            with pa.ipc.new_stream(kept, batch.schema) as writer:
                writer.write_batch(batch)
            self._file.write(self._crypted(kept.getvalue(), offset))
            self._file.flush()  # report a full disk now
        except OSError as error:
            if is_first and self._file is not None:
                self._closing()  # the file is empty: do not keep it open while the change set is retried
                self._file = None
            if error.errno not in _NO_ROOM:
                raise
            problem = f"no room left in {tempfile.gettempdir()} for the temporary file of a large transaction"
            remedy = "Free space there, or set TMPDIR to a larger disk."
            raise JournalFullError(f"{problem}: {error.strerror}", remedy=remedy) from error
        self._items.append((offset, self._file.tell() - offset))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for item in self._items:
            if isinstance(item, pa.RecordBatch):
                yield item
            else:
                self._file.seek(item[0])
                clear = self._crypted(self._file.read(item[1]), item[0])
                with pa.ipc.open_stream(pa.py_buffer(clear)) as reader:
                    yield reader.read_next_batch()

    def _crypted(self, data: Any, offset: int) -> bytes:
        """XOR with a key stream that is unique to the offset: encrypts and decrypts."""
        given = np.frombuffer(data, dtype=np.uint8)
        stream = hashlib.shake_128(self._key + offset.to_bytes(8)).digest(len(given))
        return (given ^ np.frombuffer(stream, dtype=np.uint8)).tobytes()


def _close(file: Any) -> None:
    """Closing tries once more to write what could not be written, and fails again; the file is closed anyway."""
    with suppress(OSError):
        file.close()


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches of a change set. Each iteration builds them again from the kept parts."""

    parts: Spill
    tables: list[TableSchema] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)

    def append(self, rows: Rows, first_seq: int = 0, first_transaction: int = 0) -> int:
        """Keep ``rows``, whose order and transactions count from these numbers. Returns their size in bytes."""
        count = len(rows.operations)
        order, codes = np.asarray(rows.order) + first_seq, np.asarray(rows.transactions) + first_transaction
        absent = pa.nulls(count, _ABSENT) if rows.absent is None else rows.absent
        times = pa.nulls(count, pa.int64()) if rows.times is None else rows.times
        given = [*rows.columns, rows.operations, order, codes, absent, times]
        fields = [*(pa.field(column.name, column.type) for column in rows.schema.columns), *_PART]
        arrays = [
            values if isinstance(values, pa.Array) else pa.array(values, kind.type)
            for values, kind in zip(given, fields, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, metadata=rows.replaced))
        self.parts.append(batch)
        self.tables.append(rows.schema)
        return batch.nbytes

    def __iter__(self) -> Iterator[ChangeBatch]:
        for schema, part in zip(self.tables, self.parts, strict=True):
            width = len(schema.columns)
            operations, seqs, codes, absent, own_times = part.columns[width:]
            numbers = codes.to_numpy()
            first, last = int(numbers.min()), int(numbers.max())
            chosen = self.transactions[first : last + 1]
            indices: Any = pa.array(numbers - first)
            times: Any = pa.array([one.time_us for one in chosen], pa.int64()).take(indices)
            if own_times.null_count < len(own_times):
                times = pc.coalesce(own_times, times)
            ends = pa.DictionaryArray.from_arrays(indices, pa.array([one.end.encode() for one in chosen], pa.string()))
            ids = pa.DictionaryArray.from_arrays(indices, pa.array([one.id for one in chosen], pa.string()))
            arrays = [*part.columns[:width], operations, seqs, ends, times.cast(_TIME), ids, absent]
            layout = change_schema(schema).with_metadata(part.schema.metadata)
            yield ChangeBatch(schema, pa.RecordBatch.from_arrays(arrays, schema=layout))


@dataclass(slots=True)
class _Draft:
    """The change set under construction."""

    batches: Batches
    schemas: list[TableSchema] = field(default_factory=list)
    notices: list[TableNotice] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    next_seq: int = 0
    began_at: float | None = None


class ChangeSetBuilder(Generic[P]):
    """See the module. ``position`` is where the last change set ended; ``reached`` may be further. Belongs to the
    stream's thread; any thread may call ``unblock``. After a TableBlocked notice the builder drops rows of that table
    until ``unblock``, and reports the notice once."""

    def __init__(self, position: P, limits: Limits | None = None, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self.position = position
        self.reached = position
        self.in_transaction = False
        self._limits = limits or Limits()
        self._memory_bytes = memory_bytes
        self._blocked: set[TableId] = set()
        self._draft = _Draft(Batches(Spill(memory_bytes=memory_bytes)))
        self._cut_at = time.monotonic()
        self._times: deque[tuple[P, float]] = deque(maxlen=1000)

    @property
    def is_empty(self) -> bool:
        """Whether nothing for the lake has arrived since the last cut."""
        return not (self._draft.rows or self._draft.notices or self._draft.schemas)

    def unblock(self, table: TableId) -> None:
        """Deliver rows of the table again: it was prepared again."""
        self._blocked.discard(table)

    def add(self, decoded: Decoded[P]) -> None:
        """Take in a piece. ``reached`` moves only while no transaction is open: a commit is still to come."""
        draft, batches = self._draft, self._draft.batches
        if decoded.continues:
            batches.transactions.pop()  # the piece repeats it, with its end if that is known by now
        base = len(batches.transactions)
        batches.transactions.extend(decoded.transactions)
        for item in chain.from_iterable(one if isinstance(one, Iterable) else (one,) for one in decoded.items):
            if isinstance(item, Announced):
                self.announce(item)
            elif (count := len(item.operations)) and item.schema.table not in self._blocked:
                draft.bytes += batches.append(item, draft.next_seq, base)
                draft.rows += count
                draft.began_at = draft.began_at or time.monotonic()
        draft.next_seq += decoded.width
        if decoded.transactions:
            self.in_transaction = decoded.open
        if not self.in_transaction:
            ends: list[Any] = [self.reached, decoded.reached, *(one.end for one in decoded.transactions[-1:])]
            self.reached = max(end for end in ends if end is not None)  # a decoder's positions are of one kind

    def announce(self, announced: Announced) -> None:
        """Report a table's new schema, or a notice, with the next change set."""
        for notice in announced.notices:
            if isinstance(notice, TableBlocked):
                if notice.table in self._blocked:
                    continue
                self._blocked.add(notice.table)
            self._draft.notices.append(notice)
        self._draft.schemas += announced.schemas
        self._draft.began_at = self._draft.began_at or time.monotonic()

    def due(self, *, more: bool, is_over: bool = False, ahead_bytes: int = 0) -> ChangeSet | None:
        """The change set to hand out now, or None.

        A change set with content is cut at a commit as soon as no ``more`` has arrived, it has enough rows or bytes, or
        its first change has waited long enough. If nothing for the lake has arrived, a heartbeat moves the position
        from time to time, or once the source is ``ahead_bytes`` further: an idle source then retains no log for us, and
        a busy one gets few heartbeats. ``is_over``: the caller has waited long enough and gets an answer, if need be a
        heartbeat that moves nothing."""
        draft, limits, now = self._draft, self._limits, time.monotonic()
        if self.is_empty:
            late = now - self._cut_at >= limits.heartbeat_seconds
            is_due = self.reached > self.position and (late or ahead_bytes >= limits.heartbeat_bytes)
        else:
            full = draft.rows >= limits.rows or draft.bytes >= limits.bytes
            is_due = full or not more or now - (draft.began_at or now) >= limits.linger_seconds
        if is_due and not self.in_transaction:
            return self.cut()
        return ChangeSet(self.position, self.position) if is_over else None

    def cut(self) -> ChangeSet:
        """Everything since the last cut. Must not be called inside a transaction."""
        assert not self.in_transaction  # noqa: S101  # the caller cuts at commits
        draft, start = self._draft, self.position
        self._draft = _Draft(Batches(Spill(memory_bytes=self._memory_bytes)))
        self.position, self._cut_at = self.reached, time.monotonic()
        if transactions := draft.batches.transactions:
            self._times.append((self.position, transactions[-1].time_us / 1e6))
        return ChangeSet(start, self.reached, draft.batches, draft.rows, tuple(draft.schemas), tuple(draft.notices))

    def time_of(self, position: P) -> float | None:
        """The commit time, by the source's clock, of the last transaction up to ``position``, if it was recent."""
        return next((seconds for end, seconds in reversed(self._times) if end <= position), None)

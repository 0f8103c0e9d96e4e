"""Changes kept in Spark's memory from one reading to the next.

Who asks for a table again and again, each time with what the journal has more, has mostly the same segments each time,
one for each change set. To open one takes longer than to read its rows. So a run of consecutive segments that is read
for the second time is kept: Spark computes its rows when a query first needs them, and again if it loses them.

As segments come, runs grow as the digits of a binary counter do: two of the same length become one of twice the length.
So a query has few runs, and few segments that are in none.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from lakefeed.change.segment import Segment
from lakefeed.change.table import TableSchema
from lakefeed.lake.spark.driver import Driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUN, _LONGEST_RUN = 8, 256
"""Segments of the shortest run and of the longest. What is left over is read from its files, half of the shortest on
average. A run is read from all of its files when it is made, so longer ones would make a query wait."""
_MOST_SEGMENTS = 4_096
"""Of a window, the oldest: each reading looks all their runs up."""
_MOST_RUN_BYTES = 8 << 20
"""Of the files of a run: to open them is little beside reading more than that."""
_MOST_BYTES, _MOST_RUNS = 64 << 20, 64
"""Kept by this process, for all journals and sessions."""
_IDLE_SECONDS = 10.0
"""A run that was read within this time stays. Else more runs than there may be would throw each other out, each before
it is read again."""
_MOST_READ = 4_000
"""Shortest runs of which it is known that they were read."""
_KEPT = "_lakefeed_kept"
"""A column that makes each kept plan another one: else Spark would give a kept run to every query that reads the same
paths, and a journal that was made again has them for other changes."""

_numbers = itertools.count()
_lock = threading.Lock()
_kept: OrderedDict[_Key, _Kept] = OrderedDict()
"""The runs in Spark's memory, the one that was not read for longest first."""
_read: OrderedDict[_Key, None] = OrderedDict()
"""The shortest runs that were read, the oldest reading first."""


@dataclass(frozen=True, slots=True)
class _Key:
    """What is read of a run."""

    owner: KeptRuns
    session: SparkSession
    schema: TableSchema
    metadata: tuple[str, ...]
    segments: tuple[Segment, ...]

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    @property
    def halves(self) -> tuple[_Key, ...]:
        """The two runs that this one grew from; none for the shortest."""
        middle = len(self.segments) // 2
        if middle < RUN:
            return ()
        return replace(self, segments=self.segments[:middle]), replace(self, segments=self.segments[middle:])

    def was_read(self) -> bool:
        """Whether all of it was read before. Call with the lock held."""
        return all(half.was_read() for half in self.halves) if self.halves else self in _read


@dataclass(slots=True)
class _Kept:
    rows: DataFrame
    read_at: float
    has_shorter: bool = True
    """Whether the runs that it grew from may still be kept: until it was read itself, and so computed."""

    def let_go(self) -> None:
        with suppress(Exception):  # its session may have ended, and the memory with it
            self.rows.unpersist()


class KeptRuns:
    """The runs of one journal that are kept. Any thread."""

    def __init__(self) -> None:
        self._is_over = False

    def rows(
        self,
        session: SparkSession,
        schema: TableSchema,
        segments: Sequence[Segment],
        metadata: Sequence[str],
        read: Callable[[Sequence[Segment]], DataFrame],
    ) -> DataFrame:
        """``read(segments)``, with the runs that are kept. ``schema`` is that of all segments.

        A server of Spark Connect keeps nothing: it would not let go of it after a client that has died. An application
        may clear Spark's memory at any time: then the runs are kept again from their next but one reading on.
        """
        if not Driver(session).has_jvm:
            return read(segments)
        parts: list[DataFrame] = []
        left: list[Segment] = []

        def take(run: _Key) -> None:
            kept = self._run(run, read)
            if kept is not None:
                parts.append(kept)
            elif run.halves:
                for half in run.halves:
                    take(half)
            else:
                left.extend(run.segments)

        start, runs = 0, len(segments) // RUN
        while runs and start < _MOST_SEGMENTS:
            length = min(1 << (runs.bit_length() - 1), _LONGEST_RUN // RUN)
            end = start + length * RUN
            take(_Key(self, session, schema, tuple(metadata), tuple(segments[start:end])))
            start, runs = end, runs - length
        if parts and not parts[0].storageLevel.useMemory:  # somebody has cleared Spark's memory
            self._drop()
            return read(segments)
        left += segments[start:]
        found = [part.drop(_KEPT) for part in parts]
        return reduce(lambda one, other: one.union(other), [*found, read(left)] if left else found)

    def forget(self) -> None:
        """Give all memory back, and keep nothing from now on."""
        self._is_over = True
        self._drop()

    def _drop(self) -> None:
        with _lock:
            gone = [_kept.pop(key) for key in list(_kept) if key.owner is self]
            for key in [key for key in _read if key.owner is self]:
                del _read[key]
        for one in gone:
            one.let_go()

    def _run(self, key: _Key, read: Callable[[Sequence[Segment]], DataFrame]) -> DataFrame | None:
        """The rows of a run, kept if all of it was read before; else None, and what was read is known from now on."""
        now, gone = time.monotonic(), list[_Kept]()
        with _lock:
            found = _kept.get(key)
            if found is not None and found.has_shorter:
                found.has_shorter = False
                gone += _without_shorter(key)
            if found is None and not self._is_over and key.was_read() and key.bytes <= _MOST_RUN_BYTES:
                while _kept and not _has_room(key):
                    oldest = next(iter(_kept))
                    if now - _kept[oldest].read_at < _IDLE_SECONDS:
                        break
                    gone.append(_kept.pop(oldest))
                if _has_room(key):
                    found = _kept[key] = _Kept(_persisted(read(key.segments)), now)
            if not key.halves:
                _read[key] = None
                _read.move_to_end(key)
                while len(_read) > _MOST_READ:
                    _read.popitem(last=False)
            if found is not None:
                found.read_at = now
                _kept.move_to_end(key)
        for one in gone:
            one.let_go()
        return found.rows if found is not None else None


def _without_shorter(key: _Key) -> list[_Kept]:
    """Take the runs that a run grew from out of the kept ones. Call with the lock held."""
    gone = list[_Kept]()
    for half in key.halves:
        if (kept := _kept.pop(half, None)) is not None:
            gone.append(kept)
        gone += _without_shorter(half)
    return gone


def _has_room(key: _Key) -> bool:
    return len(_kept) < _MOST_RUNS and sum(one.bytes for one in _kept) + key.bytes <= _MOST_BYTES


def _persisted(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return rows.coalesce(1).withColumn(_KEPT, F.lit(next(_numbers))).persist()


KEEPING: ContextVar[KeptRuns | None] = ContextVar("keeping", default=None)
"""The runs of the ``keeping`` block that the caller is in."""


@contextmanager
def keeping(runs: KeptRuns | None) -> Iterator[None]:
    """In this block of this thread, and in its jobs, windows take what ``runs`` has of their segments, and leave there
    what they read."""
    token = KEEPING.set(runs)
    try:
        yield
    finally:
        KEEPING.reset(token)

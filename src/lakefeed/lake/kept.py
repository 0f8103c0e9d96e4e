"""Changes kept in Spark's memory from one reading to the next.

Who asks for a table again and again, each time with what the journal has more, has mostly the same segments each time,
one for each change set. To open one takes longer than to read its rows. So a run of consecutive segments that is read
for the second time is kept: Spark computes its rows when a query first needs them, and again if it loses them.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from lakefeed.change.segment import Segment
from lakefeed.change.table import TableSchema
from lakefeed.lake.spark.driver import Driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUN = 32
"""Segments. What is left over is read from its files, half a run on average."""
_MOST_RUN_BYTES = 8 << 20
"""Of the files of a run: to open them is little beside reading more than that."""
_MOST_BYTES, _MOST_RUNS = 64 << 20, 64
"""Kept by this process, for all journals and sessions."""
_IDLE_SECONDS = 10.0
"""A run that was read within this time stays. Else more runs than there may be would throw each other out, each before
it is read again."""
_MOST_READ_ONCE = 1_000
_KEPT = "_lakefeed_kept"
"""A column that makes each kept plan another one: else Spark would give a kept run to every query that reads the same
paths, and a journal that was made again has them for other changes."""

_numbers = itertools.count()
_lock = threading.Lock()
_kept: OrderedDict[_Key, _Kept] = OrderedDict()
"""The runs in Spark's memory, the one that was not read for longest first."""
_read_once: OrderedDict[_Key, None] = OrderedDict()


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


@dataclass(slots=True)
class _Kept:
    rows: DataFrame
    read_at: float

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
        left = list[Segment]()
        whole = len(segments) - len(segments) % RUN
        for start in range(0, whole, RUN):
            run = tuple(segments[start : start + RUN])
            kept = self._run(_Key(self, session, schema, tuple(metadata), run), read)
            if kept is not None and not parts and not kept.storageLevel.useMemory:
                self._drop()
                return read(segments)
            if kept is None:
                left += run
            else:
                parts.append(kept.drop(_KEPT))
        left += segments[whole:]
        if left:
            parts.append(read(left))
        return reduce(lambda one, other: one.union(other), parts)

    def forget(self) -> None:
        """Give all memory back, and keep nothing from now on."""
        self._is_over = True
        self._drop()

    def _drop(self) -> None:
        with _lock:
            gone = [_kept.pop(key) for key in list(_kept) if key.owner is self]
            for key in [key for key in _read_once if key.owner is self]:
                del _read_once[key]
        for one in gone:
            one.let_go()

    def _run(self, key: _Key, read: Callable[[Sequence[Segment]], DataFrame]) -> DataFrame | None:
        """The rows of a run, kept if it was read before; else None, and that it was read is known from now on."""
        if key.bytes > _MOST_RUN_BYTES:
            return None
        now, gone = time.monotonic(), list[_Kept]()
        with _lock:
            found = _kept.get(key)
            if found is None and key not in _read_once:
                _read_once[key] = None
                while len(_read_once) > _MOST_READ_ONCE:
                    _read_once.popitem(last=False)
            elif found is None and not self._is_over:
                while _kept and not _has_room(key):
                    oldest = next(iter(_kept))
                    if now - _kept[oldest].read_at < _IDLE_SECONDS:
                        break
                    gone.append(_kept.pop(oldest))
                if _has_room(key):
                    del _read_once[key]
                    found = _kept[key] = _Kept(_persisted(read(key.segments)), now)
            if found is not None:
                found.read_at = now
                _kept.move_to_end(key)
        for one in gone:
            one.let_go()
        return found.rows if found is not None else None


def _has_room(key: _Key) -> bool:
    return len(_kept) < _MOST_RUNS and sum(one.bytes for one in _kept) + key.bytes <= _MOST_BYTES


def _persisted(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return rows.coalesce(1).withColumn(_KEPT, F.lit(next(_numbers))).persist()


_keeping: ContextVar[KeptRuns | None] = ContextVar("keeping", default=None)


@contextmanager
def keeping(runs: KeptRuns | None) -> Iterator[None]:
    """In this block of this thread, and in its jobs, windows take what ``runs`` has of their segments, and leave there
    what they read."""
    token = _keeping.set(runs)
    try:
        yield
    finally:
        _keeping.reset(token)


def kept_runs() -> KeptRuns | None:
    """The runs of the ``keeping`` block that the caller is in."""
    return _keeping.get()

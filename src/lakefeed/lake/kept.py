"""Changes kept in Spark's memory from one reading to the next.

Who asks for a table again and again, each time with what the journal has more, has mostly the same segments each time,
one for each change set. To open one takes longer than to read its rows. So a run of consecutive segments that is read
for the second time is kept: Spark computes its rows when a query first needs them, and again if it loses them.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
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
"""Of one journal."""
_KEPT = "_lakefeed_kept"
"""A column that makes each kept plan another one: else Spark would give a kept run to every query that reads the same
paths, and a journal that was made again has them for other changes."""

_Key = tuple["SparkSession", TableSchema, tuple[str, ...], tuple[Segment, ...]]
_numbers = itertools.count()


class KeptRuns:
    """The runs of one journal's segments that were read last, the oldest first. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[_Key, DataFrame | None] = OrderedDict()

    def rows(
        self,
        session: SparkSession,
        schema: TableSchema,
        segments: Sequence[Segment],
        metadata: Sequence[str],
        read: Callable[[Sequence[Segment]], DataFrame],
    ) -> DataFrame:
        """``read(segments)``, with the runs that are kept. ``schema`` is that of all segments.

        A server of Spark Connect keeps nothing: it would not let go of it after a client that has died.
        """
        if not Driver(session).has_jvm:
            return read(segments)
        parts, left = [], list[Segment]()
        whole = len(segments) - len(segments) % RUN
        for start in range(0, whole, RUN):
            run = segments[start : start + RUN]
            kept = self._run((session, schema, tuple(metadata), tuple(run)), read)
            if kept is None:
                left += run
            else:
                parts.append(kept.drop(_KEPT))
        left += segments[whole:]
        if left:
            parts.append(read(left))
        return reduce(lambda one, other: one.union(other), parts)

    def forget(self) -> None:
        """Give all memory back."""
        with self._lock:
            while self._runs:
                _let_go(self._runs.popitem()[1])

    def _run(self, key: _Key, read: Callable[[Sequence[Segment]], DataFrame]) -> DataFrame | None:
        """The rows of a run, kept if it is known already; else None, and it is known from now on."""
        if _bytes(key) > _MOST_RUN_BYTES:
            return None
        with self._lock:
            is_known = key in self._runs
            rows = self._runs.setdefault(key, None)
            self._runs.move_to_end(key)
            if is_known and rows is None:
                rows = self._runs[key] = _kept(read(key[-1]))
            while len(self._runs) > _MOST_RUNS or sum(map(_bytes, self._runs)) > _MOST_BYTES:
                _let_go(self._runs.popitem(last=False)[1])
            return rows


def _bytes(key: _Key) -> int:
    return sum(segment.bytes for segment in key[-1])


def _kept(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return rows.coalesce(1).withColumn(_KEPT, F.lit(next(_numbers))).persist()


def _let_go(rows: DataFrame | None) -> None:
    with suppress(Exception):  # its session may have ended, and the memory with it
        if rows is not None:
            rows.unpersist()


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

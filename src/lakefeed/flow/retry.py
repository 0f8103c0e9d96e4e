"""When to retry what failed: pauses that double, and the tables that are paused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from lakefeed.change.table import TableId
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.table_state import Phase, TableStates
from lakefeed.lake.base import TableResult

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
_TRIES, _ALONE_SECONDS = 3, 600.0
"""Before a failure counts as the table's own: the number of tries; and the time, if neither the kind of error nor
another table that works shows that the lake works."""


class Backoff:
    """Pauses between tries: ``first`` seconds, doubling up to ``longest``."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self._pause = self._until = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the next try may begin."""
        return time.monotonic() >= self._until

    @property
    def rest(self) -> float:
        """Seconds until the next try may begin."""
        return max(0.0, self._until - time.monotonic())

    def failed(self) -> float:
        """Record a failed try. Returns the length of the pause that begins now."""
        self._pause = min(self._longest, max(self._first, self._pause * 2))
        self._until = time.monotonic() + self._pause
        return self._pause

    def reset(self) -> None:
        self._pause = self._until = 0.0


class TableErrors:
    """The tables that cannot go on now, with error and remedy. Each is retried, less and less often. Any thread.

    A table is paused alone: the others go on meanwhile. ``_failed``: how often in a row it has failed, since when, and
    whether the kind of the last error shows that it is the table's own.
    """

    def __init__(self, states: TableStates, listener: Listener) -> None:
        self._states = states
        self._listener = listener
        self._lock = threading.Lock()
        self._backoffs: dict[TableId, Backoff] = {}
        self._errors: dict[TableId, tuple[str, str]] = {}
        self._failed: dict[TableId, tuple[int, float, bool]] = {}
        self._worked_at = 0.0
        self.is_held: Callable[[TableId], bool] = lambda _table: False
        """Tables that the current sync leaves alone."""

    def all(self) -> dict[TableId, tuple[str, str]]:
        """Leaves out tables that were dropped since they failed."""
        for table in tuple(self._errors):
            if (state := self._states.get(table)) is None or state.phase is Phase.DROPPED:
                self.forget(table)
        with self._lock:
            return dict(self._errors)

    def is_paused(self, table: TableId) -> bool:
        with self._lock:
            return self.is_held(table) or (table in self._backoffs and not self._backoffs[table].is_over)

    def is_its_own(self, table: TableId) -> bool:
        """Whether the lake works and this table does not.

        It has failed several times while another table was written; or it is the only one that fails, with an error of
        its own, or for a long time. If several fail and none is written, the lake itself may be down.
        """
        with self._lock:
            tries, since, is_own = self._failed.get(table, (0, 0.0, False))
            is_alone = len(self._failed) == 1 and (is_own or time.monotonic() - since >= _ALONE_SECONDS)
            return tries >= _TRIES and (self._worked_at >= since or is_alone)

    def alone_seconds(self) -> float | None:
        """How long until ``is_its_own`` holds for the only table that fails; None if several do."""
        with self._lock:
            if len(self._failed) != 1:
                return None
            ((_, since, is_own),) = self._failed.values()
            return 0.0 if is_own else max(0.0, since + _ALONE_SECONDS - time.monotonic())

    def verdict_seconds(self) -> float | None:
        """After which pause the answer of ``is_its_own`` may change; None if no table is being retried for that."""
        with self._lock:
            pauses = [self._backoffs[table].rest for table, (tries, *_) in self._failed.items() if tries < _TRIES]
            return min(pauses, default=None)

    def record(self, table: TableId, result: TableResult) -> None:
        """Record what stopped a table and when to retry it; forget it once the table works."""
        state = self._states.get(table)
        if result.error is None:
            self._worked_at = time.monotonic()
        if result.error is None or state is None or state.phase in (Phase.BLOCKED, Phase.DROPPED):
            self.forget(table)
            return
        with self._lock:
            self._errors[table] = (result.error, result.remedy or "")
            tries, since, _ = self._failed.get(table, (0, time.monotonic(), False))
            self._failed[table] = (tries + 1, since, result.is_own)
            is_first = table not in self._backoffs
            backoff = self._backoffs.setdefault(table, Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS))
            if is_first and state.phase is Phase.STAGED:
                return  # the next plan may well be right, so it is tried at once, one time
            backoff.failed()
        self._listener.table_error(table, result.error, result.remedy or "")

    def forget(self, table: TableId) -> None:
        with self._lock:
            self._errors.pop(table, None)
            self._backoffs.pop(table, None)
            self._failed.pop(table, None)

"""Activity: counts what a running pipeline does: totals, rates, running copies, and the last hour in steps.

It is an ordinary Listener. The running process writes ``report`` for others (``Liveness``), so that a dashboard in
another process shows the same. Totals count from the start of the process, as Prometheus expects of a counter.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lakefeed.change.segment import Counts
from lakefeed.change.table import TableId
from lakefeed.errors import LakefeedError, without_signature
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.result import CycleResult
from lakefeed.journal.commit import Commit

STEP_SECONDS = 10
HISTORY_STEPS = 360
"""An hour."""

_RATE_STEPS = 6
"""Rates are means over the last minute, because changes arrive in one lump per merge."""

_KEPT_ERRORS = 20


@dataclass(slots=True)
class _Step:
    """What happened in ten seconds, and their largest backlog. ``number`` is the time, in steps since 1970."""

    number: int
    captured: int = 0
    applied: int = 0
    copied: int = 0
    backlog_bytes: int = 0
    lag_seconds: float = 0.0
    tables: dict[TableId, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Copy:
    rows_estimate: int
    began: float
    rows: int = 0


class Activity(Listener):
    """See the module. Called from the pipeline's threads; any thread may call ``report``."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since = clock()
        self.events = 0
        """How many there were: whoever has reported them all has nothing to add. Any thread."""
        self._captured = {"change_sets": 0, "rows": 0, "bytes": 0}
        self._cycles, self._cycle_seconds, self._retries = 0, 0.0, 0
        self._applied: dict[TableId, Counts] = {}
        self._copied: dict[TableId, int] = {}
        self._copies: dict[TableId, _Copy] = {}
        self._copied_rows: dict[TableId, int] = {}  # of finished copies; a later result counts them as inserted
        self._steps: deque[_Step] = deque(maxlen=HISTORY_STEPS)
        self._errors: deque[dict[str, Any]] = deque(maxlen=_KEPT_ERRORS)

    def snapshot_started(self, table: TableId, rows_estimate: int) -> None:
        with self._lock:
            self.events += 1
            self._copies[table] = _Copy(rows_estimate, self._clock())

    def snapshot_progress(self, table: TableId, rows: int) -> None:
        with self._lock:
            self.events += 1
            self._copies.setdefault(table, _Copy(0, self._clock())).rows += rows
            self._copied[table] = self._copied.get(table, 0) + rows
            self._step().copied += rows

    def snapshot_done(self, table: TableId, rows: int, seconds: float) -> None:  # noqa: ARG002
        with self._lock:
            self.events += 1
            self._copies.pop(table, None)
            self._copied_rows[table] = self._copied_rows.get(table, 0) + rows

    def captured(self, commit: Commit) -> None:
        rows = commit.counts.total
        with self._lock:
            self.events += 1
            self._captured["change_sets"] += 1
            self._captured["rows"] += rows
            self._captured["bytes"] += commit.bytes
            self._step().captured += rows

    def applied(self, result: CycleResult) -> None:
        with self._lock:
            self.events += 1
            self._cycles += 1
            self._cycle_seconds += result.seconds
            step = self._step()
            for table, one in result.tables.items():
                copied = min(self._copied_rows.get(table, 0), one.counts.inserted)
                if copied:
                    self._copied_rows[table] -= copied
                counts = replace(one.counts, inserted=one.counts.inserted - copied)
                self._applied[table] = self._applied.get(table, Counts()) + counts
                step.applied += counts.total
                step.tables[table] = step.tables.get(table, 0) + counts.total

    def table_error(self, table: TableId, message: str, remedy: str) -> None:
        with self._lock:
            self.events += 1
            self._remember(str(table), message, remedy)

    def retrying(self, error: Exception, seconds: float) -> None:  # noqa: ARG002
        text, remedy = without_signature(str(error)), ""
        if isinstance(error, LakefeedError):
            text, remedy = error.message, error.remedy
        with self._lock:
            self.events += 1
            self._retries += 1
            self._remember(None, text, remedy)

    def waiting(self, backlog_bytes: int, seconds: float) -> None:
        """What waits in the journal for the lake now, and the age of the oldest of it."""
        with self._lock:
            step = self._step()
            step.backlog_bytes = max(step.backlog_bytes, backlog_bytes)
            step.lag_seconds = max(step.lag_seconds, seconds)

    def report(self) -> dict[str, Any]:
        """Everything as plain values. ``history`` has a number for each step of the last hour, the newest last."""
        with self._lock:
            now = self._step().number
            recent = [step for step in self._steps if step.number > now - _RATE_STEPS]
            seconds = max(1.0, min(_RATE_STEPS * STEP_SECONDS, self._clock() - self._since))
            tables: dict[str, dict[str, Any]] = {}
            for table in sorted({*self._applied, *self._copied, *self._copies}):
                one = tables[str(table)] = asdict(self._applied.get(table, Counts()))
                one["copied"] = self._copied.get(table, 0)
                one["rows_per_second"] = round(sum(step.tables.get(table, 0) for step in recent) / seconds, 1)
                if (copy := self._copies.get(table)) is not None:
                    one["copy"] = {"rows": copy.rows, "rows_estimate": copy.rows_estimate, "began": copy.began}
            return {
                "since": self._since,
                "captured": dict(self._captured),
                "cycles": self._cycles,
                "cycle_seconds": round(self._cycle_seconds, 3),
                "retries": self._retries,
                "tables": tables,
                "errors": list(self._errors),
                "history": self._history(now),
            }

    def _history(self, now: int) -> dict[str, Any]:
        first = max(self._steps[0].number, now - HISTORY_STEPS + 1)
        known = {step.number: step for step in self._steps}
        steps = [known.get(number) or _Step(number) for number in range(first, now + 1)]
        return {
            "step_seconds": STEP_SECONDS,
            "until": (now + 1) * STEP_SECONDS,
            "captured": [step.captured for step in steps],
            "applied": [step.applied for step in steps],
            "copied": [step.copied for step in steps],
            "backlog_bytes": [step.backlog_bytes for step in steps],
            "lag_seconds": [round(step.lag_seconds, 1) for step in steps],
        }

    def _step(self) -> _Step:
        """The current step. Call under the lock. If the clock was set back, the newest step continues."""
        number = int(self._clock()) // STEP_SECONDS
        if not self._steps or self._steps[-1].number < number:
            self._steps.append(_Step(number))
        return self._steps[-1]

    def _remember(self, table: str | None, error: str, remedy: str) -> None:
        """Call under the lock. An error that is retried and fails in the same way counts as one, seen last now."""
        for known in self._errors:
            if (known["table"], known["error"]) == (table, error):
                known["count"] += 1
                known["at"] = self._clock()
                return
        self._errors.append({"at": self._clock(), "table": table, "error": error, "remedy": remedy, "count": 1})

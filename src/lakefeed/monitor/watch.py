"""Watch: reads the status of a pipeline repeatedly, as one document for the dashboard, ``/status.json`` and metrics.

A thread of its own asks; a caller gets the last document at once, whatever hangs. It works the same in the process that
runs the pipeline and in any other one: everything comes from ``Pipeline.status``, which needs neither Spark nor the
lease.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lakefeed.capture.base import Finding
from lakefeed.errors import JournalError, LakefeedError
from lakefeed.flow.report.activity import HISTORY_STEPS, STEP_SECONDS
from lakefeed.flow.report.answer import Asker
from lakefeed.flow.status import PipelineStatus
from lakefeed.journal.journal import Journal
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at

log = logging.getLogger(__name__)

_BUSY_SECONDS, _IDLE_SECONDS = 2.0, 10.0
"""Between two readings: while somebody watches, and while nobody does."""

_WATCHED_SECONDS = 30.0
"""Somebody counts as watching for this long after the last request."""

_PATIENCE_SECONDS = 30.0
"""How long the last good document replaces a status that does not arrive; it says how old it is."""

_FINDINGS_SECONDS, _JOURNAL_SECONDS = 300.0, 1.0
_CHANGE_SETS = 15
_RATE_STEPS = 6


class Watch:
    """See the module. ``about``: what the document says about source and lake; ``findings``: the source's preflight."""

    def __init__(
        self,
        name: str,
        root: Path | Storage,
        status: Callable[[], PipelineStatus],
        *,
        about: Mapping[str, str] | None = None,
        findings: Callable[[], Sequence[Finding]] = tuple,
    ) -> None:
        self._name = name
        self._root = storage_at(root)
        self._status = status
        self._about = dict(about or {})
        self._ask_findings = findings
        self._findings: list[dict[str, Any]] = []
        self._findings_at = 0.0
        self._asker = Asker()
        self._lags: dict[int, float] = {}
        self._document: dict[str, Any] = {}
        self._seen = threading.Event()
        self._wake = threading.Event()
        self._asked_at = 0.0
        self._good_at = float("-inf")
        self._over = False
        self._thread = threading.Thread(target=self._work, name="lakefeed-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Idempotent. A reading that hangs is left to its thread."""
        self._over = True
        self._wake.set()

    def document(self) -> dict[str, Any]:
        """The newest document, with ``read_seconds_ago``. Waits up to three seconds for the first one."""
        was_idle = time.monotonic() - self._asked_at > _WATCHED_SECONDS
        self._asked_at = time.monotonic()
        if was_idle:
            self._wake.set()
        self._seen.wait(3.0)
        found = self._document or self._failed(LakefeedError("the status has not been read yet", remedy="Wait."))
        return {**found, "read_seconds_ago": round(max(0.0, time.time() - found["at"]), 1)}

    def look(self) -> dict[str, Any]:
        """Read now. Takes at most two seconds for the status, and does not wait for findings."""
        status = self._status()
        if "state directory" in status.unanswered and time.monotonic() - self._good_at < _PATIENCE_SECONDS:
            # A machine that is busy for a moment is not a reason for an alarm.
            return {**self._document, "unanswered": list(status.unanswered)}
        now, shown = time.time(), status.to_dict()
        self._good_at = time.monotonic() if not status.unanswered else self._good_at
        activity, is_fresh = status.activity, time.time() - (status.reported_at or 0.0) < 60
        step, lag = int(now) // STEP_SECONDS, status.lag.seconds or 0.0
        self._lags[step] = max(self._lags.get(step, 0.0), lag)
        for old in [number for number in self._lags if number <= step - HISTORY_STEPS]:
            del self._lags[old]
        history = self._history(activity.get("history", {}), step)
        read = self._asker.begin({"journal": self._journal}).answers(time.monotonic() + _JOURNAL_SECONDS).get("journal")
        change_sets, journal_bytes, written_at = read if isinstance(read, tuple) else ([], 0, None)
        return {
            **self._head(),
            **shown,
            "history": history,
            "rates": {
                name: round(sum(history[name][-_RATE_STEPS:]) / (_RATE_STEPS * STEP_SECONDS), 1) if is_fresh else 0.0
                for name in ("captured", "applied", "copied")
            },
            "totals": {name: activity[name] for name in ("since", "captured", "cycles", "cycle_seconds", "retries")}
            if activity
            else {},
            "applied": activity.get("tables", {}),
            "errors": list(reversed(activity.get("errors", []))),
            "findings": self._current_findings(),
            "change_sets": change_sets,
            "journal": {"head": status.journal_head, "bytes": journal_bytes, "written_at": written_at},
        }

    def _work(self) -> None:
        while not self._over:
            began = time.monotonic()
            try:
                self._document = self.look()
            except LakefeedError as error:
                self._document = self._failed(error)
            except Exception as error:  # shown, and tried again: a watch that ends would show old figures
                log.exception("the status cannot be read")
                text = f"the status cannot be read: {type(error).__name__}: {error}"
                self._document = self._failed(LakefeedError(text))
            self._seen.set()
            self._wake.clear()
            is_watched = time.monotonic() - self._asked_at < _WATCHED_SECONDS
            pause = _BUSY_SECONDS if is_watched else _IDLE_SECONDS
            if not self._over:
                self._wake.wait(max(0.2, pause - (time.monotonic() - began)))

    def _head(self) -> dict[str, Any]:
        return {"pipeline": self._name, "version": version("lakefeed"), "at": time.time(), "about": self._about}

    def _failed(self, error: LakefeedError) -> dict[str, Any]:
        """The document of a pipeline whose status cannot be read: the same keys, and the reason."""
        stalled = PipelineStatus(verdict="stalled", reason=error.message, remedy=error.remedy).to_dict()
        step = int(time.time()) // STEP_SECONDS
        return {
            **self._head(),
            **stalled,
            "history": self._history({}, step),
            "rates": {"captured": 0.0, "applied": 0.0, "copied": 0.0},
            "totals": {},
            "applied": {},
            "errors": [],
            "findings": [],
            "change_sets": [],
            "journal": {"head": 0, "bytes": 0, "written_at": None},
        }

    def _history(self, reported: Mapping[str, Any], step: int) -> dict[str, Any]:
        """The last hour up to now, whenever the running process last reported: a step without a report has 0.

        ``lag_seconds`` is the larger of the lag of the journal and that of the source.
        """
        end = int(reported.get("until", 0)) // STEP_SECONDS  # the step after its newest
        first = step - HISTORY_STEPS + 1

        def values(name: str) -> list[float]:
            listed = reported.get(name, [])
            by_step = {end - len(listed) + index: value for index, value in enumerate(listed)}
            return [by_step.get(number, 0) for number in range(first, step + 1)]

        lags = [max(lag, self._lags.get(first + index, 0.0)) for index, lag in enumerate(values("lag_seconds"))]
        names = ("captured", "applied", "copied", "backlog_bytes")
        return {
            "step_seconds": STEP_SECONDS,
            "until": (step + 1) * STEP_SECONDS,
            **{name: values(name) for name in names},
            "lag_seconds": [round(lag, 1) for lag in lags],
        }

    def _journal(self) -> tuple[list[dict[str, Any]], int, float | None]:
        """The newest change sets, newest first; the journal's disk space; when the last one was written."""
        if not self._root.has_folder("commits"):
            return [], 0, None
        try:
            with closing(Journal.read(self._root)) as journal:
                commits = list(journal.commits(max(0, journal.head - _CHANGE_SETS)))
                size = journal.backlog_bytes(journal.trimmed)
        except (JournalError, OSError):  # trimmed meanwhile, or damaged: the status says what is wrong
            return [], 0, None
        listed = [
            {
                "number": one.number,
                "written_at": one.written_at.timestamp(),
                "position": str(one.end),
                "rows": one.counts.total,
                "bytes": one.bytes,
                "tables": sorted(map(str, one.tables)),
            }
            for one in reversed(commits)
        ]
        return listed, size, commits[-1].written_at.timestamp() if commits else None

    def _current_findings(self) -> list[dict[str, Any]]:
        """Findings of the source's preflight, which is run every five minutes, in the background."""
        if time.monotonic() - self._findings_at > _FINDINGS_SECONDS or not self._findings_at:
            self._findings_at = time.monotonic()

            def ask() -> None:
                self._findings = [
                    {
                        "level": one.level.value,
                        "table": str(one.table) if one.table else None,
                        "problem": one.problem,
                        "remedy": str(one.remedy),
                    }
                    for one in self._ask_findings()
                ]

            self._asker.begin({"findings": ask})
        return self._findings

"""Watchdog: a pipeline whose threads hang gives its lease up, so that another process can go on.

A lease that is renewed shows that a process is there, not that it works. So the lease is renewed only while the three
threads of ``run_loop`` show signs of life, and a pipeline with a thread that shows none ends with a HangError. Each of
these is a sign:

    turn     the thread has begun another turn of its loop, or has got on within one: rows of a copy have come, a window
             is in its table. Each of the threads turns at least once a second while it has nothing to do
    work     the thread, or one that works for it, has had 2 % of a core. Who reads a transaction of a hundred million
             rows, or writes its segments, has more; who polls for an answer has a tenth of that
    Spark    Spark goes on with jobs of this pipeline: a task has begun or ended, rows were read, shuffled or written. A
             job that has no core to run on waits for the cluster, and does not hang. A server of Spark Connect tells
             only when a task begins and ends: there it may take an hour

So neither a long merge nor a long copy is a hang; a task that reads no row for ``hang_seconds`` is one, and so are a
call that nobody answers and two threads that wait for each other. Calls into sources and object stores have timeouts of
their own, which are shorter. Time counts only while the watchdog itself is awake: a process that was stopped, or a
machine that slept, is no hang. Without Linux nobody tells how much a thread works, and nothing is declared a hang.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from lakefeed.errors import HangError
from lakefeed.flow.report.answer import Asker, Pending

log = logging.getLogger(__name__)

_WORKING_SHARE = 0.02
_QUIET_SECONDS = 5.0
"""A thread that has turned so lately is not asked what else it does."""

_LOOK_SECONDS = 2.0
"""What a look may count at most: one that comes later was not awake in between."""

_NOT_KNOWN = object()
_TASKS, _TICKS = Path("/proc/self/task"), os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class _Watched:
    """One thread. ``turns`` gives another value after each turn; ``helpers`` the system's ids of threads that work for
    it now; ``uses_spark``: it may be waiting for a job."""

    thread: threading.Thread
    turns: Callable[[], object]
    helpers: Callable[[], Collection[int]]
    uses_spark: bool
    seen_turns: object = None
    silent_seconds: float = 0.0
    worked_seconds: float | None = None  # the processor's, when its silence began


class Watchdog:
    """See the module. ``progress`` gives another value whenever Spark has got on with this pipeline's jobs; it may
    hang itself. ``look`` belongs to the thread that calls ``run``, ``is_renewing`` to the one that renews the lease."""

    def __init__(self, hang_seconds: float, progress: Callable[[], object]) -> None:
        self._hang_seconds = hang_seconds
        self._progress = progress
        self._watched: dict[str, _Watched] = {}
        self._asker = Asker()
        self._asked: Pending[str, object] | None = None
        self._jobs: object = _NOT_KNOWN  # Spark's last answer in this silence
        self._looked_at = self._renewed_at = time.monotonic()
        self._looks, self._seen_looks = 0, 0
        self._unlooked_seconds = 0.0
        self.hanging: str | None = None
        """What hangs, in words. It stays so."""

    def watch(
        self,
        name: str,
        thread: threading.Thread,
        turns: Callable[[], object],
        *,
        helpers: Callable[[], Collection[int]] = tuple,
        uses_spark: bool = False,
    ) -> None:
        """``name``: what the thread does, for people. The rest as in ``_Watched``."""
        self._watched[name] = _Watched(thread, turns, helpers, uses_spark)

    def look(self) -> None:
        """Once a second or so. HangError if one of the threads hangs."""
        now = time.monotonic()
        passed, self._looked_at = min(now - self._looked_at, _LOOK_SECONDS), now
        self._looks += 1
        if not _TASKS.exists():
            return
        jobs_went_on = self._jobs_went_on()
        for name, one in self._watched.items():
            one.silent_seconds += passed
            turns, worked = one.turns(), self._worked(one) if one.silent_seconds > _QUIET_SECONDS else None
            is_working = (
                worked is not None
                and one.worked_seconds is not None
                and worked - one.worked_seconds > _WORKING_SHARE * one.silent_seconds
            )
            if turns != one.seen_turns or is_working or (jobs_went_on and one.uses_spark) or not one.thread.is_alive():
                one.seen_turns, one.silent_seconds, one.worked_seconds = turns, 0.0, worked
            elif one.worked_seconds is None:
                one.worked_seconds = worked
            if one.silent_seconds > self._hang_seconds:
                self.hanging = f"{name} has shown no sign of life for {one.silent_seconds:.0f} s"
                frame = sys._current_frames().get(one.thread.ident or 0)
                log.error("%s. It is here:\n%s", self.hanging, "".join(traceback.format_stack(frame) if frame else ()))
                raise HangError(self.hanging)

    def is_renewing(self) -> bool:
        """May the lease be renewed? Not if a thread hangs, nor if ``look`` itself is not called any more."""
        now = time.monotonic()
        passed, self._renewed_at = min(now - self._renewed_at, self._hang_seconds / 2), now
        self._unlooked_seconds = self._unlooked_seconds + passed if self._looks == self._seen_looks else 0.0
        self._seen_looks = self._looks
        return self.hanging is None and self._unlooked_seconds <= self._hang_seconds

    def _jobs_went_on(self) -> bool:
        """Asked only while a thread is silent that may wait for it, and nobody waits for the answer: a later look has
        it."""
        if all(one.silent_seconds <= _QUIET_SECONDS for one in self._watched.values() if one.uses_spark):
            self._jobs, self._asked = _NOT_KNOWN, None
            return False
        answers = self._asked.answers(0.0) if self._asked is not None else {"spark": _NOT_KNOWN}
        if "spark" not in answers:
            return False
        self._asked = self._asker.begin({"spark": self._progress})
        answer = answers["spark"]
        if answer is _NOT_KNOWN or isinstance(answer, Exception):
            return False
        before, self._jobs = self._jobs, answer
        return before is not _NOT_KNOWN and before != answer

    def _worked(self, one: _Watched) -> float:
        """Seconds of the processor's time, of the thread and its helpers, in the kernel's ticks."""
        ticks = 0
        for thread in (one.thread.native_id, *one.helpers()):
            try:
                facts = (_TASKS / str(thread) / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            ticks += int(facts[11]) + int(facts[12])
        return ticks / _TICKS

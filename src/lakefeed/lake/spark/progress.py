"""How far Spark is with the jobs of one pipeline, by what its tasks report, at their ends and every ten seconds.

A server of Spark Connect reports less: that a task has begun or has ended, and nothing in between.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lakefeed.lake.spark.driver import Driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FIGURES = (
    "stageId",
    "attemptId",
    "numActiveTasks",
    "numCompleteTasks",
    "numFailedTasks",
    "inputBytes",
    "inputRecords",
    "outputRecords",
    "shuffleReadRecords",
    "shuffleWriteRecords",
)


TASK_SECONDS = 3600.0
"""That one task may take on Spark Connect, where nobody sees what it reads meanwhile."""


class Reports:
    """What servers of Spark Connect have reported to the sessions of one pipeline: ``note`` is a progress handler of
    theirs. Any thread may call anything."""

    def __init__(self, task_seconds: float = TASK_SECONDS) -> None:
        self._task_seconds = task_seconds
        # By operation: tasks that have ended, tasks that run, and whether a stage is left that is not done.
        self._running: dict[str, tuple[int, int, bool]] = {}
        self._news = time.monotonic()

    def note(self, *, stages: Iterable[Any], inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        name = operation_id or ""
        if done:
            self._running.pop(name, None)
            self._news = time.monotonic()
            return
        known = list(stages)
        is_left = any(not stage.done for stage in known)
        figures = (sum(stage.num_completed_tasks for stage in known), inflight_tasks, is_left)
        if self._running.get(name) != figures:
            self._running[name], self._news = figures, time.monotonic()

    def value(self) -> object:
        """Another value each time, until a task has run for so long that it may hang: then always the same.

        While a stage is left to do and no task runs, it waits for a core, and another value each time. What an
        operation does between its stages and after the last one, it does in the server, and may hang there.
        """
        running = list(self._running.values())
        if any(is_left for _, _, is_left in running) and not any(inflight for _, inflight, _ in running):
            return object()
        return object() if time.monotonic() - self._news < self._task_seconds else self._news


def job_progress(session: SparkSession | None, pool: str, reports: Reports | None = None) -> object:
    """Another value whenever tasks of the scheduler's ``pool``, or of none, have got on. None where nothing runs.

    Each time another value, too, where nobody can tell: while no task has a core to run on and, on Spark Connect, while
    ``reports`` have some news.
    """
    if session is None:
        return None
    if not Driver(session).has_jvm:
        return reports.value() if reports is not None else object()
    stages = session.sparkContext._jsc.sc().statusStore().activeStages()
    figures: list[tuple[int, ...]] = []
    for index in range(stages.size()):
        stage = stages.apply(index)
        if stage.schedulingPool() in (pool, "default"):
            figures.append(tuple(getattr(stage, name)() for name in _FIGURES))
    if figures and not any(one[_FIGURES.index("numActiveTasks")] for one in figures):
        return object()
    return tuple(sorted(figures)) or None

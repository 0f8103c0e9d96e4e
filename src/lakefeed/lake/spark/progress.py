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
        self._running: dict[str, tuple[int, int]] = {}  # tasks that have ended and that run, by operation
        self._news = time.monotonic()

    def note(self, *, stages: Iterable[Any], inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        name = operation_id or ""
        if done:
            self._running.pop(name, None)
            self._news = time.monotonic()
            return
        figures = (sum(stage.num_completed_tasks for stage in stages), inflight_tasks)
        if self._running.get(name) != figures:
            self._running[name], self._news = figures, time.monotonic()

    def value(self) -> object:
        """Another value each time, until a task has run for so long that it may hang: then always the same.

        While operations run and none of them has a task that runs, they wait for a core, and another value each time.
        """
        running = list(self._running.values())
        if running and not any(inflight for _, inflight in running):
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

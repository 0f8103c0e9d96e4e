"""How far Spark is with the jobs of one pipeline. Its tasks report at their ends and every ten seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def job_progress(session: SparkSession | None, pool: str) -> object:
    """A value that changes whenever tasks of the scheduler's ``pool``, or of none, make progress. None if nothing runs.

    It also changes at every call where nobody can tell: on Spark Connect, and while no task has a core to run on.
    """
    if session is None:
        return None
    if not Driver(session).has_jvm:
        return object()
    stages = session.sparkContext._jsc.sc().statusStore().activeStages()
    figures: list[tuple[int, ...]] = []
    for index in range(stages.size()):
        stage = stages.apply(index)
        if stage.schedulingPool() in (pool, "default"):
            figures.append(tuple(getattr(stage, name)() for name in _FIGURES))
    if figures and not any(one[_FIGURES.index("numActiveTasks")] for one in figures):
        return object()
    return tuple(sorted(figures)) or None

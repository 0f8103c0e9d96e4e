"""Whether Spark gets on with a pipeline's jobs: what the watchdog asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from lakefeed.lake.spark.progress import job_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def seen_while(running: Future[int], ask: Callable[[], object]) -> list[object]:
    answers: list[object] = []
    while not running.done():
        answers.append(ask())
        time.sleep(0.1)
    assert running.result() > 0
    return answers


def test_tasks_that_end_are_progress_and_one_that_only_waits_is_none(spark: SparkSession) -> None:
    def job(tasks: int, seconds: float, pool: str) -> int:
        context = spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", pool)
        return context.parallelize(range(tasks), tasks).map(lambda _: time.sleep(seconds)).count()

    def ask() -> object:
        return job_progress(spark, "shop")

    assert job_progress(None, "shop") is None
    with ThreadPoolExecutor(1) as pool:
        many = seen_while(pool.submit(job, 20, 0.1, "shop"), ask)
        assert len({repr(one) for one in many if isinstance(one, tuple)}) > 3
        waiting = [one for one in seen_while(pool.submit(job, 1, 2.5, "shop"), ask) if isinstance(one, tuple)]
        assert len(waiting) > 8
        assert len(set(waiting[2:-2])) == 1
        others = seen_while(pool.submit(job, 20, 0.05, "other"), ask)
        assert {one for one in others if isinstance(one, tuple)} == set(), "the jobs of another pipeline"

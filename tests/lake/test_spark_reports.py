"""What a server of Spark Connect reports, and what the watchdog is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakefeed.lake.spark.progress import Reports, job_progress


@dataclass
class Stage:
    num_completed_tasks: int
    done: bool = False


def test_a_task_that_neither_ends_nor_begins_for_long_is_no_progress(monkeypatch: Any) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    reports = Reports(task_seconds=60)
    session: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()

    def asked_twice() -> bool:
        """Would the watchdog say that Spark goes on?"""
        return job_progress(session, "shop", reports) != job_progress(session, "shop", reports)

    def note(completed: int, running: int, *, done: bool = False, is_over: bool = False) -> None:
        stages = (Stage(completed, is_over),)
        reports.note(stages=iter(stages), inflight_tasks=running, operation_id="one", done=done)

    note(0, 1)
    now += 59
    assert asked_twice(), "it may take so long"
    now += 2
    assert not asked_twice(), "it may hang"
    note(0, 1)
    assert not asked_twice(), "a report that says the same is no news"
    note(1, 1)
    assert asked_twice()
    now += 61
    note(2, 0)
    now += 61
    assert asked_twice(), "what has no core to run on waits"
    note(3, 0, is_over=True)
    now += 59
    assert asked_twice(), "the server commits what the stages have written"
    now += 2
    assert not asked_twice(), "and it may hang there"
    note(2, 0, done=True)
    now += 61
    assert not asked_twice(), "a call that nobody answers"
    assert job_progress(None, "shop", reports) is None

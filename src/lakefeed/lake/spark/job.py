"""Runs one Spark action in a thread of its own, so that an interrupted caller can cancel it.

Nothing can interrupt a Python thread while it calls into Spark. So the action gets a thread of its own, and the caller
waits for it. That also lets a failpoint act while Spark works: after the action's first Spark job has begun, before the
action ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

from lakefeed.failpoint import ARMED, hit
from lakefeed.lake.spark.driver import Driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
U = TypeVar("U")
_POLL_SECONDS = 0.02


def run_job(session: SparkSession, name: str, action: Callable[[], T], *, failpoint: str) -> T:
    """Do ``action`` with the caller's context variables, return what it returns and raise what it raises.

    If the caller is interrupted, cancel the action, wait for its end, and raise the interruption.
    """
    from pyspark import InheritableThread

    job = Driver(session).job(session, name)
    ended = threading.Event()
    results: list[T] = []
    errors: list[BaseException] = []
    context = copy_context()

    def work() -> None:
        try:
            with job:
                results.append(context.run(action))
        except BaseException as error:  # noqa: BLE001  # handed to the caller below
            errors.append(error)
        finally:
            ended.set()

    thread = InheritableThread(target=work, session=session, daemon=True)
    thread.start()
    try:
        # Spark is asked for its jobs only where that is to be known: each time costs a few calls into the JVM.
        while failpoint in ARMED and not ended.wait(_POLL_SECONDS):
            if job.has_begun:
                hit(failpoint)
                break
        ended.wait()
    except BaseException:
        job.cancel()
        ended.wait()
        raise
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def both(session: SparkSession, one: Callable[[], T], other: Callable[[], U]) -> tuple[T, U]:
    """Do two actions of a session at once, because planning a small Spark job takes longer than the job.

    Both have ended when this returns or raises. If both fail, it raises the error of ``one``.
    """
    from pyspark import InheritableThread

    results: list[U] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(other())
        except BaseException as error:  # noqa: BLE001  # handed to the caller below
            errors.append(error)

    thread = InheritableThread(target=work, session=session, daemon=True)
    thread.start()
    try:
        result = one()
    finally:
        thread.join()
    if errors:
        raise errors[0]
    return result, results[0]

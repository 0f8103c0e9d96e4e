"""Runs one Spark action so that the caller stays in charge: it can be interrupted, and the action is then cancelled.

A call into the JVM blocks its Python thread and cannot be interrupted, so the action gets a thread of its own and the
caller waits here. That also is what lets a failpoint act while the work really runs: after the first Spark job of the
action has been seen, before it has ended.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from lakefeed.failpoint import hit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_EVERY_SECONDS = 0.02


def run_job(session: SparkSession, name: str, action: Callable[[], None], *, failpoint: str) -> None:
    """Do ``action`` and raise what it raises. If the caller is interrupted, cancel it, wait for its end, go on."""
    from pyspark import InheritableThread

    context = session.sparkContext
    group = f"lakefeed-{uuid.uuid4()}"
    ended = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            context.setJobGroup(group, name)
            action()
        except BaseException as error:  # noqa: BLE001  # handed to the caller below
            errors.append(error)
        finally:
            ended.set()

    thread = InheritableThread(target=work, daemon=True)
    thread.start()
    seen = False
    try:
        while not ended.wait(_LOOK_EVERY_SECONDS):
            if not seen and context.statusTracker().getJobIdsForGroup(group):
                seen = True
                hit(failpoint)
    except BaseException:
        context.cancelJobGroup(group)
        ended.wait()
        raise
    thread.join()
    if errors:
        raise errors[0]

"""The continuous form of a pipeline: a capture thread, and the lake side in the caller's thread.

A transient error (the source is away, the journal's disk is full) closes the session, waits, and opens it again: the
start is the one well-tested way back to a known state. Any other error ends ``run`` and is raised there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from lakefeed.errors import LakefeedError, Retry
from lakefeed.flow.listener import Listener
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.session import Session

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0
_CAPTURE_WAIT_SECONDS = 0.5
"""How long one poll may wait for changes: the time that ``stop`` may take on an idle source."""

_GATHER_SECONDS, _SMALL_ROWS = 0.2, 10_000
"""After a small change set, changes are left to gather: a busy source would otherwise be cut into thousands of tiny
files, which a merge has to open one by one."""


class RunLoop:
    """One ``run``. ``open_session`` and ``close_session`` are the pipeline's own."""

    def __init__(
        self,
        open_session: Callable[[], Session],
        close_session: Callable[[LakefeedError], None],
        options: PipelineOptions,
        listener: Listener,
        stopping: threading.Event,
    ) -> None:
        self._open_session = open_session
        self._close_session = close_session
        self._options = options
        self._listener = listener
        self._stopping = stopping
        self._news = threading.Event()
        self._deadline = float("inf")

    def run(self, for_seconds: float | None) -> None:
        self._deadline = float("inf") if for_seconds is None else time.monotonic() + for_seconds
        pause = _FIRST_PAUSE_SECONDS
        while not self._over():
            started = time.monotonic()
            try:
                self._work(self._open_session())
                return
            except LakefeedError as error:
                self._close_session(error)
                if error.retry is not Retry.BACKOFF:
                    raise
                if time.monotonic() - started > _LONGEST_PAUSE_SECONDS:
                    pause = _FIRST_PAUSE_SECONDS  # it worked for a while: this is a new failure
                self._listener.retrying(error, pause)
                self._stopping.wait(min(pause, max(0.0, self._deadline - time.monotonic())))
                pause = min(_LONGEST_PAUSE_SECONDS, pause * 2)

    def _work(self, session: Session) -> None:
        """Both sides until it is over or one of them fails; the other is then stopped, and the error raised."""
        failed: list[BaseException] = []
        over = threading.Event()
        thread = threading.Thread(
            target=self._capture, args=(session, over, failed), name="lakefeed-capture", daemon=True
        )
        thread.start()
        session.maintenance.start()
        session.full_diff.start()
        try:
            while not self._over() and not failed:
                self._apply(session)
            if not failed:
                session.lake.finish()
        finally:
            over.set()
            session.full_diff.stop()
            session.maintenance.stop()
            thread.join()
        if failed:
            raise failed[0]

    def _capture(self, session: Session, over: threading.Event, failed: list[BaseException]) -> None:
        next_enrol = 0.0
        try:
            while not over.is_set():
                if time.monotonic() >= next_enrol:
                    if session.capture.enrol():
                        self._news.set()
                    next_enrol = time.monotonic() + self._options.enrol_seconds
                if session.lake.backlog_bytes > self._options.max_backlog_bytes:
                    over.wait(self._options.interval_seconds)
                elif commits := session.capture.take(wait_seconds=_CAPTURE_WAIT_SECONDS):
                    self._news.set()
                    if sum(commit.rows for commit in commits) < _SMALL_ROWS:
                        over.wait(_GATHER_SECONDS)
        except BaseException as error:  # noqa: BLE001  # handed to the thread that called run()
            failed.append(error)
            self._news.set()

    def _apply(self, session: Session) -> None:
        """One cycle of the lake side, then the rest of the interval; longer if there is nothing to do."""
        started = time.monotonic()
        self._news.clear()
        result = session.lake.sync(session.lake.load())
        session.pulse()
        if result.tables:
            self._listener.applied(replace(result, seconds=time.monotonic() - started))
        rest = started + self._options.interval_seconds - time.monotonic()
        self._stopping.wait(max(0.0, min(rest, self._deadline - time.monotonic())))
        if not result.tables:
            self._wait_for_news()

    def _wait_for_news(self) -> None:
        """Idle: wake for news, for stop, and every second for the pulse."""
        for _ in range(10):
            if self._over() or self._news.wait(0.1):
                return

    def _over(self) -> bool:
        return self._stopping.is_set() or time.monotonic() >= self._deadline

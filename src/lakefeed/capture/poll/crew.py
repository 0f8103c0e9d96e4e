"""Crew: polls of several tables at a time, each on a connection of its own, so that a slow one holds up no other."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

from lakefeed.capture.dialect import Dialect, Session
from lakefeed.capture.poll.follower import Step
from lakefeed.change.table import TableId
from lakefeed.errors import LakefeedError

Work = Callable[[Session], Step]

_CLOSE_SECONDS = 5.0


class Crew:
    """At most ``parallel`` connections. ``start`` and ``gather`` belong to one thread; ``close`` may be any."""

    def __init__(self, connector: Dialect, parallel: int) -> None:
        self._connector = connector
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="lakefeed-poll")
        self._idle: queue.LifoQueue[Session] = queue.LifoQueue()
        self._open: list[Session] = []
        self._lock = threading.Lock()
        self._running: dict[TableId, Future[Step]] = {}

    @property
    def is_working(self) -> bool:
        """Something has been started and not been gathered."""
        return bool(self._running)

    def is_busy(self, table: TableId) -> bool:
        return table in self._running

    def start(self, table: TableId, work: Work) -> None:
        self._running[table] = self._pool.submit(self._do, work)

    def gather(self, patience_seconds: float) -> dict[TableId, Step | LakefeedError]:
        """What has ended. Waits for all, but for those that take longer than that only if nothing else has ended."""
        until = time.monotonic() + patience_seconds
        wait(self._running.values(), timeout=max(0.0, until - time.monotonic()))
        ended = {table: future for table, future in self._running.items() if future.done()}
        for table in ended:
            del self._running[table]
        return {table: _result(future) for table, future in ended.items()}

    def close(self) -> None:
        with self._lock:
            sessions, self._open = self._open, []
        for session in sessions:
            with suppress(Exception):  # it is being closed: what it says of that does not matter
                session.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        wait([future for future in self._running.values() if not future.cancelled()], timeout=_CLOSE_SECONDS)
        for session in sessions:
            with suppress(Exception):
                session.close()
        self._running = {}

    def _do(self, work: Work) -> Step:
        session = self._session()
        try:
            step = work(session)
        except BaseException:
            self._drop(session)  # it may be in the middle of anything
            raise
        self._idle.put(session)
        return step

    def _session(self) -> Session:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            session = self._connector.connect()
            with self._lock:
                self._open.append(session)
            return session

    def _drop(self, session: Session) -> None:
        with self._lock:
            if session in self._open:
                self._open.remove(session)
        with suppress(Exception):
            session.close()


def _result(future: Future[Step]) -> Step | LakefeedError:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, LakefeedError):
        return error
    raise error

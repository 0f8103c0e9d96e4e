"""Runs a pipeline in a thread, so that the main thread is free for signals.

If the main thread makes a session, PySpark takes SIGINT for itself, and Ctrl-C would cancel the running merge. In
another thread it leaves signals alone. At the first SIGINT or SIGTERM ``Supervised`` lets the current step end; a
second one kills the process, as by default. ``interruptible`` gives up at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol, TypeVar

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_CHECK_SECONDS = 0.1
T = TypeVar("T")


class Runs(Protocol):
    """What Supervised needs of a pipeline. ``run`` blocks until ``stop``, or until ``for_seconds`` have passed."""

    def run(self, for_seconds: float | None = None) -> None: ...

    def stop(self) -> None: ...


def interruptible(work: Callable[[], T]) -> T:
    """The result of ``work``, which runs in a thread. Ctrl-C raises KeyboardInterrupt here at once; main thread only.

    The thread then goes on until the process ends, and the caller has to end it. That is safe: a crash does the same.

    The signal handler only sets a flag. Python's own handler raises wherever the main thread is. If that is a finalizer
    of the garbage collector, Python prints the KeyboardInterrupt and drops it.
    """
    results: list[T] = []
    failed: list[BaseException] = []
    interrupted = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001  # raised again below, in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=run, name="lakefeed-work", daemon=True)
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        thread.start()
        while thread.is_alive():
            if interrupted.is_set():
                raise KeyboardInterrupt
            thread.join(_CHECK_SECONDS)
    finally:
        signal.signal(signal.SIGINT, before)
    for error in failed:
        raise error
    return results[0]


class Supervised:
    """A pipeline that runs in a thread of its own. ``start`` and ``finish``, or ``run`` for both.

    Calls ``on_stop`` once, in the main thread, after a signal or ``stop`` has asked for the end.
    """

    def __init__(self, pipeline: Runs, on_stop: Callable[[], None] = lambda: None) -> None:
        self._pipeline = pipeline
        self._on_stop = on_stop
        self._has_reported = False
        self._failed: BaseException | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def run(self, for_seconds: float | None = None) -> None:
        """Start, wait for the end, a signal or the time, and raise the pipeline's error, if any. Main thread only."""
        with self.signals():
            self.start(for_seconds)
            self.finish()

    def start(self, for_seconds: float | None = None) -> None:
        def work() -> None:
            try:
                self._pipeline.run(for_seconds)
            except BaseException as error:  # noqa: BLE001  # raised again by finish, in the caller's thread
                self._failed = error

        self._thread = threading.Thread(target=work, name="lakefeed-run", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def wait(self, seconds: float) -> None:
        """Wait until the pipeline has ended, at most for ``seconds``."""
        assert self._thread is not None  # noqa: S101  # start comes first
        if self._stopping.is_set():
            if not self._has_reported:
                self._has_reported = True
                self._on_stop()
            # Repeat it: run() forgets a stop that came before it began.
            self._pipeline.stop()
        self._thread.join(seconds)

    def finish(self) -> None:
        """Wait for the end, and raise the pipeline's error, if any."""
        while self.alive:
            self.wait(_CHECK_SECONDS)
        if self._failed is not None:
            raise self._failed

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Inside the block SIGINT and SIGTERM call ``stop``. Main thread only."""

        def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the signal module's shape
            self.stop()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

        before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

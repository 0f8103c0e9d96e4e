"""Runs a pipeline in a thread, so that the main thread is free for signals.

PySpark takes SIGINT for itself when a session is made in the main thread: Ctrl-C would cancel the running merge. Made
in another thread it leaves signals alone, and the first SIGINT or SIGTERM lets the step under way come to its end. A
second one does what it does by default: it kills.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOOK_SECONDS = 0.1


class Runs(Protocol):
    """What is asked of a pipeline. ``run`` blocks until ``stop``, or ``for_seconds`` have passed."""

    def run(self, for_seconds: float | None = None) -> None: ...

    def stop(self) -> None: ...


class Supervised:
    """A pipeline that runs in a thread of its own. ``start`` and ``finish``, or ``run`` for both."""

    def __init__(self, pipeline: Runs) -> None:
        self._pipeline = pipeline
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
        """From the main thread: start, wait for the end, a signal or the time, and raise what ``run`` raised."""
        with self.signals():
            self.start(for_seconds)
            self.finish()

    def start(self, for_seconds: float | None = None) -> None:
        self._thread = threading.Thread(target=self._work, args=(for_seconds,), name="lakefeed-run", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def wait(self, seconds: float) -> None:
        """Until the pipeline has ended, but no longer than ``seconds``."""
        assert self._thread is not None  # noqa: S101  # start comes first
        if self._stopping.is_set():
            # Again and again: run() forgets a stop that came before it had begun.
            self._pipeline.stop()
        self._thread.join(seconds)

    def finish(self) -> None:
        """Wait for the end and raise what ended it, if anything did."""
        while self.alive:
            self.wait(_LOOK_SECONDS)
        if self._failed is not None:
            raise self._failed

    @contextmanager
    def signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM call ``stop`` inside the block; main thread only."""
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # the signal module's shape
        self.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _work(self, for_seconds: float | None) -> None:
        try:
            self._pipeline.run(for_seconds)
        except BaseException as error:  # noqa: BLE001  # raised again by finish, in the caller's thread
            self._failed = error

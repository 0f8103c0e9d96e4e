"""Questions that may never be answered: a server, disk or catalog that hangs must not block the caller.

pending = asker.begin({"source": capture.lag})
pending.answers(until)      # {"source": Lag(…)}, an error, or nothing if it has not answered by then
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

ASKING = "lakefeed-ask"
"""The name of threads that wait for an answer: one that still runs when a command ends is left behind."""
_LANES = 8
"""How many questions of one group are asked in parallel."""

_HANGS_SECONDS = 2.0


class Asker:
    """Asks in daemon threads, at most eight per group. Any thread; several may ask the same question at the same time.

    A question that has not been answered for two seconds hangs, and is not asked again until it returns: however often
    somebody asks, threads do not pile up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began: dict[Hashable, list[float]] = {}  # start times of running questions, one for each caller

    def begin(self, questions: Mapping[K, Callable[[], T]], *, seconds: float = 60.0) -> Pending[K, T]:
        """Start asking. After ``seconds``, no further question of the group is started."""
        now = time.monotonic()
        with self._lock:
            free = [name for name in questions if now - min(self._began.get(name, [now])) < _HANGS_SECONDS]
        pending = Pending[K, T](len(free))
        waiting, until = deque(free), now + seconds

        def lane() -> None:
            while (began := time.monotonic()) < until:
                try:
                    name = waiting.popleft()
                except IndexError:
                    return
                with self._lock:
                    self._began.setdefault(name, []).append(began)
                try:
                    pending.give(name, questions[name]())
                except Exception as error:  # noqa: BLE001  # the error is the answer
                    pending.give(name, error)
                finally:
                    with self._lock:
                        self._began[name].remove(began)
                        if not self._began[name]:
                            del self._began[name]

        for _ in range(min(_LANES, len(free))):
            threading.Thread(target=lane, name=ASKING, daemon=True).start()
        return pending


class Pending(Generic[K, T]):
    """The answers to a group of questions so far."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self._answers: dict[K, T | Exception] = {}
        self._changed = threading.Condition()

    def give(self, name: K, answer: T | Exception) -> None:
        with self._changed:
            self._answers[name] = answer
            self._missing -= 1
            self._changed.notify_all()

    def answers(self, until: float) -> dict[K, T | Exception]:
        """All answers, once there are all, or those that have arrived by ``until`` (monotonic clock)."""
        with self._changed:
            self._changed.wait_for(lambda: not self._missing, max(0.0, until - time.monotonic()))
            return dict(self._answers)

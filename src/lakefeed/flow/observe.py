"""What an embedder can watch: a tracer that is told of barriers and events, and the errors a runtime met."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")

_ERRORS_KEPT = 256
"""Enough to see how a failure began; bounded, because a source that is down for a week fails every few seconds."""


class Tracer(Protocol):
    """Told as things happen, in the runtime's thread. It must return quickly and must not raise."""

    def checkpoint_barrier(self, state: str) -> None:
        """``open`` when commits are taken from here on, ``stopped`` when they are not."""

    def event_end(self, event: str, outcome: str) -> None:
        """A change set left the runtime without a commit: ``force_stopped``."""


class NullTracer:
    """Watches nothing."""

    def checkpoint_barrier(self, state: str) -> None:
        pass

    def event_end(self, event: str, outcome: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class TaggedError:
    """An error and the step it came from, such as ``runtime.start.connect``."""

    tag: str
    error: Exception


class ErrorLog:
    """The last errors, oldest first. Recording never replaces raising: both happen.

    An error that passes through several steps is recorded once, by the innermost, which knows best.
    """

    def __init__(self) -> None:
        self._records: deque[TaggedError] = deque(maxlen=_ERRORS_KEPT)

    def record(self, tag: str, error: Exception) -> Exception:
        """Returns the error, so that it can be raised in the same line."""
        if not self._records or self._records[-1].error is not error:
            self._records.append(TaggedError(tag, error))
        return error

    def tagged(self, tag: str, call: Callable[[], T]) -> T:
        """``call()``, with its error recorded on the way out."""
        try:
            return call()
        except Exception as error:
            self.record(tag, error)
            raise

    def tags(self) -> tuple[str, ...]:
        return tuple(record.tag for record in self._records)

    def __iter__(self) -> Iterator[TaggedError]:
        return iter(tuple(self._records))

    def __len__(self) -> int:
        return len(self._records)

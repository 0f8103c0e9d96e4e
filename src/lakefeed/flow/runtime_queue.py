"""What a runtime has pulled or was given and has not delivered yet, and how a delivery is cut from it.

One queue for everything from the source, in source order, so that it cannot be delivered or drained out of order.
Injected change sets come last: behind whatever the source had said by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from lakefeed.change.change_set import ChangeSet
from lakefeed.flow.barrier import events
from lakefeed.flow.runtime_feed import Step
from lakefeed.flow.runtime_options import RuntimeOptions
from lakefeed.flow.runtime_progress import Progress


@dataclass(slots=True)
class _Load:
    """Rows and bytes of some steps, kept up as they come and go: a queue of many small sets is not counted anew."""

    rows: int = 0
    bytes: int = 0

    def add(self, rows: int, size: int) -> None:
        self.rows += rows
        self.bytes += size


class PendingQueue:
    """``tail`` is the progress behind the last delivered step; an injected change set does not move it.

    None as the tail: there is no source, and the embedder's own positions count.
    """

    def __init__(self, options: RuntimeOptions) -> None:
        self._options = options
        self._pulled: deque[Step] = deque()
        self._injected: deque[ChangeSet] = deque()
        self._load = _Load()
        self._chunk_before = False
        self.tail: Progress | None = None

    def add(self, step: Step) -> None:
        self._pulled.append(step)
        self._load.add(step.rows, self._size(step.change_set))

    def inject(self, change_set: ChangeSet) -> None:
        self._injected.append(change_set)

    @property
    def events(self) -> int:
        return sum(map(events, self._pulled)) + sum(map(events, self._injected))

    @property
    def empty(self) -> bool:
        return not self._pulled and not self._injected

    @property
    def has_pulled(self) -> bool:
        return bool(self._pulled)

    @property
    def full(self) -> bool:
        """Enough for a delivery. A chunk always is one of its own, and nothing is pulled behind it meanwhile."""
        if self._pulled and self._pulled[-1].bracket:
            return True
        return self._load.rows >= self._options.max_events or self._load.bytes >= self._options.max_bytes

    def take(self) -> list[Step]:
        """The next delivery, empty if there is nothing. A chunk goes alone; injected sets take turns with chunks."""
        if self._chunk_is_next and not (self._chunk_before and self._injected):
            self._chunk_before = True
            taken = [self._pop()]
        else:
            self._chunk_before = False
            taken = self._take_stream()
        if taken and self.tail is not None:
            self.tail = taken[-1].progress
        return taken

    def drain(self) -> list[ChangeSet]:
        """Everything, in delivery order."""
        sets = [step.change_set for step in self._pulled if step.change_set is not None]
        drained = [*sets, *self._injected]
        self._pulled.clear()
        self._injected.clear()
        self._load = _Load()
        return drained

    @property
    def _chunk_is_next(self) -> bool:
        return bool(self._pulled) and self._pulled[0].bracket is not None

    def _take_stream(self) -> list[Step]:
        taken: list[Step] = []
        load = _Load()
        while self._pulled and not self._chunk_is_next and self._fits(load, self._pulled[0].change_set, taken):
            taken.append(self._pop())
        if self._pulled and not self._chunk_is_next:
            return taken  # the rest of the source comes before anything injected
        progress = taken[-1].progress if taken else self.tail
        while self._injected and self._fits(load, self._injected[0], taken):
            change_set = self._injected.popleft()
            taken.append(Step(progress or Progress(change_set.end), change_set))
        return taken

    def _pop(self) -> Step:
        step = self._pulled.popleft()
        self._load.add(-step.rows, -self._size(step.change_set))
        return step

    def _fits(self, load: _Load, change_set: ChangeSet | None, taken: Sequence[Step]) -> bool:
        """Whether it goes into this delivery; if so, ``load`` has it. The first one always does."""
        rows, size = change_set.rows if change_set else 0, self._size(change_set)
        options = self._options
        if taken and (load.rows + rows > options.max_events or load.bytes + size > options.max_bytes):
            return False
        load.add(rows, size)
        return True

    def _size(self, change_set: ChangeSet | None) -> int:
        """A set that is read lazily is too big to hold, so it fills a delivery: counting would read all of it."""
        if change_set is None:
            return 0
        if not isinstance(change_set.batches, Sequence):
            return self._options.max_bytes
        return sum(batch.bytes for batch in change_set.batches)

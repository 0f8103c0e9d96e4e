"""What a runtime has pulled or was given and has not delivered yet, and how a delivery is cut from it.

One queue for everything from the source, in source order, so that it cannot be delivered or drained out of order.
Injected change sets come last: behind whatever the source had said by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from lakefeed.change.change_set import ChangeSet
from lakefeed.flow.barrier import events
from lakefeed.flow.runtime_feed import Step
from lakefeed.flow.runtime_options import RuntimeOptions
from lakefeed.flow.runtime_progress import Progress


class PendingQueue:
    """``tail`` is the progress behind the last delivered step; an injected change set does not move it.

    None as the tail: there is no source, and the embedder's own positions count.
    """

    def __init__(self, options: RuntimeOptions) -> None:
        self._options = options
        self._pulled: deque[Step] = deque()
        self._injected: deque[ChangeSet] = deque()
        self._chunk_before = False
        self.tail: Progress | None = None

    def add(self, step: Step) -> None:
        self._pulled.append(step)

    def inject(self, change_set: ChangeSet) -> None:
        self._injected.append(change_set)

    @property
    def events(self) -> int:
        return sum(events(item) for item in (*self._pulled, *self._injected))

    @property
    def empty(self) -> bool:
        return not self._pulled and not self._injected

    @property
    def has_pulled(self) -> bool:
        return bool(self._pulled)

    @property
    def full(self) -> bool:
        """Enough for a delivery; a chunk always is one of its own."""
        if any(step.bracket for step in self._pulled):
            return True
        rows = sum(step.rows for step in self._pulled)
        return rows >= self._options.max_events or self._bytes(self._pulled) >= self._options.max_bytes

    def take(self) -> list[Step]:
        """The next delivery, empty if there is nothing. A chunk goes alone; injected sets take turns with chunks."""
        if self._pulled and self._pulled[0].bracket and not (self._chunk_before and self._injected):
            self._chunk_before = True
            taken = [self._pulled.popleft()]
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
        return drained

    def _take_stream(self) -> list[Step]:
        taken: list[Step] = []
        while self._pulled and not self._pulled[0].bracket and self._fits(taken, self._pulled[0]):
            taken.append(self._pulled.popleft())
        stream_is_left = self._pulled and not self._pulled[0].bracket
        progress = taken[-1].progress if taken else self.tail
        while self._injected and not stream_is_left:
            step = Step(progress or Progress(self._injected[0].end), self._injected[0])
            if not self._fits(taken, step):
                break
            taken.append(step)
            self._injected.popleft()
        return taken

    def _fits(self, taken: Sequence[Step], step: Step) -> bool:
        if not taken:
            return True
        more = [*taken, step]
        rows = sum(item.rows for item in more)
        return rows <= self._options.max_events and self._bytes(more) <= self._options.max_bytes

    def _bytes(self, steps: Sequence[Step] | deque[Step]) -> int:
        return sum(self._size(step.change_set) for step in steps)

    def _size(self, change_set: ChangeSet | None) -> int:
        """A set that is read lazily is too big to hold, so it fills a delivery: counting would read all of it."""
        if change_set is None:
            return 0
        if not isinstance(change_set.batches, Sequence):
            return self._options.max_bytes
        return sum(batch.bytes for batch in change_set.batches)

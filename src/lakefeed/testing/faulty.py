"""Faulty: a capture or a checkpoint store that behaves exactly like the real one, except where a test says otherwise.

    faults = Faults(Fault("save", nth=2, when=AFTER))     # the second save happens, and its answer is lost
    store = FaultyStore(MemoryCheckpointStore(), faults)

``BEFORE``: the call does not happen. ``AFTER``: it happens and then fails, as if the response were lost. A caller
cannot tell the two apart, so it must be right in both cases. ``HELD``: it happens, and returns when the test calls
``faults.release()``.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from lakefeed.capture.base import ChangeCapture, Chunk, Continuity, Finding, Lag, SnapshotPlan, TableSize
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.choice import Choices
from lakefeed.change.position import Position
from lakefeed.change.table import Comments, TableId, TableSchema
from lakefeed.embed.checkpoint import Checkpoint, CheckpointStore
from lakefeed.errors import SourceUnavailableError

T = TypeVar("T")
_HELD_AT_MOST_SECONDS = 30.0


class When(Enum):
    BEFORE = "before"
    AFTER = "after"
    HELD = "held"


BEFORE, AFTER, HELD = When.BEFORE, When.AFTER, When.HELD


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with a method: on its ``nth`` call (from 1; None: on every call)."""

    call: str
    nth: int | None = 1
    when: When = When.BEFORE
    error: Callable[[], Exception] = lambda: SourceUnavailableError("a fault that the test asked for")


class Faults:
    """The faults of one wrapper, and every call it received. ``live`` is the call itself, ``next`` each pull from
    it."""

    def __init__(self, *faults: Fault) -> None:
        self._faults = list(faults)
        self._released = threading.Event()
        self.counts: Counter[str] = Counter()
        self.calls: list[str] = []
        self.reached = threading.Event()

    def add(self, fault: Fault) -> None:
        """Add faults; their ``nth`` counts from now on."""
        nth = None if fault.nth is None else self.counts[fault.call] + fault.nth
        self._faults.append(Fault(fault.call, nth, fault.when, fault.error))

    def clear(self) -> None:
        self._faults.clear()

    def release(self) -> None:
        """Let every held call return."""
        self._released.set()

    def run(self, name: str, call: Callable[[], T]) -> T:
        """Run ``call`` as the method ``name``, with its faults."""
        self.counts[name] += 1
        self.calls.append(name)
        fault = self._match(name)
        if fault is None:
            return call()
        if fault.when is When.BEFORE:
            raise fault.error()
        result = call()
        if fault.when is When.AFTER:
            raise fault.error()
        self.reached.set()
        if not self._released.wait(_HELD_AT_MOST_SECONDS):
            raise AssertionError(f"the answer of {name} was held and never released")
        return result

    def _match(self, name: str) -> Fault | None:
        now = self.counts[name]
        return next((fault for fault in self._faults if fault.call == name and fault.nth in (None, now)), None)


class FaultyStore:
    """A CheckpointStore around another one."""

    def __init__(self, store: CheckpointStore, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    def save(self, key: str, checkpoint: Checkpoint) -> None:
        self._faults.run("save", lambda: self._store.save(key, checkpoint))

    def load(self, key: str) -> Checkpoint | None:
        return self._faults.run("load", lambda: self._store.load(key))

    def delete(self, key: str) -> None:
        self._faults.run("delete", lambda: self._store.delete(key))

    def list(self) -> tuple[str, ...]:
        return self._faults.run("list", self._store.list)

    def all(self) -> Mapping[str, Checkpoint]:
        return self._faults.run("all", self._store.all)

    def damaged(self) -> Mapping[str, str]:
        return self._faults.run("damaged", self._store.damaged)

    def close(self) -> None:
        self._faults.run("close", self._store.close)


class FaultyCapture(ChangeCapture):
    """A ChangeCapture around another one."""

    def __init__(self, capture: ChangeCapture, faults: Faults) -> None:
        self._capture = capture
        self._faults = faults
        self.kind, self.slot = capture.kind, capture.slot
        self.capabilities = capture.capabilities

    def open(self) -> None:
        self._faults.run("open", self._capture.open)

    def close(self) -> None:
        self._faults.run("close", self._capture.close)

    def identity(self) -> str | None:
        return self._faults.run("identity", self._capture.identity)

    def continuity(self, position: Position | None, tables: Sequence[TableId]) -> Continuity:
        return self._faults.run("continuity", lambda: self._capture.continuity(position, tables))

    def take_over(self, known: str, position: Position) -> Position:
        return self._faults.run("take_over", lambda: self._capture.take_over(known, position))

    def represent(self, choices: Choices) -> None:
        self._capture.represent(choices)

    def sizes(self, tables: Sequence[TableId]) -> Mapping[TableId, TableSize]:
        return self._capture.sizes(tables)

    def comments(self, table: TableId) -> Comments:
        return self._capture.comments(table)

    def recall(self, schemas: Sequence[TableSchema]) -> None:
        self._capture.recall(schemas)

    def discover(self) -> tuple[TableSchema, ...]:
        return self._faults.run("discover", self._capture.discover)

    def wants(self, table: TableId) -> bool:
        return self._capture.wants(table)

    def prepare(self, tables: Sequence[TableId]) -> Position:
        return self._faults.run("prepare", lambda: self._capture.prepare(tables))

    def snapshot(self, table: TableId, *, chunk_rows: int = 250_000) -> SnapshotPlan:
        return self._faults.run("snapshot", lambda: self._capture.snapshot(table, chunk_rows=chunk_rows))

    def copied(self, table: TableId) -> None:
        self._faults.run("copied", lambda: self._capture.copied(table))

    def chunk(self, data: Mapping[str, Any]) -> Chunk:
        return self._faults.run("chunk", lambda: self._capture.chunk(data))

    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        inner = self._faults.run("live", lambda: self._capture.live(after, wait_seconds=wait_seconds))
        return self._pull(inner)

    def end(self) -> Position | None:
        return self._faults.run("end", self._capture.end)

    def confirm(self, position: Position) -> None:
        self._faults.run("confirm", lambda: self._capture.confirm(position))

    def lag(self) -> Lag:
        return self._faults.run("lag", self._capture.lag)

    def check(self) -> tuple[Finding, ...]:
        return self._faults.run("check", self._capture.check)

    def uninstall(self) -> tuple[str, ...]:
        return self._faults.run("uninstall", self._capture.uninstall)

    def _pull(self, inner: Iterator[ChangeSet]) -> Iterator[ChangeSet]:
        while (change_set := self._faults.run("next", lambda: next(inner, None))) is not None:
            yield change_set

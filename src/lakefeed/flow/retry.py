"""Retrying: the same capture, with transient errors waited out.

Which errors are transient is the error class's own word (``LakefeedError.retry``). A failed connection is closed
*before* the wait: a server that still sees the old one would refuse the new one ("slot is active").
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lakefeed.capture.base import Capabilities, ChangeCapture, Chunk, Continuity, Finding, Lag, SnapshotPlan
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import ConfigError, LakefeedError, Retry

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to go on. ``attempts`` counts the first call too; ``total_seconds`` bounds calls and waits together.

    The n-th wait is ``first_seconds`` · ``factor``ⁿ, at most ``longest_seconds``, shortened by a random part of up to
    ``jitter``, so that many pipelines do not come back to one server at the same moment.
    """

    attempts: int = 10
    total_seconds: float = 600.0
    first_seconds: float = 0.1
    longest_seconds: float = 30.0
    factor: float = 2.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if self.attempts < 1 or not 0 <= self.jitter <= 1 or self.factor < 1:
            raise ConfigError("a retry policy needs attempts >= 1, factor >= 1 and a jitter between 0 and 1")

    def pause_seconds(self, failures: int, chance: float) -> float:
        """How long to wait after the ``failures``-th failure in a row; ``chance`` is in [0, 1)."""
        growth = self.factor ** min(failures - 1, 64)  # beyond 64 only the longest pause is left
        return min(self.longest_seconds, self.first_seconds * growth) * (1 - self.jitter * chance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacer:
    """Time, chance and the wish to stop: all that a retry takes from the world, so that tests can give their own.

    ``stop`` interrupts a wait; the error that was being waited out is then raised.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
    sleep: Callable[[float], None] | None = None

    def wait(self, seconds: float) -> bool:
        """False if it is time to stop."""
        if self.sleep is None:
            return not self.stop.wait(seconds)
        if not self.stop.is_set():
            self.sleep(seconds)
        return not self.stop.is_set()


class _Failures:
    """Failures in a row, and when the first of them was."""

    def __init__(self, policy: RetryPolicy, pacer: Pacer) -> None:
        self._policy = policy
        self._pacer = pacer
        self._count = 0
        self._since = 0.0

    def succeed(self) -> None:
        self._count = 0

    def wait_out(self, error: LakefeedError, before_wait: Callable[[], None]) -> None:
        """Return when it is time for the next attempt; raise ``error`` if there is to be none."""
        now = self._pacer.clock()
        if self._count == 0:
            self._since = now
        self._count += 1
        if error.retry is not Retry.BACKOFF:
            raise error
        pause = self._policy.pause_seconds(self._count, self._pacer.chance())
        spent = now - self._since
        if self._count >= self._policy.attempts or spent + pause > self._policy.total_seconds:
            error.add_note(f"given up after {self._count} attempts in {spent:.1f} s")
            raise error
        before_wait()
        log.warning("%s; attempt %d in %.1f s", error, self._count + 1, pause)
        if not self._pacer.wait(pause):
            raise error


def retrying(
    call: Callable[[], T],
    policy: RetryPolicy | None = None,
    *,
    pacer: Pacer | None = None,
    before_wait: Callable[[], None] = lambda: None,
) -> T:
    """``call()``, again and again while it fails with an error that asks for it. Raises the last error."""
    failures = _Failures(policy or RetryPolicy(), pacer or Pacer())
    while True:
        try:
            return call()
        except LakefeedError as error:
            failures.wait_out(error, before_wait)


class Retrying:
    """A ChangeCapture around another one; see the module.

    ``live`` goes on strictly after the last change set it gave, with nothing twice and nothing left out, however
    often the connection is made anew underneath. ``lag`` and ``check`` have connections of their own and are asked by
    whoever wants an answer now: they are not retried. Chunks are read elsewhere, by tasks that have their own retry.
    """

    def __init__(
        self, capture: ChangeCapture, policy: RetryPolicy | None = None, *, pacer: Pacer | None = None
    ) -> None:
        self._capture = capture
        self._policy = policy or RetryPolicy()
        self._pacer = pacer or Pacer()
        self._broken = False
        self._connections = 0

    @property
    def kind(self) -> str:
        return self._capture.kind

    @property
    def capabilities(self) -> Capabilities:
        return self._capture.capabilities

    def open(self) -> None:
        retrying(self._connect, self._policy, pacer=self._pacer, before_wait=self._disconnect)

    def close(self) -> None:
        self._broken = False
        self._capture.close()

    def identity(self) -> str | None:
        return self._call(self._capture.identity)

    def continuity(self, position: Position | None, tables: Sequence[TableId]) -> Continuity:
        return self._call(lambda: self._capture.continuity(position, tables))

    def recall(self, schemas: Sequence[TableSchema]) -> None:
        self._capture.recall(schemas)

    def discover(self) -> tuple[TableSchema, ...]:
        return self._call(self._capture.discover)

    def wants(self, table: TableId) -> bool:
        return self._capture.wants(table)

    def prepare(self, tables: Sequence[TableId]) -> Position:
        return self._call(lambda: self._capture.prepare(tables))

    def snapshot(self, table: TableId, *, chunk_rows: int = 250_000) -> SnapshotPlan:
        return self._call(lambda: self._capture.snapshot(table, chunk_rows=chunk_rows))

    def copied(self, table: TableId) -> None:
        self._capture.copied(table)

    def chunk(self, data: Mapping[str, Any]) -> Chunk:
        return self._capture.chunk(data)

    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        failures = _Failures(self._policy, self._pacer)
        position = after
        while True:
            try:
                self._repair()
                connection = self._connections
                inner = self._capture.live(position, wait_seconds=wait_seconds)
                while connection == self._connections:  # another call may have had to make a new one meanwhile
                    change_set = next(inner, None)
                    if change_set is None:
                        return
                    failures.succeed()
                    if _is_behind(change_set, position):
                        continue
                    position = change_set.end
                    yield change_set
            except LakefeedError as error:
                failures.wait_out(error, self._disconnect)

    def confirm(self, position: Position) -> None:
        self._call(lambda: self._capture.confirm(position))

    def lag(self) -> Lag:
        return self._capture.lag()

    def check(self) -> tuple[Finding, ...]:
        return self._capture.check()

    def uninstall(self) -> tuple[str, ...]:
        return self._call(self._capture.uninstall)

    def _call(self, call: Callable[[], T]) -> T:
        def attempt() -> T:
            self._repair()
            return call()

        return retrying(attempt, self._policy, pacer=self._pacer, before_wait=self._disconnect)

    def _connect(self) -> None:
        self._capture.open()
        self._broken = False
        self._connections += 1

    def _repair(self) -> None:
        if self._broken:
            self._connect()

    def _disconnect(self) -> None:
        self._broken = True
        with suppress(LakefeedError):  # it is broken already; what counts is that the server lets go of it
            self._capture.close()


def _is_behind(change_set: ChangeSet, position: Position | None) -> bool:
    """A source that counts from its own resume point may give again what it gave before the connection broke."""
    if position is None or change_set.start is None:
        return False
    return change_set.start < position and change_set.end <= position

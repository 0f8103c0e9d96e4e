"""ChangeStream: change sets out of the replication connection.

A change set is cut at a commit, as soon as one of these holds: nothing more has come, it has enough rows or bytes, or
its first change has waited long enough. A transaction of any size passes: it is decoded piece by piece and spilled.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from lakefeed.capture.postgres.assemble import Assembler
from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.message import Run, joined
from lakefeed.capture.postgres.slot import head
from lakefeed.capture.postgres.walsender import GULP_SECONDS, Walsender
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.lsn import PostgresLsn

_PIECE_BYTES = 4 << 20
_PIECE_MESSAGES = 12_000
"""Messages are decoded so many at a time while more keep coming: fewer cost more each, more leave the caches."""
_ASK_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a change set is cut, how far an idle source may run ahead before a heartbeat moves its slot (T22), and from
    how large a backlog on it is read in windows instead of streamed.

    Streamed in gulps, a backlog was measured to come faster than in windows (docs/decisions/0007-postgres-copy.md).
    """

    rows: int = 200_000
    bytes: int = 64 << 20
    linger_seconds: float = 0.5
    heartbeat_seconds: float = 10.0
    heartbeat_bytes: int = 16 << 20
    catch_up_bytes: int = 1 << 30


class ChangeStream:
    """Belongs to one thread at a time."""

    def __init__(self, walsender: Walsender, assembler: Assembler, connection: Connection, limits: Limits) -> None:
        self.walsender = walsender
        self._assembler = assembler
        self._connection = connection
        self._limits = limits
        # Messages that are not decoded yet: whole transactions, then what has come of the next one.
        self._whole: list[Run] = []
        self._begun: list[Run] = []
        self._pending_bytes = 0
        self._settled = self._asleep = False
        self._since_us = 0
        self._beat_at = time.monotonic()

    @property
    def position(self) -> PostgresLsn:
        """Where the last change set ended."""
        return self._assembler.position

    def next(self, wait_seconds: float) -> ChangeSet:
        """What comes next; a heartbeat if nothing does in time.

        Without a wait, "nothing" means that the server has said so for everything that is in its log now.
        """
        target = head(self._connection) if wait_seconds <= 0 else None
        self._settled = self._asleep = False
        self._since_us = self._ask_activity()[1] if target is not None else 0
        began = time.monotonic()
        self.walsender.ask()  # an idle server says by itself only now and then how far it has come
        while True:
            more = self._take(target, began + wait_seconds)
            now = time.monotonic()
            if not more or now - began >= self._limits.linger_seconds:
                self._flush()
            if self._is_ready(more, now - began):
                return self._cut()
            if not more and self._is_over(target, now >= began + wait_seconds):
                return self._heartbeat()

    def close(self) -> None:
        self.walsender.close()

    def _take(self, target: PostgresLsn | None, deadline: float) -> bool:
        """Take in what is there, after a wait if it is nothing. False if nothing came."""
        if target is not None:
            wait = _ASK_SECONDS
        else:
            wait = (
                max(0.0, deadline - time.monotonic()) if self._assembler.is_empty and not self._pending_bytes else 0.02
            )
        if self.walsender.gulping:
            wait = max(wait, 3 * GULP_SECONDS)
        runs, idle_at = self.walsender.take(wait)
        for run in runs:
            self._add(run)
        if idle_at is not None:
            self._flush()
            if not self._pending_bytes:
                self._assembler.advance(idle_at.position)
        if target is not None:
            self._look(idle_at is not None and idle_at.sent_us > self._since_us, target)
        return bool(runs)

    def _look(self, answered: bool, target: PostgresLsn) -> None:
        """Find out whether everything up to ``target`` has come, also where the log ends inside a record there.

        The server answers, then looks how far the log is flushed, then decodes or sleeps: so one that sleeps after an
        answer has sent everything, and what is still on its way comes before an answer that it gives after that.
        Answers to earlier questions do not count, which their time tells.
        """
        if self._assembler.reached >= target or (answered and self._asleep):
            self._settled = True
            return
        if answered:
            self._asleep, self._since_us = self._ask_activity()
        self.walsender.ask()

    def _add(self, run: Run) -> None:
        last = run.last_commit() + 1
        if last:
            self._whole += [*self._begun, run.part(0, last)]
            self._begun = []
        if last < len(run):
            self._begun.append(run.part(last, len(run)))
        self._pending_bytes += run.size
        if self._pending_bytes > _PIECE_BYTES:
            self._flush()
        # A piece of an open transaction goes in early only where no whole ones would have to wait for it.
        if self._pending_bytes > _PIECE_BYTES and (self._assembler.in_transaction or self._assembler.is_empty):
            self._decode(self._begun)
            self._begun, self._pending_bytes = [], 0

    def _flush(self) -> None:
        """Decode the transactions that are complete."""
        if self._whole:
            self._decode(self._whole)
            self._whole, self._pending_bytes = [], sum(run.size for run in self._begun)

    def _decode(self, runs: list[Run]) -> None:
        run = joined(runs)
        for at in range(0, len(run), _PIECE_MESSAGES):
            self._assembler.add(run.part(at, min(at + _PIECE_MESSAGES, len(run))))

    def _is_ready(self, more: bool, age_seconds: float) -> bool:
        assembler, limits = self._assembler, self._limits
        if assembler.is_empty or assembler.in_transaction:
            return False
        full = assembler.rows >= limits.rows or assembler.bytes >= limits.bytes
        return full or not more or age_seconds >= limits.linger_seconds or self._pending_bytes > _PIECE_BYTES

    def _is_over(self, target: PostgresLsn | None, late: bool) -> bool:
        if target is None:
            return late
        return self._settled and not self._pending_bytes

    def _ask_activity(self) -> tuple[bool, int]:
        """Whether the walsender waits for more log (the event is spelled in two ways, by version), and the time now."""
        query = (
            "SELECT wait_event ILIKE 'WalSenderWaitForWal', (extract(epoch FROM clock_timestamp()) * 1000000)::int8"
            " FROM pg_stat_activity WHERE pid = %s"
        )
        row = self._connection.execute(query, (self.walsender.pid,)).fetchone()
        return (row[0] is True, int(row[1])) if row is not None else (False, self._since_us)

    def _cut(self) -> ChangeSet:
        self._beat_at = time.monotonic()
        return self._assembler.cut()

    def _heartbeat(self) -> ChangeSet:
        assembler, limits = self._assembler, self._limits
        ahead = assembler.reached.value - assembler.position.value
        late = time.monotonic() - self._beat_at >= limits.heartbeat_seconds
        if (
            not assembler.in_transaction
            and not self._pending_bytes
            and ahead > 0
            and (late or ahead >= limits.heartbeat_bytes)
        ):
            return self._cut()
        return ChangeSet(assembler.position, assembler.position)

"""Runtime: delivers one capture's changes to any sink, at least once, in order; a commit means durable.

    runtime = Runtime(capture, FileCheckpointStore("state"), key="shop")
    runtime.start()
    while delivery := runtime.poll():
        keep(delivery.change_sets)            # the caller's own durable storage
        runtime.commit(delivery.token)
    runtime.stop()

The steps of a commit, each of which makes the next one safe:
  1. the caller has made the change sets durable
  2. the checkpoint is saved (position and chunk cursor in one record); if that fails, nothing has moved
  3. the barrier moves; nothing in this step can fail
  4. the source may forget what is committed (``confirm``); if that fails, the next commit confirms it

``stop`` is safe: it refuses while anything is uncommitted. ``force_stop`` is for emergencies: it returns what was
pulled and not committed, moves no checkpoint, and the next start delivers it again; the caller must know what it has
already done with it.

Threads: any method from any thread. A poll that waits for the source blocks nobody: a commit from another thread is
saved at once (and confirmed when the poll ends: the source's stream belongs to one thread), and ``stop`` and
``force_stop`` end the wait. Two polls exclude each other. ``state``, ``stats`` and ``errors`` never wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace

from lakefeed.capture.base import ChangeCapture
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.embed.barrier import CommitBarrier, Token
from lakefeed.embed.checkpoint import Checkpoints, source_type
from lakefeed.embed.feed import PendingQueue, Pulled
from lakefeed.embed.options import (
    Delivery,
    ErrorLog,
    NullTracer,
    RuntimeOptions,
    RuntimeState,
    RuntimeStats,
    Tracer,
)
from lakefeed.embed.progress import Progress
from lakefeed.embed.source import Intake
from lakefeed.errors import ConfigError, StateError
from lakefeed.failpoint import hit

log = logging.getLogger(__name__)

_STARTED = {RuntimeState.RUNNING: "runtime already started", RuntimeState.STOPPING: "runtime is currently stopping"}

_POLL_ENDS_SECONDS = 10.0
"""How long a stop waits for a poll after closing its source."""


class Runtime:
    """See the module. A ``capture`` of None is a disabled source: only injected change sets are delivered."""

    def __init__(
        self,
        capture: ChangeCapture | None,
        store: Checkpoints,
        *,
        key: str,
        options: RuntimeOptions | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._capture = capture
        self._store = store
        self._key = key
        self._options = options or RuntimeOptions()
        self._tracer = tracer or NullTracer()
        # Holding ``_stream`` allows using the source's stream, and waiting for it. ``_lock`` guards everything else,
        # and only a start holds it during calls to the source. To take both, take ``_stream`` first.
        self._stream = threading.RLock()
        self._lock = threading.RLock()
        self._state = RuntimeState.IDLE
        self._stats = RuntimeStats()
        self._kind: str | None = source_type(capture.kind) if capture is not None else None
        self._identity: str | None = None
        self._queue = PendingQueue(self._options)
        self._idle: Progress | None = None
        self._durable = Progress()
        self._confirmed: Position | None = None
        self._confirm_due = False
        self.barrier: CommitBarrier[Pulled] = CommitBarrier()
        self.errors = ErrorLog()
        self._intake = Intake(capture, self._options, self.errors) if capture is not None else None

    @property
    def state(self) -> RuntimeState:
        return self._state

    @property
    def stats(self) -> RuntimeStats:
        return self._stats

    @property
    def handoff_complete(self) -> bool:
        """Whether the snapshot, if there was one, has a durable checkpoint, so that only the stream is left."""
        return not self._durable.in_snapshot

    @property
    def schema_history(self) -> Mapping[TableId, tuple[TableSchema, ...]]:
        """The schemas that each table was committed with, oldest first, at most ``schema_history_retention`` of each.

        They are part of the checkpoint. A start passes the newest ones to the capture, so that it notices what changed
        while no process ran.
        """
        return self._durable.schemas.tables

    def start(self) -> None:
        """Idle or Stopped → Running. After an error the state is unchanged, and ``start`` may be called again."""
        with self._lock:
            if self._state in _STARTED:
                raise self.errors.record("runtime.start.state", StateError(_STARTED[self._state]))
        if not self._stream.acquire(timeout=_POLL_ENDS_SECONDS):
            error = StateError("a poll of the run before has not returned yet", remedy="Start again when it has.")
            raise self.errors.record("runtime.start.state", error)
        try:
            with self._lock:
                self._start()
        finally:
            self._stream.release()

    def poll(self, wait_seconds: float | None = None) -> Delivery | None:
        """The next delivery, or None if the source has nothing within ``wait_seconds`` (by default the option's value).

        StateError while ``max_in_flight`` deliveries are uncommitted. An error of the source is raised; the next poll
        reconnects and continues after what was pulled before. Also None if the runtime is stopped meanwhile.
        """
        with self._stream:
            with self._lock:
                self._require_running("runtime.poll.state")
                if self.barrier.in_flight >= self._options.max_in_flight:
                    message = f"{self.barrier.in_flight} deliveries are uncommitted; commit before the next poll"
                    raise self.errors.record("runtime.poll.in_flight", StateError(message))
                self._stats = replace(self._stats, last_poll_at=self._options.clock())
            self._commit_idle()  # of the previous poll: the new delivery starts where the source had come to
            try:
                self._gather(self._options.wait_seconds if wait_seconds is None else wait_seconds)
            except Exception:
                if self._state is RuntimeState.RUNNING:
                    raise
            with self._lock:
                if self._state is not RuntimeState.RUNNING:
                    return None  # the next run delivers again what was pulled since
                taken = self._queue.take()
                if taken:
                    token = self.barrier.open(taken)
                    change_sets = tuple(pulled.change_set for pulled in taken if pulled.change_set is not None)
            if taken:
                if self._confirm_due:
                    self._confirm()
                return Delivery(token=token, change_sets=change_sets, bracket=taken[0].bracket)
            self._commit_idle()
            return None

    def commit(self, token: Token, prefix: int | None = None) -> None:
        """Record that the first ``prefix`` change sets of a delivery are durable (None: all of them).

        ``prefix`` counts from the start of the delivery: 2, then 5. A token or prefix that was used before is a
        StateError, and nothing moves. If the checkpoint cannot be saved, nothing moves and the commit can be retried.
        """
        with self._lock:
            self._require_running("runtime.commit.state")
            try:
                rows = self.barrier.accept(token, prefix, lambda pulled, total: self._save(pulled.progress, total))
            except StateError as error:
                self.errors.record("runtime.commit.token", error)
                raise
            now = self._options.clock()
            self._stats = replace(self._stats, committed=self._stats.committed + rows, last_commit_at=now)
            self._confirm_due = True
            free = self._stream.acquire(blocking=False)
        if free:  # otherwise the poll that has the stream confirms
            try:
                self._confirm()
            finally:
                self._stream.release()

    def inject(self, change_set: ChangeSet) -> None:
        """Deliver a change set of the embedder's own, after everything that the source has returned so far."""
        with self._lock:
            self._require_running("runtime.inject.state")
            self._queue.inject(change_set)

    def stop(self) -> list[ChangeSet]:
        """Running → Stopped, if nothing is uncommitted. Always returns an empty list, for symmetry with force_stop."""
        with self._lock:
            if self._may_not_stop("runtime.stop.state"):
                return []
            pending = self.barrier.pending_events + self._queue.events
            if pending > 0:
                choices = "commit acknowledgements before stop or call force_stop()"
                error = StateError(f"runtime has {pending} uncommitted events; {choices}")
                raise self.errors.record("runtime.stop.uncommitted", error)
            self._state = RuntimeState.STOPPING
        failed = self._shut_down("runtime.stop.close")
        if failed is not None:
            raise failed
        return []

    def force_stop(self) -> list[ChangeSet]:
        """Running → Stopped at once. Returns what was pulled and not committed, in delivery order.

        An error from closing the source is recorded and not raised: it must not lose the drained events.
        """
        with self._lock:
            if self._may_not_stop("runtime.force_stop.state"):
                return []
            delivered = [pulled.change_set for pulled in self.barrier.unaccepted() if pulled.change_set is not None]
            drained = [*delivered, *self._queue.drain()]
            self.barrier.clear()
            for change_set in drained:
                self._tracer.event_end(change_set.end.encode(), "force_stopped")
            self._state = RuntimeState.STOPPING
        self._shut_down("runtime.force_stop.close")
        return drained

    def _start(self) -> None:
        """Call with both locks held."""
        if self._state in _STARTED:  # another thread was faster
            raise self.errors.record("runtime.start.state", StateError(_STARTED[self._state]))
        options, errors = self._options, self.errors
        if options.schema_history_retention is None:
            log.warning(
                "no schema_history_retention is configured; schema history will grow unboundedly. "
                "Set RuntimeOptions.schema_history_retention to bound it."
            )
        counted = errors.tagged("runtime.start.committed_count", lambda: self._store.load(self._key))
        if counted is not None and self._capture is None:
            self._kind, self._identity = counted.source_type, counted.identity
        committed = counted.committed if counted is not None else 0
        errors.tagged("runtime.start.barrier_hydrate", lambda: self.barrier.hydrate(committed))
        if self._intake is not None:
            if options.incremental is not None and options.snapshot_tables:
                error = ConfigError(
                    "cannot configure both snapshot_tables and incremental_snapshot; choose one startup mode",
                    remedy="Leave out snapshot_tables or incremental.",
                )
                raise errors.record("runtime.start.config", error)
            checkpoint = errors.tagged("runtime.start.checkpoint", lambda: self._store.load(self._key))
            self._queue.tail = self._durable = self._intake.open(checkpoint)
            self._identity = self._intake.identity
            self._idle = self._confirmed = None
            self._confirm_due = False
        self._stats = RuntimeStats(started_at=options.clock())
        self._state = RuntimeState.RUNNING
        self._tracer.checkpoint_barrier("open")

    def _gather(self, wait_seconds: float) -> None:
        """Pull until a delivery is full, the source has nothing more, or it is time to deliver what there is."""
        deadline = None
        while self._intake is not None and self._state is RuntimeState.RUNNING and not self._queue.full:
            if deadline is not None and wait_seconds > 0 and self._options.clock() >= deadline:
                return
            try:
                pulled = self._intake.pull(wait_seconds)
            except Exception:
                if self._queue.has_pulled:
                    return  # deliver that first; the error is recorded, and the next poll raises it if it persists
                raise
            with self._lock:
                if self._state is not RuntimeState.RUNNING:
                    return
                if pulled.change_set is None:
                    self._idle = pulled.progress
                    deduplicated = self._stats.deduplicated + pulled.deduplicated
                    self._stats = replace(self._stats, deduplicated=deduplicated)
                else:
                    self._idle = None
                    self._queue.add(pulled)
                    polled, now = self._stats.polled + pulled.rows, self._options.clock()
                    self._stats = replace(self._stats, polled=polled, last_event_at=now)
            if pulled.idle:
                return
            if self._queue.has_pulled and deadline is None:
                deadline = self._options.clock() + self._options.linger_seconds

    def _commit_idle(self) -> None:
        """Save the progress of an idle source, so that it may forget, too, once nothing waits for a commit. Needs
        ``_stream``."""
        with self._lock:
            idle = self._idle
            if idle is None or self.barrier.in_flight or not self._queue.empty:
                return
            if idle != self._durable:
                self._save(idle, self.barrier.committed)
                self._queue.tail = idle
        self._confirm()

    def _save(self, progress: Progress, committed: int) -> None:
        kind = self._kind or (progress.position.kind if progress.position is not None else "")
        slot = self._capture.slot if self._capture is not None else None
        checkpoint = progress.to_checkpoint(kind, identity=self._identity, committed=committed, slot=slot)
        if checkpoint is not None:
            self.errors.tagged("runtime.commit.save", lambda: self._store.save(self._key, checkpoint))
        self._durable = progress

    def _confirm(self) -> None:
        """Confirm what is durable. Cumulative, so the next one makes up for a failure; the commit stands. Needs
        ``_stream``."""
        with self._lock:
            position, self._confirm_due = self._durable.position, False
            if self._state is not RuntimeState.RUNNING:
                return
        if self._capture is None or position is None or position == self._confirmed:
            return
        hit("capture.before_confirm")
        try:
            self._capture.confirm(position)
        except Exception as error:  # noqa: BLE001  # recorded; the next commit confirms
            self.errors.record("runtime.commit.confirm", error)
            return
        self._confirmed = position
        hit("capture.after_confirm")

    def _may_not_stop(self, tag: str) -> bool:
        """True if it is stopped already. StateError while another stop is running."""
        if self._state is RuntimeState.STOPPING:
            raise self.errors.record(tag, StateError("runtime already stopping"))
        if self._state is RuntimeState.RUNNING:
            return False
        self._state = RuntimeState.STOPPED
        return True

    def _shut_down(self, tag: str) -> Exception | None:
        """From Stopping to Stopped, whatever the source does. Returns its error; the caller decides whether to raise
        it.

        Another thread's poll may hold the stream while it waits: closing the capture ends that wait.
        """
        failed: Exception | None = None
        try:
            if self._intake is not None:
                free = self._stream.acquire(blocking=False)
                if not free:
                    failed = self._intake.interrupt(tag)
                    free = self._stream.acquire(timeout=_POLL_ENDS_SECONDS)
                if free:
                    try:
                        failed = self._intake.close(tag) or failed
                    finally:
                        self._stream.release()
        finally:
            with self._lock:
                self._stats = replace(self._stats, started_at=None, last_event_at=None)
                self._tracer.checkpoint_barrier("stopped")
                self._state = RuntimeState.STOPPED
        return failed

    def _require_running(self, tag: str) -> None:
        if self._state is not RuntimeState.RUNNING:
            raise self.errors.record(tag, StateError(f"runtime is not running; it is {self._state.value}"))

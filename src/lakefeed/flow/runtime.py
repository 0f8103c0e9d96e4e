"""Runtime: one capture's changes for any sink, at least once, in order, with commits that mean durable.

    runtime = Runtime(capture, FileCheckpointStore("state"), key="shop")
    runtime.start()
    while delivery := runtime.poll():
        keep(delivery.change_sets)            # the caller's own durable place
        runtime.commit(delivery.token)
    runtime.stop()

The steps of a commit, of which each makes the next one safe:
  1. the caller has made the change sets durable
  2. the checkpoint is saved (position and chunk cursor in one record); if that fails, nothing has moved
  3. the barrier moves; nothing in this step can fail
  4. the source is told that it may forget; if that fails it is told with the next commit

``stop`` is safe: it refuses while anything is uncommitted. ``force_stop`` is for emergencies: it hands back what was
pulled and not committed, moves no checkpoint, and the next start delivers it again; what the caller did with it in
between is the caller's to tell apart.

Threads: all methods may be called from any thread and wait for each other, so an acknowledgement can be given by
another thread than the one that polls. ``state``, ``stats`` and ``errors`` never wait.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from lakefeed.capture.base import ChangeCapture
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position
from lakefeed.errors import StateError
from lakefeed.failpoint import hit
from lakefeed.flow.barrier import CommitBarrier, Token
from lakefeed.flow.observe import ErrorLog, NullTracer, Tracer
from lakefeed.flow.runtime_feed import Step
from lakefeed.flow.runtime_intake import Intake
from lakefeed.flow.runtime_options import Delivery, RuntimeOptions, RuntimeState, RuntimeStats
from lakefeed.flow.runtime_progress import Checkpoints, Progress
from lakefeed.flow.runtime_queue import PendingQueue
from lakefeed.flow.runtime_start import check_options

log = logging.getLogger(__name__)

_STARTED = {RuntimeState.RUNNING: "runtime already started", RuntimeState.STOPPING: "runtime is currently stopping"}


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
        self._lock = threading.RLock()
        self._state = RuntimeState.IDLE
        self._stats = RuntimeStats()
        self._kind: str | None = capture.kind if capture is not None else None
        self._identity: str | None = None
        self._queue = PendingQueue(self._options)
        self._idle: Progress | None = None
        self._durable = Progress()
        self._confirmed: Position | None = None
        self.barrier: CommitBarrier[Step] = CommitBarrier()
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
        """The snapshot, if there was one, is behind a durable checkpoint; from here on it is all stream."""
        return not self._durable.in_snapshot

    def start(self) -> None:
        """Idle or Stopped → Running. After an error the state is what it was, and ``start`` may be called again."""
        with self._lock:
            if self._state in _STARTED:
                raise self.errors.record("runtime.start.state", StateError(_STARTED[self._state]))
            if self._options.schema_history_retention is None:
                log.warning(
                    "no schema_history_retention is configured; schema history will grow unboundedly. "
                    "Set RuntimeOptions.schema_history_retention to bound it."
                )
            committed = self.errors.tagged("runtime.start.committed_count", self._load_committed)
            self.errors.tagged("runtime.start.barrier_hydrate", lambda: self.barrier.hydrate(committed))
            if self._intake is not None:
                self._start_source(self._intake)
            self._stats = RuntimeStats(started_at=self._options.clock())
            self._state = RuntimeState.RUNNING
            self._tracer.checkpoint_barrier("open")

    def poll(self, wait_seconds: float | None = None) -> Delivery | None:
        """What is next, or None if the source has nothing within ``wait_seconds`` (the option's value by default).

        StateError while ``max_in_flight`` deliveries are uncommitted. An error of the source is raised; the next
        poll connects again and goes on behind what was pulled before.
        """
        with self._lock:
            self._require_running("runtime.poll.state")
            if self.barrier.in_flight >= self._options.max_in_flight:
                message = f"{self.barrier.in_flight} deliveries are uncommitted; commit before the next poll"
                raise self.errors.record("runtime.poll.in_flight", StateError(message))
            self._stats = replace(self._stats, last_poll_at=self._options.clock())
            self._commit_idle()  # of the poll before: what comes now begins where the source had come to
            self._gather(self._options.wait_seconds if wait_seconds is None else wait_seconds)
            steps = self._queue.take()
            if not steps:
                self._commit_idle()
                return None
            return self._deliver(steps)

    def commit(self, token: Token, prefix: int | None = None) -> None:
        """The first ``prefix`` change sets of a delivery are durable (None: all of them).

        Counted from the delivery's start: 2, then 5. StateError, and nothing moves, for a token or a prefix that
        was used before. If the checkpoint cannot be saved, nothing moves and the commit can be tried again.
        """
        with self._lock:
            self._require_running("runtime.commit.state")
            try:
                rows = self.barrier.accept(token, prefix, self._save_step)
            except StateError as error:
                self.errors.record("runtime.commit.token", error)
                raise
            now = self._options.clock()
            self._stats = replace(self._stats, committed=self._stats.committed + rows, last_commit_at=now)
            self._confirm()

    def inject(self, change_set: ChangeSet) -> None:
        """Deliver a change set of the embedder's own, behind everything the source has said so far."""
        with self._lock:
            self._require_running("runtime.inject.state")
            self._queue.inject(change_set)

    def stop(self) -> list[ChangeSet]:
        """Running → Stopped, if nothing is uncommitted. The list is empty: it has force_stop's shape."""
        with self._lock:
            if self._may_not_stop("runtime.stop.state"):
                return []
            pending = self.barrier.pending_events + self._queue.events
            if pending > 0:
                choices = "commit acknowledgements before stop or call force_stop()"
                error = StateError(f"runtime has {pending} uncommitted events; {choices}")
                raise self.errors.record("runtime.stop.uncommitted", error)
            failed = self._shut_down("runtime.stop.close")
            if failed is not None:
                raise failed
            return []

    def force_stop(self) -> list[ChangeSet]:
        """Running → Stopped at once. Returns what was pulled and not committed, in delivery order.

        An error of closing the source is recorded and not raised: it must not take the drained events with it.
        """
        with self._lock:
            if self._may_not_stop("runtime.force_stop.state"):
                return []
            delivered = [step.change_set for step in self.barrier.unaccepted() if step.change_set is not None]
            drained = [*delivered, *self._queue.drain()]
            self.barrier.clear()
            for change_set in drained:
                self._tracer.event_end(change_set.end.encode(), "force_stopped")
            self._shut_down("runtime.force_stop.close")
            return drained

    def _load_committed(self) -> int:
        checkpoint = self._store.load(self._key)
        if checkpoint is None:
            return 0
        if self._capture is None:
            self._kind, self._identity = checkpoint.source_type, checkpoint.identity
        return checkpoint.committed

    def _start_source(self, intake: Intake) -> None:
        self.errors.tagged("runtime.start.config", lambda: check_options(self._options))
        checkpoint = self.errors.tagged("runtime.start.checkpoint", lambda: self._store.load(self._key))
        progress = intake.open(checkpoint)
        self._identity = intake.identity
        self._queue.tail = self._durable = progress
        self._idle = self._confirmed = None

    def _gather(self, wait_seconds: float) -> None:
        """Pull until a delivery is full, the source has nothing more, or it is time to deliver what is there."""
        if self._intake is None:
            return
        deadline = None
        while not self._queue.full:
            if deadline is not None and wait_seconds > 0 and self._options.clock() >= deadline:
                return
            try:
                step = self._intake.pull(wait_seconds)
            except Exception:
                if self._queue.has_pulled:
                    return  # deliver that first; the error is recorded, and raised by the next poll if it stays
                raise
            self._note(step)
            if step.idle:
                return
            if self._queue.has_pulled and deadline is None:
                deadline = self._options.clock() + self._options.linger_seconds

    def _note(self, step: Step) -> None:
        if step.change_set is None:
            self._idle = step.progress
            deduplicated = self._stats.deduplicated + step.deduplicated
            self._stats = replace(self._stats, deduplicated=deduplicated)
            return
        self._idle = None
        self._queue.add(step)
        polled = self._stats.polled + step.rows
        self._stats = replace(self._stats, polled=polled, last_event_at=self._options.clock())

    def _deliver(self, steps: list[Step]) -> Delivery:
        token = self.barrier.open(steps)
        change_sets = tuple(step.change_set for step in steps if step.change_set is not None)
        return Delivery(token=token, change_sets=change_sets, bracket=steps[0].bracket)

    def _commit_idle(self) -> None:
        """T22: a quiet source moves on too, and may forget, as soon as nothing waits for a commit."""
        idle = self._idle
        if idle is None or self.barrier.in_flight or not self._queue.empty:
            return
        if idle != self._durable:
            self._save(idle, self.barrier.committed)
            self._queue.tail = idle
        self._confirm()

    def _save_step(self, step: Step, committed: int) -> None:
        self._save(step.progress, committed)

    def _save(self, progress: Progress, committed: int) -> None:
        kind = self._kind or (progress.position.kind if progress.position is not None else "")
        checkpoint = progress.to_checkpoint(kind, identity=self._identity, committed=committed)
        if checkpoint is not None:
            self.errors.tagged("runtime.commit.save", lambda: self._store.save(self._key, checkpoint))
        self._durable = progress

    def _confirm(self) -> None:
        """Cumulative, so a failure is made good by the next one; the commit itself stands."""
        position = self._durable.position
        if self._capture is None or position is None or position == self._confirmed:
            return
        hit("capture.before_confirm")
        try:
            self._capture.confirm(position)
        except Exception as error:  # noqa: BLE001  # recorded; told again with the next commit
            self.errors.record("runtime.commit.confirm", error)
            return
        self._confirmed = position
        hit("capture.after_confirm")

    def _may_not_stop(self, tag: str) -> bool:
        """True if it is stopped already. StateError while another stop is under way."""
        if self._state is RuntimeState.STOPPING:
            raise self.errors.record(tag, StateError("runtime already stopping"))
        if self._state is RuntimeState.RUNNING:
            return False
        self._state = RuntimeState.STOPPED
        return True

    def _shut_down(self, tag: str) -> Exception | None:
        """Ends Stopped whatever the source does; its error is the caller's to raise or not."""
        self._state = RuntimeState.STOPPING
        try:
            return self._intake.close(tag) if self._intake is not None else None
        finally:
            self._stats = replace(self._stats, started_at=None, last_event_at=None)
            self._tracer.checkpoint_barrier("stopped")
            self._state = RuntimeState.STOPPED

    def _require_running(self, tag: str) -> None:
        if self._state is not RuntimeState.RUNNING:
            raise self.errors.record(tag, StateError(f"runtime is not running; it is {self._state.value}"))

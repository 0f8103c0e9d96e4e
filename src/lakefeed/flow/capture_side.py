"""The source's side of a pipeline: brings the changes of all tables, in order, into the journal.

Belongs to one thread, the stream's. The order at the start is that of ``ChangeCapture``; the process may die between
any two steps, and the next start continues from what is durable:
  1. open, identity   another database than the journal's is refused before anything is changed in it, unless it proves
                      that it continues the journal's: see ``ChangeCapture.take_over``
  2. continuity       a position that the source has lost stops the pipeline, loudly
  3. stage            tables that the lake does not have get a copy, decided before the source is touched
  4. prepare          only if there is no resume point yet: without one there is no stream. Otherwise tables are
                      prepared and copied beside the stream, see ``copies``
  5. append           a change set is durable in the journal …
  6. notices          … the table states reflect what it says about tables …
  7. confirm          … and only then the source may forget it
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

from lakefeed.capture.base import ChangeCapture, Continuity
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position
from lakefeed.errors import LakefeedError, PositionLostError, SourceError
from lakefeed.failpoint import hit
from lakefeed.flow.copies import TableCopies
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.reread.repair import Repairs
from lakefeed.flow.reread.resnapshot import Resnapshots
from lakefeed.flow.retry import Backoff
from lakefeed.flow.shape import Shape
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.journal.commit import Commit
from lakefeed.journal.journal import Journal

log = logging.getLogger(__name__)

_WAIT_SECONDS = 0.5
"""How long the stream may wait for changes, which is how long ``stop`` may take on an idle source."""

_CLOSE_SECONDS = 3.0

_GATHER_SECONDS, _SMALL_ROWS = 0.2, 10_000
"""After a small change set, wait for more changes: otherwise a busy source would be cut into thousands of tiny files,
which a merge has to open one by one."""

_STORE_GATHER_SECONDS, _STORE_HEARTBEAT_SECONDS = 2.0, 30.0
"""The same on an object store, where each file costs one or two requests, in time and in money. For the same reason the
position of an idle source is written less often there."""

_BUSY_SECONDS, _ENDLESS_SECONDS = 1.0, 60.0
"""When ``drain`` stops asking a source that always has more: if the source knows where its log ends, and if not."""


def source_forgot(end: Position | None) -> PositionLostError:
    """The journal continues from ``end``, but the source no longer has a resume point."""
    return PositionLostError(
        f"the journal ends at {end}, but the source knows nothing of this pipeline",
        remedy="Restore the source; or begin again, which copies every table: lakefeed uninstall FILE, then "
        "lakefeed sync FILE",
    )


class CaptureSide:
    """See the module."""

    def __init__(
        self,
        capture: ChangeCapture,
        journal: Journal,
        states: TableStates,
        copies: TableCopies,
        shape: Shape,
        listener: Listener,
        repairs: Repairs | None = None,
        resnapshots: Resnapshots | None = None,
    ) -> None:
        self._repairs = repairs
        self._resnapshots = resnapshots
        self._capture = capture
        self._journal = journal
        self._states = states
        self._copies = copies
        self._shape = shape
        self._listener = listener
        self._changes: Iterator[ChangeSet] | None = None
        self._changes_wait = 0.0
        self._confirmed: Position | None = None
        self._closing: threading.Thread | None = None
        is_remote = journal.root.is_remote
        self._gather_seconds = _STORE_GATHER_SECONDS if is_remote else _GATHER_SECONDS
        self._heartbeat_seconds = _STORE_HEARTBEAT_SECONDS if is_remote else 0.0
        self._heartbeat_at = float("-inf")
        self._confirm_backoff = Backoff(1.0, 60.0)
        self.confirm_error: LakefeedError | None = None
        """Why the source does not accept confirmations. They are sent again; meanwhile its log grows."""

    def open(self) -> None:
        """Steps 1 to 4."""
        self._capture.open()
        identity = self._capture.identity()
        if identity is not None:
            self._take_over(identity)
            self._journal.adopt(identity)
        followed = self._states.in_phase(Phase.COPYING, Phase.LIVE)
        continuity = self._capture.continuity(self._journal.end, sorted({state.source for state in followed}))
        if continuity is Continuity.FRESH and self._journal.head > 0:
            raise source_forgot(self._journal.end)
        if continuity is Continuity.FRESH:
            for state in followed:
                self._states.stage(state.route, reason="the source has no resume point")
        # Blocked tables, too: then the source knows that they belong to us, and reports what is wrong with them now.
        known = {state.source for state in self._states.in_phase(Phase.COPYING, Phase.LIVE, Phase.BLOCKED)}
        schemas = [self._journal.latest_schema(source) for source in sorted(known)]
        self._capture.recall([schema.whole for schema in schemas if schema is not None])
        self._shape.recall(schema for schema in schemas if schema is not None)
        if self._journal.head > 0:
            # The process may have died between appending the newest change set and acting on its notices.
            self._states.act_on(self._journal.commit(self._journal.head))
        self._copies.begin()
        if continuity is Continuity.FRESH:
            if not self._copies.enrol():
                self._capture.prepare(())  # no table can be copied now, but the stream needs its resume point
            identity = self._capture.identity()
            if identity is not None:
                self._journal.adopt(identity)

    def _take_over(self, identity: str) -> None:
        """After a fail-over the source has another identity. If it proves that it continues from where the journal
        ends, the journal belongs to it from now on; after a crash in here, the next start decides the same way
        again."""
        known, end = self._journal.identity, self._journal.end
        if known in (None, identity) or end is None:
            return
        position = self._capture.take_over(known, end)
        if position > end:
            self._journal.append(ChangeSet(end, position))  # nothing lies in between
        self._journal.adopt(identity, succeeds=known)
        log.warning("%s took over from %s; capture goes on at %s without a copy", identity, known, position)

    def close(self) -> None:
        """Close the source. What was not confirmed is delivered again after the next ``open``. Any thread may call
        this.

        An error is only logged: there may already be one that is retried, and this one loses nothing. A source that
        does not close in time is left to its thread.
        """

        def close() -> None:
            try:
                self._capture.close()
            except Exception as error:  # noqa: BLE001  # logged
                log.warning("the source could not be closed: %s", error)

        if self._closing is None or not self._closing.is_alive():
            self._closing = threading.Thread(target=close, name="lakefeed-close", daemon=True)
            self._closing.start()
            self._closing.join(_CLOSE_SECONDS)

    def stream(self, over: threading.Event, wait_for_room: Callable[[], None], captured: Callable[[], None]) -> None:
        """Steps 5 to 7 until ``over``. Calls ``wait_for_room`` before each change set, and ``captured`` after it."""
        while not over.is_set():
            wait_for_room()
            for change_set in self._live(_WAIT_SECONDS):
                self._repair(captured)
                if change_set.is_heartbeat and time.monotonic() - self._heartbeat_at < self._heartbeat_seconds:
                    commit = None
                else:
                    commit = self._append(change_set)
                if commit is not None:
                    captured()
                    if commit.rows < _SMALL_ROWS:
                        over.wait(self._gather_seconds)
                elif self._leaving():
                    self.drain()  # only without a wait, "nothing" means that nothing is left
                    captured()
                    break
                wait_for_room()
                if over.is_set():
                    return
            else:
                over.wait(_WAIT_SECONDS)

    def _repair(self, captured: Callable[[], None]) -> None:
        """Between two change sets, one step of what ``repair`` and ``resnapshot`` have requested: see there."""
        for work in (self._repairs, self._resnapshots):
            if work is not None and (commit := work.turn()) is not None:
                self._listener.captured(commit)
                captured()

    def repair(self) -> None:
        """Carry out all requested repairs and resnapshots now; draining in between brings the changes that they wait
        for. Not beside ``stream``. After a minute, the rest is left to the next call."""
        until = time.monotonic() + _ENDLESS_SECONDS
        for work in (self._repairs, self._resnapshots):
            while work is not None and work.has_work and time.monotonic() < until:
                if (commit := work.turn(now=True)) is not None:
                    self._listener.captured(commit)
                else:
                    time.sleep(0.02)
                    self.drain()

    def drain(self, has_room: Callable[[], bool] = lambda: True) -> int:
        """Steps 5 to 7 for everything that is committed in the source before the call. Returns the number of change
        sets.

        Without a wait, a heartbeat means that nothing is left, unless it moves the position and has not reached the end
        of the log. A source that is written to all the time sends none; then this stops at the end of the log at the
        time of the call. ``has_room`` is asked after each change set; without room, this stops earlier.
        """
        end, captured, started = self._capture.end(), 0, time.monotonic()
        for change_set in self._live(0.0):
            before = self._journal.end
            commit = self._append(change_set)
            seconds = time.monotonic() - started
            if commit is None:
                is_behind = seconds < _ENDLESS_SECONDS if end is None else change_set.end < end
                if before != self._journal.end and is_behind:
                    continue
                break
            captured += 1
            if end is not None and seconds > _BUSY_SECONDS and commit.end >= end:
                break
            if not has_room() or (end is None and seconds > _ENDLESS_SECONDS and commit.rows < _SMALL_ROWS):
                self._changes = None  # its next heartbeat would refer to this call, not to the next one
                return captured
        # Tables that had left before the call have received their last change.
        for state in self._leaving():
            self._states.update_if(state, last_change_set=self._journal.head)
        return captured

    def _live(self, wait_seconds: float) -> Iterator[ChangeSet]:
        """The capture's iterator, reused while the wait is the same: a new one may have to connect again."""
        while True:
            if self._changes is None or self._changes_wait != wait_seconds:
                self._changes = self._capture.live(self._journal.end, wait_seconds=wait_seconds)
                self._changes_wait = wait_seconds
            change_set = next(self._changes, None)
            if change_set is None:  # the capture ended its iterator, which a real source never does
                self._changes = None
                return
            yield change_set

    def _append(self, change_set: ChangeSet) -> Commit | None:
        """Steps 5 to 7. None for a heartbeat, which is kept only if the source has moved on.

        The journal refuses a change set that does not start where it ends: neither a gap nor a duplicate gets in.
        """
        end = self._journal.end
        if change_set.is_heartbeat:
            if end is None or change_set.end > end:
                self._heartbeat_at = time.monotonic()
                self._journal.append(ChangeSet(None if end is None else change_set.start, change_set.end))
            self._confirm()
            return None
        commit = self._journal.append(self._shape.change_set(change_set))
        self._states.act_on(commit)
        self._confirm()
        self._listener.captured(commit)
        return commit

    def _confirm(self) -> None:
        """Confirm the journal's end. Cumulative: a later one makes up for a failure, which is reported until then."""
        position = self._journal.end
        if position is None or position == self._confirmed or not self._confirm_backoff.is_over:
            return
        hit("capture.before_confirm")
        try:
            self._capture.confirm(position)
        except Exception as error:  # noqa: BLE001  # the change set is durable; reported, and tried again
            text = error.message if isinstance(error, LakefeedError) else f"{type(error).__name__}: {error}"
            remedy = error.remedy if isinstance(error, LakefeedError) else None
            self.confirm_error = SourceError(
                f"the source does not accept confirmations, so its log grows: {text}",
                remedy=remedy,
            )
            log.warning("%s", self.confirm_error)
            self._listener.retrying(self.confirm_error, self._confirm_backoff.failed())
            self._changes = None  # the capture may have gone back to what is confirmed, but the journal has more
            return
        self._confirm_backoff.reset()
        self._confirmed, self.confirm_error = position, None
        hit("capture.after_confirm")

    def _leaving(self) -> list[TableState]:
        """Tables that have left, but may have changes that the source still has to deliver."""
        live = self._states.in_phase(Phase.LIVE)
        return [state for state in live if state.leaving and state.last_change_set is None]

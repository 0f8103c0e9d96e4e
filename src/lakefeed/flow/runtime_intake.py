"""Intake: the source's side of a runtime. Connect, find the place to start, pull, connect again after a failure."""

from __future__ import annotations

from lakefeed.capture.base import ChangeCapture
from lakefeed.errors import StateError
from lakefeed.flow.observe import ErrorLog
from lakefeed.flow.runtime_feed import Feed, Step, make_feed
from lakefeed.flow.runtime_options import RuntimeOptions
from lakefeed.flow.runtime_progress import Progress
from lakefeed.flow.runtime_start import begin, check_continuity, usable
from lakefeed.journal.checkpoint import Checkpoint


class Intake:
    """Owns the connection and the feed. ``identity`` is the database's name for itself, known once it is open."""

    def __init__(self, capture: ChangeCapture, options: RuntimeOptions, errors: ErrorLog) -> None:
        self._capture = capture
        self._options = options
        self._errors = errors
        self._feed: Feed | None = None
        self._broken = False
        self.identity: str | None = None

    def open(self, checkpoint: Checkpoint | None) -> Progress:
        """Connect and go on from ``checkpoint``. A failure on the way leaves nothing open."""
        capture, errors = self._capture, self._errors
        found = errors.tagged("runtime.start.checkpoint", lambda: usable(checkpoint, capture, self._options))
        try:
            errors.tagged("runtime.start.connect", capture.open)
            progress = errors.tagged("runtime.start.source", lambda: begin(capture, found, self._options))
            self.identity = errors.tagged("runtime.start.source", capture.identity)
        except BaseException:
            self.close("runtime.start.close")
            raise
        self._feed = make_feed(capture, progress, self._options)
        self._broken = False
        return progress

    def pull(self, wait_seconds: float) -> Step:
        """The next step of the feed. After an error the next pull connects again first."""
        if self._broken:
            self._errors.tagged("runtime.poll.reconnect", self._reconnect)
        feed = self._open_feed()
        self._broken = True  # until the pull is back: an interrupted one leaves the feed in no known state
        step = self._errors.tagged("runtime.poll.source", lambda: feed.pull(wait_seconds))
        self._broken = False
        return step

    def close(self, tag: str) -> Exception | None:
        """Close whatever is open. An error is recorded and returned: the caller has more to finish first."""
        feed, self._feed = self._feed, None
        try:
            try:
                if feed is not None:
                    feed.close()
            finally:
                self._capture.close()
        except Exception as error:  # noqa: BLE001  # returned
            return self._errors.record(tag, error)
        return None

    def _reconnect(self) -> None:
        """The same kind of feed, behind the last step that was pulled (what is in flight stays in flight)."""
        feed = self._open_feed()
        feed.close()
        self._capture.close()
        self._capture.open()
        check_continuity(self._capture, feed.progress.position, self._options)
        self._feed = make_feed(self._capture, feed.progress, self._options)

    def _open_feed(self) -> Feed:
        if self._feed is None:
            raise StateError("the source is not open")
        return self._feed

"""BackgroundReader: reads a log in a thread of its own, so that the server always gets its answers.

The thread reads while there is room, keeps the connection alive while there is none, hands errors over to the
consumer, and notices silence: a server that has answered nothing for ``silence_seconds`` is SourceUnavailableError,
whether the connection looks open or a call hangs. It confirms nothing by itself."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator

from lakefeed.capture.log import LogReader, P, Piece
from lakefeed.errors import LakefeedError, SourceUnavailableError

ROOM_BYTES = 64 << 20
SILENCE_SECONDS = 30.0
CLOSE_SECONDS = 4.0
_READ_SECONDS = 1.0
_FULL_SECONDS = 0.1
_BURST_SECONDS = 0.25
_FEW, _JOINED_BYTES = 2, 1 << 20


class BackgroundReader(LogReader[P, Piece]):
    """A LogReader over another one, which it owns from here on. ``read`` belongs to one thread at a time; ``close`` may
    be called from any and returns within CLOSE_SECONDS, whatever hangs. The reader below must return within about a
    second. One that does not know yet whether the log has more, when it is read without a wait, returns a piece of no
    size. A log that answers by itself (a file) has no ``silence_seconds``."""

    def __init__(
        self, name: str, reader: LogReader[P, Piece], *, room_bytes: int = ROOM_BYTES,
        silence_seconds: float | None = SILENCE_SECONDS,
    ) -> None:  # fmt: skip
        self._name = name
        self._reader = reader
        self._room_bytes = room_bytes
        self._silence_seconds = silence_seconds
        self._changed = threading.Condition()
        self._pieces: list[Piece] = []
        self._taken: deque[Piece] = deque()
        self._unread = self._unread_bytes = 0  # pieces with something in them
        self._heard_at = time.monotonic()
        self._error: LakefeedError | None = None
        self._stopping = False
        self._asked = self._answered = 0  # reads that must say whether there is more
        self._is_drained = False  # what was taken is everything that was in the log when it was asked for
        self._thread = threading.Thread(target=self._work, name=f"lakefeed-{name}", daemon=True)
        self._thread.start()

    def read(self, wait_seconds: float) -> Piece | None:
        """See ``LogReader.read``. What came before an error is handed out before the error is raised. Without a wait it
        waits until it knows: pieces with something in them (``size``) have come, or the reader below has no more."""
        must_know = wait_seconds <= 0
        if self._taken:
            return self._taken.popleft()
        if self._is_drained and must_know:
            self._is_drained = False  # this None says it; the next read without a wait asks again
            return None
        with self._changed:
            if must_know:
                self._asked += 1
                self._reader.wake()
            least_wait = _BURST_SECONDS if self._reader.in_burst else 0.0
            asked, until = self._asked, time.monotonic() + max(wait_seconds, least_wait)
            self._is_drained = False
            while self._error is None and not self._stopping:
                left = _READ_SECONDS if must_know else until - time.monotonic()
                if left <= 0 or self._unread_bytes or (self._pieces and not must_know):
                    break
                if must_know and self._answered >= asked:
                    self._is_drained = bool(self._pieces)  # of no size: the next read says that there is no more
                    break
                self._changed.wait(min(left, _READ_SECONDS))
                self._check_silence()  # also where the thread hangs in a call
            if not self._pieces and self._error is not None:
                raise self._error
            pieces, is_behind = self._pieces, self._unread > _FEW
            self._pieces, self._unread, self._unread_bytes = [], 0, 0
            self._changed.notify_all()
        self._taken.extend(self._joined(pieces) if is_behind else pieces)
        return self._taken.popleft() if self._taken else None

    def _joined(self, pieces: list[Piece]) -> Iterator[Piece]:
        """So that a consumer that takes longer for a piece than the server catches up all the same."""
        group, size = list[Piece](), 0
        for piece in pieces:
            own = self._reader.size(piece)
            if group and size + own > _JOINED_BYTES:
                yield from self._reader.joined(group)
                group, size = [], 0
            group.append(piece)
            size += own
        yield from self._reader.joined(group)

    def confirm(self, position: P) -> None:
        self._reader.confirm(position)

    def close(self) -> None:
        """End the thread, then the connection. Idempotent; never raises."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._reader.wake()
        self._thread.join(CLOSE_SECONDS / 2)
        self._reader.close()

    def _work(self) -> None:
        try:
            while not self._stopping:
                if self._unread_bytes >= self._room_bytes:
                    self._reader.beat()
                    with self._changed:
                        self._changed.wait(_FULL_SECONDS)
                    self._heard_at = time.monotonic()  # nobody listened: that is no silence of the server's
                    continue
                asked = self._asked
                piece = self._reader.read(0.0 if asked > self._answered else _READ_SECONDS)
                with self._changed:
                    if piece is not None:
                        self._pieces.append(piece)
                        size = self._reader.size(piece)
                        self._unread_bytes += size
                        self._unread += size > 0
                    elif asked > self._answered:
                        self._answered = asked
                    else:
                        self._check_silence()
                        continue
                    self._heard_at = time.monotonic()
                    self._changed.notify_all()
            return
        except LakefeedError as known:
            error: LakefeedError = known
        except BaseException as unknown:  # noqa: BLE001  # handed to the consumer, who would wait without an end otherwise
            error = SourceUnavailableError(f"{self._name}: reading the log failed: {unknown!r}")
            error.__cause__ = unknown
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _check_silence(self) -> None:
        """Under the condition's lock."""
        silent = time.monotonic() - self._heard_at
        if self._silence_seconds is not None and silent >= self._silence_seconds and self._error is None:
            self._error = SourceUnavailableError(
                f"{self._name}: the server has answered nothing for {silent:.0f} s, although the connection is open",
                remedy="If this stays, check the server and what is in between.",
            )
            self._stopping = True
            self._changed.notify_all()

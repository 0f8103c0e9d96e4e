"""BackgroundReader: reads a log in a thread of its own, so that the server always gets its replies.

The thread reads while there is room, keeps the connection alive while there is none, passes errors to the consumer, and
detects silence: a server that has not answered for ``silence_seconds`` leads to SourceUnavailableError, whether the
connection looks open or a call hangs. The reader confirms nothing by itself."""

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
    """A LogReader on top of another one, which it owns from here on. ``read`` belongs to one thread at a time; any
    thread may call ``close``, which returns within CLOSE_SECONDS, whatever hangs. The inner reader must return within
    about a second. If it is read without a wait and does not know yet whether the log has more, it returns a piece of
    size 0. A log that needs no server (a file) has no ``silence_seconds``."""

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
        self._unread = self._unread_bytes = 0  # counts pieces that are not empty
        self._heard_at = time.monotonic()
        self._error: LakefeedError | None = None
        self._stopping = False
        self._asked = self._answered = 0  # reads that must find out whether the log has more
        self._is_drained = False  # the pieces taken are everything that the log had when it was asked
        self._thread = threading.Thread(target=self._work, name=f"lakefeed-{name}", daemon=True)
        self._thread.start()

    def read(self, wait_seconds: float) -> Piece | None:
        """See ``LogReader.read``. Pieces that arrived before an error are returned before the error is raised. Without
        a wait it blocks until it knows: pieces that are not empty (``size``) have arrived, or the inner reader has no
        more."""
        must_know = wait_seconds <= 0
        if self._taken:
            return self._taken.popleft()
        if self._is_drained and must_know:
            self._is_drained = False  # this None reports it; the next read without a wait asks again
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
                    self._is_drained = bool(self._pieces)  # they are empty: the next read reports that there is no more
                    break
                self._changed.wait(min(left, _READ_SECONDS))
                self._check_silence()  # here too, in case the thread hangs in a call
            if not self._pieces and self._error is not None:
                raise self._error
            pieces, is_behind = self._pieces, self._unread > _FEW
            self._pieces, self._unread, self._unread_bytes = [], 0, 0
            self._changed.notify_all()
        self._taken.extend(self._joined(pieces) if is_behind else pieces)
        return self._taken.popleft() if self._taken else None

    def _joined(self, pieces: list[Piece]) -> Iterator[Piece]:
        """Fewer pieces, so that a consumer that is slower per piece than the server can still catch up."""
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
                    self._heard_at = time.monotonic()  # nobody listened, so this is not silence of the server
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
        """Call with the condition's lock held."""
        silent = time.monotonic() - self._heard_at
        if self._silence_seconds is not None and silent >= self._silence_seconds and self._error is None:
            self._error = SourceUnavailableError(
                f"{self._name}: the server has answered nothing for {silent:.0f} s, although the connection is open",
                remedy="If this persists, check the server and the network in between.",
            )
            self._stopping = True
            self._changed.notify_all()

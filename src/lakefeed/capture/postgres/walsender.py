"""Walsender: the replication connection, read by a thread of its own so that the server always gets its answers.

The thread reads while there is room, and tells the server every few seconds how far it may forget, also while the
consumer is busy. It never confirms anything by itself: ``confirm`` is the only thing that moves the slot.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg.pq import ExecStatus

from lakefeed.capture.postgres.database import Database
from lakefeed.capture.postgres.message import EPOCH_MICROSECONDS
from lakefeed.capture.postgres.names import Names, quoted
from lakefeed.change.lsn import PostgresLsn
from lakefeed.errors import LakefeedError, PositionLostError, SourceUnavailableError

HEADER_BYTES = 25
"""Before each message: w, start, end, time."""
_ROOM_BYTES = 64 << 20
_OBJECT_BYTES = 200  # what Python needs for each message, however short
_STATUS_SECONDS = 5.0  # wal_sender_timeout is 60 s by default, and 10 s is about the least that anybody sets
_BURST = 500
GULP_SECONDS = 0.02
"""With a backlog over TCP, a pause between reads lets the buffers fill: the walsender wakes up less often and is nearly
twice as fast. On a unix socket the same pause is harmful."""
_GONE = ("has already been removed", "can no longer get changes", "does not exist", "invalidated")
_CLOSE_SECONDS = 2.0
_FREE_SECONDS = 3.0
"""How long to wait for a slot that a connection of before still has: the server notices its end a little later."""


@dataclass(frozen=True, slots=True)
class Idle:
    """The server has nothing more up to ``position``, it said at ``sent_us`` (its clock, microseconds since 1970)."""

    position: PostgresLsn
    sent_us: int


class Walsender:
    """A stream of pgoutput messages strictly after ``after``; ``confirmed`` is where the slot is."""

    def __init__(self, database: Database, names: Names, after: PostgresLsn, confirmed: PostgresLsn) -> None:
        self._database = database
        self._connection = database.connect(names.slot, replication=True)
        self._pgconn = self._connection.pgconn
        self._gulps = not (self._connection.info.host or "/").startswith("/")
        self._wake_read, self._wake_write = os.pipe()
        self._changed = threading.Condition()
        self._messages: list[bytes] = []
        self._bytes = 0
        self._idle_at: Idle | None = None
        self._error: LakefeedError | None = None
        self._confirmed = confirmed  # and not ``after``: reading on confirms nothing
        self._told = PostgresLsn(0)
        self._told_at = 0.0
        self._asked = False
        self._stopping = False
        self.gulping = False
        """There is a backlog: that nothing comes for GULP_SECONDS does not mean that nothing is there."""
        try:
            self._start(names, after)
        except BaseException:
            self._connection.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            raise
        self._thread = threading.Thread(target=self._work, name="lakefeed-walsender", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The server's process."""
        return int(self._connection.info.backend_pid)

    def take(self, wait_seconds: float) -> tuple[list[bytes], Idle | None]:
        """Messages that have come, each behind HEADER_BYTES; and if the server has nothing more now, up to where."""
        with self._changed:
            if not self._messages and self._error is None and wait_seconds > 0:
                self._changed.wait(wait_seconds)
            if not self._messages and self._error is not None:
                raise self._error
            messages, self._messages, self._bytes = self._messages, [], 0
            idle_at, self._idle_at = self._idle_at, None
            self._changed.notify_all()
            return messages, idle_at

    def confirm(self, position: PostgresLsn) -> None:
        """The server may forget up to ``position``; it is told soon."""
        self._confirmed = max(self._confirmed, position)

    def ask(self) -> None:
        """Make the server say how far it has come."""
        self._asked = True
        self._wake()

    def close(self) -> None:
        """Tell the server the last confirmed position, then leave the slot. Never raises."""
        self._stopping = True
        self._wake()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(_CLOSE_SECONDS * 2)
        with suppress(psycopg.Error):
            self._leave()
        with suppress(psycopg.Error):
            self._connection.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _start(self, names: Names, after: PostgresLsn) -> None:
        publication = quoted(names.publication).replace("'", "''")
        sql = (
            f"START_REPLICATION SLOT {quoted(names.slot)} LOGICAL {after.text()}"
            f" (proto_version '1', publication_names '{publication}')"
        )
        until = time.monotonic() + _FREE_SECONDS
        while True:
            result = self._pgconn.exec_(sql.encode())
            if result.status == ExecStatus.COPY_BOTH:
                return
            error = psycopg.errors.error_from_result(result)
            if not isinstance(error, psycopg.errors.ObjectInUse) or time.monotonic() > until:
                raise self._mapped(error) from error
            time.sleep(0.05)

    def _work(self) -> None:
        try:
            while not self._stopping:
                self._tell()
                if self._bytes >= _ROOM_BYTES:
                    with self._changed:
                        self._changed.wait(0.1)
                    continue
                count = self._read()
                self.gulping = count >= _BURST and self._gulps
                if self.gulping:
                    time.sleep(GULP_SECONDS)
                elif count == 0:
                    self._sleep()
                self._pgconn.consume_input()
        except psycopg.Error as error:
            self._fail(self._mapped(error))
        except LakefeedError as error:
            self._fail(error)

    def _read(self) -> int:
        """Everything that has come, up to the room. Returns the number of messages.

        Libpq's own buffer holds some dozen messages only, so it is filled again and again until there is no more:
        handed over in large numbers, messages cost less, and only then can a pause be worth it.
        """
        get = self._pgconn.get_copy_data
        taken: list[bytes] = []
        size, seen, filled_at = 0, 0, -1
        idle_at: Idle | None = None
        while size < _ROOM_BYTES // 8:
            count, data = get(1)
            if count == 0 and filled_at < seen:
                filled_at = seen
                self._pgconn.consume_input()
                continue
            if count <= 0:
                break
            seen += 1
            if data[0] == 119:  # w
                taken.append(data)  # type: ignore[arg-type]  # a memoryview, which join takes as well
                size += count + _OBJECT_BYTES
                idle_at = None
            elif data[0] == 107 and count >= 18:  # k
                sent = int.from_bytes(data[9:17], "big", signed=True) + EPOCH_MICROSECONDS
                idle_at = Idle(PostgresLsn(int.from_bytes(data[1:9], "big")), sent)
                self._asked = self._asked or data[17] == 1
        else:
            count = 0
        if seen:
            with self._changed:
                self._messages += taken
                self._bytes += size
                self._idle_at = idle_at if (idle_at is not None or taken) else self._idle_at
                self._changed.notify_all()
        if count < 0:
            self._ended()
        return seen

    def _ended(self) -> None:
        result = self._pgconn.get_result()
        if result is not None and result.status == ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)
        raise SourceUnavailableError(f"{self._database}: the server ended the replication stream")

    def _sleep(self) -> None:
        """Until something comes, somebody wants something, or it is time to report."""
        ready, _, _ = select.select([self._pgconn.socket, self._wake_read], [], [], 1.0)
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)

    def _tell(self) -> None:
        """Standby status update: written, flushed and applied up to what was confirmed."""
        now = time.monotonic()
        if not (self._asked or self._confirmed > self._told or now - self._told_at >= _STATUS_SECONDS):
            return
        asked, self._asked = self._asked, False
        position = self._confirmed
        micros = time.time_ns() // 1000 - EPOCH_MICROSECONDS
        value = position.value
        self._pgconn.put_copy_data(struct.pack(">cQQQqB", b"r", value, value, value, micros, int(asked)))
        self._pgconn.flush()
        self._told, self._told_at = position, now

    def _leave(self) -> None:
        if self._error is not None:
            return
        self._told_at = 0.0
        self._tell()
        self._pgconn.put_copy_end()
        self._pgconn.flush()
        until = time.monotonic() + _CLOSE_SECONDS
        while time.monotonic() < until:
            count, _ = self._pgconn.get_copy_data(1)
            if count < 0:
                # The slot is free when the command is complete, not when the stream has ended.
                while not self._pgconn.is_busy() and self._pgconn.get_result() is not None:
                    pass
                return
            if count == 0:
                select.select([self._pgconn.socket], [], [], 0.1)
                self._pgconn.consume_input()

    def _mapped(self, error: psycopg.Error) -> LakefeedError:
        if any(words in str(error) for words in _GONE):
            return PositionLostError(f"{self._database}: {str(error).splitlines()[0]}")
        return self._database.mapped(error)

    def _fail(self, error: LakefeedError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _wake(self) -> None:
        with suppress(OSError):
            os.write(self._wake_write, b"x")

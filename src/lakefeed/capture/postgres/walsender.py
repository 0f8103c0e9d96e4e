"""Walsender: the replication connection, read by a thread of its own so that the server always gets its answers.

The thread reads while there is room, and tells the server every few seconds how far it may forget, also while the
consumer is busy. It never confirms anything by itself: ``confirm`` is the only thing that moves the slot.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from contextlib import suppress

import psycopg

from lakefeed.capture.postgres.database import Database
from lakefeed.capture.postgres.message import EPOCH_MICROSECONDS, Run
from lakefeed.capture.postgres.names import Names, quoted
from lakefeed.capture.postgres.readiness import wait_readable
from lakefeed.capture.postgres.wire import Arrival, Idle, open_wire
from lakefeed.change.lsn import PostgresLsn
from lakefeed.errors import LakefeedError, PositionLostError, SourceUnavailableError

_ROOM_BYTES = 64 << 20
_STATUS_SECONDS = 5.0  # wal_sender_timeout is 60 s by default, and 10 s is about the least that anybody sets
_BURST = 500
GULP_SECONDS = 0.02
"""With a backlog over TCP, a pause between reads lets the buffers fill: the walsender wakes up less often and is nearly
twice as fast. On a unix socket the same pause is harmful."""
_GONE = ("has already been removed", "can no longer get changes", "does not exist", "invalidated")
_CLOSE_SECONDS = 2.0
_FREE_SECONDS = 3.0
"""How long to wait for a slot that a connection of before still has: the server notices its end a little later."""


class Walsender:
    """A stream of pgoutput messages strictly after ``after``; ``confirmed`` is where the slot is."""

    def __init__(self, database: Database, names: Names, after: PostgresLsn, confirmed: PostgresLsn) -> None:
        self._database = database
        self._connection = database.connect(names.slot, replication=True)
        self._wire = open_wire(self._connection)
        self._gulps = not (self._connection.info.host or "/").startswith("/")
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)  # a full pipe wakes as well as one byte more
        self._changed = threading.Condition()
        self._runs: list[Run] = []
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
            self._release()
            raise
        self._thread = threading.Thread(target=self._work, name="lakefeed-walsender", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The server's process."""
        return int(self._connection.info.backend_pid)

    def take(self, wait_seconds: float) -> tuple[list[Run], Idle | None]:
        """Messages that have come; and if the server has nothing more now, up to where."""
        with self._changed:
            if not self._runs and self._error is None and wait_seconds > 0:
                self._changed.wait(wait_seconds)
            if not self._runs and self._error is not None:
                raise self._error
            runs, self._runs, self._bytes = self._runs, [], 0
            idle_at, self._idle_at = self._idle_at, None
            self._changed.notify_all()
            return runs, idle_at

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
        self._release()

    def _release(self) -> None:
        self._wire.close()
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
            try:
                self._wire.start(sql)
            except psycopg.Error as error:
                if not isinstance(error, psycopg.errors.ObjectInUse) or time.monotonic() > until:
                    raise self._mapped(error) from error
                time.sleep(0.05)
            else:
                return

    def _work(self) -> None:
        try:
            while not self._stopping:
                self._tell()
                if self._bytes >= _ROOM_BYTES:
                    with self._changed:
                        self._changed.wait(0.1)
                    continue
                arrival = self._wire.read()
                self._keep(arrival)
                if arrival.ended:
                    raise SourceUnavailableError(f"{self._database}: the server ended the replication stream")
                self.gulping = arrival.messages >= _BURST and self._gulps
                if self.gulping:
                    time.sleep(GULP_SECONDS)
                elif arrival.messages == 0:
                    self._sleep()
        except psycopg.Error as error:
            self._fail(self._mapped(error))
        except LakefeedError as error:
            self._fail(error)
        except BaseException as error:  # noqa: BLE001  # told to the consumer, who would wait for ever otherwise
            self._fail(_failed(self._database, error))

    def _keep(self, arrival: Arrival) -> None:
        self._asked = self._asked or arrival.asked
        if not arrival.messages:
            return
        with self._changed:
            if arrival.run is not None:
                self._runs.append(arrival.run)
                self._bytes += arrival.run.data.nbytes
                self._idle_at = None
            self._idle_at = arrival.idle or self._idle_at
            self._changed.notify_all()

    def _sleep(self) -> None:
        """Until something comes, somebody wants something, or it is time to report."""
        ready = wait_readable(self._connection.pgconn.socket, self._wake_read, seconds=1.0)
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
        self._wire.write(struct.pack(">cQQQqB", b"r", value, value, value, micros, int(asked)))
        self._told, self._told_at = position, now

    def _leave(self) -> None:
        if self._error is not None:
            return
        self._told_at = 0.0
        self._tell()
        self._wire.finish(_CLOSE_SECONDS)

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


def _failed(database: Database, error: BaseException) -> LakefeedError:
    failed = SourceUnavailableError(f"{database}: reading the replication stream failed: {error!r}")
    failed.__cause__ = error
    return failed

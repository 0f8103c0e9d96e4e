"""Walsender: the replication connection, as a LogReader. What it reads comes in pieces with whole messages.

The bytes come in two ways, the same to their user. ``SocketWire`` reads the socket itself once libpq has connected and
authenticated. ``LibpqWire`` asks libpq for one message after another; it is for connections that libpq encrypts, and
costs more CPU (docs/decisions/0009-socket.md). The catalog is asked on a second connection, once for all relations that
a piece describes, and the answer travels inside the piece: the decoder asks nobody.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import psycopg
from psycopg.pq import ExecStatus

from lakefeed.capture.log import LogReader
from lakefeed.capture.postgres.catalog import CatalogFacts, read_facts, wait_for_commits
from lakefeed.capture.postgres.database import STREAM, Connection, Database, Names, quoted
from lakefeed.capture.postgres.database import run as run_command
from lakefeed.capture.postgres.pgoutput import PIECE_BYTES, Run, WalPiece, joined, make_run, run_of
from lakefeed.capture.postgres.slot import head, read_slot
from lakefeed.capture.postgres.values import EPOCH_MICROSECONDS
from lakefeed.capture.postgres.wire import BOTH, COMPLETE, DONE, ERROR, READY, Line, error_of, is_plain, wait_ready
from lakefeed.change.lsn import PostgresLsn
from lakefeed.errors import LakefeedError, PositionLostError, SourceUnavailableError

HEADER_BYTES = 25
"""Before each message of the log: w, start, end, time."""
_LOG, _KEEPALIVE = ord("w"), ord("k")
_KEEPALIVE_BYTES = 18
_OBJECT_BYTES = 200  # what Python needs for each message, however short
_ARRIVAL_BYTES = 8 << 20
_START_SECONDS = 60.0
_STATUS_SECONDS = 1.0  # an idle server says by itself only now and then how far it has come
_BURST = 500
GULP_SECONDS = 0.02
"""With a backlog over TCP, a pause between reads lets the buffers fill: the walsender wakes up less often and is nearly
twice as fast. On a unix socket the same pause is harmful."""
_CLOSE_SECONDS = 2.0
_FREE_SECONDS = 3.0
"""How long to wait for a slot that a connection of before still has: the server notices its end a little later."""
_ASK_SECONDS = 0.01
_ANSWER_SECONDS = 1.0
_VISIBLE_SECONDS = 2.0

# The wait event is spelled in two ways, by version.
_ACTIVITY = """
SELECT wait_event ILIKE 'WalSenderWaitForWal', (extract(epoch FROM clock_timestamp()) * 1000000)::int8
  FROM pg_stat_activity WHERE pid = %s"""


@dataclass(frozen=True, slots=True)
class Idle:
    """The server has nothing more up to ``position``, it said at ``sent_us`` (its clock, microseconds since 1970)."""

    position: PostgresLsn
    sent_us: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """What has come: messages of the log; ``idle`` if the last word was that there is nothing more now."""

    run: Run | None = None
    idle: Idle | None = None
    asked: bool = False
    """The server wants to hear from us."""
    messages: int = 0
    ended: bool = False
    """The server has ended the stream."""


class Wire(Protocol):
    """Belongs to one thread. Everything may raise psycopg.Error."""

    def start(self, command: str) -> None:
        """Send START_REPLICATION; the stream has begun when this returns."""

    def read(self) -> Arrival:
        """What has come by now, without a wait; several MB at most."""

    def write(self, message: bytes) -> None: ...

    def finish(self, seconds: float) -> None:
        """End the stream from here, and wait that long for the server to let go of the slot."""

    def close(self) -> None:
        """Let go of everything that is not the connection's. Never raises."""


def open_wire(connection: Connection) -> Wire:
    """The fastest wire for a connection that has just been made."""
    return SocketWire(connection) if is_plain(connection) else LibpqWire(connection)


class SocketWire:
    """For connections that are not encrypted."""

    def __init__(self, connection: Connection) -> None:
        self._line = Line(connection)

    def start(self, command: str) -> None:
        self._line.send(b"Q", command.encode() + b"\0")
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            frames = self._line.wait(until)
            for index in range(len(frames)):  # "ready" after an error of before may be among them
                if frames.kind(index) == ERROR:
                    raise error_of(frames.body(index))
                if frames.kind(index) == BOTH:
                    self._line.put_back(frames.after(index))
                    return
        raise psycopg.OperationalError(f"the server did not start the stream within {_START_SECONDS:.0f} s")

    def read(self) -> Arrival:
        frames = self._line.received()
        if not len(frames):
            return Arrival()
        others = frames.others()
        for index in others:
            if frames.kind(index) == ERROR:
                raise error_of(frames.body(index))
        begins, ends = frames.data_bodies()
        inner = frames.data[begins]
        log = inner == _LOG
        messages = run_of(frames.data, begins[log] + HEADER_BYTES, ends[log]) if log.any() else None
        idle, asked = None, False
        for index in np.flatnonzero(inner == _KEEPALIVE).tolist():
            idle, wants = _keepalive(frames.data[begins[index] : ends[index]].tobytes())
            asked = asked or wants
        if len(log) and log[-1]:
            idle = None
        ended = any(frames.kind(index) in (DONE, COMPLETE) for index in others)
        return Arrival(messages, idle, asked, len(begins), ended)

    def write(self, message: bytes) -> None:
        self._line.send(b"d", message)

    def finish(self, seconds: float) -> None:
        self._line.send(b"c", b"")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            # The slot is free when the command is complete, not when the stream has ended.
            frames = self._line.wait(until)
            if any(frames.kind(index) == READY for index in frames.others()):
                return

    def close(self) -> None:
        self._line.close()


def _keepalive(message: bytes) -> tuple[Idle | None, bool]:
    if len(message) < _KEEPALIVE_BYTES:
        return None, False
    position, sent, wants = struct.unpack_from(">Qq?", message, 1)
    return Idle(PostgresLsn(position), sent + EPOCH_MICROSECONDS), bool(wants)


class LibpqWire:
    """For connections that only libpq can decrypt."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn

    def start(self, command: str) -> None:
        run_command(self._connection, command)
        self._pgconn.nonblocking = 1  # a server that takes nothing must not keep us

    def read(self) -> Arrival:
        """Libpq's own buffer holds some dozen messages only, so it is filled again and again until there is no more."""
        taken: list[bytes] = []
        size, seen, filled_at = 0, 0, -1
        idle, asked, ended = None, False, False
        while size < _ARRIVAL_BYTES:
            count, data = self._pgconn.get_copy_data(1)
            if count == 0 and filled_at < seen:
                filled_at = seen
                self._pgconn.consume_input()
                continue
            if count < 0:
                result = self._pgconn.get_result()
                if result is not None and result.status == ExecStatus.FATAL_ERROR:
                    raise psycopg.errors.error_from_result(result)
                ended = True
            if count <= 0:
                break
            seen += 1
            if data[0] == _LOG:
                taken.append(data)  # type: ignore[arg-type]  # a memoryview, which join takes as well
                size += count + _OBJECT_BYTES
                idle = None
            elif data[0] == _KEEPALIVE:
                idle, wants = _keepalive(bytes(data))
                asked = asked or wants
        messages = make_run(taken, skip=HEADER_BYTES) if taken else None
        return Arrival(messages, idle, asked, seen, ended)

    def write(self, message: bytes) -> None:
        self._pgconn.put_copy_data(message)
        self._pgconn.flush()

    def finish(self, seconds: float) -> None:
        self._pgconn.put_copy_end()
        self._pgconn.flush()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            count, _ = self._pgconn.get_copy_data(1)
            if count < 0:
                # The slot is free when the command is complete, not when the stream has ended.
                while not self._pgconn.is_busy() and self._pgconn.get_result() is not None:
                    pass
                return
            if count == 0:
                wait_ready((self._pgconn.socket,), 0.1)
                self._pgconn.consume_input()

    def close(self) -> None:
        pass


class Walsender(LogReader[PostgresLsn, WalPiece]):
    """See ``LogReader``: the messages strictly after ``after``. ``confirm`` is the only thing that moves the slot."""

    def __init__(self, database: Database, names: Names, after: PostgresLsn) -> None:
        self._database = database
        self._names = names
        self._busy = threading.Lock()
        self._asked = False
        self._reported = PostgresLsn(0)
        self._reported_at = 0.0
        self._failed = self._is_settled = self._in_transaction = self._is_closed = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)  # a full pipe wakes as well as one byte more
        self._catalog = database.connect(names.slot)
        try:
            with database.errors():
                slot = read_slot(self._catalog, names.slot)
            # Where the slot is, and not ``after``: reading on confirms nothing.
            self._confirmed = slot.confirmed if slot is not None else PostgresLsn(0)
            self._connection = database.connect(names.slot, STREAM, replication=True)
        except BaseException:
            self._catalog.close()
            raise
        self._wire = open_wire(self._connection)
        self._gulps = not (self._connection.info.host or "/").startswith("/")
        try:
            self._start(after)
        except BaseException:
            self._release()
            raise

    @property
    def pid(self) -> int:
        """The server's process."""
        return int(self._connection.info.backend_pid)

    def read(self, wait_seconds: float) -> WalPiece | None:
        with self._busy:
            try:
                arrival = self._settled() if wait_seconds <= 0 else self._next(wait_seconds)
                return self._piece(arrival) if arrival is not None else None
            except psycopg.Error as error:
                self._failed = True
                raise self._mapped(error) from error

    def size(self, piece: WalPiece) -> int:
        return piece.run.data.nbytes if piece.run is not None else 0

    def beat(self) -> None:
        with self._busy, self._database.errors():
            self._report()

    def wake(self) -> None:
        with suppress(OSError):
            os.write(self._wake_write, b"x")

    def confirm(self, position: PostgresLsn) -> None:
        """The server may forget up to ``position``; it is told within a second."""
        self._confirmed = max(self._confirmed, position)

    def close(self) -> None:
        """Tell the server the last confirmed position, then leave the slot. Never raises."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self._busy.acquire(timeout=0.1):  # a read hangs, and fails now
            self._failed = True
            self._connection.sever()
            self._catalog.sever()
            if not self._busy.acquire(timeout=1.0):
                return
        with suppress(psycopg.Error):
            if not self._failed:
                self._reported_at = 0.0
                self._report()
                self._wire.finish(_CLOSE_SECONDS)
        self._release()

    def _release(self) -> None:
        self._wire.close()
        for connection in (self._connection, self._catalog):
            with suppress(psycopg.Error):
                connection.close()
        for end in (self._wake_read, self._wake_write):
            os.close(end)

    def _start(self, after: PostgresLsn) -> None:
        publication = quoted(self._names.publication).replace("'", "''")
        command = (
            f"START_REPLICATION SLOT {quoted(self._names.slot)} LOGICAL {after.text()}"
            f" (proto_version '1', publication_names '{publication}')"
        )
        until = time.monotonic() + _FREE_SECONDS
        while True:
            try:
                self._wire.start(command)
            except psycopg.errors.ObjectInUse as error:
                if time.monotonic() > until:
                    raise self._mapped(error) from error
                time.sleep(0.05)
            except psycopg.Error as error:
                raise self._mapped(error) from error
            else:
                return

    def _next(self, wait_seconds: float) -> Arrival | None:
        """What comes within that time, and with a backlog as much as is decoded at once; None if nothing does, or
        somebody called ``wake``."""
        until = time.monotonic() + wait_seconds
        while True:
            self._report()
            arrival = self._wire.read()
            if arrival.messages:
                runs = [arrival.run] if arrival.run is not None else []
                self.in_burst = arrival.messages >= _BURST and self._gulps
                while arrival.messages >= _BURST and self._gulps and not arrival.ended:
                    if sum(one.data.nbytes for one in runs) >= PIECE_BYTES:
                        break
                    time.sleep(GULP_SECONDS)
                    self._asked = self._asked or arrival.asked
                    arrival = self._wire.read()
                    runs += [arrival.run] if arrival.run is not None else []
                run = joined(runs) if runs else None
                if run is not None:
                    self._in_transaction = run.whole() < len(run)
                return replace(arrival, run=run, messages=1)
            if arrival.ended:
                raise SourceUnavailableError(f"{self._database}: the server ended the replication stream")
            left = until - time.monotonic()
            if left <= 0:
                return None
            ready = wait_ready((self._connection.pgconn.socket, self._wake_read), min(left, 1.0))
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
                return None

    def _settled(self) -> Arrival | None:
        """What comes next; None if the server has said that nothing more is in its log up to its head of now. How far
        it has come is handed out before that.

        The server answers, then looks how far the log is flushed, then decodes or sleeps: so one that sleeps after an
        answer has sent everything, and what is still on its way comes before an answer that it gives after that, also
        where the log ends inside a record. Answers to earlier questions do not count, which their time tells.
        """
        if self._is_settled:
            self._is_settled = False
            return None
        target, (_, since_us) = head(self._catalog), self._activity()
        asleep = False
        until = time.monotonic() + _ANSWER_SECONDS
        while time.monotonic() < until:
            self._asked = True
            arrival = self._next(_ASK_SECONDS)
            if arrival is None:
                continue
            if arrival.run is not None or arrival.idle is None:
                return arrival
            answered = arrival.idle.sent_us > since_us
            # A large transaction has such answers in the middle, too.
            if not self._in_transaction and (arrival.idle.position >= target or (answered and asleep)):
                self._is_settled = True
                return arrival
            if answered:
                asleep, since_us = self._activity()
        return Arrival()

    def _activity(self) -> tuple[bool, int]:
        """Whether the walsender waits for more log, and the time now by the server's clock."""
        row = self._catalog.execute(_ACTIVITY, (self.pid,)).fetchone()
        return (row[0] is True, int(row[1])) if row is not None else (False, 0)

    def _piece(self, arrival: Arrival) -> WalPiece:
        self._asked = self._asked or arrival.asked
        facts, described = CatalogFacts(), arrival.run.relations() if arrival.run is not None else []
        if described:
            facts = read_facts(self._catalog, described)
            # A commit is in the log before the catalog shows it: a column that the catalog does not have was added a
            # moment ago, or was renamed or dropped since.
            live = {
                oid: {column.name for column in source.columns}
                for oid, (_, source) in facts.tables.items()
                if source is not None
            }
            if any(column.name not in live.get(one.id, {column.name}) for one in described for column in one.columns):
                wait_for_commits(self._catalog, _VISIBLE_SECONDS)
                facts = read_facts(self._catalog, described)
        return WalPiece(arrival.run, facts, arrival.idle.position if arrival.idle is not None else None)

    def _report(self) -> None:
        """Standby status update: written, flushed and applied up to what was confirmed. The server is asked to answer,
        so that its silence is noticed."""
        now = time.monotonic()
        late = now - self._reported_at >= _STATUS_SECONDS
        if not (self._asked or late or self._confirmed > self._reported):
            return
        asked, self._asked = self._asked or late, False
        position = self._confirmed
        micros = time.time_ns() // 1000 - EPOCH_MICROSECONDS
        value = position.value
        self._wire.write(struct.pack(">cQQQqB", b"r", value, value, value, micros, int(asked)))
        self._reported, self._reported_at = position, now

    def _mapped(self, error: psycopg.Error) -> LakefeedError:
        """A slot or a log that is gone is PositionLostError, by its SQLSTATE; of an invalidated slot the server says
        no more than that it is not in the right state."""
        lost = isinstance(error, (psycopg.errors.UndefinedObject, psycopg.errors.UndefinedFile))
        if isinstance(error, psycopg.errors.ObjectNotInPrerequisiteState):
            with suppress(psycopg.Error):
                slot = read_slot(self._catalog, self._names.slot)
                lost = slot is None or slot.lost is not None
        if lost:
            return PositionLostError(f"{self._database}: {str(error).splitlines()[0]}")
        return self._database.mapped(error)

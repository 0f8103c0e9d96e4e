"""The bytes of a replication connection: a command sent, then messages of COPY BOTH in both directions.

Two ways, the same to their user. ``SocketWire`` reads the socket itself once libpq has connected and authenticated, and
finds the messages in what has come. ``LibpqWire`` asks libpq for one message after another; it is for connections that
libpq encrypts, and costs more CPU (docs/decisions/0009-socket.md).
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import psycopg
from psycopg.pq import ExecStatus

from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.frames import BOTH, COMPLETE, DONE, ERROR, READY, Frames, error_of
from lakefeed.capture.postgres.line import Line, is_plain
from lakefeed.capture.postgres.message import EPOCH_MICROSECONDS, Run, make_run, run_of
from lakefeed.capture.postgres.readiness import wait_readable
from lakefeed.change.lsn import PostgresLsn

HEADER_BYTES = 25
"""Before each message of the log: w, start, end, time."""
_LOG, _KEEPALIVE = ord("w"), ord("k")
_KEEPALIVE_BYTES = 18
_OBJECT_BYTES = 200  # what Python needs for each message, however short
_PIECE_BYTES = 8 << 20
_WAIT_SECONDS = 60.0


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
        self._line.query(command)
        while True:
            frames = self._line.wait(time.monotonic() + _WAIT_SECONDS)
            for index in range(len(frames)):  # "ready" after an error of before may be among them
                if frames.kind(index) == ERROR:
                    raise error_of(frames.body(index))
                if frames.kind(index) == BOTH:
                    self._line.put_back(frames.after(index))
                    return

    def read(self) -> Arrival:
        frames = self._line.received()
        if not len(frames):
            return Arrival()
        others = frames.others()
        for index in others:
            if frames.kind(index) == ERROR:
                raise error_of(frames.body(index))
        return _arrival(frames, ended=any(frames.kind(index) in (DONE, COMPLETE) for index in others))

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


def _arrival(frames: Frames, *, ended: bool) -> Arrival:
    begins, ends = frames.data_bodies()
    inner = frames.data[begins]
    log = inner == _LOG
    run = run_of(frames.data, begins[log] + HEADER_BYTES, ends[log]) if log.any() else None
    idle, asked = None, False
    for index in np.flatnonzero(inner == _KEEPALIVE).tolist():
        idle, wants = _keepalive(frames.data[begins[index] : ends[index]].tobytes())
        asked = asked or wants
    if len(log) and log[-1]:
        idle = None
    return Arrival(run, idle, asked, len(begins), ended)


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
        result = self._pgconn.exec_(command.encode())
        if result.status != ExecStatus.COPY_BOTH:
            raise psycopg.errors.error_from_result(result)

    def read(self) -> Arrival:
        """Libpq's own buffer holds some dozen messages only, so it is filled again and again until there is no more."""
        taken: list[bytes] = []
        size, seen, filled_at = 0, 0, -1
        idle, asked = None, False
        while size < _PIECE_BYTES:
            count, data = self._pgconn.get_copy_data(1)
            if count == 0 and filled_at < seen:
                filled_at = seen
                self._pgconn.consume_input()
                continue
            if count < 0:
                return Arrival(_run(taken), idle, asked, seen, ended=self._ended())
            if count == 0:
                break
            seen += 1
            if data[0] == _LOG:
                taken.append(data)  # type: ignore[arg-type]  # a memoryview, which join takes as well
                size += count + _OBJECT_BYTES
                idle = None
            elif data[0] == _KEEPALIVE:
                idle, wants = _keepalive(bytes(data))
                asked = asked or wants
        return Arrival(_run(taken), idle, asked, seen)

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
                wait_readable(self._pgconn.socket, seconds=0.1)
                self._pgconn.consume_input()

    def close(self) -> None:
        pass

    def _ended(self) -> bool:
        result = self._pgconn.get_result()
        if result is not None and result.status == ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)
        return True


def _run(messages: list[bytes]) -> Run | None:
    return make_run(messages, skip=HEADER_BYTES) if messages else None

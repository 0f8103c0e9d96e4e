"""A connection's socket, read past libpq between two commands of its own.

Libpq takes a few KB from the socket at a time and makes an object of every message; here as much is taken at once as
has come (docs/decisions/0009-socket.md has the figures). Only for connections that are not encrypted, and only while
libpq waits for nothing: whoever speaks here listens until the server is ready again, or closes the connection.

Frames of the protocol: a kind (1 byte), a length (int32), a body. Format: PostgreSQL documentation, "Message Formats".
A length counts itself and the body, not the kind.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from dataclasses import dataclass

import numpy as np
import psycopg

from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.values import PAD, Bytes, Ints
from lakefeed.errors import DecodeError

DATA, BOTH, OUT, DONE, COMPLETE, ERROR, READY = (ord(letter) for letter in "dWHcCEZ")
_HEAD = 5
_ROOM_BYTES = 4 << 20
_READY_FRAME = bytes([READY, 0, 0, 0, 5])
_LENGTH = struct.Struct(">i")
_SEND_SECONDS = 10.0
SILENCE_SECONDS = 30.0
"""After so long without a byte in the middle of a COPY the server is asked on another connection whether it lives."""
_CLOSED = "server closed the connection unexpectedly"


def wait_ready(files: tuple[int, ...], seconds: float, event: int = select.POLLIN) -> list[int]:
    """Those that can be read, or are closed; none if the time is over. By poll: select refuses descriptors from 1024
    on, which a process with many files has."""
    waiting = select.poll()
    for file in files:
        waiting.register(file, event)
    return [file for file, _ in waiting.poll(max(0.0, seconds) * 1000)]


def is_plain(connection: Connection) -> bool:
    """Nobody but libpq can read a connection that it encrypts."""
    return not (connection.pgconn.ssl_in_use or connection.pgconn.used_gssapi)


@dataclass(frozen=True, slots=True)
class Frames:
    """Whole frames one after another: ``starts`` is where each begins and, behind the last, where it ends."""

    data: Bytes
    starts: Ints

    def __len__(self) -> int:
        return len(self.starts) - 1

    def kind(self, index: int) -> int:
        return int(self.data[self.starts[index]])

    def body(self, index: int) -> bytes:
        return self.data[self.starts[index] + _HEAD : self.starts[index + 1]].tobytes()

    def data_bodies(self) -> tuple[Ints, Ints]:
        """Where the bodies of the frames with COPY data begin and end."""
        chosen = self.data[self.starts[:-1]] == DATA
        return self.starts[:-1][chosen] + _HEAD, self.starts[1:][chosen]

    def others(self) -> list[int]:
        """The frames that are something else than COPY data."""
        found: list[int] = np.flatnonzero(self.data[self.starts[:-1]] != DATA).tolist()
        return found

    def after(self, index: int) -> bytes:
        """All the bytes behind one of them."""
        return self.data[self.starts[index + 1] : self.starts[-1]].tobytes()


class Inbox:
    """Bytes as they come, handed out in whole frames. ``closed``: no more will come."""

    def __init__(self) -> None:
        self._room = bytearray(_ROOM_BYTES)
        self.size = 0
        """Bytes that are here."""
        self.closed = False

    @property
    def is_over(self) -> bool:
        """Nothing more is to be waited for: the last bytes look like those of a server that is ready, or it is gone."""
        tail = self.size - len(_READY_FRAME) - 1
        return self.closed or (tail >= 0 and self._room[tail : self.size - 1] == _READY_FRAME)

    def fill(self, source: socket.socket) -> None:
        """Take what is there, as far as there is room."""
        view = memoryview(self._room)
        while self.size < len(self._room):
            try:
                count = source.recv_into(view[self.size :])
            except BlockingIOError:
                return
            except OSError as error:
                raise psycopg.OperationalError(str(error)) from error
            if count == 0:
                self.closed = True
                return
            self.size += count

    def take(self) -> Frames:
        """The whole frames; what begins another stays here. DecodeError for a length that cannot be."""
        at, length = 0, _LENGTH.unpack_from
        starts = [0]
        while at + _HEAD <= self.size:
            (size,) = length(self._room, at + 1)
            if size < 4:
                raise DecodeError(f"the replication stream has a frame of {size} bytes")
            at += 1 + size
            if at > self.size:  # make room for one frame that is larger than all there was
                self._room.extend(bytes(max(0, at - starts[-1] - len(self._room))))
                break
            starts.append(at)
        end = starts[-1]
        data = np.zeros(end + PAD, np.uint8)
        data[:end] = np.frombuffer(self._room, np.uint8, end)
        self._room[: self.size - end] = self._room[end : self.size]
        self.size -= end
        return Frames(data, np.array(starts, np.int64))

    def put_back(self, data: bytes) -> None:
        """Bytes that belong before what is here."""
        self._room = bytearray(data) + self._room
        self.size += len(data)


class Line:
    """Belongs to one thread. Everything may raise psycopg.OperationalError."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._socket = socket.socket(fileno=os.dup(connection.pgconn.socket))  # libpq's own is libpq's to close
        self._socket.setblocking(False)
        self._inbox = Inbox()

    def send(self, kind: bytes, body: bytes) -> None:
        left = memoryview(kind + struct.pack(">i", len(body) + 4) + body)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                if not wait_ready((self._socket.fileno(),), _SEND_SECONDS, select.POLLOUT):
                    raise psycopg.OperationalError("the server takes no more messages") from None
            except OSError as error:
                raise psycopg.OperationalError(f"{_CLOSED} ({error})") from error

    def received(self) -> Frames:
        """What has come by now, several MB at most."""
        self._inbox.fill(self._socket)
        frames = self._inbox.take()
        if not len(frames) and self._inbox.closed:
            raise psycopg.OperationalError(_CLOSED)
        return frames

    def wait(self, until: float) -> Frames:
        """What comes next; nothing if the time is over."""
        frames = self.received()
        while not len(frames) and (left := until - time.monotonic()) > 0:
            wait_ready((self._socket.fileno(),), left)
            frames = self.received()
        return frames

    def listen(self, least_bytes: int) -> Frames:
        """About that much or more, or what comes until the server is ready again. It may be silent for as long as a
        query takes to its first row, but only while it answers on another connection."""
        while True:
            self._inbox.fill(self._socket)
            if self._inbox.size >= least_bytes or self._inbox.is_over:
                frames = self.received()
                if len(frames):
                    return frames
            if not wait_ready((self._socket.fileno(),), SILENCE_SECONDS):
                self._connection.require_alive()

    def put_back(self, data: bytes) -> None:
        """Bytes that are to be received again."""
        self._inbox.put_back(data)

    def close(self) -> None:
        """The connection goes on, or is its owner's to close."""
        self._socket.close()


def error_of(body: bytes) -> psycopg.Error:
    """An ErrorResponse as psycopg's exception for its SQLSTATE."""
    fields = {part[:1].decode(): part[1:].decode("utf-8", "replace") for part in body.split(b"\0") if part}
    text = f"{fields.get('S', 'ERROR')}:  {fields.get('M', '')}"
    if "D" in fields:
        text += f"\nDETAIL:  {fields['D']}"
    try:
        kind = psycopg.errors.lookup(fields.get("C", ""))
    except KeyError:
        kind = psycopg.OperationalError
    return kind(text)

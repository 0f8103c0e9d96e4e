"""Wires: the data of a stream or copy (CopyData messages) on a connection that libpq has opened.

``SocketWire`` bypasses libpq and reads from the socket as much at once as has arrived (docs/decisions/0009-socket.md
has the figures). That requires a connection without encryption, and that libpq itself waits for nothing: whoever starts
a command reads it to its end, or closes the connection. ``LibpqWire`` is for the others. Both give the same results.

Frames: a kind (1 byte), a length (int32, which includes itself), a body. PostgreSQL documentation: "Message Formats".
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterator

import numpy as np
import psycopg
from psycopg.pq import ExecStatus

from lakefeed.capture.fit import MisfitError
from lakefeed.capture.postgres.database import Connection, run
from lakefeed.capture.postgres.slices import PAD, Messages, as_messages
from lakefeed.capture.postgres.values import TOO_LARGE
from lakefeed.errors import DecodeError

_DATA, _BOTH, _OUT, _ERROR, _READY = (ord(letter) for letter in "dWHEZ")
_HEAD, _LENGTH, _READY_FRAME = 5, struct.Struct(">i"), bytes([_READY, 0, 0, 0, 5])
_ROOM_BYTES, _MOST_BYTES = 4 << 20, 8 << 20
_OBJECT_BYTES, _SEND_SECONDS = 200, 10.0  # Python's overhead for each message, however short; the limit for sending one
_SILENCE_SECONDS = 30.0  # without a byte of a COPY; then another connection tests whether the server is alive


def wait_ready(files: tuple[int, ...], seconds: float, event: int = select.POLLIN) -> list[int]:
    """Those that can be read or are closed; empty on timeout. Uses poll, since select takes no descriptor above
    1023."""
    waiting = select.poll()
    for file in files:
        waiting.register(file, event)
    return [file for file, _ in waiting.poll(max(0.0, seconds) * 1000)]


# What a server raises if it cannot send a row: a value or row above 1 GB, or a type without output.
UNSENDABLE = (psycopg.errors.InternalError_, psycopg.errors.ProgramLimitExceeded, psycopg.errors.FeatureNotSupported)


class Inbox:
    """Collects bytes, ``size`` of them so far, and hands them out as whole frames. ``closed``: no more will arrive."""

    def __init__(self) -> None:
        self._room = bytearray(_ROOM_BYTES)
        self.size, self.closed = 0, False

    @property
    def is_over(self) -> bool:
        """Whether waiting is pointless: the last bytes look like ReadyForQuery, or the server is gone."""
        tail = self.size - len(_READY_FRAME) - 1
        return self.closed or (tail >= 0 and self._room[tail : self.size - 1] == _READY_FRAME)

    def fill(self, source: socket.socket) -> None:
        """Receive what is available, as far as there is room."""
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

    def take(self) -> Messages:
        """The whole frames; the rest stays here. DecodeError for an impossible length."""
        at, starts, length = 0, [0], _LENGTH.unpack_from
        while at + _HEAD <= self.size:
            (size,) = length(self._room, at + 1)
            if size < 4:
                raise DecodeError(f"the replication stream has a frame of {size} bytes")
            at += 1 + size
            if at > self.size:  # make room for a frame that exceeds the buffer
                self._room.extend(bytes(max(0, at - starts[-1] - len(self._room))))
                break
            starts.append(at)
        end, edges = starts[-1], np.array(starts, np.int64)
        data = np.zeros(end + PAD, np.uint8)
        data[:end] = np.frombuffer(self._room, np.uint8, end)
        self._room[: self.size - end] = self._room[end : self.size]
        self.size -= end
        return Messages(data, edges[:-1], edges[1:])


class SocketWire:
    """Runs one command at a time. Belongs to one thread. Everything but ``close`` may raise psycopg.Error."""

    def __init__(self, connection: Connection) -> None:
        self._answer_seconds = connection.answer_seconds
        self._socket = socket.socket(fileno=os.dup(connection.pgconn.socket))  # a duplicate: libpq closes its own
        self._socket.setblocking(False)
        self._inbox = Inbox()
        self._has_begun, self._is_ready = False, True
        self._first: Messages | None = None
        self._failed: psycopg.Error | None = None

    @property
    def is_over(self) -> bool:
        """Whether the command is complete and fully read, so that libpq can use the connection again."""
        return self._is_ready and self._first is None and self._failed is None

    def start(self, command: str) -> None:
        """Send START_REPLICATION or COPY. Its data has begun when this returns."""
        self._has_begun, self._is_ready, self._failed = False, False, None
        self.write(command.encode() + b"\0", b"Q")
        until = time.monotonic() + self._answer_seconds
        while not (self._has_begun or self._is_ready):
            if not wait_ready((self._socket.fileno(),), until - time.monotonic()):
                raise psycopg.OperationalError(f"the server answered nothing for {self._answer_seconds:.0f} s")
            self._first = self.read()

    def read(self, least_bytes: int = 0) -> Messages | None:
        """The data that has arrived, several MB at most; does not wait. None if it is less than ``least_bytes`` and
        more is to come. An error of the server is raised after the data before it, when the command is over."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        self._inbox.fill(self._socket)
        if self._inbox.size < least_bytes and not (self._inbox.is_over or self._is_ready):
            return None
        frames = self._inbox.take()
        for index in np.flatnonzero(frames.kinds != _DATA).tolist():
            kind = frames.kinds[index]
            self._has_begun = self._has_begun or kind in (_BOTH, _OUT)
            self._is_ready = self._is_ready or kind == _READY
            if kind == _ERROR:
                self._failed = error_of(frames.message(index)[_HEAD:])
        data = frames[frames.kinds == _DATA]
        if len(data):
            return Messages(data.data, data.begins + _HEAD, data.ends)
        if self._inbox.closed and not len(frames):
            raise self._failed or psycopg.OperationalError("server closed the connection unexpectedly")
        if self._is_ready and self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        return None

    def write(self, message: bytes, kind: bytes = b"d") -> None:
        left = memoryview(kind + _LENGTH.pack(len(message) + 4) + message)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                if not wait_ready((self._socket.fileno(),), _SEND_SECONDS, select.POLLOUT):
                    raise psycopg.OperationalError("the server takes no more messages") from None
            except OSError as error:
                raise psycopg.OperationalError(f"server closed the connection unexpectedly ({error})") from error

    def end(self) -> None:
        """End the stream from this side; read until the command is over."""
        self.write(b"", b"c")

    def close(self) -> None:
        """Release everything but the connection. Never raises."""
        self._socket.close()


def error_of(body: bytes) -> psycopg.Error:
    """An ErrorResponse as psycopg's exception for its SQLSTATE."""
    fields = {part[:1].decode(): part[1:].decode("utf-8", "replace") for part in body.split(b"\0") if part}
    detail = f"\nDETAIL:  {fields['D']}" if "D" in fields else ""
    text = f"{fields.get('S', 'ERROR')}:  {fields.get('M', '')}{detail}"
    try:
        return psycopg.errors.lookup(fields.get("C", ""))(text)
    except KeyError:
        return psycopg.OperationalError(text)


class LibpqWire:
    """The same, for connections that only libpq can decrypt."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._pgconn = connection, connection.pgconn
        self._taken, self._size = list[bytes](), 0
        self._has_ended = self._is_ready = True
        self._failed: psycopg.Error | None = None

    @property
    def is_over(self) -> bool:
        return self._is_ready and not self._taken and self._failed is None

    def start(self, command: str) -> None:
        run(self._connection, command)
        self._has_ended = self._is_ready = False

    def read(self, least_bytes: int = 0) -> Messages | None:
        """Libpq's own buffer holds only some dozen messages, so it is filled repeatedly until nothing is left."""
        is_filled = False
        while self._size < _MOST_BYTES and not self._has_ended:
            count, data = self._pgconn.get_copy_data(1)
            if count > 0:
                self._taken.append(data)  # type: ignore[arg-type]  # a memoryview, which join takes as well
                self._size += count + _OBJECT_BYTES
            elif count == 0:
                if is_filled:
                    break
                self._pgconn.consume_input()
            is_filled, self._has_ended = count == 0, count < 0
        if self._has_ended and not self._is_ready:
            self._pgconn.consume_input()
            while not self._is_ready and not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                self._is_ready = result is None
                if result is not None and result.status == ExecStatus.FATAL_ERROR:
                    self._failed = psycopg.errors.error_from_result(result)
        if self._is_ready and not self._taken and self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        if not self._taken or (self._size < least_bytes and not self._is_ready):
            return None
        taken, self._taken, self._size = self._taken, [], 0
        return as_messages(taken)

    def write(self, message: bytes) -> None:
        self._pgconn.put_copy_data(message)
        self._pgconn.flush()

    def end(self) -> None:
        self._pgconn.put_copy_end()
        self._pgconn.flush()

    def close(self) -> None: ...


Wire = SocketWire | LibpqWire


def open_wire(connection: Connection) -> Wire:
    """The fastest wire for a connection: only libpq can read one that it encrypts. A database without an encoding is
    read without conversion: otherwise a value that is not UTF-8 would make the server end the whole stream."""
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        run(connection, "SET client_encoding = 'SQL_ASCII'")
    is_encrypted = connection.pgconn.ssl_in_use or connection.pgconn.used_gssapi
    return LibpqWire(connection) if is_encrypted else SocketWire(connection)


_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # no flags, no extension
_TRAILER = b"\xff\xff"


def read_copy(connection: Connection, query: str, *, piece_bytes: int, piece_rows: int) -> Iterator[Messages]:
    """The rows of ``query`` as COPY ... TO STDOUT (FORMAT binary) sends them, in pieces of about that size, for
    ``copied_columns``. psycopg.Error if it fails, even in the middle; MisfitError for a row that cannot be sent.
    Format: PostgreSQL documentation, "COPY", "Binary Format". The server sends one row per message, the first one
    after a header; the last message is a trailer. The server may be silent until a query has its first row, but only
    while it answers on another connection. If the caller stops before the end, the connection is closed."""
    wire = open_wire(connection)
    has_begun = has_ended = False
    try:
        wire.start(f"COPY ({query}) TO STDOUT (FORMAT binary)")
        while not wire.is_over:
            rows = wire.read(piece_bytes)
            if rows is None:
                if not wire.is_over and not wait_ready((connection.pgconn.socket,), _SILENCE_SECONDS):
                    connection.database.connect("lakefeed").close()
                continue
            if has_ended:
                raise DecodeError("a copy continues after its trailer")
            if not has_begun:
                first, has_begun = rows.message(0), True
                if not first.startswith(_COPY_HEADER):
                    raise DecodeError("a copy does not begin with its header")
                begins = rows.begins.copy()
                begins[0] += len(_COPY_HEADER)
                rows = Messages(rows.data, begins, rows.ends)[int(first == _COPY_HEADER) :]
            has_ended = len(rows) > 0 and rows.message(len(rows) - 1) == _TRAILER
            rows = rows[: len(rows) - has_ended]
            for start in range(0, len(rows), piece_rows):
                yield rows[start : start + piece_rows]
    except UNSENDABLE as error:
        reason = f"PostgreSQL cannot send it: {str(error).splitlines()[0]}"
        raise MisfitError(reason, column="a row", remedy=TOO_LARGE) from error
    finally:
        wire.close()
        if not wire.is_over:
            connection.close()  # libpq does not know that more would follow
    if connection.info.encoding == "ascii":  # psycopg's name for SQL_ASCII, in which it reads no text
        run(connection, "SET client_encoding = 'UTF8'")
    if not has_ended:
        raise DecodeError("a copy ended without its trailer")

"""Line: a connection's socket, used past libpq between two commands of its own.

Libpq takes a few KB from the socket at a time and makes an object of every message; here as much is taken at once as
has come. Only for connections that are not encrypted, and only while libpq waits for nothing: whoever speaks here
listens until the server is ready again, or closes the connection.
"""

from __future__ import annotations

import os
import socket
import struct
import time

import psycopg

from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.frames import Frames, Inbox
from lakefeed.capture.postgres.readiness import wait_readable, wait_writable

_SEND_SECONDS = 10.0
_LISTEN_SECONDS = 60.0
_CLOSED = "server closed the connection unexpectedly"


def is_plain(connection: Connection) -> bool:
    """Nobody but libpq can read a connection that it encrypts."""
    return not (connection.pgconn.ssl_in_use or connection.pgconn.used_gssapi)


class Line:
    """Belongs to one thread. Everything may raise psycopg.OperationalError."""

    def __init__(self, connection: Connection) -> None:
        self._socket = socket.socket(fileno=os.dup(connection.pgconn.socket))  # libpq's own is libpq's to close
        self._socket.setblocking(False)
        self._inbox = Inbox()

    def query(self, command: str) -> None:
        self.send(b"Q", command.encode() + b"\0")

    def send(self, kind: bytes, body: bytes) -> None:
        left = memoryview(kind + struct.pack(">i", len(body) + 4) + body)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                if not wait_writable(self._socket.fileno(), _SEND_SECONDS):
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
            wait_readable(self._socket.fileno(), seconds=left)
            frames = self.received()
        return frames

    def listen(self, least_bytes: int) -> Frames:
        """About that much or more, or what comes until the server is ready again. Waits for ever."""
        self._inbox.fill(self._socket)
        while self._inbox.size < least_bytes and not self._inbox.is_over:
            wait_readable(self._socket.fileno(), seconds=_LISTEN_SECONDS)
            self._inbox.fill(self._socket)
        return self.wait(time.monotonic() + _LISTEN_SECONDS)

    def put_back(self, data: bytes) -> None:
        """Bytes that are to be received again."""
        self._inbox.put_back(data)

    def close(self) -> None:
        """The connection goes on, or is its owner's to close."""
        self._socket.close()

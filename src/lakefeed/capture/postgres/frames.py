"""Frames of PostgreSQL's protocol in the bytes that a socket gives: a kind (1 byte), a length (int32), a body.

Format: PostgreSQL documentation, "Message Formats". A length counts itself and the body, not the kind.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

import numpy as np
import psycopg

from lakefeed.capture.postgres.slices import PAD, Bytes, Ints
from lakefeed.errors import DecodeError

DATA, BOTH, OUT, DONE, COMPLETE, ERROR, READY = (ord(letter) for letter in "dWHcCEZ")
_HEAD = 5
_ROOM_BYTES = 4 << 20
_READY_FRAME = bytes([READY, 0, 0, 0, 5])
_LENGTH = struct.Struct(">i")


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
        self._end = 0
        self.closed = False

    @property
    def size(self) -> int:
        """Bytes that are here."""
        return self._end

    @property
    def is_over(self) -> bool:
        """Nothing more is to be waited for: the last bytes look like those of a server that is ready, or it is gone."""
        tail = self._end - len(_READY_FRAME) - 1
        return self.closed or (tail >= 0 and self._room[tail : self._end - 1] == _READY_FRAME)

    def fill(self, source: socket.socket) -> None:
        """Take what is there, as far as there is room."""
        view = memoryview(self._room)
        while self._end < len(self._room):
            try:
                count = source.recv_into(view[self._end :])
            except BlockingIOError:
                return
            except OSError as error:
                raise psycopg.OperationalError(str(error)) from error
            if count == 0:
                self.closed = True
                return
            self._end += count

    def take(self) -> Frames:
        """The whole frames; what begins another stays here. DecodeError for a length that cannot be."""
        starts = self._starts()
        end = starts[-1]
        data = np.zeros(end + PAD, np.uint8)
        data[:end] = np.frombuffer(self._room, np.uint8, end)
        self._room[: self._end - end] = self._room[end : self._end]
        self._end -= end
        return Frames(data, np.array(starts, np.int64))

    def put_back(self, data: bytes) -> None:
        """Bytes that belong before what is here."""
        self._room = bytearray(data) + self._room
        self._end += len(data)

    def _starts(self) -> list[int]:
        at, end, room = 0, self._end, self._room
        length = _LENGTH.unpack_from
        starts = [0]
        while at + _HEAD <= end:
            (size,) = length(room, at + 1)
            if size < 4:
                raise DecodeError(f"the replication stream has a frame of {size} bytes")
            at += 1 + size
            if at > end:
                self._make_room(at - starts[-1])
                break
            starts.append(at)
        return starts

    def _make_room(self, size: int) -> None:
        """For one frame that is larger than all there was."""
        if size > len(self._room):
            self._room.extend(bytes(size - len(self._room)))


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

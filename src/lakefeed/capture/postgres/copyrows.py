"""COPY ... TO STDOUT (FORMAT binary): the rows of a query as bytes, many whole rows at a time. Also the row format.

Format: PostgreSQL documentation, "COPY", "Binary Format". A header, then for each row a column count (int16) and for
each column a length (int32, -1 for NULL) and that many bytes, then a trailer. The server sends one row in a message, so
that it is known where each begins; all rows of a piece are then walked together, column by column. Messages come from
the socket where that can be (``line``), else through libpq, one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import psycopg
from psycopg.pq import ExecStatus

from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.frames import ERROR, READY, error_of
from lakefeed.capture.postgres.line import Line, is_plain
from lakefeed.capture.postgres.slices import Bytes, Ints, Slices, integers, padded
from lakefeed.errors import DecodeError

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES = len(_SIGNATURE) + 8  # flags, length of an extension that there is none of
_TRAILER = b"\xff\xff"
_COUNT = 2


@dataclass(frozen=True, slots=True)
class CopyRows:
    """Rows one after another in one buffer."""

    data: Bytes
    begins: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.begins)

    def message(self, index: int) -> bytes:
        return self.data[self.begins[index] : self.ends[index]].tobytes()

    def part(self, start: int, stop: int) -> CopyRows:
        """The rows from ``start`` to before ``stop``."""
        return CopyRows(self.data, self.begins[start:stop], self.ends[start:stop])

    def columns(self, count: int) -> tuple[Slices, ...]:
        """The values of each column. DecodeError if the rows are not of ``count`` columns."""
        if np.any(self.begins + _COUNT > self.ends) or np.any(integers(self.data, self.begins, ">i2") != count):
            raise DecodeError(f"a copied row does not have {count} columns")
        place = self.begins + _COUNT
        found = []
        for _ in range(count):
            starts = place + 4
            self._within(starts)
            lengths = integers(self.data, place, ">i4")
            valid = lengths >= 0
            if not valid.all():
                if np.any(lengths < -1):
                    raise DecodeError("a copied value has a negative length")
                lengths = np.maximum(lengths, 0)
            place = starts + lengths
            self._within(place)
            found.append(Slices(self.data, starts, lengths, valid))
        if np.any(place != self.ends):
            raise DecodeError("a copied row has bytes left over")
        return tuple(found)

    def _within(self, place: Ints) -> None:
        if np.any(place > self.ends):
            raise DecodeError("a copied row ends too early")


def make_rows(rows: list[bytes]) -> CopyRows:
    """Whole rows, as they come from the server."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    ends = np.cumsum(lengths)
    return CopyRows(padded(rows), ends - lengths, ends)


def read_copy(connection: Connection, query: str, *, piece_bytes: int, piece_rows: int) -> Iterator[CopyRows]:
    """The rows of ``query``, in pieces of about that size. psycopg.Error if it fails, also in the middle.

    Whoever stops before the end has no connection any more.
    """
    command = f"COPY ({query}) TO STDOUT (FORMAT binary)"
    envelope = _Envelope()
    for piece in (_from_socket if is_plain(connection) else _from_libpq)(connection, command, piece_bytes):
        rows = envelope.opened(piece)
        for start in range(0, len(rows), piece_rows):
            yield rows.part(start, min(start + piece_rows, len(rows)))
    envelope.check()


class _Envelope:
    """What is around the rows: the header, in one message with the first of them, and the trailer, a message too."""

    def __init__(self) -> None:
        self._begun = self._ended = False

    def opened(self, piece: CopyRows) -> CopyRows:
        """The rows of a piece."""
        if self._ended:
            raise DecodeError("a copy goes on behind its trailer")
        if not self._begun:
            piece, self._begun = _without_header(piece), True
        self._ended = len(piece) > 0 and piece.message(len(piece) - 1) == _TRAILER
        return piece.part(0, len(piece) - self._ended)

    def check(self) -> None:
        """DecodeError if the last message was not the trailer."""
        if not self._ended:
            raise DecodeError("a copy ended without its trailer")


def _from_socket(connection: Connection, command: str, piece_bytes: int) -> Iterator[CopyRows]:
    line, ready = Line(connection), False
    failed: psycopg.Error | None = None
    try:
        line.query(command)
        while not ready:
            frames = line.listen(piece_bytes)
            begins, ends = frames.data_bodies()
            if len(begins):
                yield CopyRows(frames.data, begins, ends)
            for index in frames.others():
                ready = ready or frames.kind(index) == READY
                if frames.kind(index) == ERROR:
                    failed = error_of(frames.body(index))
    except psycopg.OperationalError as error:
        raise failed or error from None  # why the server has gone, if it said so
    finally:
        line.close()
        if not ready:
            connection.close()  # libpq does not know that there is more to come
    if failed is not None:
        raise failed


def _from_libpq(connection: Connection, command: str, piece_bytes: int) -> Iterator[CopyRows]:
    result = connection.pgconn.exec_(command.encode())
    if result.status != ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(result)
    rows: list[bytes] = []
    size = 0
    count, data = connection.pgconn.get_copy_data(0)
    while count > 0:
        rows.append(data)  # type: ignore[arg-type]  # a memoryview, which join takes as well
        size += count
        if size >= piece_bytes:
            yield make_rows(rows)
            rows, size = [], 0
        count, data = connection.pgconn.get_copy_data(0)
    if rows:
        yield make_rows(rows)
    _finish(connection)


def _finish(connection: Connection) -> None:
    """All results are taken, also behind an error: only then can the connection be used again."""
    failed = None
    while (result := connection.pgconn.get_result()) is not None:
        failed = result if result.status == ExecStatus.FATAL_ERROR else failed
    if failed is not None:
        raise psycopg.errors.error_from_result(failed)


def _without_header(piece: CopyRows) -> CopyRows:
    """Behind the header, the first row comes in the same message; of no rows, the trailer does."""
    first = piece.message(0) if len(piece) else b""
    if not first.startswith(_SIGNATURE) or len(first) < _HEADER_BYTES:
        raise DecodeError("a copy does not begin with its signature")
    if len(first) == _HEADER_BYTES:
        return piece.part(1, len(piece))
    begins = piece.begins.copy()
    begins[0] += _HEADER_BYTES
    return CopyRows(piece.data, begins, piece.ends)

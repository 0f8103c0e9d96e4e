"""COPY ... TO STDOUT (FORMAT binary): the rows of a query as bytes, many whole rows at a time. Also the row format.

Format: PostgreSQL documentation, "COPY", "Binary Format". A header, then for each row a column count (int16) and for
each column a length (int32, -1 for NULL) and that many bytes, then a trailer. Libpq hands out one row at a time, so
that it is known where each begins; all rows of a piece are then walked together, column by column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import psycopg
from psycopg.pq import ExecStatus

from lakefeed.capture.postgres.database import Connection
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
    """The rows of ``query``, in pieces of about that size. psycopg.Error if it fails, also in the middle."""
    pgconn = connection.pgconn
    result = pgconn.exec_(f"COPY ({query}) TO STDOUT (FORMAT binary)".encode())
    if result.status != ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(result)
    get = pgconn.get_copy_data
    rows: list[bytes] = []
    size = 0
    count, data = get(0)
    if count > 0:
        rest = _without_header(bytes(data))
        if rest:
            rows, size = [rest], len(rest)
        count, data = get(0)
    while count > 0:
        rows.append(data)  # type: ignore[arg-type]  # a memoryview, which join takes as well
        size += count
        # The trailer is a message like a row. It is the last one, so it waits here until the end is seen.
        if size >= piece_bytes or len(rows) > piece_rows:
            yield make_rows(rows[:-1])
            rows, size = rows[-1:], count
        count, data = get(0)
    _finish(connection)
    if not rows or bytes(rows.pop()) != _TRAILER:
        raise DecodeError("a copy ended without its trailer")
    if rows:
        yield make_rows(rows)


def _finish(connection: Connection) -> None:
    """All results are taken, also behind an error: only then can the connection be used again."""
    failed = None
    while (result := connection.pgconn.get_result()) is not None:
        failed = result if result.status == ExecStatus.FATAL_ERROR else failed
    if failed is not None:
        raise psycopg.errors.error_from_result(failed)


def _without_header(message: bytes) -> bytes:
    """What is behind the header: the first row comes in the same message (or, of no rows, the trailer)."""
    if not message.startswith(_SIGNATURE) or len(message) < _HEADER_BYTES:
        raise DecodeError("a copy does not begin with its signature")
    return message[_HEADER_BYTES:]

# ruff: noqa: S608 (names in SQL are our own)
"""CatchUp: the way through a large backlog, in windows that are read with COPY from the peek function.

Peeking moves nothing: the same window would be read again until it is confirmed, so the next one is read only after
that. It was measured twice as fast and more than the replication protocol, which sends each message on its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg.pq import ExecStatus

from lakefeed.capture.postgres.assemble import Assembler
from lakefeed.capture.postgres.database import Connection, Database
from lakefeed.capture.postgres.message import make_run
from lakefeed.capture.postgres.names import Names, quoted
from lakefeed.capture.postgres.slot import head, read_slot
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.lsn import PostgresLsn
from lakefeed.errors import SourceUnavailableError

_WINDOW_BYTES = 64 << 20
_LEAST_BYTES = 1 << 20
_PIECE_BYTES = 8 << 20
_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_SIGNATURE_BYTES = 19
_FIELD = 6  # one field (int16), its length (int32)


@dataclass(slots=True)
class Window:
    """How much log is read at once. It outlives the connection: one that was too large is not tried again (T23)."""

    bytes: int = _WINDOW_BYTES

    def halve(self) -> bool:
        """False if it cannot get smaller."""
        if self.bytes <= _LEAST_BYTES:
            return False
        self.bytes //= 2
        return True


class CatchUp:
    """``next`` answers None when the stream should take over: near the head, or where a window does not help."""

    def __init__(
        self,
        database: Database,
        connection: Connection,
        names: Names,
        assembler: Assembler,
        *,
        backlog: int,
        window: Window,
    ) -> None:
        self._database = database
        self._connection = connection
        self._names = names
        self._assembler = assembler
        self._backlog = backlog
        self._window = window
        self._unconfirmed = 0

    def next(self) -> ChangeSet | None:
        slot = read_slot(self._connection, self._names.slot)
        position = self._assembler.position
        end = head(self._connection)
        if slot is None or slot.active_pid is not None or end.value - position.value < self._backlog:
            return None
        if slot.confirmed != position:
            # The last window is not confirmed yet. Say "nothing now" once; a consumer that goes on gets the stream.
            self._unconfirmed += 1
            return ChangeSet(position, position) if self._unconfirmed == 1 and slot.confirmed < position else None
        self._unconfirmed = 0
        upto = PostgresLsn(min(end.value, position.value + self._window.bytes))
        self._assembler.advance(self._read(upto))
        if self._assembler.is_empty:
            return None  # a transaction larger than the window: it would be decoded again for each window
        return self._assembler.cut()

    def _read(self, upto: PostgresLsn) -> PostgresLsn:
        """One window into the assembler. Returns its end: before ``upto`` if the server ran out of time (T23)."""
        while True:
            try:
                # A connection of its own: while the rows come in, the catalog is asked about them on the other one.
                with self._database.connection(self._names.slot) as connection:
                    self._copy(connection, upto)
            except SourceUnavailableError as error:
                cancelled = isinstance(error.__cause__, psycopg.errors.QueryCanceled)
                if not cancelled or not self._window.halve():
                    raise
                if not self._assembler.is_empty or self._assembler.in_transaction:
                    raise  # a part of the window is taken in already: the smaller one begins with a new connection
                upto = PostgresLsn(self._assembler.position.value + self._window.bytes)
            else:
                return upto

    def _copy(self, connection: Connection, upto: PostgresLsn) -> None:
        publication = quoted(self._names.publication).replace("'", "''")
        pgconn = connection.pgconn
        result = pgconn.exec_(
            f"COPY (SELECT data FROM pg_logical_slot_peek_binary_changes('{self._names.slot}', '{upto.text()}', NULL,"
            f" 'proto_version', '1', 'publication_names', '{publication}')) TO STDOUT (FORMAT binary)".encode()
        )
        if result.status != ExecStatus.COPY_OUT:
            raise psycopg.errors.error_from_result(result)
        messages: list[bytes] = []
        size = 0
        while True:
            count, data = pgconn.get_copy_data(0)
            if count <= 0:
                break
            if count < _FIELD + 1 or (count >= len(_SIGNATURE) and bytes(data[: len(_SIGNATURE)]) == _SIGNATURE):
                data = data[_SIGNATURE_BYTES:] if count > _SIGNATURE_BYTES else data[:0]
                if len(data) <= _FIELD:
                    continue  # the header alone, or the trailer
            messages.append(data)  # type: ignore[arg-type]  # a memoryview, which join takes as well
            size += count
            if size >= _PIECE_BYTES:
                self._assembler.add(make_run(messages, skip=_FIELD))
                messages, size = [], 0
        while (result := pgconn.get_result()) is not None:  # type: ignore[assignment]
            if result.status == ExecStatus.FATAL_ERROR:
                raise psycopg.errors.error_from_result(result)
        if messages:
            self._assembler.add(make_run(messages, skip=_FIELD))

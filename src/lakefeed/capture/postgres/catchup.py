# ruff: noqa: S608 (names in SQL are our own)
"""CatchUp: the way through a large backlog, in windows that are read with COPY from the peek function.

Peeking moves nothing: the same window would be read again until it is confirmed, so the next one is read only after
that. A stream that is read in gulps is faster (docs/decisions/0007-postgres-copy.md). Windows are for what is very
far behind: no connection has to live for as long as the whole backlog takes, and a window that the server cancels is
tried again at half the size (T23).
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from lakefeed.capture.postgres.assemble import Assembler
from lakefeed.capture.postgres.copyrows import read_copy
from lakefeed.capture.postgres.database import Connection, Database
from lakefeed.capture.postgres.message import run_of
from lakefeed.capture.postgres.names import Names, quoted
from lakefeed.capture.postgres.slot import head, read_slot
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.lsn import PostgresLsn
from lakefeed.errors import SourceUnavailableError

_WINDOW_BYTES = 64 << 20
_LEAST_BYTES = 1 << 20
_PIECE_BYTES, _PIECE_MESSAGES = 4 << 20, 12_000
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
                upto = min(upto, PostgresLsn(self._assembler.position.value + self._window.bytes))
            else:
                return upto

    def _copy(self, connection: Connection, upto: PostgresLsn) -> None:
        publication = quoted(self._names.publication).replace("'", "''")
        query = (
            f"SELECT data FROM pg_logical_slot_peek_binary_changes('{self._names.slot}', '{upto.text()}', NULL,"
            f" 'proto_version', '1', 'publication_names', '{publication}')"
        )
        for rows in read_copy(connection, query, piece_bytes=_PIECE_BYTES, piece_rows=_PIECE_MESSAGES):
            self._assembler.add(run_of(rows.data, rows.begins + _FIELD, rows.ends))

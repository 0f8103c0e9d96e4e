"""Holds: the exported snapshots that copies still need, and not one longer.

A snapshot keeps the server from cleaning up, and its connection is one of a limited number. So each hold knows for
which tables it is kept: a table is taken off when its copy is over or planned anew, and a hold that is kept for no
table ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from lakefeed.capture.postgres.catalog import SourceTable
from lakefeed.capture.postgres.database import Connection, Database
from lakefeed.capture.postgres.hold import Hold
from lakefeed.capture.postgres.names import Names
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId

_LOOK_SECONDS = 30.0


class Holds:
    """Belongs to one thread at a time."""

    def __init__(self, database: Database, names: Names) -> None:
        self._database = database
        self._names = names
        self._kept: list[tuple[Hold, set[TableId]]] = []
        self._looked_at = 0.0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, hold: Hold, tables: Iterable[TableId]) -> None:
        """A snapshot that ``tables`` are going to be copied from."""
        self._kept.append((hold, set(tables)))

    def for_copy(self, connection: Connection, source: SourceTable, least: PostgresLsn) -> Hold:
        """The newest snapshot, or one of now if that is not at ``least`` or behind it, or shows another table.

        A copy must have all changes that were delivered, and all from before the table was published. What the table
        was to be copied from before is not kept for it any longer.
        """
        newest = self._kept[-1][0] if self._kept else None
        if newest is None or least > newest.position or not newest.shows(connection, source.oid):
            self.add(Hold.now(self._database, self._names), ())
        hold, tables = self._kept[-1]
        self.release(source.id, but=hold)
        tables.add(source.id)
        return hold

    def release(self, table: TableId, *, but: Hold | None = None) -> None:
        """The copy of ``table`` is over."""
        for hold, tables in list(self._kept):
            if hold is not but:
                tables.discard(table)
                if not tables:
                    self._end(hold)

    def tidy(self, connection: Connection) -> None:
        """Let go of snapshots that nobody has read from for long: the process that was to read them may be dead."""
        if not self._kept or time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        for hold, _ in list(self._kept):
            if hold.is_idle(connection, self._names):
                self._end(hold)

    def close(self) -> None:
        for hold, _ in list(self._kept):
            self._end(hold)

    def _end(self, hold: Hold) -> None:
        self._kept = [(one, tables) for one, tables in self._kept if one is not hold]
        hold.close()

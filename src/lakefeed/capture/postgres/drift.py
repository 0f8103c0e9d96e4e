"""Drift: what the catalog says about captured tables and the stream does not.

The stream describes a table only before a row of it. So a table that was dropped, or changed with no row since, also
while no process ran, is found by looking into the catalog. Whatever is found there waits until the stream has passed
the moment of the look: rows from before it come first, and if they tell of the change themselves, nothing is left to
say.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lakefeed.capture.postgres.assemble import Resolved
from lakefeed.capture.postgres.catalog import SourceTable, read_tables
from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.relations import Known, Relations
from lakefeed.capture.postgres.slot import head
from lakefeed.change.change_set import ReseedNeeded, TableBlocked, TableDropped
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId

_FLUSH_SECONDS = 1.0
"""A commit that nobody waits for (``synchronous_commit = off``) is visible up to 3 * wal_writer_delay before it is in
the log that the stream reads."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A table that is not what was delivered (``before``), found when the log was at ``at``."""

    at: PostgresLsn
    before: Known
    source: SourceTable


class Drift:
    """Belongs to one thread at a time."""

    def __init__(self, relations: Relations) -> None:
        self._relations = relations
        self._captured: set[TableId] = set()
        self._lost: dict[TableId, tuple[PostgresLsn, TableDropped | ReseedNeeded]] = {}
        self._seen: dict[TableId, _Seen] = {}

    def expect(self, connection: Connection, tables: Sequence[TableId], covered: Collection[TableId]) -> None:
        """The pipeline has ``tables``. One that is not published (``covered``) has missed changes; one may be gone."""
        there = read_tables(connection)
        self._captured = set(tables)
        self._lost, self._seen = {}, {}
        for table in tables:
            if table in there and table not in covered:
                self._lost[table] = (PostgresLsn(0), ReseedNeeded(table, "it is not published any more"))
        self._find_dropped(connection, there)

    def prepared(self, tables: Iterable[TableId]) -> None:
        """These are copied from now on: nothing of before is to be said about them."""
        for table in tables:
            self._captured.add(table)
            self._lost.pop(table, None)
            self._seen.pop(table, None)

    def look(
        self, connection: Connection, there: Mapping[TableId, SourceTable], sources: Sequence[SourceTable]
    ) -> None:
        """Compare all tables there are (``there``), and the columns of ``sources``, with what was delivered."""
        self._find_dropped(connection, there)
        different = [one for one in sources if one.id not in self._lost and self._relations.differs(one)]
        seen, self._seen = self._seen, {}
        at = None
        for source in different:
            before = self._relations.known(source.id)
            old = seen.get(source.id)
            if before is None:
                continue
            if old is None or (old.before, old.source) != (before, source):
                at = at or _flushed(connection)
                old = _Seen(at, before, source)
            self._seen[source.id] = old

    def due(self, reached: PostgresLsn) -> list[Resolved]:
        """What is to be said now that the stream has come to ``reached``."""
        said = []
        for table, (at, notice) in list(self._lost.items()):
            if reached >= at:
                del self._lost[table]
                if isinstance(notice, TableDropped):
                    self._relations.forget(table)
                said.append(Resolved(None, notices=(notice,)))
        for table, seen in list(self._seen.items()):
            if reached >= seen.at:
                del self._seen[table]
                if self._relations.known(table) == seen.before:  # else a row has told it meanwhile
                    said.append(self._adopted(seen.source))
        return said

    def _adopted(self, source: SourceTable) -> Resolved:
        resolved = self._relations.adopt(source)
        if any(isinstance(notice, TableBlocked) for notice in resolved.notices):
            self._relations.forget(source.id)  # it is not delivered any more, so nothing is compared with it
        return resolved

    def _find_dropped(self, connection: Connection, there: Mapping[TableId, SourceTable]) -> None:
        """A dropped table says nothing in the stream."""
        for table in [table for table in self._captured if table not in there]:
            self._captured.discard(table)
            self._lost[table] = (head(connection), TableDropped(table))


def _flushed(connection: Connection) -> PostgresLsn:
    """A place in the log behind every commit that is visible now."""
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None  # noqa: S101  # a function always answers
    written = PostgresLsn.parse(str(row[0]))
    until = time.monotonic() + _FLUSH_SECONDS
    while (flushed := head(connection)) < written and time.monotonic() < until:
        time.sleep(0.02)
    return flushed

"""Drift: what the catalog says about captured tables and the stream does not.

The stream describes a table only before a row of it, and says nothing of a table that is not published. So a table that
was dropped, or changed with no row since, or whose changes or partitions the stream leaves out, also while no process
ran, is found by looking into the catalog. Whatever is found there waits until the stream has passed the moment of the
look: rows from before it come first, and if they tell of the change themselves, nothing is left to say.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lakefeed.capture.postgres.assemble import Resolved
from lakefeed.capture.postgres.catalog import SourceTable, read_tables
from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.partition import unseen
from lakefeed.capture.postgres.publication import Coverage
from lakefeed.capture.postgres.relations import Known, Relations
from lakefeed.capture.postgres.slot import head, inserted
from lakefeed.change.change_set import RecopyNeeded, TableBlocked, TableDropped
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId

_FLUSH_SECONDS = 1.0
"""A commit that nobody waits for (``synchronous_commit = off``) is visible up to 3 * wal_writer_delay before it is in
the log that the stream reads."""


@dataclass(frozen=True, slots=True)
class _Captured:
    """A captured table at the last look: what puts it into the publication, None if its changes were not told then,
    and how it was, None if it was not there."""

    member: int | None
    source: SourceTable | None


@dataclass(frozen=True, slots=True)
class _Seen:
    """A table that is not what was delivered (``before``), found when the log was at ``at``."""

    at: PostgresLsn
    before: Known
    source: SourceTable


@dataclass(frozen=True, slots=True)
class _Lost:
    """What has to be said of a table once the stream is at ``at``; ``said`` is where the change set ended that did."""

    at: PostgresLsn
    notice: TableDropped | RecopyNeeded
    said: PostgresLsn | None = None


class Drift:
    """Belongs to one thread at a time."""

    def __init__(self, relations: Relations) -> None:
        self._relations = relations
        self._captured: dict[TableId, _Captured] = {}
        self._lost: dict[TableId, _Lost] = {}
        self._said: dict[TableId, _Lost] = {}
        self._seen: dict[TableId, _Seen] = {}

    def expect(self, connection: Connection, tables: Sequence[TableId], coverage: Coverage) -> None:
        """The pipeline has ``tables``, beside those that it is known to have.

        One whose changes the publication leaves out has missed some; one may be gone. What is known of a table from
        before a connection was lost stays: the next look compares with that.
        """
        there = read_tables(connection)
        for table in tables:
            if table not in self._captured:
                self._begin(table, there.get(table), coverage)
            if table in there and (gap := coverage.gap(table)) is not None:
                self._captured[table] = replace(self._captured[table], member=None)
                self._lost[table] = _Lost(_flushed(connection), RecopyNeeded(table, gap))
        self._find_dropped(connection, there)

    def prepared(self, sources: Iterable[SourceTable], coverage: Coverage) -> None:
        """These are copied from now on: nothing of before is to be said about them."""
        for source in sources:
            self._begin(source.id, source, coverage)

    def look(
        self,
        connection: Connection,
        there: Mapping[TableId, SourceTable],
        sources: Sequence[SourceTable],
        coverage: Coverage,
    ) -> None:
        """Compare all tables there are (``there``), the columns of ``sources`` and what is published with before."""
        self._find_dropped(connection, there)
        for table in self._captured:
            self._find_missed(connection, there[table], coverage)
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
        for table, lost in list(self._lost.items()):
            if reached >= lost.at:
                self._said[table] = replace(self._lost.pop(table), said=None)
                if isinstance(lost.notice, TableDropped):
                    self._relations.forget(table)
                said.append(Resolved(None, notices=(lost.notice,)))
        for table, seen in list(self._seen.items()):
            if reached >= seen.at:
                del self._seen[table]
                if self._relations.known(table) == seen.before:  # else a row has told it meanwhile
                    said.append(self._adopted(seen.source))
        return said

    def settle(self, end: PostgresLsn) -> None:
        """What was due so far has been handed out, with a change set that ended at ``end`` at the latest."""
        self._said = {table: replace(one, said=one.said or end) for table, one in self._said.items()}

    def rewind(self, start: PostgresLsn) -> None:
        """The stream begins anew behind ``start``: what was not handed out before must be said again.

        Also what was handed out at ``start`` itself: a change set of notices alone moves no position, so that nobody
        can tell whether it became durable.
        """
        again = {table: one for table, one in self._said.items() if one.said is None or one.said >= start}
        self._lost, self._said = {**again, **self._lost}, {}

    def _begin(self, table: TableId, source: SourceTable | None, coverage: Coverage) -> None:
        member = coverage.member(table) if coverage.gap(table) is None else None
        self._captured[table] = _Captured(member, source)
        for found in (self._lost, self._said, self._seen):
            found.pop(table, None)

    def _adopted(self, source: SourceTable) -> Resolved:
        resolved = self._relations.adopt(source)
        if any(isinstance(notice, TableBlocked) for notice in resolved.notices):
            self._relations.forget(source.id)  # it is not delivered any more, so nothing is compared with it
        return resolved

    def _find_dropped(self, connection: Connection, there: Mapping[TableId, SourceTable]) -> None:
        """A dropped table says nothing in the stream."""
        for table in [table for table in self._captured if table not in there]:
            del self._captured[table]
            self._lost[table] = _Lost(_flushed(connection), TableDropped(table))

    def _find_missed(self, connection: Connection, source: SourceTable, coverage: Coverage) -> None:
        """Changes that the stream does not have: of a table that the publication leaves out, or did since the last
        look, and of partitions as such. Each is said once."""
        table, before = source.id, self._captured[source.id]
        gap = coverage.gap(table)
        now = _Captured(coverage.member(table) if gap is None else None, source)
        if gap is None and before.member not in (None, now.member):
            gap = "it was taken out of the publication and put back"
        reason = gap if before.member is not None else None
        if reason is None and before.source is not None and before.source.oid == source.oid:
            reason = unseen(connection, before.source.leaves, source.leaves)
        self._captured[table] = now
        if reason is not None and table not in self._lost:
            # Only behind the look: a copy of before would not have what a new partition has.
            self._lost[table] = _Lost(_flushed(connection), RecopyNeeded(table, reason))


def _flushed(connection: Connection) -> PostgresLsn:
    """A place in the log behind every commit that is visible now, where a record ends: the stream comes to no other."""
    written = inserted(connection)
    until = time.monotonic() + _FLUSH_SECONDS
    while (flushed := head(connection)) < written and time.monotonic() < until:
        time.sleep(0.02)
    return min(written, flushed)

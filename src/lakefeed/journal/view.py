"""JournalView: every question that can be asked of a journal, answered from memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from lakefeed.change.change_set import RecopyNeeded
from lakefeed.change.position import Position
from lakefeed.change.segment import StaleReason, Window
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import JournalError
from lakefeed.journal import recovery
from lakefeed.journal.commit import Commit
from lakefeed.journal.index import CommitIndex
from lakefeed.journal.layout import Layout
from lakefeed.journal.schema_history import SchemaHistory


class JournalView:
    """The retained change sets (trimmed, head]. Satisfies ``lake.base.ChangeLog``.

    Threads: any method from any thread, while the journal grows and is trimmed. A change set is seen here only after
    its commit is durable. ``head``, ``last_seq``, ``committed_rows`` and ``trimmed`` never move back.
    """

    def __init__(self, layout: Layout, index: CommitIndex, schemas: SchemaHistory) -> None:
        self._layout = layout
        self._index = index
        self.schemas = schemas
        self._lock = threading.Lock()  # guards the index; held for memory work only, never over I/O

    @property
    def head(self) -> int:
        """Number of the newest change set; 0 if there is none."""
        with self._lock:
            return self._index.head

    @property
    def trimmed(self) -> int:
        """Change sets up to this number are gone; 0 if none is."""
        with self._lock:
            return self._index.origin.trimmed

    @property
    def end(self) -> Position | None:
        """The position that the journal has reached: the checkpoint. None in an empty journal."""
        newest = self._newest()
        return newest.end if newest else None

    @property
    def last_seq(self) -> int:
        """The highest seq ever given to a row; 0 if there was none."""
        newest = self._newest()
        return newest.last_seq if newest else 0

    @property
    def committed_rows(self) -> int:
        """Rows of all change sets ever appended, trimmed ones too."""
        newest = self._newest()
        return newest.committed_rows if newest else 0

    @property
    def identity(self) -> str | None:
        """The source that the journal belongs to; None as long as nobody has said."""
        with self._lock:
            return self._index.origin.identity

    def commits(self, after: int = 0, upto: int | None = None) -> Iterator[Commit]:
        """The retained commits in (after, upto], in order; trimmed ones are left out. ``upto`` None: to the head."""
        with self._lock:
            last = self._index.head if upto is None else min(upto, self._index.head)
            found = self._index.commits(max(after, self._index.origin.trimmed), last)
        return iter(found)

    def commit(self, number: int) -> Commit:
        """One retained commit. JournalError if it was trimmed or is not there yet."""
        with self._lock:
            return self._index.commit(number)

    def position(self, number: int) -> Position | None:
        """The end position of a change set; None for one that is trimmed, and for 0, which is before the first."""
        return self.commit(number).end if number > self.trimmed else None

    def window(self, table: TableId, after: int, upto: int) -> Window:
        """Everything of one table in (after, upto]. JournalError if part of it has been trimmed."""
        with self._lock:
            covered = self._index.commits(after, upto)
            segments = self._index.segments(table, after, upto)
            target = self._known_version(table, upto)
            before = self._known_version(table, after)
            stale = self._stale_reasons(table, covered)
        end = covered[-1].end if covered else self.position(upto)
        between = range(min(before, target), max(before, target) + 1)
        wanted = {target, *between, *(segment.schema_version for segment in segments)}
        kept = self.schemas.versions(table)
        schemas = {version: kept[version] for version in sorted(wanted) if version in kept}
        return Window(table, after, upto, end, segments, self.schemas.get(table, target), schemas, stale_reasons=stale)

    def schema(self, table: TableId, version: int) -> TableSchema:
        """One version of a table's schema. JournalError if there is none, or retention has dropped it."""
        return self.schemas.get(table, version)

    def latest_schema(self, table: TableId) -> TableSchema | None:
        """The schema in effect for the next change set; None for a table that the journal does not know."""
        with self._lock:
            version = self._version_at(table, self._index.head + 1)
        return self.schemas.get(table, version) if version is not None else None

    def backlog_bytes(self, after: int) -> int:
        """The size on disk of the retained change sets above ``after``."""
        with self._lock:
            return self._index.bytes_after(after)

    def verify(self) -> int:
        """Read every retained segment against its checksum. Returns how many; JournalDamagedError names the first."""
        return recovery.verify_segments(self.commits())

    def _newest(self) -> Commit | None:
        with self._lock:
            return self._index.newest

    def _stale_reasons(self, table: TableId, commits: Sequence[Commit]) -> tuple[StaleReason, ...]:
        """With the lock held."""
        return tuple(
            StaleReason(self._known_version(table, commit.number), notice.reason, notice.columns)
            for commit in commits
            for notice in commit.notices
            if isinstance(notice, RecopyNeeded) and notice.table == table
        )

    def _known_version(self, table: TableId, number: int) -> int:
        """The version at ``number``; for a place before the table was first seen, the first one it had."""
        version = self._version_at(table, number)
        if version is None:
            marks = self.schemas.marks(table)
            version = marks[0].version if marks else self._index.first_version(table)
        if version is None:
            raise JournalError(f"the journal has never seen table {table}")
        return version

    def _version_at(self, table: TableId, number: int) -> int | None:
        """The newest statement at or before ``number``: a commit's, else a mark's, else what held at the trim."""
        entry = self._index.version_entry(table, number)
        marks = [mark for mark in self.schemas.marks(table) if mark.number <= number]
        if marks and (entry is None or marks[-1].number > entry[0]):
            return marks[-1].version
        return entry[1] if entry else None

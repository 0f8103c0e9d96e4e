"""JournalView: every question that can be asked of a journal. CommitIndex: the commits behind the answers."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator

from lakefeed.change.change_set import RecopyNeeded
from lakefeed.change.position import Position
from lakefeed.change.segment import Segment, StaleReason, Window
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import JournalError
from lakefeed.journal.commit import Commit, Origin, TableCommit
from lakefeed.journal.layout import Layout
from lakefeed.journal.schema_history import SchemaHistory
from lakefeed.journal.segment_file import check_segment


class CommitIndex:
    """Change sets (trimmed, head], without a gap. Not thread-safe by itself: the view guards it.

    The writer has all of them in memory, so that no question of the lake reads a commit file. A reader knows only their
    numbers at first (``head``) and reads the files that a question needs with ``load``, the newest first and each once:
    a status of a journal of many change sets asks for few of them. ``loaded``: those above this number are in memory.
    ``newest``: the commit of ``head``; None as long as there is none, or a reader has not read it.
    """

    def __init__(
        self,
        origin: Origin,
        schemas: SchemaHistory,
        commits: Iterable[Commit] = (),
        *,
        head: int | None = None,
        load: Callable[[int], Commit] | None = None,
    ) -> None:
        self.origin = origin
        self.schemas = schemas
        self.head = self.loaded = origin.trimmed if head is None else head
        self.newest: Commit | None = None
        self._load = load
        self._commits: list[Commit] = []
        self._bytes_upto: list[int] = []
        self._numbers: dict[TableId, list[int]] = {}
        self._entries: dict[TableId, list[TableCommit]] = {}
        for commit in commits:
            self.add(commit)

    def add(self, commit: Commit) -> None:
        if commit.number != self.head + 1:
            raise JournalError(f"change set {commit.number} cannot follow {self.head}")
        before = self._bytes_upto[-1] if self._bytes_upto else 0
        self.head, self.newest = commit.number, commit
        self._commits.append(commit)
        self._bytes_upto.append(before + commit.bytes)
        for table, entry in commit.tables.items():
            self._numbers.setdefault(table, []).append(commit.number)
            self._entries.setdefault(table, []).append(entry)

    def need(self, after: int) -> None:
        """Have every commit above ``after`` in memory. At least as many as there are already are read at a time."""
        wanted = max(after, self.origin.trimmed)
        if wanted >= self.loaded or self._load is None:
            return
        first = max(self.origin.trimmed, min(wanted, self.loaded - len(self._commits)))
        older = [self._load(number) for number in range(first + 1, self.loaded + 1)]
        whole = CommitIndex(self.origin, self.schemas, [*older, *self._commits], head=first, load=self._load)
        self.loaded, self.newest = whole.loaded, whole.newest
        self._commits, self._bytes_upto = whole._commits, whole._bytes_upto
        self._numbers, self._entries = whole._numbers, whole._entries

    def without(self, origin: Origin) -> CommitIndex:
        """The index after everything up to ``origin.trimmed`` has gone."""
        loaded = max(origin.trimmed, self.loaded)
        return CommitIndex(origin, self.schemas, self._commits[loaded - self.loaded :], head=loaded, load=self._load)

    def commit(self, number: int) -> Commit:
        if not self.origin.trimmed < number <= self.head:
            retained = f"it has {self.origin.trimmed + 1} to {self.head}" if self.head else "it is empty"
            raise JournalError(f"the journal does not have change set {number}: {retained}")
        if number <= self.loaded and number < self.head and self._load is not None:
            return self._load(number)
        self.need(number - 1)
        return self._commits[number - self.loaded - 1]

    def commits(self, after: int, upto: int) -> list[Commit]:
        """The commits in (after, upto]. JournalError if part of them has been trimmed or is not there yet."""
        if after < self.origin.trimmed:
            raise JournalError(
                f"change sets {after + 1} to {self.origin.trimmed} have been trimmed from the journal",
                remedy="Remove the lake table and start the pipeline again: it then copies the table.",
            )
        if upto > self.head:
            raise JournalError(f"change set {upto} is not in the journal yet; its head is {self.head}")
        self.need(after)
        return self._commits[after - self.loaded : max(after, upto) - self.loaded] if upto > after else []

    def segments(self, table: TableId, after: int, upto: int) -> tuple[Segment, ...]:
        """One table's segments in (after, upto], in seq order."""
        self.need(after)
        numbers = self._numbers.get(table, [])
        entries = self._entries.get(table, [])[bisect_right(numbers, after) : bisect_right(numbers, upto)]
        found = [segment for entry in entries for segment in entry.segments]
        return tuple(sorted(found, key=lambda segment: segment.first_seq))

    def version_at(self, table: TableId, number: int) -> int | None:
        """The newest schema version that is known at or before ``number``: a commit's, a beginning's or the trim's."""
        found = bisect_right(self._numbers.get(table, []), number)
        if not found:
            self.need(self.origin.trimmed)
            found = bisect_right(self._numbers.get(table, []), number)
        since, version = self.origin.trimmed, self.origin.versions.get(table)
        if found:
            since, version = self._numbers[table][found - 1], self._entries[table][found - 1].schema_version
        begun = [one for one in self.schemas[table].beginnings if one.number <= number]
        return begun[-1].version if begun and (version is None or begun[-1].number > since) else version

    def entries(self, table: TableId) -> list[TableCommit]:
        """What every retained commit that names the table says of it, oldest first."""
        self.need(self.origin.trimmed)
        return self._entries.get(table, [])

    def bytes_after(self, number: int) -> int:
        """The size of all retained change sets above ``number``."""
        self.need(number)
        if not self._commits:
            return 0
        known = max(number - self.loaded, 0)
        before = self._bytes_upto[min(known, len(self._commits)) - 1] if known else 0
        return self._bytes_upto[-1] - before


class JournalView:
    """The retained change sets (trimmed, head]. Satisfies ``lake.base.ChangeLog``.

    Threads: any method from any thread, while the journal grows and is trimmed. A change set is seen here only after
    its commit is durable. ``head``, ``last_seq``, ``committed_rows`` and ``trimmed`` never move back.
    """

    def __init__(self, layout: Layout, index: CommitIndex) -> None:
        self._layout = layout
        self._index = index
        self.schemas = index.schemas
        self._lock = threading.Lock()  # guards the index; the writer keeps it for memory work only, never over I/O
        self._sound: set[str] = set()  # segments whose checksum was found right

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
        """The source that the journal belongs to; None as long as nobody has named it."""
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
        """Everything of one table in (after, upto]. JournalError if part of it has been trimmed. Reads no segment."""
        with self._lock:
            covered = self._index.commits(after, upto)
            segments = self._index.segments(table, after, upto)
            target = self._known_version(table, upto)
            before = self._known_version(table, after)
            stale = tuple(
                StaleReason(self._known_version(table, commit.number), notice.reason, notice.columns)
                for commit in covered
                for notice in commit.notices
                if isinstance(notice, RecopyNeeded) and notice.table == table
            )
        end = covered[-1].end if covered else self.position(upto)
        between = range(min(before, target), max(before, target) + 1)
        wanted = {target, *between, *(segment.schema_version for segment in segments)}
        kept = self.schemas.versions(table)
        schemas = {version: kept[version] for version in sorted(wanted) if version in kept}
        return Window(table, after, upto, end, segments, self.schema(table, target), schemas, stale_reasons=stale)

    def check(self, window: Window) -> None:
        """Read the window's segments against their checksums. JournalDamagedError names the first that is damaged.

        Whoever reads the rows of a window calls this first. A segment never changes, so one that was found sound is not
        read again by this journal: the cost is one pass over each file, which its writer left in the page cache.
        """
        for segment in window.segments:
            if segment.path not in self._sound:
                check_segment(segment)
                self._sound.add(segment.path)

    def schema(self, table: TableId, version: int) -> TableSchema:
        """One version of a table's schema. JournalError if there is none, or retention has dropped it."""
        found = self.schemas[table].versions.get(version)
        if found is None:
            raise JournalError(f"the journal has no version {version} of the schema of {table} (any more)")
        return found.schema

    def latest_schema(self, table: TableId) -> TableSchema | None:
        """The schema in effect for the next change set; None for a table that the journal does not know."""
        with self._lock:
            version = self._index.version_at(table, self._index.head + 1)
        return self.schema(table, version) if version is not None else None

    def backlog_bytes(self, after: int) -> int:
        """The size on disk of the retained change sets above ``after``."""
        with self._lock:
            return self._index.bytes_after(after)

    def verify(self) -> int:
        """Read every retained segment against its checksum. Returns how many; JournalDamagedError names the first."""
        segments = [segment for commit in self.commits() for segment in commit.segments]
        for segment in segments:
            check_segment(segment)
        return len(segments)

    def _newest(self) -> Commit | None:
        with self._lock:
            if self._index.newest is None:
                self._index.need(self._index.head - 1)
            return self._index.newest

    def _known_version(self, table: TableId, number: int) -> int:
        """The version at ``number``; before the table was first seen, the first one it had."""
        kept = self.schemas.versions(table)
        if len(kept) == 1 and self._index.loaded > self._index.origin.trimmed:
            return next(iter(kept))  # no commit can name another: none has to be read to know
        version = self._index.version_at(table, number)
        if version is None:
            beginnings, entries = self.schemas[table].beginnings, self._index.entries(table)
            version = beginnings[0].version if beginnings else entries[0].schema_version if entries else None
        if version is None:
            raise JournalError(f"the journal has never seen table {table}")
        return version

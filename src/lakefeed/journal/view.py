"""JournalView: all queries on a journal. CommitIndex: the commits behind the answers."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from lakefeed.change.change_set import RecopyNeeded
from lakefeed.change.position import Position
from lakefeed.change.segment import Segment, StaleReason, Window
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import JournalDamagedError, JournalError
from lakefeed.journal.commit import Commit, Origin, Predecessor, TableCommit
from lakefeed.journal.layout import Layout
from lakefeed.journal.schema_history import SchemaHistory
from lakefeed.journal.segment_file import check_segment, check_size, newest_time
from lakefeed.storage.base import Storage

_FETCHED_FOR_TIME_BYTES = 8 * 1024 * 1024


class NotInMemoryError(Exception):
    """The answer is in a commit file that has not been read yet. Never leaves the view."""


class CommitIndex:
    """Change sets (trimmed, head], without a gap. In memory only, and not thread-safe: the view guards it.

    The newest ones, above ``loaded``, are in memory; the view reads older ones when a query needs them, newest first
    and each once. ``newest``: the commit of ``head``; None if there is none. ``disk_bytes``: the disk space of change
    sets, by number, as far as it is known.
    """

    def __init__(
        self, origin: Origin, schemas: SchemaHistory, *, head: int, disk_bytes: Mapping[int, int] | None = None
    ) -> None:
        self.origin = origin
        self.schemas = schemas
        self.head = self.loaded = head
        self.newest: Commit | None = None
        self.disk_bytes = dict(disk_bytes or {})
        self._commits: list[Commit] = []
        self._numbers: dict[TableId, list[int]] = {}
        self._entries: dict[TableId, list[TableCommit]] = {}

    def add(self, commit: Commit) -> None:
        if commit.number != self.head + 1:
            raise JournalError(f"change set {commit.number} cannot follow {self.head}")
        self.head, self.newest = commit.number, commit
        self.disk_bytes[commit.number] = commit.disk_bytes
        self._commits.append(commit)
        for table, entry in commit.tables.items():
            self._numbers.setdefault(table, []).append(commit.number)
            self._entries.setdefault(table, []).append(entry)

    def add_older(self, commits: Iterable[Commit]) -> None:
        """Add commits up to ``loaded``, as many as were read. Leaves out those that have been trimmed meanwhile."""
        older = [commit for commit in commits if self.origin.trimmed < commit.number <= self.loaded]
        known = self._commits[:1]
        for before, commit in itertools.pairwise([*older, *known]):
            if commit.start != before.end:
                raise JournalDamagedError(f"change set {commit.number} does not start where the previous one ends")
        if not older:
            return
        self.loaded = older[0].number - 1
        self._commits[:0] = older
        self.newest = self._commits[-1]
        numbers: dict[TableId, list[int]] = {}
        entries: dict[TableId, list[TableCommit]] = {}
        for commit in older:
            self.disk_bytes[commit.number] = commit.disk_bytes
            for table, entry in commit.tables.items():
                numbers.setdefault(table, []).append(commit.number)
                entries.setdefault(table, []).append(entry)
        for table, found in numbers.items():
            self._numbers[table] = found + self._numbers.get(table, [])
            self._entries[table] = entries[table] + self._entries.get(table, [])

    def without(self, origin: Origin) -> CommitIndex:
        """The index without everything up to ``origin.trimmed``."""
        index = CommitIndex(origin, self.schemas, head=self.head)
        index.disk_bytes = {number: size for number, size in self.disk_bytes.items() if number > origin.trimmed}
        index.loaded = max(self.loaded, origin.trimmed)
        index._commits = self._commits[index.loaded - self.loaded :]
        index.newest = index._commits[-1] if index._commits else None
        for table, numbers in self._numbers.items():
            first = bisect_right(numbers, origin.trimmed)
            if first < len(numbers):
                index._numbers[table], index._entries[table] = numbers[first:], self._entries[table][first:]
        return index

    def commits(self, after: int, upto: int) -> list[Commit]:
        """The commits in (after, upto]. JournalError if some have been trimmed or do not exist yet; NotInMemoryError if
        some have not been read."""
        if after < self.origin.trimmed:
            raise JournalError(
                f"change sets {after + 1} to {self.origin.trimmed} have been trimmed from the journal",
                remedy="Remove the lake table and start the pipeline again: it then copies the table.",
            )
        if upto > self.head:
            raise JournalError(f"change set {upto} is not in the journal yet; its head is {self.head}")
        if upto > after and after < self.loaded:
            raise NotInMemoryError
        return self._commits[after - self.loaded : max(after, upto) - self.loaded] if upto > after else []

    def segments(self, table: TableId, after: int, upto: int) -> tuple[Segment, ...]:
        """One table's segments in (after, upto], in seq order."""
        numbers = self._numbers.get(table, [])
        entries = self._entries.get(table, [])[bisect_right(numbers, after) : bisect_right(numbers, upto)]
        found = [segment for entry in entries for segment in entry.segments]
        return tuple(sorted(found, key=lambda segment: segment.first_seq))

    def segments_upto(self, number: int) -> list[Segment]:
        """The segments of all tables up to a change set, as far as they are in memory."""
        return [segment for commit in self._commits[: max(0, number - self.loaded)] for segment in commit.segments]

    def version_at(self, table: TableId, number: int) -> int | None:
        """The newest schema version known at or before ``number``: from a commit, a beginning or the trim.

        NotInMemoryError if a commit that is not in memory may have it.
        """
        found = bisect_right(self._numbers.get(table, []), number)
        if not found and self.loaded > self.origin.trimmed:
            history = self.schemas[table]
            is_named = table in self.origin.versions or history.beginnings
            if len(history.versions) > int(bool(is_named)):  # with a single version, no commit can name another
                raise NotInMemoryError
        since, version = self.origin.trimmed, self.origin.versions.get(table)
        if found:
            since, version = self._numbers[table][found - 1], self._entries[table][found - 1].schema_version
        begun = [one for one in self.schemas[table].beginnings if one.number <= number]
        return begun[-1].version if begun and (version is None or begun[-1].number > since) else version

    def entries(self, table: TableId) -> list[TableCommit]:
        """The entries for a table in all commits in memory, oldest first."""
        return self._entries.get(table, [])


class JournalView:
    """The retained change sets (trimmed, head]. Satisfies ``lake.base.ChangeLog``.

    Threads: any method from any thread, while the journal grows and is trimmed. A change set becomes visible only after
    its commit is durable. ``head``, ``last_seq``, ``committed_rows`` and ``trimmed`` never move back.

    ``load`` reads one commit file; if the writer has trimmed it meanwhile, it returns the current origin.
    """

    def __init__(self, layout: Layout, index: CommitIndex, load: Callable[[int], Commit | Origin]) -> None:
        self._layout = layout
        self._index = index
        self.schemas = index.schemas
        self._load = load
        self._lock = threading.Lock()  # guards the index; held for memory work only, never during I/O
        self._loading = threading.Lock()  # one thread at a time reads older commits
        self._sound: set[str] = set()  # segments with a verified checksum

    @property
    def head(self) -> int:
        """The number of the newest change set; 0 if there is none."""
        with self._lock:
            return self._index.head

    @property
    def trimmed(self) -> int:
        """Change sets up to this number are gone; 0 if none is."""
        with self._lock:
            return self._index.origin.trimmed

    @property
    def end(self) -> Position | None:
        """The position that the journal has reached, which is its checkpoint. None in an empty journal."""
        newest = self._newest()
        return newest.end if newest else None

    @property
    def last_seq(self) -> int:
        """The highest seq ever given to a row; 0 if there was no row."""
        newest = self._newest()
        return newest.last_seq if newest else 0

    @property
    def committed_rows(self) -> int:
        """Rows of all change sets ever appended, trimmed ones too."""
        newest = self._newest()
        return newest.committed_rows if newest else 0

    @property
    def identity(self) -> str | None:
        """The identity of the source that the journal belongs to; None until it is set."""
        with self._lock:
            return self._index.origin.identity

    @property
    def predecessors(self) -> tuple[Predecessor, ...]:
        """The servers that were the source before fail-overs, oldest first."""
        with self._lock:
            return self._index.origin.predecessors

    def commits(self, after: int = 0, upto: int | None = None) -> Iterator[Commit]:
        """The retained commits in (after, upto], in order, without trimmed ones. ``upto`` None means up to the head."""
        while True:
            self._need(after)
            with self._lock, suppress(NotInMemoryError):  # a reader that was far behind has begun again meanwhile
                last = self._index.head if upto is None else min(upto, self._index.head)
                return iter(self._index.commits(max(after, self._index.origin.trimmed), last))

    def commit(self, number: int) -> Commit:
        """One retained commit. JournalError if it was trimmed or does not exist yet."""
        found = self._find(number)
        if isinstance(found, Commit):
            return found
        retained = f"it has {found.trimmed + 1} to {self.head}" if self.head else "it is empty"
        raise JournalError(f"the journal does not have change set {number}: {retained}")

    def position(self, number: int) -> Position | None:
        """The end position of a change set; None if it was trimmed, and for 0, which is before the first."""
        found = self._find(number)
        if isinstance(found, Commit):
            return found.end
        return None if number <= found.trimmed else self.commit(number).end

    def window(self, table: TableId, after: int, upto: int) -> Window:
        """All changes of one table in (after, upto]. JournalError if some have been trimmed. Reads no segment."""
        while True:
            self._need(after)
            if len(self.schemas[table].versions) > 1:
                self.version_at(table, after)  # loads it into memory
            with self._lock, suppress(NotInMemoryError):  # as in ``commits``
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
                break
        end = covered[-1].end if covered else self.position(upto)
        between = range(min(before, target), max(before, target) + 1)
        wanted = {target, *between, *(segment.schema_version for segment in segments)}
        kept = self.schemas.versions(table)
        schemas = {version: kept[version] for version in sorted(wanted) if version in kept}
        return Window(table, after, upto, end, segments, self.schema(table, target), schemas, stale_reasons=stale)

    def check(self, window: Window) -> None:
        """Compare the window's segments with their checksums. JournalDamagedError names the first damaged one.

        Call this before reading the rows of a window. A segment never changes, so this journal verifies each one once:
        the cost is one pass over each file, which is usually still in the page cache.
        """
        for segment in window.segments:
            if segment.path not in self._sound:
                self._check(segment)
                self._sound.add(segment.path)
            elif self.root.is_remote:
                self.fetch(segment)  # its copy may have been released meanwhile

    def schema(self, table: TableId, version: int) -> TableSchema:
        """One version of a table's schema. JournalError if it never existed, or retention has dropped it."""
        found = self.schemas[table].versions.get(version)
        if found is None:
            raise JournalError(f"the journal has no version {version} of the schema of {table}, or no longer has it")
        return found.schema

    def version_at(self, table: TableId, number: int) -> int | None:
        """The table's schema version after change set ``number``; None if the table was not known then."""
        try:
            with self._lock:
                return self._index.version_at(table, number)
        except NotInMemoryError:
            self._need(0)
            with self._lock:
                return self._index.version_at(table, number)

    def latest_schema(self, table: TableId) -> TableSchema | None:
        """The schema in effect for the next change set; None for a table that the journal does not know."""
        version = self.version_at(table, self.head + 1)
        return self.schema(table, version) if version is not None else None

    def backlog_bytes(self, after: int) -> int:
        """The disk space of the retained change sets above ``after``, including commit files."""
        with self._lock:
            is_known = self._index.loaded <= after or self._index.loaded in self._index.disk_bytes
        if not is_known:
            self._need(after)
        with self._lock:
            return sum(size for number, size in self._index.disk_bytes.items() if number > after)

    def verify(self) -> int:
        """Compare every retained segment with its checksum. Returns how many; JournalDamagedError names the first."""
        segments = [segment for commit in self.commits() for segment in commit.segments]
        for segment in segments:
            self._check(segment)
            self.root.release([self.root.name_of(segment.path)])
        return len(segments)

    def newest_time(self, segment: Segment) -> float | None:
        """Commit time, in the source, of the newest change in a segment. None if trimmed, or too large to fetch."""
        if self.root.is_remote and segment.bytes > _FETCHED_FOR_TIME_BYTES:
            return None
        try:
            self.fetch(segment)
        except JournalDamagedError:
            return None
        return newest_time(segment)

    @property
    def root(self) -> Storage:
        """The storage of the journal."""
        return self._layout.root

    def fetch(self, segment: Segment) -> None:
        """Make a segment readable at its path: on an object store, by downloading it."""
        name = self.root.name_of(segment.path)
        try:
            self.root.fetch(name)
        except FileNotFoundError:
            check_size(segment, None, self.root.place(name))

    def release(self) -> None:
        """Give back the local copies of all segments that this object knows: nobody reads them through it any more."""
        with self._lock:
            known = self._index.segments_upto(self._index.head)
        self._let_go(known)

    def _let_go(self, segments: Iterable[Segment]) -> None:
        paths = [segment.path for segment in segments]
        self._sound.difference_update(paths)
        self.root.release(map(self.root.name_of, paths))

    def _check(self, segment: Segment) -> None:
        self.fetch(segment)
        try:
            check_segment(segment)
        except JournalDamagedError:
            self.root.release([self.root.name_of(segment.path)])  # so that the next try downloads it again
            raise

    def _newest(self) -> Commit | None:
        with self._lock:
            return self._index.newest

    def _find(self, number: int) -> Commit | Origin:
        """One commit, from memory or from its file; the origin if the journal does not have it."""
        with self._lock:
            index = self._index
            if index.loaded < number <= index.head:
                return index.commits(number - 1, number)[0]
        return self._load(number) if index.origin.trimmed < number <= index.head else index.origin

    def _need(self, after: int) -> None:
        """Load every retained commit above ``after`` into memory; reads at least as many as are loaded already."""
        with self._loading:
            with self._lock:
                index = self._index
                wanted, count = max(after, index.origin.trimmed), index.head - index.loaded
            if wanted >= index.loaded:
                return
            older: list[Commit] = []
            for number in range(index.loaded, max(index.origin.trimmed, min(wanted, index.loaded - count)), -1):
                found = self._load(number)
                if isinstance(found, Origin):  # trimmed meanwhile; what the reader has in memory stays
                    trimmed = min(found.trimmed, index.head - 1)
                    with self._lock:
                        self._index = self._index.without(replace(found, trimmed=trimmed))
                    break
                older.append(found)
            with self._lock:
                self._index.add_older(reversed(older))

    def _known_version(self, table: TableId, number: int) -> int:
        """The version at ``number``; before the table first appeared, its first version."""
        kept = self.schemas.versions(table)
        if len(kept) == 1 and self._index.loaded > self._index.origin.trimmed:
            return next(iter(kept))  # no commit can name another
        version = self._index.version_at(table, number)
        if version is None:
            beginnings, entries = self.schemas[table].beginnings, self._index.entries(table)
            version = beginnings[0].version if beginnings else entries[0].schema_version if entries else None
        if version is None:
            raise JournalError(f"the journal has never seen table {table}")
        return version

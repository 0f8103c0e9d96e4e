"""CommitIndex: the retained commits in memory, so that no question of the lake or of status reads a file.

Not thread-safe by itself: the journal guards it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from lakefeed.change.segment import Segment
from lakefeed.change.table import TableId
from lakefeed.errors import JournalError
from lakefeed.journal.commit import Commit, TableCommit
from lakefeed.journal.origin import Origin


class CommitIndex:
    """Change sets (trimmed, head], without a gap."""

    def __init__(self, origin: Origin, commits: Iterable[Commit] = ()) -> None:
        self.origin = origin
        self._commits: list[Commit] = []
        self._bytes_upto: list[int] = []
        self._numbers: dict[TableId, list[int]] = {}
        self._entries: dict[TableId, list[TableCommit]] = {}
        for commit in commits:
            self.add(commit)

    @property
    def head(self) -> int:
        return self.origin.trimmed + len(self._commits)

    @property
    def newest(self) -> Commit | None:
        return self._commits[-1] if self._commits else None

    def add(self, commit: Commit) -> None:
        if commit.number != self.head + 1:
            raise JournalError(f"change set {commit.number} cannot follow {self.head}")
        before = self._bytes_upto[-1] if self._bytes_upto else 0
        self._commits.append(commit)
        self._bytes_upto.append(before + commit.bytes)
        for table, entry in commit.tables.items():
            self._numbers.setdefault(table, []).append(commit.number)
            self._entries.setdefault(table, []).append(entry)

    def without(self, origin: Origin) -> CommitIndex:
        """The index after everything up to ``origin.trimmed`` has gone."""
        return CommitIndex(origin, self.commits(origin.trimmed, self.head))

    def commit(self, number: int) -> Commit:
        place = number - self.origin.trimmed - 1
        if not 0 <= place < len(self._commits):
            retained = f"it has {self.origin.trimmed + 1} to {self.head}" if self._commits else "it is empty"
            raise JournalError(f"the journal does not have change set {number}: {retained}")
        return self._commits[place]

    def commits(self, after: int, upto: int) -> list[Commit]:
        """The commits in (after, upto]. JournalError if part of them has been trimmed or is not there yet."""
        if after < self.origin.trimmed:
            raise JournalError(
                f"change sets {after + 1} to {self.origin.trimmed} have been trimmed from the journal",
                remedy="Remove the lake table and start the pipeline again: it is then copied anew.",
            )
        if upto > self.head:
            raise JournalError(f"change set {upto} is not in the journal yet; its head is {self.head}")
        return self._commits[after - self.origin.trimmed : max(after, upto) - self.origin.trimmed]

    def segments(self, table: TableId, after: int, upto: int) -> tuple[Segment, ...]:
        """One table's segments in (after, upto], in seq order."""
        numbers = self._numbers.get(table, [])
        entries = self._entries.get(table, [])[bisect_right(numbers, after) : bisect_right(numbers, upto)]
        found = [segment for entry in entries for segment in entry.segments]
        return tuple(sorted(found, key=lambda segment: segment.first_seq))

    def version_entry(self, table: TableId, number: int) -> tuple[int, int] | None:
        """(change set, version) of the newest statement about a table's schema at or before ``number``."""
        place = bisect_right(self._numbers.get(table, []), number)
        if place:
            return self._numbers[table][place - 1], self._entries[table][place - 1].schema_version
        version = self.origin.versions.get(table)
        return (self.origin.trimmed, version) if version is not None else None

    def first_version(self, table: TableId) -> int | None:
        """The version of the earliest retained commit that names the table."""
        entries = self._entries.get(table)
        return entries[0].schema_version if entries else None

    def versions_used(self, table: TableId) -> set[int]:
        """Every version that a retained commit or segment of the table refers to."""
        entries = self._entries.get(table, [])
        used = {entry.schema_version for entry in entries}
        return used | {segment.schema_version for entry in entries for segment in entry.segments}

    def bytes_after(self, number: int) -> int:
        """The size of all retained change sets above ``number``."""
        if not self._commits:
            return 0
        place = max(number - self.origin.trimmed, 0)
        before = self._bytes_upto[min(place, len(self._commits)) - 1] if place else 0
        return self._bytes_upto[-1] - before

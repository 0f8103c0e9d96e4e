"""TableFeed: one table's changes in a journal that somebody else may be writing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lakefeed.change.segment import Segment
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import ConfigError, JournalError
from lakefeed.journal.journal import Journal
from lakefeed.reading.options import STATE_FOLDER, ReadOptions, pipelines_at

_SHOWN_TABLES = 20


@dataclass(frozen=True, slots=True)
class Part:
    """One segment, and the number of its change set."""

    number: int
    segment: Segment


class TableFeed:
    """Change sets (trimmed, head] as of the last ``refresh``. Read-only; one thread."""

    def __init__(self, root: Path, journal: Journal, table: TableId) -> None:
        self.root = root
        self.table = table
        self._journal = journal

    @classmethod
    def open(cls, options: ReadOptions) -> TableFeed:
        """ConfigError if there is no journal, or if it has never seen the table."""
        root = options.journal
        if not (root / "commits").is_dir():
            lake = root.parent.parent if root.parent.name == STATE_FOLDER else None
            raise ConfigError(
                f"there is no journal at {root}",
                remedy=f"Correct 'path' and 'pipeline', or 'journal': {pipelines_at(lake)}."
                if lake
                else "Set 'journal' to a pipeline's state directory: <lake path>/_lakefeed/<pipeline>.",
            )
        journal = Journal.read(root)
        known = sorted(map(str, journal.schemas.tables()))
        if str(options.table) not in known:
            shown = ", ".join(known[:_SHOWN_TABLES]) or "no table yet"
            more = f" and {len(known) - _SHOWN_TABLES} more" if len(known) > _SHOWN_TABLES else ""
            raise ConfigError(
                f"the journal {root} has never seen table {options.table}",
                remedy=f"Set the option 'table' to one that it has seen: {shown}{more}.",
            )
        return cls(root, journal, options.table)

    def refresh(self) -> None:
        self._journal.refresh()

    @property
    def head(self) -> int:
        return self._journal.head

    @property
    def trimmed(self) -> int:
        return self._journal.trimmed

    @property
    def schemas(self) -> Mapping[int, TableSchema]:
        """Every version of the table's schema that is kept."""
        return self._journal.schemas.versions(self.table)

    def schema_at(self, number: int) -> TableSchema:
        """The schema in effect at the end of a change set; 0 means before the first."""
        return self._journal.window(self.table, number, number).target

    def parts(self, after: int, upto: int) -> list[Part]:
        """The table's segments in (after, upto], in order. JournalError if the journal does not have all of them."""
        commits = list(self._journal.commits(after, upto))
        self.check(after, upto)  # after reading them, which shows what has been trimmed since the last refresh
        return [
            Part(commit.number, segment)
            for commit in commits
            if self.table in commit.tables
            for segment in sorted(commit.tables[self.table].segments, key=lambda segment: segment.first_seq)
        ]

    def check(self, after: int, upto: int) -> None:
        """JournalError, saying what is missing, unless the journal has all of (after, upto]."""
        if after < self.trimmed:
            raise JournalError(
                f"change sets {after + 1} to {self.trimmed} of table {self.table} are needed, but they have been "
                f"trimmed from the journal {self.root}; it has {self.trimmed + 1} to {self.head}",
                remedy=f"Start again with start={self.trimmed + 1} (or earliest), a stream with a new checkpoint, and "
                "take what is missing from the lake table; raise journal.keep_change_sets, so that it covers the "
                "longest time that a reader may be away.",
            )
        last = max(after, upto)
        if last > self.head:
            raise JournalError(
                f"change set {last} of table {self.table} is needed, but the journal {self.root} ends with {self.head}",
                remedy="Wait for the pipeline, or ask for less; a stream whose journal was made again needs a new "
                "checkpoint.",
            )

    def position(self, number: int) -> str:
        """Where a change set ends, encoded; empty if the journal does not know it (any more)."""
        for commit in self._journal.commits(max(number - 1, 0), number):
            if commit.number == number:
                return commit.end.encode()
        for commit in self._journal.commits(number, number + 1):  # its start is the end of the previous one
            if commit.number == number + 1 and commit.start is not None:
                return commit.start.encode()
        return ""

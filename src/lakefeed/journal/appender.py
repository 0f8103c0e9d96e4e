"""Appender: the steps of an append, from a change set to its commit file."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

from lakefeed.change.change_set import ChangeSet
from lakefeed.change.table import TableId
from lakefeed.errors import JournalError, LeaseError, StateError
from lakefeed.failpoint import hit
from lakefeed.journal.atomic import write_atomic
from lakefeed.journal.commit import Commit, StoredSegment, TableCommit, dump_commit
from lakefeed.journal.layout import Layout
from lakefeed.journal.lease import Lease
from lakefeed.journal.numbering import Numbering
from lakefeed.journal.options import JournalOptions
from lakefeed.journal.segment_writer import SegmentWriter
from lakefeed.journal.view import JournalView


class Appender:
    """Writes change sets after the newest one of ``view``, under ``lease``. See ``Journal.append`` for the contract.

    Belongs to one thread at a time. The caller shows the commit in memory when ``append`` has returned it.
    """

    def __init__(self, view: JournalView, layout: Layout, options: JournalOptions, lease: Lease) -> None:
        self._view = view
        self._layout = layout
        self._options = options
        self._lease = lease
        self._attempts = itertools.count()
        self._unknown: int | None = None  # a change set that may or may not be durable

    def check(self) -> None:
        """StateError if it takes no more, LeaseError if somebody else has become the writer."""
        if not self._lease.held:
            raise StateError("the journal is closed", remedy="Open it again with Journal.open.")
        if self._unknown is not None:
            raise StateError(
                f"change set {self._unknown} may or may not be durable",
                remedy="Close the journal and open it again; that finds out.",
            )
        self._lease.check()

    def append(self, change_set: ChangeSet) -> Commit:
        """Steps 1 to 3; all or nothing."""
        self.check()
        self._check_next(change_set)
        number = self._view.head + 1
        prefix = f"{number:020d}-{self._lease.generation}-{next(self._attempts)}"
        writer = SegmentWriter(self._layout, self._options, prefix=prefix, seq_base=self._view.last_seq + 1)
        try:
            numbering = self._write_segments(change_set, writer)
            stored = writer.finish()
            hit("journal.after_segments")
            commit = self._commit(change_set, _by_table(numbering.final_versions(), stored), writer.last_seq)
            self._publish(commit)
        except BaseException:
            self._undo(number, writer)
            raise
        return commit

    def _check_next(self, change_set: ChangeSet) -> None:
        """It starts where the journal ends (an empty one takes any start), does not go back, and says something."""
        reached = self._view.end
        if reached is not None and change_set.start != reached:
            raise JournalError(f"the change set starts at {change_set.start}, but the journal ends at {reached}")
        start = reached if reached is not None else change_set.start
        order = change_set.end.compare(start) if start is not None else 1
        if order == -1:
            raise JournalError(f"the change set ends at {change_set.end}, before its start {start}")
        if change_set.is_heartbeat and order == 0:
            raise StateError("a heartbeat that does not move the end is nothing to append", remedy="Skip it.")

    def _write_segments(self, change_set: ChangeSet, writer: SegmentWriter) -> Numbering:
        numbering = Numbering(self._view.schemas, self._view.latest_schema, change_set.end)
        for schema in change_set.schemas:  # 1: what is announced; the batches may bring more
            numbering.announce(schema)
        for batch in change_set.batches:  # 2
            writer.add(numbering.number(batch.schema), batch.data)
        if writer.rows != change_set.rows:
            raise JournalError(f"the batches had {writer.rows} rows, but the change set says {change_set.rows}")
        return numbering

    def _commit(self, change_set: ChangeSet, tables: dict[TableId, TableCommit], last_place: int | None) -> Commit:
        last_seq = self._view.last_seq
        return Commit(
            number=self._view.head + 1,
            start=change_set.start,
            end=change_set.end,
            identity=self._view.identity,
            last_seq=last_seq + 1 + last_place if last_place is not None else last_seq,
            committed_rows=self._view.committed_rows + change_set.rows,
            written_at=datetime.now(UTC),
            generation=self._lease.generation,
            tables=tables,
            notices=change_set.notices,
        )

    def _publish(self, commit: Commit) -> None:
        """Step 3. The lease is looked at as late as can be: nothing comes between that and the rename."""
        path = self._layout.commit(commit.number)

        def guard() -> None:
            hit("journal.before_commit")
            self._lease.check()
            if path.exists():
                raise LeaseError(f"{path} is there already: another writer has used the journal")

        data = dump_commit(commit, self._layout.root)
        write_atomic(path, data, fsync=self._options.fsync, before_rename=guard)
        hit("journal.after_commit")

    def _undo(self, number: int, writer: SegmentWriter) -> None:
        if self._layout.commit(number).exists():
            self._unknown = number
        else:
            writer.discard()


def _by_table(versions: dict[TableId, int], stored: tuple[StoredSegment, ...]) -> dict[TableId, TableCommit]:
    segments: dict[TableId, list[StoredSegment]] = {table: [] for table in versions}
    for item in stored:
        segments[item.segment.table].append(item)
    return {table: TableCommit(version, tuple(segments[table])) for table, version in versions.items()}

"""Journal: the durable, ordered, numbered change sets of one pipeline."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.durable import make_directory, replace_file
from lakefeed.errors import JournalError, LeaseError, SourceChangedError, StateError
from lakefeed.failpoint import hit
from lakefeed.journal.commit import Commit, TableCommit, dump_commit
from lakefeed.journal.layout import Layout, local_root
from lakefeed.journal.lease import Lease
from lakefeed.journal.options import JournalOptions
from lakefeed.journal.recovery import catch_up, load_retained, recover
from lakefeed.journal.schema_history import Beginning, Numbering, SchemaHistory
from lakefeed.journal.segment_file import SegmentWriter
from lakefeed.journal.view import CommitIndex, JournalView

log = logging.getLogger(__name__)

_TRIM_AT_ONCE = 1000
"""Change sets that one step of a trim takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimResult:
    """What one trim took. ``trimmed`` is the journal's mark after it."""

    trimmed: int
    change_sets: int = 0
    bytes: int = 0
    schemas: int = 0


class Journal(JournalView):
    """One directory, one writer. See JournalView for the questions; here is what changes it.

    ``append`` and ``record_schema`` wait for each other; ``trim`` runs beside them. Nothing moves back, and nothing
    is visible, in memory or to another process, before it is durable.
    """

    def __init__(self, layout: Layout, index: CommitIndex, options: JournalOptions, lease: Lease | None) -> None:
        super().__init__(layout, index, partial(load_retained, layout))
        self._options = options
        self._lease = lease
        self._attempts = itertools.count()
        self._unknown: int | None = None  # a change set that may or may not be durable
        self._folders: dict[TableId, Path] = {}
        self._writing = threading.RLock()
        self._trimming = threading.Lock()

    @classmethod
    def open(cls, root: Path | str, *, identity: str | None = None, options: JournalOptions | None = None) -> Journal:
        """Become the journal's writer; an absent or empty directory is a new journal.

        Takes the lease (LeaseError names the holder), checks the newest commit files and the sizes of their segments
        (JournalDamagedError names the file), removes the litter of a crash. Of a long journal, older commit files are
        read and checked when they are needed. SourceChangedError if the journal belongs to another source than
        ``identity``.
        """
        options = options or JournalOptions()
        layout = Layout(local_root(root))
        make_directory(layout.root, fsync=options.fsync)
        if options.keep_schemas is None:
            log.warning("no limit is set for the schema history of %s: it will grow unboundedly", layout.root)
        lease = Lease.acquire(layout.lease)
        try:
            index = recover(layout, fsync=options.fsync)
            if index.newest is not None:
                lease.outgrow(index.newest.generation)
            journal = cls(layout, index, options, lease)
            if identity is not None:
                journal.adopt(identity)
        except BaseException:
            lease.release()
            raise
        return journal

    @classmethod
    def read(cls, root: Path | str) -> Journal:
        """Read a journal that somebody else may be writing. ``refresh`` reads on; no lease, no change."""
        layout = Layout(local_root(root))
        schemas = SchemaHistory(layout.schemas)
        journal = cls(layout, catch_up(layout, schemas, None), JournalOptions(), None)
        schemas.load()  # after the commits: a version is durable before the commit that uses it
        return journal

    def refresh(self) -> None:
        """See what the writer has done since. The writer itself always knows, and has nothing to refresh."""
        if self._lease is not None:
            return
        index = catch_up(self._layout, self.schemas, self._index)
        self.schemas.load()  # after the commits, as above
        with self._lock:
            self._index = index

    def adopt(self, identity: str) -> None:
        """Name the source that the journal belongs to, for ever. SourceChangedError if it is another's."""
        with self._writing, self._trimming:
            self._require_lease()
            known = self._index.origin.identity
            if known == identity:
                return
            if known is not None:
                raise SourceChangedError(f"the journal {self._layout.root} belongs to {known}, not to {identity}")
            origin = replace(self._index.origin, identity=identity)
            origin.save(self._layout.origin, fsync=self._options.fsync)
            with self._lock:
                self._index.origin = origin

    def append(self, change_set: ChangeSet) -> Commit:
        """Make a change set durable and give it the next number. When this returns, the source may forget it.

        1. number its schemas; a new version is durable before anything uses it
        2. write its segments, fsync them and their directories
        3. write the commit file to a temporary name, check the lease, rename, fsync the directory
        4. show it in memory

        If it raises, the change set does not exist and its files are gone; the same change set can be appended
        again. One exception: when step 3 fails after the rename, nobody knows whether the change set is durable. Then
        this journal takes nothing more, and opening it again finds out.
        A change set must start where the journal ends. A heartbeat is refused unless it moves the end.
        """
        with self._writing:
            lease = self._require_lease()
            index = self._index  # only an append adds to it; a trim replaces it, which moves neither head nor identity
            newest, number = index.newest, index.head + 1
            start, end = change_set.start, change_set.end
            if newest is not None and start != newest.end:  # an empty journal takes any start
                raise JournalError(f"the change set starts at {start}, but the journal ends at {newest.end}")
            order = end.compare(start) if start is not None else 1
            if order == -1:
                raise JournalError(f"the change set ends at {end}, before its start {start}")
            if order == 0 and change_set.is_heartbeat:
                raise StateError("a heartbeat that does not move the end is nothing to append", remedy="Skip it.")
            path = self._layout.commit(number)
            numbering = Numbering(self.schemas, lambda table: self.version_at(table, number), end)
            writer = SegmentWriter(
                self._layout,
                self._options,
                prefix=f"{number:020d}-{lease.generation}-{next(self._attempts)}",
                last_seq=newest.last_seq if newest else 0,
                durable_folders=self._folders,
            )

            def guard() -> None:
                """As late as can be: nothing comes between this and the rename."""
                hit("journal.before_commit")
                lease.check()
                if path.exists():
                    raise LeaseError(f"{path} is there already: another writer has used the journal")

            try:
                for schema in change_set.schemas:  # 1: what is announced; the batches may bring more
                    numbering.number(schema, announced=True)
                for batch in change_set.batches:  # 2
                    writer.add(numbering.number(batch.schema), batch.data)
                if writer.rows != change_set.rows:
                    raise JournalError(f"the batches had {writer.rows} rows, but the change set says {change_set.rows}")
                segments = writer.finish()
                hit("journal.after_segments")
                commit = Commit(
                    number=number,
                    start=start,
                    end=end,
                    identity=index.origin.identity,
                    last_seq=writer.last_seq,
                    committed_rows=(newest.committed_rows if newest else 0) + change_set.rows,
                    written_at=datetime.now(UTC),
                    generation=lease.generation,
                    tables={
                        table: TableCommit(version, tuple(segments.get(table, ())))
                        for table, version in sorted(numbering.final.items())
                    },
                    notices=change_set.notices,
                )
                data = dump_commit(commit, self._layout.root)
                commit = replace(commit, file_bytes=len(data))
                replace_file(path, data, fsync=self._options.fsync, before_rename=guard)  # 3
                hit("journal.after_commit")
            except BaseException:
                if path.exists():
                    self._unknown = number
                else:
                    writer.discard()
                raise
            with self._lock:  # 4
                self._index.add(commit)
            return commit

    def record_schema(self, schema: TableSchema, position: Position) -> TableSchema:
        """The schema with its version, in effect from the next change set on, durable on return. Idempotent.

        For a table that is about to be copied; a change set brings its own schemas. The same shape as the newest
        version gets that version, and so does one that is recorded again at a position where it was recorded before.
        """
        with self._writing:
            self._require_lease()
            following = self.head + 1
            numbered = self.schemas.record(schema, position, begins=following)
            if self.version_at(schema.table, following) != numbered.version:
                self.schemas.begin(schema.table, Beginning(following, numbered.version))
            return numbered

    def trim(self, applied: int, *, needed: Mapping[TableId, Collection[int]] | None = None) -> TrimResult:
        """Forget change sets up to ``applied`` (the lowest number inside all tables) that retention lets go.

        ``needed`` are schema versions that the lake still wants, beside those that retained change sets use. The newest
        ``keep_change_sets`` stay, and always the head: it carries the position, the last seq and the row count of all
        that came before.

        1. the trim mark is durable, with the schema versions in effect there
        2. windows below it are refused
        3. commit files go, oldest first, then their segments: a reader never finds a commit whose segments are gone
        4. schema versions that nothing needs go

        A crash in 3 leaves litter and no damage; the next open removes it. A long stretch is trimmed in several steps,
        so that memory and time of each are bounded.
        """
        with self._trimming:
            self._require_lease()
            head = self.head
            if applied > head:
                raise StateError(f"change set {applied} cannot be applied: the journal's head is {head}")
            mark = min(applied, head - max(self._options.keep_change_sets, 1))
            count = size = 0
            while self.trimmed < mark:
                gone = [self.commit(n) for n in range(self.trimmed + 1, min(mark, self.trimmed + _TRIM_AT_ONCE) + 1)]
                self._forget(gone)
                count += len(gone)
                size += sum(commit.bytes for commit in gone)
            schemas = sum(self._prune(table, (needed or {}).get(table, ())) for table in self.schemas.tables())  # 4
            return TrimResult(trimmed=self.trimmed, change_sets=count, bytes=size, schemas=schemas)

    def close(self) -> None:
        """Give the lease back. Idempotent; waits for an append or a trim that is under way."""
        with self._writing, self._trimming:
            if self._lease is not None:
                self._lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_lease(self) -> Lease:
        """StateError if it takes no more, LeaseError if somebody else has become the writer."""
        if self._lease is None:
            raise StateError("this journal was opened to be read only", remedy="Open it with Journal.open to write.")
        if not self._lease.held:
            raise StateError("the journal is closed", remedy="Open it again with Journal.open.")
        if self._unknown is not None:
            raise StateError(
                f"change set {self._unknown} may or may not be durable",
                remedy="Close the journal and open it again; that finds out.",
            )
        self._lease.check()
        return self._lease

    def _forget(self, gone: Sequence[Commit]) -> None:
        """Steps 1 to 3 of a trim for the oldest change sets."""
        origin, mark = self._index.origin, gone[-1].number  # only a trim moves it
        since = {table: (origin.trimmed, version) for table, version in origin.versions.items()}
        since |= {table: (one.number, entry.schema_version) for one in gone for table, entry in one.tables.items()}
        for table in self.schemas.tables():
            for begun in self.schemas[table].beginnings:
                if begun.number <= mark and (table not in since or begun.number > since[table][0]):
                    since[table] = (begun.number, begun.version)
        versions = {table: version for table, (_, version) in since.items()}
        origin = replace(origin, trimmed=mark, versions=versions)
        origin.save(self._layout.origin, fsync=self._options.fsync)  # 1
        with self._lock:  # 2
            self._index = self._index.without(origin)
        for commit in gone:  # 3
            self._layout.commit(commit.number).unlink(missing_ok=True)
        hit("journal.during_trim")
        for segment in (segment for commit in gone for segment in commit.segments):
            Path(segment.path).unlink(missing_ok=True)
            self._sound.discard(segment.path)

    def _prune(self, table: TableId, needed: Collection[int]) -> int:
        """Versions at or above the one in effect stay: an append under way may have recorded them."""
        wanted, keep_last = set(needed), self._options.keep_schemas
        if keep_last is not None and len(self.schemas[table].versions) > keep_last:
            self._need(0)
            with self._lock:
                in_effect = self._index.version_at(table, self._index.head + 1)
                at_trim = self._index.origin.versions.get(table)
                entries = list(self._index.entries(table))
            wanted |= {entry.schema_version for entry in entries}
            wanted |= {segment.schema_version for entry in entries for segment in entry.segments}
            wanted |= {one for one in self.schemas.versions(table) if in_effect is None or one >= in_effect}
            wanted |= {at_trim} if at_trim is not None else set()
        return self.schemas.prune(table, keep_last=keep_last, needed=wanted, trimmed=self.trimmed)

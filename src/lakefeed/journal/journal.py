"""Journal: the durable, ordered, numbered change sets of one pipeline."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import SourceChangedError, StateError
from lakefeed.journal import recovery
from lakefeed.journal.appender import Appender
from lakefeed.journal.commit import Commit
from lakefeed.journal.index import CommitIndex
from lakefeed.journal.layout import Layout, local_root
from lakefeed.journal.lease import Lease
from lakefeed.journal.options import JournalOptions
from lakefeed.journal.retention import TrimResult, remove_files, trim_mark
from lakefeed.journal.schema_history import Mark, SchemaHistory
from lakefeed.journal.view import JournalView

log = logging.getLogger(__name__)


class Journal(JournalView):
    """One directory, one writer. See JournalView for the questions; here is what changes it.

    ``append`` and ``record_schema`` wait for each other; ``trim`` runs beside them. Nothing moves back, and nothing
    is visible, in memory or to another process, before it is durable.
    """

    def __init__(
        self, layout: Layout, index: CommitIndex, schemas: SchemaHistory, options: JournalOptions, lease: Lease | None
    ) -> None:
        super().__init__(layout, index, schemas)
        self._options = options
        self._lease = lease
        self._appender = Appender(self, layout, options, lease) if lease is not None else None
        self._writing = threading.RLock()
        self._trimming = threading.Lock()

    @classmethod
    def open(cls, root: Path | str, *, identity: str | None = None, options: JournalOptions | None = None) -> Journal:
        """Become the journal's writer; an absent or empty directory is a new journal.

        Takes the lease (LeaseError names the holder), checks every commit file and the size of every segment
        (JournalDamagedError names the file), removes the litter of a crash. SourceChangedError if the journal belongs
        to another source than ``identity``.
        """
        options = options or JournalOptions()
        layout = Layout(local_root(root))
        layout.root.mkdir(parents=True, exist_ok=True)
        if options.keep_schemas is None:
            log.warning("no limit is set for the schema history of %s: it will grow unboundedly", layout.root)
        lease = Lease.acquire(layout.lease)
        try:
            index, schemas = _recover(layout, lease, options)
            journal = cls(layout, index, schemas, options, lease)
            if identity is not None:
                journal.adopt(identity)
        except BaseException:
            lease.release()
            raise
        return journal

    @classmethod
    def read(cls, root: Path | str) -> Journal:
        """Look at a journal that somebody else may be writing. ``refresh`` looks again; no lease, no change."""
        layout = Layout(local_root(root))
        options = JournalOptions()
        journal = cls(layout, CommitIndex(recovery.load_origin(layout)), SchemaHistory(layout.schemas), options, None)
        journal.refresh()
        return journal

    def refresh(self) -> None:
        """See what the writer has done since. The writer itself always knows, and has nothing to refresh."""
        if self._lease is not None:
            return
        index = recovery.catch_up(self._layout, self._index)
        self.schemas.load()  # after the commits: a version is durable before the commit that uses it
        with self._lock:
            self._index = index

    def adopt(self, identity: str) -> None:
        """Say which source the journal belongs to, once and for ever. SourceChangedError if it is another's."""
        with self._writing, self._trimming:
            self._writer()
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
        """Make a change set durable and give it the next number. When this returns, the source may be told.

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
            commit = self._writer().append(change_set)  # 1 to 3
            with self._lock:  # 4
                self._index.add(commit)
            return commit

    def record_schema(self, schema: TableSchema, position: Position) -> TableSchema:
        """The schema with its version, in effect from the next change set on, durable on return. Idempotent.

        For a table that is about to be copied; a change set brings its own schemas. The same shape as the newest
        version gets that version, and so does one that is recorded again at a position where it was recorded before.
        """
        with self._writing:
            self._writer()
            following = self.head + 1
            numbered = self.schemas.record(schema, position, begins=following)
            with self._lock:
                in_effect = self._version_at(schema.table, following)
            if in_effect != numbered.version:
                self.schemas.mark(schema.table, Mark(following, numbered.version))
            return numbered

    def trim(self, applied: int, *, needed: Mapping[TableId, Collection[int]] | None = None) -> TrimResult:
        """Forget change sets up to ``applied`` (the lowest number inside all tables) that retention lets go.

        ``needed`` are schema versions that the lake still wants, beside those that retained change sets use.

        1. the trim mark is durable, with the schema versions that held there
        2. windows below it are refused
        3. commit files go, oldest first, then their segments
        4. schema versions that nothing needs go
        """
        with self._trimming:
            self._writer()
            head = self.head
            if applied > head:
                raise StateError(f"change set {applied} cannot be applied: the journal's head is {head}")
            mark = trim_mark(head, applied, self._options)
            gone = self._move_origin(mark) if mark > self.trimmed else []
            remove_files(self._layout, gone)  # 3
            schemas = sum(self._prune(table, (needed or {}).get(table, ())) for table in self.schemas.tables())  # 4
            return TrimResult(
                trimmed=self.trimmed,
                change_sets=len(gone),
                bytes=sum(commit.bytes for commit in gone),
                schemas=schemas,
            )

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

    def _writer(self) -> Appender:
        if self._appender is None:
            raise StateError("this journal was opened to be read only", remedy="Open it with Journal.open to write.")
        self._appender.check()
        return self._appender

    def _move_origin(self, mark: int) -> list[Commit]:
        """Steps 1 and 2. Returns the commits that are gone for readers."""
        with self._lock:
            held = {table: self._version_at(table, mark) for table in self.schemas.tables()}
            versions = {table: version for table, version in held.items() if version is not None}
            origin = replace(self._index.origin, trimmed=mark, versions=versions)
            gone = self._index.commits(self._index.origin.trimmed, mark)
        origin.save(self._layout.origin, fsync=self._options.fsync)  # 1
        with self._lock:  # 2
            self._index = self._index.without(origin)
        return gone

    def _prune(self, table: TableId, needed: Collection[int]) -> int:
        """Versions at or above the one in effect stay: an append under way may have recorded them."""
        with self._lock:
            trimmed = self._index.origin.trimmed
            in_effect = self._version_at(table, self._index.head + 1)
            at_trim = self._index.origin.versions.get(table)
            used = self._index.versions_used(table)
        recent = {version for version in self.schemas.versions(table) if in_effect is None or version >= in_effect}
        wanted = used | recent | set(needed) | ({at_trim} if at_trim is not None else set())
        return self.schemas.prune(table, keep_last=self._options.keep_schemas, needed=wanted, trimmed=trimmed)


def _recover(layout: Layout, lease: Lease, options: JournalOptions) -> tuple[CommitIndex, SchemaHistory]:
    """Bring the directory into the state that its commit files describe, or say what is damaged."""
    recovery.create(layout, fsync=options.fsync)
    origin = recovery.load_origin(layout)
    commits = recovery.load_commits(layout, origin.trimmed)
    recovery.check_head(layout, origin, commits)
    recovery.check_segments(commits)
    removed = recovery.remove_litter(layout, origin.trimmed, commits)
    if removed:
        log.info("removed %d files of %s that no commit names", removed, layout.root)
    schemas = SchemaHistory(layout.schemas, fsync=options.fsync)
    schemas.load()
    recovery.check_schemas(commits, schemas)
    if not layout.origin.exists():
        origin.save(layout.origin, fsync=options.fsync)
    index = CommitIndex(origin, commits)
    if index.newest is not None:
        lease.outgrow(index.newest.generation)
    return index, schemas

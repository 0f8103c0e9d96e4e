"""Journal: the durable, ordered, numbered change sets of one pipeline."""

from __future__ import annotations

import itertools
import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import JournalError, LeaseError, LeaseLostError, SourceChangedError, StateError
from lakefeed.failpoint import hit
from lakefeed.journal.commit import Commit, Predecessor, TableCommit, dump_commit
from lakefeed.journal.layout import Layout
from lakefeed.journal.lease import Lease, acquire_lease
from lakefeed.journal.options import JournalOptions
from lakefeed.journal.pin import open_pins, pinned_below
from lakefeed.journal.recovery import catch_up, load_retained, recover
from lakefeed.journal.schema_history import Beginning, Numbering, SchemaHistory
from lakefeed.journal.segment_file import SegmentWriter
from lakefeed.journal.store_lease import StoreLease
from lakefeed.journal.view import CommitIndex, JournalView
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at

log = logging.getLogger(__name__)

_TRIM_AT_ONCE = 1000
"""How many change sets one step of a trim removes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimResult:
    """What one trim removed. ``trimmed`` is the journal's mark after it."""

    trimmed: int
    change_sets: int = 0
    bytes: int = 0
    schemas: int = 0


class Journal(JournalView):
    """One location, one writer. JournalView has the queries; this class has what changes the journal.

    ``append`` and ``record_schema`` exclude each other; ``trim`` runs beside them. Nothing moves back, and nothing is
    visible, in memory or to another process, before it is durable.
    """

    def __init__(
        self, layout: Layout, index: CommitIndex, options: JournalOptions, lease: Lease | StoreLease | None
    ) -> None:
        super().__init__(layout, index, partial(load_retained, layout))
        self._options = options
        self._lease = lease
        self._attempts = itertools.count()
        self._unknown: int | None = None  # a change set that may or may not be durable
        self._pins = layout.root.below(layout.pins)
        self._writing = threading.RLock()
        self._trimming = threading.Lock()

    @classmethod
    def open(
        cls, root: Path | str | Storage, *, identity: str | None = None, options: JournalOptions | None = None
    ) -> Journal:
        """Become the journal's writer. An absent or empty location becomes a new journal.

        Takes the lease (a LeaseError names the holder), checks the newest commit files and the sizes of their segments
        (a JournalDamagedError names the file), and removes the litter of a crash. Older commit files of a long journal
        are read and checked when they are needed. SourceChangedError if the journal belongs to another source than
        ``identity``.
        """
        options = options or JournalOptions()
        storage = storage_at(root)
        layout = Layout((storage if options.fsync else storage.without_fsync()).below())
        if layout.root.directory is not None:  # the lease is a file in it; a store has no directories
            layout.root.make_folder()
        if options.keep_schemas is None:
            log.warning("no limit is set for the schema history of %s: it will grow unboundedly", layout.root)
        lease = acquire_lease(layout.root, layout.lease, seconds=options.lease_seconds)
        try:
            index = recover(layout)
            if index.newest is not None:
                lease.outgrow(index.newest.generation)
            journal = cls(layout, index, options, lease)
            if identity is not None:
                journal.adopt(identity)
        except BaseException:
            lease.release()
            raise
        return journal

    def renew_while(self, is_alive: Callable[[], bool]) -> None:
        """From now on renew the lease only while that is so. A lease of the kernel's is not renewed."""
        if isinstance(self._lease, StoreLease):
            self._lease.is_alive = is_alive

    @classmethod
    def read(cls, root: Path | str | Storage) -> Journal:
        """Read a journal that somebody else may be writing. ``refresh`` catches up. Takes no lease, changes nothing."""
        layout = Layout(storage_at(root).below())
        schemas = SchemaHistory(layout.root, layout.schemas)
        journal = cls(layout, catch_up(layout, schemas, None), JournalOptions(), None)
        schemas.load()  # after the commits: a version is durable before the commit that uses it
        return journal

    def refresh(self) -> None:
        """See what the writer has done since. Does nothing for the writer itself."""
        if self._lease is not None:
            return
        with self._loading:  # what another thread adds meanwhile would be lost, or be there twice
            before = self._index
            index = catch_up(self._layout, self.schemas, before)
            self.schemas.load()  # after the commits, as above
            with self._lock:
                self._index = index
        self._let_go(before.segments_upto(index.origin.trimmed))

    def adopt(self, identity: str, *, succeeds: str | None = None) -> None:
        """Set the source that the journal belongs to. SourceChangedError if it belongs to another one, unless
        ``identity`` ``succeeds`` that one, as a promoted standby does: then that is recorded."""
        with self._writing, self._trimming:
            self._require_lease()
            known = self._index.origin.identity
            if known == identity:
                return
            if known not in (None, succeeds):
                raise SourceChangedError(f"the journal {self._layout.root} belongs to {known}, not to {identity}")
            origin = replace(self._index.origin, identity=identity)
            if known is not None:
                now = datetime.now(UTC).isoformat(timespec="seconds")
                last = Predecessor(known, self.head, str(self.end), now)
                origin = replace(origin, predecessors=(*origin.predecessors, last))
            origin.save(self._layout.root, self._layout.origin)
            with self._lock:
                self._index.origin = origin

    def append(self, change_set: ChangeSet) -> Commit:
        """Make a change set durable and give it the next number. Once this returns, the source may forget it.

        1. number its schemas; a new version is durable before anything uses it
        2. write its segments, durably and under their names
        3. check the lease, and create the commit file: of two writers, one gets the number
        4. show it in memory

        If it raises, the change set does not exist and its files are gone; the same change set can be appended again.
        One exception: if step 3 fails late, it is not known whether the change set is durable. Then this journal
        accepts nothing more, and opening it again finds out.
        A change set must start where the journal ends. A heartbeat that does not move the end is refused.
        """
        with self._writing:
            lease = self._require_lease()
            index = self._index  # only an append adds to it; a trim replaces it, but changes neither head nor identity
            newest, number = index.newest, index.head + 1
            start, end = change_set.start, change_set.end
            if newest is not None and start != newest.end:  # an empty journal takes any start
                raise JournalError(f"the change set starts at {start}, but the journal ends at {newest.end}")
            order = end.compare(start) if start is not None else 1
            if order == -1:
                raise JournalError(f"the change set ends at {end}, before its start {start}")
            if order == 0 and change_set.is_heartbeat:
                raise StateError("a heartbeat that does not move the end cannot be appended", remedy="Skip it.")
            root, name = self._layout.root, self._layout.commit(number)
            numbering = Numbering(self.schemas, lambda table: self.version_at(table, number), end)
            writer = SegmentWriter(
                self._layout,
                self._options,
                prefix=f"{number:020d}-{lease.generation}-{next(self._attempts)}",
                last_seq=newest.last_seq if newest else 0,
            )
            is_under_way = False

            def guard() -> None:
                """Called as late as possible: nothing happens between this and the creation."""
                nonlocal is_under_way
                hit("journal.before_commit")
                lease.check()
                is_under_way = True

            try:
                for schema in change_set.schemas:  # 1: the announced ones; the batches may have more
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
                data = dump_commit(commit, root)
                commit = replace(commit, file_bytes=len(data))
                root.create(name, data, before=guard)  # 3
                hit("journal.after_commit")
            except FileExistsError as error:
                self._unknown = number  # it is somebody else's; opening the journal again finds out what it has
                writer.discard()
                place = root.place(name)
                lost = LeaseLostError if root.is_remote else LeaseError
                raise lost(f"{place} already exists: another writer has used the journal") from error
            except BaseException:
                # On an object store the request may still arrive, so the segments must stay.
                if is_under_way and (root.is_remote or root.size(name) is not None):
                    self._unknown = number
                else:
                    writer.discard()
                raise
            with self._lock:  # 4
                self._index.add(commit)
            return commit

    def record_schema(self, schema: TableSchema, position: Position) -> TableSchema:
        """The schema with its version, in effect from the next change set on; durable on return. Idempotent.

        For a table that is about to be copied; a change set brings its own schemas. A schema equal to the newest
        version gets that version, and so does one recorded again at a position where it was recorded before.
        """
        with self._writing:
            self._require_lease()
            following = self.head + 1
            numbered = self.schemas.record(schema, position, begins=following)
            if self.version_at(schema.table, following) != numbered.version:
                self.schemas.begin(schema.table, Beginning(following, numbered.version))
            return numbered

    def trim(self, applied: int, *, needed: Mapping[TableId, Collection[int]] | None = None) -> TrimResult:
        """Remove change sets up to ``applied`` (the lowest number that all tables have) that retention does not keep.

        ``needed`` are schema versions that the lake still needs, besides those that retained change sets use. What
        stays: see ``trim_mark``.

        1. the trim mark becomes durable, with the schema versions in effect there; see ``pin``
        2. windows below it are refused
        3. commit files are removed, oldest first, then their segments: a reader never finds a commit without segments
        4. schema versions that nothing needs are removed

        A crash in 3 leaves litter and no damage; the next open removes it. A long range is trimmed in several steps, so
        that each takes bounded memory and time.
        """
        with self._trimming:
            self._require_lease()
            head = self.head
            if applied > head:
                raise StateError(f"change set {applied} cannot be applied: the journal's head is {head}")
            mark = self.trim_mark(applied)
            count = size = 0
            while self.trimmed < mark:
                first, last = self.trimmed + 1, min(mark, self.trimmed + _TRIM_AT_ONCE)
                last = pinned_below(self._pins, last)  # a pin may have been made since
                gone = [self.commit(number) for number in range(first, last + 1)]
                if not gone:
                    break
                self._forget(gone)
                count += len(gone)
                size += sum(commit.bytes for commit in gone)
            self._release(applied)
            schemas = sum(self._prune(table, (needed or {}).get(table, ())) for table in self.schemas.tables())  # 4
            return TrimResult(trimmed=self.trimmed, change_sets=count, bytes=size, schemas=schemas)

    def trim_mark(self, applied: int) -> int:
        """Up to where ``trim`` would remove change sets now; at or below ``trimmed`` if there is nothing to remove.

        What stays: the newest ``keep_change_sets``, those younger than ``keep_seconds``, what a reader has pinned, and
        always the head: it has the position, the last seq and the row count of everything before it.
        """
        trimmed, options = self.trimmed, self._options
        mark = min(applied, self.head - max(options.keep_change_sets, 1))
        if mark > trimmed:
            mark = min([mark, *(pin.after for pin in open_pins(self._pins))])
        if mark > trimmed and options.keep_seconds:
            limit = datetime.now(UTC) - timedelta(seconds=options.keep_seconds)
            numbers = range(trimmed + 1, mark + 1)  # by bisection, since each may be a file to read
            mark = trimmed + bisect_right(numbers, limit, key=lambda number: self.commit(number).written_at)
        return mark

    def close(self) -> None:
        """Release the lease. Idempotent; waits for a running append or trim."""
        with self._writing, self._trimming:
            if self._lease is not None:
                self._lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_lease(self) -> Lease | StoreLease:
        """StateError if the journal accepts nothing more, LeaseError if somebody else has become the writer."""
        if self._lease is None:
            raise StateError("this journal was opened read-only", remedy="Open it with Journal.open to write.")
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
        origin, mark = self._index.origin, gone[-1].number  # only a trim moves the mark
        since = {table: (origin.trimmed, version) for table, version in origin.versions.items()}
        since |= {table: (one.number, entry.schema_version) for one in gone for table, entry in one.tables.items()}
        for table in self.schemas.tables():
            begun = [one for one in self.schemas[table].beginnings if one.number <= mark]
            # Several may begin at one number: the last one counts. A commit with that number overrides them.
            if begun and (table not in since or begun[-1].number > since[table][0]):
                since[table] = (begun[-1].number, begun[-1].version)
        versions = {table: version for table, (_, version) in since.items()}
        origin = replace(origin, trimmed=mark, versions=versions)
        origin.save(self._layout.root, self._layout.origin)  # 1
        with self._lock:  # 2
            self._index = self._index.without(origin)
        self.root.remove(self._layout.commit(commit.number) for commit in gone)  # 3
        hit("journal.during_trim")
        paths = [segment.path for commit in gone for segment in commit.segments]
        self.root.remove(self.root.name_of(path) for path in paths)
        self._sound.difference_update(paths)

    def _release(self, applied: int) -> None:
        """On an object store: remove local copies that no table needs any more."""
        if self.root.is_remote:
            done = [path for path in list(self._sound) if int(Path(path).name[:20]) <= applied]
            self.root.release(self.root.name_of(path) for path in done)
            self._sound.difference_update(done)

    def _prune(self, table: TableId, needed: Collection[int]) -> int:
        """Prune the versions of a table. Those from the current one on stay: a running append may have recorded
        them."""
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

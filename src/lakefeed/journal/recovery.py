"""Recovery: what a writer does before its first append, and how a reader finds the commits.

A crash leaves two kinds of litter, neither of which exists for a reader: files that no commit names, and files of
change sets at or below the trim mark. Both are removed. Everything else that is not as the commit files say is damage,
and damage is named, never repaired by forgetting: a pipeline that silently starts from zero is data loss.
"""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

from lakefeed.durable import fsync_directory, make_directory, remove_temporaries
from lakefeed.errors import JournalDamagedError
from lakefeed.journal.commit import Commit, Origin, load_commit
from lakefeed.journal.layout import Layout
from lakefeed.journal.schema_history import SchemaHistory
from lakefeed.journal.segment_file import check_size
from lakefeed.journal.view import CommitIndex

log = logging.getLogger(__name__)

READ_AT_OPEN = 1000
"""The newest commit files, which a writer reads when it opens the journal: more than retention keeps by itself."""

_ABANDONED_SECONDS = 3600.0
"""A temporary file of this age, where others than the lease's holder write too, has no writer any more."""


def recover(layout: Layout, *, fsync: bool) -> CommitIndex:
    """Bring the directory into the state that its commit files describe, or raise what is damaged. With the lease.

    1. the directories are there
    2. every commit above the trim mark is there; the newest are whole, and start where the one before them ends
    3. every segment that these name is there and has its size
    4. litter is removed
    5. every schema version that these use is there

    How many are the newest is bounded: a journal that has grown long, because a table is far behind, opens as fast as
    any other. An older commit is checked when it is read, and a segment always is.
    """
    create(layout, fsync=fsync)  # 1
    origin = load_origin(layout)
    numbers = present(layout, origin.trimmed)  # 2
    if origin.trimmed and not numbers:  # a trim never takes the head
        raise JournalDamagedError(f"{layout.commit(origin.trimmed + 1)} is missing: every commit file is gone")
    head = origin.trimmed + len(numbers)
    commits = load_commits(layout, max(origin.trimmed, head - READ_AT_OPEN))
    for commit in commits:  # 3
        for segment in commit.segments:
            check_size(segment)
    removed, disk_bytes = remove_litter(layout, origin.trimmed, head, commits)  # 4
    if removed:
        log.info("removed %d files of %s that no commit names", removed, layout.root)
    schemas = SchemaHistory(layout.schemas, fsync=fsync)
    schemas.load()
    for commit in commits:  # 5
        for table, entry in commit.tables.items():
            used = {entry.schema_version, *(segment.schema_version for segment in entry.segments)}
            for version in sorted(used - schemas.versions(table).keys()):
                raise JournalDamagedError(
                    f"{schemas.path(table)} lacks version {version} of {table}; change set {commit.number} uses it"
                )
    if not layout.origin.exists():
        origin.save(layout.origin, fsync=fsync)
    index = CommitIndex(origin, schemas, head=head, disk_bytes=disk_bytes)
    index.add_older(commits)
    return index


def create(layout: Layout, *, fsync: bool) -> None:
    """Make a new journal's directories, ``commits`` first: that it exists tells a new journal from a gutted one.

    A crash in here leaves some of them. Before the first commit the others are made now; after it they are lost.
    """
    missing = [folder for folder in (layout.commits, layout.segments, layout.schemas) if not folder.is_dir()]
    if missing and not is_new(layout) and layout.commit_numbers():
        raise JournalDamagedError(f"{missing[0]} is missing, but there are commit files")
    for folder in missing:
        make_directory(folder, fsync=fsync)
    if fsync:
        for folder in (layout.root.parent, layout.root, layout.segments):  # a crash may have come before their fsync
            fsync_directory(folder)


def is_new(layout: Layout) -> bool:
    """Nothing of a journal is there. JournalDamagedError if its commits alone are missing."""
    if layout.commits.is_dir():
        return False
    for trace in (layout.origin, layout.segments, layout.schemas):
        if trace.exists():
            raise JournalDamagedError(f"{layout.commits} is missing, but {trace} is there: this is no new journal")
    return True


def load_origin(layout: Layout) -> Origin:
    """The trim mark. It may only be missing while there is no commit yet."""
    if is_new(layout):
        return Origin()
    try:
        return Origin.load(layout.origin)
    except FileNotFoundError:
        if layout.commit_numbers():
            raise JournalDamagedError(f"{layout.origin} is missing, but there are commit files") from None
        return Origin()


def present(layout: Layout, after: int) -> range:
    """The numbers above ``after`` that have a commit file. JournalDamagedError for a gap."""
    numbers = [number for number in layout.commit_numbers() if number > after] if layout.commits.is_dir() else []
    for expected, number in enumerate(numbers, start=after + 1):
        if number != expected:
            raise JournalDamagedError(f"{layout.commit(expected)} is missing, but change set {number} is there")
    return range(after + 1, after + 1 + len(numbers))


def load_commits(layout: Layout, after: int) -> list[Commit]:
    """All commits above ``after``, in order. JournalDamagedError for a gap or a damaged file."""
    commits = [load_commit(layout.commit(number), layout.root) for number in present(layout, after)]
    for before, commit in itertools.pairwise(commits):
        if commit.start != before.end:
            raise JournalDamagedError(f"{layout.commit(commit.number)} does not start where the one before it ends")
    return commits


def load_retained(layout: Layout, number: int) -> Commit | Origin:
    """One commit, for a reader beside a writer; the origin, if the writer has trimmed that commit meanwhile."""
    try:
        return load_commit(layout.commit(number), layout.root)
    except JournalDamagedError:
        origin = load_origin(layout)
        if number > origin.trimmed:
            raise
        return origin


def catch_up(layout: Layout, schemas: SchemaHistory, index: CommitIndex | None) -> CommitIndex:
    """``index`` as the files are now, for a reader beside a writer: what is missing may just have been trimmed.

    A first index, or one that has fallen behind the trim mark, has the newest commit and reads others when asked.
    """
    while True:
        origin = load_origin(layout)
        try:
            if index is not None and index.origin.trimmed <= origin.trimmed <= index.head:
                fresh = index.without(origin)
                for commit in load_commits(layout, fresh.head):
                    fresh.add(commit)
                return fresh
            head = [origin.trimmed, *present(layout, origin.trimmed)][-1]
            fresh = CommitIndex(origin, schemas, head=head)
            fresh.add_older(load_commits(layout, head - 1) if head > origin.trimmed else [])
            return fresh
        except JournalDamagedError:
            if load_origin(layout).trimmed == origin.trimmed:
                raise


def remove_litter(layout: Layout, trimmed: int, head: int, commits: list[Commit]) -> tuple[int, dict[int, int]]:
    """Remove what a crash left behind. Returns how many files, and what each older change set takes on disk.

    ``commits`` are the newest. A segment of an older change set is left alone: whether its commit names it, or an
    attempt of that time could not remove it, is not looked up; the trim mark will pass it. A segment far above the head
    was never an unfinished append: its commit files are lost, and it is evidence.
    Temporary files are removed in the whole state directory, which has more in it than the journal.
    """
    oldest = head - len(commits)
    named = {segment.path for commit in commits for segment in commit.segments}
    litter = [layout.commit(number) for number in layout.commit_numbers() if number <= trimmed]
    disk_bytes = {number: layout.commit(number).stat().st_blocks * 512 for number in range(trimmed + 1, oldest + 1)}
    for number, path in layout.segment_files():
        if number > head + 1:
            raise JournalDamagedError(f"{layout.commit(head + 1)} is missing, but {path} was written after it")
        if trimmed < number <= oldest:
            disk_bytes[number] += path.stat().st_blocks * 512
        elif str(path) not in named:
            litter.append(path)
    for path in litter:
        path.unlink(missing_ok=True)
    own = [layout.root, layout.commits, layout.schemas]
    others: list[Path] = []
    waiting = [folder for folder in layout.root.iterdir() if folder.is_dir() and folder not in (*own, layout.segments)]
    while waiting:
        others.append(waiting.pop())
        waiting += [folder for folder in others[-1].iterdir() if folder.is_dir()]
    removed = sum(remove_temporaries(folder) for folder in own)
    removed += sum(remove_temporaries(folder, older_than_seconds=_ABANDONED_SECONDS) for folder in others)
    return len(litter) + removed, disk_bytes

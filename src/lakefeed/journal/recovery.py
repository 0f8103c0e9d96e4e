"""Recovery: what a writer does before its first append, and how a reader finds the commits.

A crash leaves two kinds of litter, neither of which exists for a reader: files that no commit names, and files of
change sets at or below the trim mark. Both are removed. Everything else that is not as the commit files say is damage,
and damage is named, never repaired by forgetting: a pipeline that starts from zero without being told is data loss.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable
from pathlib import Path

from lakefeed.errors import CheckpointError, JournalDamagedError
from lakefeed.journal.atomic import fsync_directory, is_temporary
from lakefeed.journal.commit import Commit, StoredSegment, load_commit
from lakefeed.journal.index import CommitIndex
from lakefeed.journal.layout import Layout
from lakefeed.journal.origin import Origin
from lakefeed.journal.schema_history import SchemaHistory

_READ_BYTES = 1024 * 1024


def create(layout: Layout, *, fsync: bool) -> None:
    """Make a new journal's directories, ``commits`` first: that it exists tells a new journal from a gutted one.

    A crash in here leaves some of them. Before the first commit the others are made now; after it they are lost.
    """
    folders = (layout.commits, layout.segments, layout.schemas)
    missing = [folder for folder in folders if not folder.is_dir()]
    if not missing:
        return
    if not is_new(layout) and layout.commit_numbers():
        raise JournalDamagedError(f"{missing[0]} is missing, but there are commit files")
    for folder in missing:
        folder.mkdir(parents=True, exist_ok=True)
    if fsync:
        fsync_directory(layout.root)
        fsync_directory(layout.root.parent)


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


def load_commits(layout: Layout, after: int) -> list[Commit]:
    """All commits above ``after``, in order. JournalDamagedError for a gap or a damaged file."""
    numbers = [number for number in layout.commit_numbers() if number > after]
    for expected, number in enumerate(numbers, start=after + 1):
        if number != expected:
            raise JournalDamagedError(f"{layout.commit(expected)} is missing, but change set {number} is there")
    commits = [_load(layout, number) for number in numbers]
    for before, commit in itertools.pairwise(commits):
        if commit.start != before.end:
            raise JournalDamagedError(f"{layout.commit(commit.number)} does not start where the one before it ends")
    return commits


def catch_up(layout: Layout, index: CommitIndex) -> CommitIndex:
    """``index`` as the files are now, for a reader beside a writer: what is missing may just have been trimmed."""
    while True:
        origin = load_origin(layout)
        known = index.origin.trimmed <= origin.trimmed <= index.head
        fresh = index.without(origin) if known else CommitIndex(origin)
        try:
            for commit in load_commits(layout, fresh.head) if layout.commits.is_dir() else ():
                fresh.add(commit)
        except JournalDamagedError:
            if load_origin(layout).trimmed == origin.trimmed:
                raise
        else:
            return fresh


def check_head(layout: Layout, origin: Origin, commits: list[Commit]) -> None:
    """A trim never takes the head: after one there is always a commit."""
    if origin.trimmed and not commits:
        raise JournalDamagedError(f"{layout.commit(origin.trimmed + 1)} is missing: every commit file is gone")


def check_schemas(commits: Iterable[Commit], schemas: SchemaHistory) -> None:
    """Every schema version that a commit uses is in the history."""
    for commit in commits:
        for table, entry in commit.tables.items():
            used = {entry.schema_version, *(segment.schema_version for segment in entry.segments)}
            for version in sorted(used - schemas.versions(table).keys()):
                raise JournalDamagedError(
                    f"{schemas.path(table)} lacks version {version} of {table}; change set {commit.number} uses it"
                )


def check_segments(commits: Iterable[Commit]) -> None:
    """Every named segment is there and has its size."""
    for commit in commits:
        for stored in commit.stored:
            _check_size(commit, stored)


def verify_segments(commits: Iterable[Commit]) -> int:
    """Every named segment has its checksum. Returns how many there were; reads all of them."""
    checked = 0
    for commit in commits:
        for stored in commit.stored:
            _check_size(commit, stored)
            if _crc32(Path(stored.segment.path)) != stored.crc32:
                raise JournalDamagedError(f"{stored.segment.path} fails its checksum (change set {commit.number})")
            checked += 1
    return checked


def remove_litter(layout: Layout, trimmed: int, commits: list[Commit]) -> int:
    """Remove what a crash left behind. Returns how many files.

    A segment far above the head was never an unfinished append: its commit files are lost, and it is evidence.
    """
    head = trimmed + len(commits)
    named = {stored.segment.path for commit in commits for stored in commit.stored}
    litter = [path for folder in (layout.root, layout.commits, layout.schemas) for path in _temporaries(folder)]
    litter += [layout.commit(number) for number in layout.commit_numbers() if number <= trimmed]
    for number, path in layout.segment_files():
        if number > head + 1:
            raise JournalDamagedError(f"{layout.commit(head + 1)} is missing, but {path} was written after it")
        if str(path) not in named:
            litter.append(path)
    for path in litter:
        path.unlink(missing_ok=True)
    return len(litter)


def _load(layout: Layout, number: int) -> Commit:
    path = layout.commit(number)
    try:
        return load_commit(path, layout.root)
    except FileNotFoundError:
        raise JournalDamagedError(f"{path} vanished while the journal was read") from None
    except CheckpointError as error:
        raise JournalDamagedError(f"{path} has a position that this version cannot read: {error}") from error


def _temporaries(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if is_temporary(path)]


def _check_size(commit: Commit, stored: StoredSegment) -> None:
    path = Path(stored.segment.path)
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise JournalDamagedError(f"{path} is missing; change set {commit.number} names it") from None
    if size != stored.segment.bytes:
        raise JournalDamagedError(
            f"{path} has {size} bytes; change set {commit.number} says {stored.segment.bytes} were written"
        )


def _crc32(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            checksum = zlib.crc32(block, checksum)
    return checksum

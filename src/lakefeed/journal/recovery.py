"""Recovery: what a writer does before its first append, and how a reader finds the commits.

A crash leaves two kinds of litter, neither of which exists for a reader: files that no commit names, and files of
change sets at or below the trim mark. Both are removed. Any other deviation from the commit files is damage. Damage is
reported, never repaired by forgetting: a pipeline that silently starts from zero has lost data.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

from lakefeed.errors import JournalDamagedError
from lakefeed.journal.commit import Commit, Origin, parse_commit
from lakefeed.journal.layout import Layout
from lakefeed.journal.schema_history import SchemaHistory
from lakefeed.journal.segment_file import check_size
from lakefeed.journal.view import CommitIndex
from lakefeed.storage.base import Entry

log = logging.getLogger(__name__)

READ_AT_OPEN = 1000
"""How many of the newest commit files a writer reads when it opens the journal: more than retention keeps by itself."""

_READ_SINGLY = 8
"""New commits that a reader finds by asking for one after the other. If there are more, it lists the journal."""

_ABANDONED_SECONDS = 3600.0
"""In folders where others than the lease's holder write too, a temporary file of this age no longer has a writer."""


def recover(layout: Layout) -> CommitIndex:
    """Bring the journal into the state that its commit files describe, or raise what is damaged. Needs the lease.

    1. the folders exist
    2. every commit above the trim mark exists; the newest ones are intact, and each starts where the previous one ends
    3. every segment that these name exists and has the right size
    4. litter is removed
    5. every schema version that these use exists

    The number of newest commits is bounded: a journal that has grown long, because a table is far behind, opens as fast
    as any other. Older commits are checked when they are read, and segments always are.
    """
    create(layout)  # 1
    origin = load_origin(layout)
    numbers = present(layout, origin.trimmed)  # 2
    if origin.trimmed and not numbers:  # a trim never removes the head
        raise JournalDamagedError(f"{layout.commit_place(origin.trimmed + 1)} is missing: every commit file is gone")
    head = origin.trimmed + len(numbers)
    commits = load_commits(layout, max(origin.trimmed, head - READ_AT_OPEN))
    files = list(layout.segment_files())
    sizes = {entry.name: entry.bytes for _, entry in files}
    for commit in commits:  # 3
        for segment in commit.segments:
            name = layout.root.name_of(segment.path)
            check_size(segment, sizes.get(name), layout.root.place(name))
    removed, disk_bytes = remove_litter(layout, origin.trimmed, head, commits, files)  # 4
    if removed:
        log.info("removed %d files of %s that no commit names", removed, layout.root)
    schemas = SchemaHistory(layout.root, layout.schemas)
    schemas.load()
    for commit in commits:  # 5
        for table, entry in commit.tables.items():
            used = {entry.schema_version, *(segment.schema_version for segment in entry.segments)}
            for version in sorted(used - schemas.versions(table).keys()):
                raise JournalDamagedError(
                    f"{schemas.place(table)} lacks version {version} of {table}; change set {commit.number} uses it"
                )
    if layout.root.size(layout.origin) is None:
        origin.save(layout.root, layout.origin)
    index = CommitIndex(origin, schemas, head=head, disk_bytes=disk_bytes)
    index.add_older(commits)
    return index


def create(layout: Layout) -> None:
    """Create the folders of a new journal, ``commits`` first: its existence tells a new journal from a gutted one.

    A crash in here leaves some of them. If there is no commit yet, the others are created now; otherwise they are lost.
    """
    root = layout.root
    missing = [folder for folder in (layout.commits, layout.segments, layout.schemas) if not root.has_folder(folder)]
    if missing and not is_new(layout) and layout.commit_numbers():
        raise JournalDamagedError(f"{root.place(missing[0])} is missing, but there are commit files")
    for folder in missing:
        root.make_folder(folder)
    root.settle(layout.segments)  # a crash may have come before their fsync


def is_new(layout: Layout) -> bool:
    """Whether nothing of a journal exists. JournalDamagedError if only its commits are missing."""
    root = layout.root
    if root.has_folder(layout.commits):
        return False
    traces = [layout.origin] if root.size(layout.origin) is not None else []
    for trace in (*traces, *(folder for folder in (layout.segments, layout.schemas) if root.has_folder(folder))):
        commits = root.place(layout.commits)
        raise JournalDamagedError(f"{commits} is missing, but {root.place(trace)} exists: this is not a new journal")
    return True


def load_origin(layout: Layout) -> Origin:
    """The origin with the trim mark. It may be missing only while there is no commit yet."""
    if is_new(layout):
        return Origin()
    try:
        return Origin.load(layout.root, layout.origin)
    except FileNotFoundError:
        if layout.commit_numbers():
            raise JournalDamagedError(
                f"{layout.root.place(layout.origin)} is missing, but there are commit files"
            ) from None
        return Origin()


def present(layout: Layout, after: int) -> range:
    """The numbers above ``after`` that have a commit file. JournalDamagedError for a gap."""
    numbers = [number for number in layout.commit_numbers() if number > after]
    for expected, number in enumerate(numbers, start=after + 1):
        if number != expected:
            raise JournalDamagedError(f"{layout.commit_place(expected)} is missing, but change set {number} exists")
    return range(after + 1, after + 1 + len(numbers))


def load_commits(layout: Layout, after: int) -> list[Commit]:
    """All commits above ``after``, in order. JournalDamagedError for a gap or a damaged file."""
    names = [layout.commit(number) for number in present(layout, after)]
    try:
        found = zip(layout.root.read_all(names), names, strict=True)
    except FileNotFoundError as error:
        raise JournalDamagedError(f"{error.filename or error} vanished while the journal was read") from None
    commits = [parse_commit(data, name, layout.root) for data, name in found]
    for before, commit in itertools.pairwise(commits):
        if commit.start != before.end:
            raise JournalDamagedError(
                f"{layout.commit_place(commit.number)} does not start where the previous one ends"
            )
    return commits


def load_retained(layout: Layout, number: int) -> Commit | Origin:
    """One commit, for a reader beside a writer; or the origin, if the writer has trimmed that commit meanwhile."""
    name = layout.commit(number)
    try:
        return parse_commit(layout.root.read(name), name, layout.root)
    except (JournalDamagedError, FileNotFoundError) as error:
        origin = load_origin(layout)
        if number > origin.trimmed:
            vanished = f"{layout.root.place(name)} vanished while the journal was read"
            raise error if isinstance(error, JournalDamagedError) else JournalDamagedError(vanished) from None
        return origin


def catch_up(layout: Layout, schemas: SchemaHistory, index: CommitIndex | None) -> CommitIndex:
    """``index`` brought up to date with the files, for a reader beside a writer: missing files may just have been
    trimmed.

    A first index, or one that has fallen behind the trim mark, has the newest commit and reads others on demand.
    """
    while True:
        origin = load_origin(layout)
        try:
            if index is not None and index.origin.trimmed <= origin.trimmed <= index.head:
                fresh = index.without(origin)
                for _ in range(_READ_SINGLY):
                    if (commit := _next_commit(layout, fresh)) is None:
                        return fresh
                    fresh.add(commit)
                for commit in load_commits(layout, fresh.head):  # in parallel, where that is faster
                    _require_next(layout, fresh, commit)
                    fresh.add(commit)
                return fresh
            head = [origin.trimmed, *present(layout, origin.trimmed)][-1]
            fresh = CommitIndex(origin, schemas, head=head)
            fresh.add_older(load_commits(layout, head - 1) if head > origin.trimmed else [])
            return fresh
        except JournalDamagedError:
            if load_origin(layout).trimmed == origin.trimmed:
                raise


def _next_commit(layout: Layout, known: CommitIndex) -> Commit | None:
    """The commit after the head, if there is one by now: to list a long journal takes longer than to read its end.

    JournalDamagedError if it is missing though others are behind it, or if a trim has passed the head meanwhile.
    """
    name = layout.commit(known.head + 1)
    try:
        commit = parse_commit(layout.root.read(name), name, layout.root)
    except FileNotFoundError:
        if known.newest is not None and layout.root.size(layout.commit(known.head)) is None:
            vanished = layout.commit_place(known.head)
            raise JournalDamagedError(f"{vanished} vanished while the journal was read") from None
        if layout.root.size(layout.commit(known.head + 2)) is not None and layout.root.size(name) is None:
            missing = f"{layout.commit_place(known.head + 1)} is missing, but change set {known.head + 2} exists"
            raise JournalDamagedError(missing) from None
        return None
    _require_next(layout, known, commit)
    return commit


def _require_next(layout: Layout, known: CommitIndex, commit: Commit) -> None:
    if known.newest is not None and commit.start != known.newest.end:
        raise JournalDamagedError(f"{layout.commit_place(commit.number)} does not start where the previous one ends")


def remove_litter(
    layout: Layout, trimmed: int, head: int, commits: list[Commit], segments: Sequence[tuple[int, Entry]]
) -> tuple[int, dict[int, int]]:
    """Remove what a crash left behind. Returns how many files, and the disk space of each older change set.

    ``commits`` are the newest ones, ``segments`` all segment files. Segments of older change sets are left alone,
    without checking whether their commits name them; a leftover among them goes when the trim mark passes it. A segment
    far above the head cannot come from an unfinished append: its commit files are lost, and it is evidence.
    On an object store an earlier writer, whose lease has expired, may still be alive; so segments of the next change
    set stay: it could still commit them. Once another writer has that number, nobody can.
    Temporary files are removed in the whole state directory, which contains more than the journal.
    """
    root, oldest = layout.root, head - len(commits)
    named = {root.name_of(segment.path) for commit in commits for segment in commit.segments}
    litter = [layout.commit(number) for number in layout.commit_numbers() if number <= trimmed]
    disk_bytes: dict[int, int] = {}
    if oldest > trimmed:
        files = {entry.name: entry.stored_bytes for entry in root.entries(layout.commits)}
        disk_bytes = {number: files[layout.commit(number)] for number in range(trimmed + 1, oldest + 1)}
    for number, entry in segments:
        if number > head + 1:
            missing, place = layout.commit_place(head + 1), root.place(entry.name)
            raise JournalDamagedError(f"{missing} is missing, but {place} was written after it")
        if trimmed < number <= oldest:
            disk_bytes[number] += entry.stored_bytes
        elif entry.name not in named and not (root.is_remote and number > head):
            litter.append(entry.name)
    root.remove(litter)
    own = (layout.commits, layout.schemas)
    removed = root.clean() + sum(root.below(folder).clean() for folder in own)
    waiting = [folder for folder in root.folders() if folder not in (*own, layout.segments)]
    while waiting:
        folder = waiting.pop()
        removed += root.below(folder).clean(older_than_seconds=_ABANDONED_SECONDS)
        waiting += [f"{folder}/{inner}" for inner in root.folders(folder)]
    return len(litter) + removed, disk_bytes

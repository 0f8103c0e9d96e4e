"""Retention: what a trim may take, and how it takes it so that a crash in the middle leaves litter and no damage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lakefeed.failpoint import hit
from lakefeed.journal.commit import Commit
from lakefeed.journal.layout import Layout
from lakefeed.journal.options import JournalOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimResult:
    """What one trim took. ``trimmed`` is the journal's mark after it."""

    trimmed: int
    change_sets: int = 0
    bytes: int = 0
    schemas: int = 0


def trim_mark(head: int, applied: int, options: JournalOptions) -> int:
    """The highest number that may go: applied everywhere, not among the newest to keep, and never the head.

    The head stays because it carries the position, the last seq and the row count of all that came before.
    """
    return min(applied, head - max(options.keep_change_sets, 1))


def remove_files(layout: Layout, commits: Sequence[Commit]) -> None:
    """Remove change sets that the durable trim mark already covers: first what names, then what is named.

    In this order a reader never finds a commit whose segments are gone. Recovery removes what a crash leaves.
    """
    if not commits:
        return
    for commit in commits:
        layout.commit(commit.number).unlink(missing_ok=True)
    hit("journal.during_trim")
    for commit in commits:
        for stored in commit.stored:
            Path(stored.segment.path).unlink(missing_ok=True)

"""Maintenance: what keeps a lake table fast and small while it is written to all the time. Values only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceOptions:
    """``file_bytes``: what files are packed to. ``most_files``: how many more files than needed are put up with.

    ``keep_hours``: files that no current version uses stay so long, for readers of older versions and for
    ``rebuild``; None removes none. ``keep_versions``: at most, whatever their age: every commit of Iceberg writes the
    list of them; Delta, where they are small files in one directory, keeps ten times as many. ``cluster``: packed files
    are also sorted by the key, so that readers and merges skip more of them. ``insists``: where packing lost against
    syncs, it is done again while this table's syncs wait; only for packing that writes little. ``marked_share``: of a
    file's rows, up to which they may be marked as deleted before the file is written again without them; where
    maintenance insists, those with the most, up to ``fold_bytes`` of them at a time.
    """

    file_bytes: int = 128 << 20
    most_files: int = 16
    keep_hours: float | None = 168.0
    keep_versions: int = 1000
    cluster: bool = False
    insists: bool = False
    marked_share: float = 0.2
    fold_bytes: int = 32 << 20

    def in_between(self) -> MaintenanceOptions:
        """For frequent checks: act only where many commits have left very many files, and then write little.

        Many commits are also why it insists: where each of them touches every file, packing would lose every time. To
        sort is for later: it takes every file of the table.
        """
        small, many = self.file_bytes // 8, self.most_files * 8
        return replace(self, file_bytes=small, most_files=many, keep_hours=None, cluster=False, insists=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceResult:
    """What was done to one table: its files before and after packing, and how many that nobody needs were removed."""

    files_before: int = 0
    files_after: int = 0
    removed: int = 0
    error: str | None = None

    @property
    def packed(self) -> bool:
        return self.files_after < self.files_before


@dataclass(frozen=True, slots=True)
class MarkedFile:
    """A data file's size, and which share of its rows is marked as deleted."""

    bytes: int
    share: float


def folded_from(files: Iterable[MarkedFile], options: MaintenanceOptions) -> float | None:
    """The share of marked rows from which on files are to be written again; None if none has too many."""
    worst = sorted((file for file in files if file.share > options.marked_share), key=lambda file: -file.share)
    if not worst or not options.insists:
        return options.marked_share if worst else None
    total, lowest = 0, worst[0].share
    for file in worst:
        total += file.bytes
        if total > options.fold_bytes:
            break
        lowest = file.share
    return lowest * (1 - 1e-9)  # the formats differ in whether a file at the limit is one of them


def needs_packing(files: int, total_bytes: int, options: MaintenanceOptions) -> bool:
    """Are there clearly more files than the rows need?"""
    return files > -(-total_bytes // options.file_bytes) + options.most_files

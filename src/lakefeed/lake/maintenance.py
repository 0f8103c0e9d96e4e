"""Maintenance: what keeps a lake table fast and small under constant writes. Values only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceOptions:
    """``file_bytes``: the size of packed files. ``most_files``: so many more files than needed do not start a packing.

    ``keep_hours``: files that the current version does not use stay so long, for readers of older versions and for
    ``rebuild``; None removes none. ``keep_versions``: keep at most so many, whatever their age. Every commit of Iceberg
    writes the list of them; Delta keeps ten times as many, which are small files in one directory. ``cluster``: also
    sort packed files by the key, so that readers and merges skip more of them. ``insists``: if packing lost against
    syncs, do it again while this table's syncs wait; only for packing that writes little. ``marked_share``: rewrite a
    file once more than this share of its rows is marked as deleted; with ``insists`` those with the most marks, up to
    ``fold_bytes`` at a time.
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
        """Options for frequent checks: act only if many commits have left very many files, and then write little.

        It insists, because where commits touch every file, packing would lose every time. It does not sort, because
        that takes every file of the table.
        """
        small, many = self.file_bytes // 8, self.most_files * 8
        return replace(self, file_bytes=small, most_files=many, keep_hours=None, cluster=False, insists=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceResult:
    """What maintenance did to one table: its files before and after packing, and how many it removed."""

    files_before: int = 0
    files_after: int = 0
    removed: int = 0
    error: str | None = None

    @property
    def packed(self) -> bool:
        return self.files_after < self.files_before


@dataclass(frozen=True, slots=True)
class MarkedFile:
    """A data file's size, and the share of its rows that is marked as deleted."""

    bytes: int
    share: float


def folded_from(files: Iterable[MarkedFile], options: MaintenanceOptions) -> float | None:
    """Maintenance rewrites files with more than this share of marked rows; None if no file has too many."""
    worst = sorted((file for file in files if file.share > options.marked_share), key=lambda file: -file.share)
    if not worst or not options.insists:
        return options.marked_share if worst else None
    total, lowest = 0, worst[0].share
    for file in worst:
        total += file.bytes
        if total > options.fold_bytes:
            break
        lowest = file.share
    return lowest * (1 - 1e-9)  # the formats differ on whether a file at the limit counts


def needs_packing(files: int, total_bytes: int, options: MaintenanceOptions) -> bool:
    """Are there clearly more files than the rows need?"""
    return files > -(-total_bytes // options.file_bytes) + options.most_files

"""What commits leave behind in a Delta table: files that no version needs, and one entry of the log each.

Delta keeps the entries for a month. Hadoop writes a checksum file beside each file on a local disk (``.NAME.crc``), of
which deltalake knows nothing.
"""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow import fs

from lakefeed.lake.delta_files import WRITTEN
from lakefeed.lake.location import filesystem

if TYPE_CHECKING:
    from deltalake import DeltaTable

_ENTRY = re.compile(r"(\d{20})\.")
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.parquet")
"""One that is whole in one file. Other kinds are kept or removed, but nothing is removed because of them."""

_REMEMBERED, _REMEMBERED_HOURS = "delta.deletedFileRetentionDuration", 168
"""How long a table's checkpoints say which files were removed, and Delta's own default for it."""

WRITE_HOURS = 24
"""How long a file that no commit names may still be waiting for its commit."""

_STRAY_SECONDS = 3600.0
"""From when on a checksum file without its own file is not about to get it."""


def sees_strays(table: DeltaTable, keep_hours: float) -> bool:
    """Can a file that the log does not name be told from one that was removed less than ``keep_hours`` ago?

    Not if checkpoints forget removed files earlier. A table that says itself how long they are to be known is believed.
    """
    return keep_hours <= _REMEMBERED_HOURS or _REMEMBERED in table.metadata().configuration


def remove_unused(table: DeltaTable, keep_hours: float, *, strays: bool) -> int:
    """Remove the files that no version younger than so many hours uses. Returns how many.

    With ``strays`` those too that the log does not name (any more): of writes that were not committed, and of versions
    that it has forgotten. Only for tables without deletion vectors: deltalake does not know that they are in use.
    """
    hours = max(1, round(keep_hours))
    removed = [] if strays and hours >= WRITE_HOURS else _vacuumed(table, hours, full=False)
    removed += _vacuumed(table, max(hours, WRITE_HOURS), full=True) if strays else []
    return len(removed)


def _vacuumed(table: DeltaTable, hours: int, *, full: bool) -> list[str]:
    return table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=full)


def remove_old_entries(root: str, newest: int, keep: int) -> int:
    """Remove what only versions need that are more than ``keep`` commits older than ``newest``. Returns how many files.

    Everything before a checkpoint can go, because it has the state of all that was before it. The oldest go first: what
    is left after a crash has no hole.
    """
    files, directory = filesystem(f"{root}/_delta_log")
    found = {info.base_name: info.path for info in files.get_file_info(fs.FileSelector(directory, recursive=False))}
    versions = {name: int(entry[1]) for name in found if (entry := _ENTRY.match(name))}
    whole = [version for name, version in versions.items() if _CHECKPOINT.fullmatch(name) and version <= newest - keep]
    if not whole:
        return 0
    old = sorted(name for name, version in versions.items() if version < max(whole))
    for name in old:
        files.delete_file(found[name])
    return len(old)


def remove_stray_checksums(root: str) -> int:
    """Remove the checksum files whose own file is gone, in the table's directory and its log. Returns how many.

    A directory of a write that was not finished goes with the last of its files. Nothing else is looked at: other
    directories that begin with an underscore or a dot are not the table's.
    """
    if "://" in root:
        return 0  # only Hadoop's local file system writes them
    for place in Path(root).glob(f"{WRITTEN}*/"):
        _remove_unfinished(place)
    places = [Path(root), Path(root, "_delta_log"), *(place for place in Path(root).glob("[!_.]*") if place.is_dir())]
    latest = time.time() - _STRAY_SECONDS
    return sum(_remove_stray(side, latest) for place in places for side in place.iterdir() if _is_checksum(side))


def _remove_unfinished(place: Path) -> None:
    old = place.stat().st_mtime <= time.time() - WRITE_HOURS * 3600
    if old and all(one.is_dir() or _is_checksum(one) for one in place.rglob("*")):
        shutil.rmtree(place)


def _is_checksum(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(".crc")


def _remove_stray(side: Path, latest: float) -> bool:
    own = side.with_name(side.name.removeprefix(".").removesuffix(".crc"))
    try:
        if own.exists() or side.stat().st_mtime > latest:
            return False
        side.unlink()
    except FileNotFoundError:  # somebody else was faster
        return False
    return True

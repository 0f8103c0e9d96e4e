"""What commits leave behind in a Delta table: one entry of the log each, which Delta removes after a month."""

from __future__ import annotations

import re

from pyarrow import fs

from lakefeed.lake.location import filesystem

_ENTRY = re.compile(r"(\d{20})\.")
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.parquet")
"""One that is whole in one file. Other kinds are kept or removed, but nothing is removed because of them."""


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

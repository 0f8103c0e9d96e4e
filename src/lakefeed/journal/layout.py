"""The names of a journal's files, and what the names say."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from urllib.parse import quote

from lakefeed.change.table import TableId
from lakefeed.storage.base import Entry, Storage

_COMMIT = re.compile(r"commits/(\d{20})\.json")
_SEGMENT = re.compile(r"segments/[^/]+/(\d{20})-[0-9-]+\.parquet")
_PLAIN = re.compile(r"[a-z0-9_.-]{1,100}")


def folder_name(table: TableId) -> str:
    """A file name for a table: its own name if that is safe on every file system and in every Spark path.

    Otherwise it is quoted and gets a hash of the exact name, so that tables whose names differ only in case, or beyond
    the length of a file name, never share a folder.
    """
    text = str(table)
    if _PLAIN.fullmatch(text):
        return text
    return f"{quote(text, safe='')[:80]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class Layout:
    """The names in one journal's storage."""

    commits, segments, schemas, origin, lease = "commits", "segments", "schemas", "origin.json", "lease"
    pins = "pins"

    def __init__(self, root: Storage) -> None:
        self.root = root

    def commit(self, number: int) -> str:
        return f"{self.commits}/{number:020d}.json"

    def commit_place(self, number: int) -> str:
        """The address of a commit file, for messages."""
        return self.root.place(self.commit(number))

    def segment(self, table: TableId, name: str) -> str:
        return f"{self.segments}/{folder_name(table)}/{name}.parquet"

    def commit_numbers(self) -> list[int]:
        """The numbers that have a commit file, ascending."""
        matches = (_COMMIT.fullmatch(name) for name in self.root.names(self.commits))
        return sorted(int(match[1]) for match in matches if match)

    def segment_files(self) -> Iterator[tuple[int, Entry]]:
        """Every segment file, with the number of the change set it was written for."""
        for entry in self.root.entries(self.segments):
            if match := _SEGMENT.fullmatch(entry.name):
                yield int(match[1]), entry

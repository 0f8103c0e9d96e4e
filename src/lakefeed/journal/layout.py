"""Where the files of a journal are and what their names say."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError

_COMMIT = re.compile(r"(\d{20})\.json")
_SEGMENT = re.compile(r"(\d{20})-[0-9-]+\.parquet")
_PLAIN = re.compile(r"[a-z0-9_.-]{1,100}")
# Two letters at least, so that a Windows drive is no scheme; one slash, because Path folds two of them into one.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def local_root(root: Path | str) -> Path:
    """The absolute directory that ``root`` names: a path or a ``file:`` URL. ConfigError for any other URL."""
    text = str(root)
    match = _URL.match(text)
    if match is None:
        return Path(root).absolute()
    if match[1].lower() != "file":
        raise ConfigError(f"the journal cannot be at '{text}': only local paths and file: URLs are supported")
    return Path(unquote(urlsplit(text).path)).absolute()


def folder_name(table: TableId) -> str:
    """A file name for a table: itself where that is safe on every file system and in every Spark path.

    Otherwise quoted and with a hash of the exact name, so that tables which differ in case, or only in a part too
    long for a file name, never share a folder.
    """
    text = str(table)
    if _PLAIN.fullmatch(text):
        return text
    return f"{quote(text, safe='')[:80]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class Layout:
    """The paths below one journal directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commits = root / "commits"
        self.segments = root / "segments"
        self.schemas = root / "schemas"
        self.origin = root / "origin.json"
        self.lease = root / "lease"

    def commit(self, number: int) -> Path:
        return self.commits / f"{number:020d}.json"

    def commit_numbers(self) -> list[int]:
        """The numbers that have a commit file, ascending."""
        matches = (_COMMIT.fullmatch(path.name) for path in self.commits.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def segment_files(self) -> Iterator[tuple[int, Path]]:
        """Every segment file with the number it was written for."""
        for folder in self.segments.iterdir():
            for path in folder.iterdir() if folder.is_dir() else ():
                if match := _SEGMENT.fullmatch(path.name):
                    yield int(match[1]), path

"""Which file it is that was opened: a path may lead to another one later.

Whoever restores or compacts a database puts the new file in the place of the old one by a rename. A connection stays
with the old file, which nobody writes to any more, and SQLite does not say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lakefeed.errors import SourceUnavailableError


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """Take it before the file is opened: one that is replaced in between is then reported, and not overlooked."""

    path: str
    place: tuple[int, int] | None

    @classmethod
    def at(cls, path: str) -> Self:
        return cls(path, _place(path))

    @property
    def is_there(self) -> bool:
        """Whether the path still leads to it."""
        return self.place is not None and self.place == _place(self.path)

    def require(self) -> None:
        """SourceUnavailableError unless it is there: once it is opened anew, its position is checked."""
        if not self.is_there:
            raise SourceUnavailableError(
                f"{self.path} is not the file any more that was opened: it was replaced or removed",
                remedy="Lakefeed opens the new file by itself; if there is none, put it back.",
            )


def _place(path: str) -> tuple[int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino

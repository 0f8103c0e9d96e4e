"""``Sqlite``: what a user writes to capture a SQLite database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from os import PathLike
from pathlib import Path

from lakefeed.capture.base import ChangeCapture
from lakefeed.capture.sqlite.capture import SqliteTriggers
from lakefeed.capture.sqlite.database import Database
from lakefeed.errors import ConfigError

_MECHANISMS = ("trigger",)


@dataclass(frozen=True)
class Sqlite:
    """A SQLite database file.

    ``tables`` are glob patterns (see ``capture.patterns``). ``busy_timeout_seconds`` is how long to wait for a lock
    that another connection holds. With ``before_images`` rows are delivered as they were before each update and delete,
    too, which the writer pays for. ConfigError for a path that is no file and for a mechanism that there is not.
    """

    path: str | PathLike[str]
    _: KW_ONLY
    tables: Sequence[str] = ("*",)
    capture: str = "trigger"
    busy_timeout_seconds: float = 5.0
    before_images: bool = False

    def __post_init__(self) -> None:
        if not Path(self.path).is_file():
            raise ConfigError(f"source.path: there is no file '{self.path}'")
        if self.capture not in _MECHANISMS:
            choices = ", ".join(_MECHANISMS)
            raise ConfigError(f"source.capture: '{self.capture}' is not a way to capture SQLite; there is {choices}")
        if isinstance(self.tables, str) or not self.tables:
            raise ConfigError(f"source.tables: must be a list of patterns with at least one, not {self.tables!r}")
        if self.busy_timeout_seconds < 0:
            raise ConfigError(f"source.busy_timeout_seconds: {self.busy_timeout_seconds} is negative")
        object.__setattr__(self, "tables", tuple(self.tables))  # frozen and hashable, whatever the user gave

    def bind(self, pipeline: str) -> ChangeCapture:
        path = str(Path(self.path).absolute())  # chunks are read by processes that may have another directory
        return SqliteTriggers(
            Database(path, self.busy_timeout_seconds),
            pipeline,
            tables=tuple(self.tables),
            before_images=self.before_images,
        )

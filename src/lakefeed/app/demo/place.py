"""The demo's directory: made anew for each run, and only ever removed if an earlier demo made it."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lakefeed.errors import ConfigError

MARKER = ".lakefeed-demo"

_CONFIGURATION = """\
pipeline: shop
source:
  kind: sqlite
  path: shop.db
  capture: trigger
  tables: ["*"]
lake:
  path: ./lake
  format: delta
  mode: mirror
sync:
  interval_seconds: 1
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where everything of one demo is."""

    directory: Path

    @property
    def database(self) -> Path:
        return self.directory / "shop.db"

    @property
    def configuration(self) -> Path:
        return self.directory / "shop.yaml"

    def table(self, name: str) -> Path:
        return self.directory / "lake" / "main" / name


@contextmanager
def fresh_place(directory: Path) -> Iterator[Place]:
    """An empty directory with a configuration in it, for this process alone while the block lasts."""
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory} is a file", remedy="Choose another place with --directory.")
    if directory.exists() and any(directory.iterdir()) and not (directory / MARKER).exists():
        raise ConfigError(
            f"{directory} has files in it that no demo made; it is left alone",
            remedy="Choose another place with --directory.",
        )
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / MARKER).open("a") as marker:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another demo is running in {directory}", remedy="Wait for it, or choose another --directory."
            ) from None
        _empty(directory)
        place = Place(directory)
        place.configuration.write_text(_CONFIGURATION)
        yield place


def _empty(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.name == MARKER:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()

"""Where an embedder's polling keeps its watermark. A pipeline needs none: its journal has every position.

Contract of WatermarkStore: what ``save`` returned from is what ``load`` gives, also in another process where the store
is durable. A store that cannot be read is an error and never "nothing was saved": the difference is a whole table.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lakefeed.change.watermark import Watermark
from lakefeed.durable import fsync_directory, make_directory, pack, remove_temporaries, replace_file, unpack
from lakefeed.errors import (
    CheckpointDamagedError,
    CheckpointError,
    JournalDamagedError,
    JournalError,
    JournalFullError,
)

_FORMAT = 1
_ABANDONED_SECONDS = 3600.0
"""A temporary file of this age has no writer any more. Younger ones may be another process's, which writes now."""


@dataclass(frozen=True, slots=True)
class Saved:
    """``identity`` names the database that the watermark belongs to."""

    identity: str
    watermark: Watermark


class WatermarkStore(Protocol):
    """See the module. One writer. Errors are CheckpointErrors, or JournalFullError on a full disk, which is retried."""

    def load(self) -> Saved | None: ...

    def save(self, saved: Saved) -> None: ...

    def remove(self) -> tuple[str, ...]:
        """Forget everything. Returns the names of what was removed."""


class MemoryWatermarkStore:
    """Lives as long as the object: after a restart everything is read again."""

    def __init__(self) -> None:
        self._saved: Saved | None = None

    def load(self) -> Saved | None:
        return self._saved

    def save(self, saved: Saved) -> None:
        self._saved = saved

    def remove(self) -> tuple[str, ...]:
        removed = ("the watermark in memory",) if self._saved is not None else ()
        self._saved = None
        return removed


class FileWatermarkStore:
    """A JSON file with a checksum, replaced as a whole: temporary name, fsync, rename, fsync of the directory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """CheckpointDamagedError for a file that is there and cannot be used: at the start, not at the third poll."""
        self._path = Path(path)
        remove_temporaries(self._path.parent, older_than_seconds=_ABANDONED_SECONDS)
        self.load()

    def load(self) -> Saved | None:
        try:
            body = unpack(self._path.read_bytes(), self._path)
            if body["format"] != _FORMAT:
                raise CheckpointDamagedError(f"{self._path} has the format {body['format']}, not {_FORMAT}")
            return Saved(body["identity"], Watermark.parse(body["watermark"]))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointDamagedError(f"{self._path} cannot be read: {error.strerror}") from error
        except JournalDamagedError as error:
            raise CheckpointDamagedError(error.message) from error
        except (KeyError, TypeError, CheckpointError) as error:
            raise CheckpointDamagedError(f"{self._path} is damaged: {error}") from error

    def save(self, saved: Saved) -> None:
        """JournalFullError if the disk is full, which is tried again; CheckpointError for any other refusal."""
        body = {"format": _FORMAT, "identity": saved.identity, "watermark": saved.watermark.text()}
        try:
            make_directory(self._path.parent)
            replace_file(self._path, pack(body))
        except JournalFullError:
            raise
        except JournalError as error:
            raise CheckpointError(error.message) from error

    def remove(self) -> tuple[str, ...]:
        if not self._path.exists():
            return ()
        self._path.unlink()
        fsync_directory(self._path.parent)
        return (f"watermark file {self._path}",)

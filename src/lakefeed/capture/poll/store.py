"""Where an embedder's polling keeps its watermark. A pipeline needs none: its journal has every position.

Contract of WatermarkStore: what ``save`` returned from is what ``load`` gives, also in another process where the store
is durable. A store that cannot be read is an error and never "nothing was saved": the difference is a whole table.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lakefeed.change.watermark import Watermark
from lakefeed.errors import CheckpointDamagedError, CheckpointError

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Saved:
    """``identity`` names the database that the watermark belongs to."""

    identity: str
    watermark: Watermark


class WatermarkStore(Protocol):
    """See the module. One writer; errors are CheckpointErrors."""

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
        self.load()

    def load(self) -> Saved | None:
        try:
            document = json.loads(self._path.read_bytes())
            body = document["body"]
            if document["sha256"] != _checksum(body) or body["format"] != _FORMAT:
                raise CheckpointDamagedError(f"{self._path} is damaged: its checksum does not match its content")
            return Saved(body["identity"], Watermark.parse(body["watermark"]))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointDamagedError(f"{self._path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, CheckpointError) as error:
            raise CheckpointDamagedError(f"{self._path} is damaged: {error}") from error

    def save(self, saved: Saved) -> None:
        body = {"format": _FORMAT, "identity": saved.identity, "watermark": saved.watermark.text()}
        data = json.dumps({"sha256": _checksum(body), "body": body}, indent=1).encode()
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
            _fsync(self._path.parent)
        except OSError as error:
            raise CheckpointError(f"{self._path} cannot be written: {error.strerror}") from error

    def remove(self) -> tuple[str, ...]:
        if not self._path.exists():
            return ()
        self._path.unlink()
        return (f"watermark file {self._path}",)


def _checksum(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _fsync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

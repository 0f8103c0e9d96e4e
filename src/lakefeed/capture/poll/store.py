"""Where an embedder's polling keeps its watermarks, one for each table. A pipeline needs none: its journal has them.

Contract of WatermarkStore: what ``save`` returned from is what ``load`` gives, also in another process where the store
is durable; saving one table leaves the others as they are. A store that cannot be read is an error and never "nothing
was saved": the difference is a whole table.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lakefeed.change.watermark import Mark, Watermark
from lakefeed.errors import CheckpointDamagedError, CheckpointError

_FORMAT = 1


class WatermarkStore(Protocol):
    """See the module. Tables go by name: ``schema.table``. One writer; errors are CheckpointErrors."""

    def identity(self) -> str | None:
        """Names the database that the watermarks belong to; None if nothing was saved."""

    def tables(self) -> tuple[str, ...]:
        """The tables that have a watermark."""

    def load(self, table: str) -> Mark | None:
        """The watermark of one table; None if it has none."""

    def save(self, identity: str, marks: Mapping[str, Mark]) -> None:
        """The new watermarks of some tables, all or none of them."""

    def remove(self) -> tuple[str, ...]:
        """Forget everything. Returns the names of what was removed."""


class MemoryWatermarkStore:
    """Lives as long as the object: after a restart everything is read again."""

    def __init__(self) -> None:
        self._saved = _Saved()

    def identity(self) -> str | None:
        return self._saved.identity

    def tables(self) -> tuple[str, ...]:
        return tuple(sorted(self._saved.marks))

    def load(self, table: str) -> Mark | None:
        return self._saved.marks.get(table)

    def save(self, identity: str, marks: Mapping[str, Mark]) -> None:
        self._saved = _Saved(identity, {**self._saved.marks, **marks})

    def remove(self) -> tuple[str, ...]:
        removed = ("the watermarks in memory",) if self._saved.identity is not None else ()
        self._saved = _Saved()
        return removed


class FileWatermarkStore(MemoryWatermarkStore):
    """A JSON file with a checksum, replaced as a whole: temporary name, fsync, rename, fsync of the directory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """CheckpointDamagedError for a file that is there and cannot be used: at the start, not at the third poll."""
        super().__init__()
        self._path = Path(path)
        try:
            document = json.loads(self._path.read_bytes())
            body = document["body"]
            if document["sha256"] != _checksum(body) or body["format"] != _FORMAT:
                raise CheckpointDamagedError(f"{self._path} is damaged: its checksum does not match its content")
            self._saved = _Saved(body["identity"], dict(Watermark.parse(body["watermark"]).marks))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise CheckpointDamagedError(f"{self._path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, CheckpointError) as error:
            raise CheckpointDamagedError(f"{self._path} is damaged: {error}") from error

    def save(self, identity: str, marks: Mapping[str, Mark]) -> None:
        saved = {**self._saved.marks, **marks}
        body = {"format": _FORMAT, "identity": identity, "watermark": Watermark.of(saved).text()}
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
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise CheckpointError(f"{self._path} cannot be written: {error.strerror}") from error
        self._saved = _Saved(identity, saved)

    def remove(self) -> tuple[str, ...]:
        self._saved = _Saved()
        if not self._path.exists():
            return ()
        self._path.unlink()
        return (f"watermark file {self._path}",)


@dataclass(frozen=True, slots=True)
class _Saved:
    identity: str | None = None
    marks: Mapping[str, Mark] = field(default_factory=dict)


def _checksum(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _fsync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

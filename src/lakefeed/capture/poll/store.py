"""Where an embedder's polling keeps its watermarks, one per table. A pipeline needs no store: its journal has them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from lakefeed.change.watermark import Mark, Watermark
from lakefeed.durable import pack, unpack
from lakefeed.errors import CheckpointDamagedError, CheckpointError, JournalDamagedError, JournalError, Retry
from lakefeed.storage.base import Storage
from lakefeed.storage.local import LocalStorage

_FORMAT = 1
_ABANDONED_SECONDS = 3600.0
"""A younger temporary file may belong to another process that is writing it now."""


class WatermarkStore(Protocol):
    """Once ``save`` has returned, ``load`` returns what was saved, in another process too if the store is durable.
    Saving one table leaves the others as they are. A store that cannot be read is an error and never "nothing was
    saved": that would cost reading the whole table again. Tables are named ``schema.table``. One writer. Errors are
    CheckpointErrors, or those of a full disk or an unavailable store, which are retried."""

    def identity(self) -> str | None:
        """Identifies the database that the watermarks belong to; None if nothing was saved."""

    def tables(self) -> tuple[str, ...]:
        """The tables that have a watermark."""

    def load(self, table: str) -> Mark | None:
        """The watermark of one table; None if it has none."""

    def save(self, identity: str, marks: Mapping[str, Mark]) -> None:
        """Save new watermarks of some tables: all of them or none."""

    def remove(self) -> tuple[str, ...]:
        """Forget everything. Returns the names of what was removed."""


class MemoryWatermarkStore:
    """Lives as long as the object: after a restart everything is read again."""

    def __init__(self) -> None:
        self._identity: str | None = None
        self._marks: dict[str, Mark] = {}

    def identity(self) -> str | None:
        return self._identity

    def tables(self) -> tuple[str, ...]:
        return tuple(sorted(self._marks))

    def load(self, table: str) -> Mark | None:
        return self._marks.get(table)

    def save(self, identity: str, marks: Mapping[str, Mark]) -> None:
        self._identity, self._marks = identity, {**self._marks, **marks}

    def remove(self) -> tuple[str, ...]:
        removed = ("the watermarks in memory",) if self._identity is not None else ()
        self._identity, self._marks = None, {}
        return removed


class FileWatermarkStore(MemoryWatermarkStore):
    """A JSON file with a checksum, replaced as a whole (see ``storage.base``)."""

    def __init__(self, path: str | os.PathLike[str], storage: Storage | None = None) -> None:
        """CheckpointDamagedError for an existing file that cannot be used: at the start, not at the third poll.

        With a ``storage``, ``path`` is a name in it.
        """
        super().__init__()
        self._storage = storage or LocalStorage(Path(path).parent)
        self._name = Path(path).name
        self._path = self._storage.place(self._name)
        self._storage.clean(older_than_seconds=_ABANDONED_SECONDS)
        try:
            body = unpack(self._storage.read(self._name), self._path)
            if body["format"] != _FORMAT:
                raise CheckpointDamagedError(f"{self._path} has the format {body['format']}, not {_FORMAT}")
            self._identity, self._marks = body["identity"], dict(Watermark.parse(body["watermark"]).marks)
        except FileNotFoundError:
            return
        except (OSError, JournalDamagedError, KeyError, TypeError, CheckpointError) as error:
            raise CheckpointDamagedError(f"{self._path} cannot be used: {error}") from error

    def save(self, identity: str, marks: Mapping[str, Mark]) -> None:
        watermark = Watermark.of({**self._marks, **marks})
        try:
            body = {"format": _FORMAT, "identity": identity, "watermark": watermark.text()}
            self._storage.replace(self._name, pack(body))
        except JournalError as error:
            if error.retry is Retry.BACKOFF:
                raise
            raise CheckpointError(error.message) from error
        super().save(identity, marks)

    def remove(self) -> tuple[str, ...]:
        super().remove()
        if self._storage.size(self._name) is None:
            return ()
        self._storage.remove([self._name])
        self._storage.settle()
        return (f"watermark file {self._path}",)

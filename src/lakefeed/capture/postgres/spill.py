"""Parts of a change set: Arrow batches that are kept in memory while they are few, and in a temporary file when not."""

from __future__ import annotations

import errno
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakefeed.errors import JournalFullError

MEMORY_BYTES = 64 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class _Spilled:
    offset: int
    size: int


class Parts:
    """Append, then iterate as often as wanted, from one thread at a time.

    The file has no name: it is gone when the last reference is, or when the process dies.
    """

    def __init__(self, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._held = 0
        self._items: list[pa.RecordBatch | _Spilled] = []
        self._file: Any = None

    @property
    def spilled(self) -> bool:
        return self._file is not None

    def append(self, batch: pa.RecordBatch) -> None:
        if self._held + batch.nbytes <= self._memory_bytes:
            self._held += batch.nbytes
            self._items.append(batch)
            return
        with _room():
            self._items.append(self._spill(batch))

    def _spill(self, batch: pa.RecordBatch) -> _Spilled:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="lakefeed-")  # noqa: SIM115  # lives as long as the parts
            weakref.finalize(self, _close, self._file)
        offset = self._file.seek(0, 2)
        with pa.ipc.new_stream(pa.PythonFile(self._file, mode="w"), batch.schema) as writer:
            writer.write_batch(batch)
        self._file.flush()  # what there is no room for must be known now
        return _Spilled(offset, self._file.tell() - offset)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return (self[place] for place in range(len(self._items)))

    def __getitem__(self, place: int) -> pa.RecordBatch:
        item = self._items[place]
        if isinstance(item, pa.RecordBatch):
            return item
        assert self._file is not None  # noqa: S101  # something was spilled into it
        self._file.seek(item.offset)
        with pa.ipc.open_stream(pa.py_buffer(self._file.read(item.size))) as reader:
            return reader.read_next_batch()


@contextmanager
def _room() -> Iterator[None]:
    """A full disk comes out as an error that is tried again, as the journal's does."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise JournalFullError(
            f"no room left in {tempfile.gettempdir()} for the temporary file of a large transaction: {error.strerror}",
            remedy="Free space there, or set TMPDIR to a larger disk; Lakefeed goes on by itself.",
        ) from error


def _close(file: Any) -> None:
    """What could not be written is tried once more, in vain; the file goes anyway."""
    with suppress(OSError):
        file.close()

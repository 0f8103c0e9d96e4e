"""Batches that are taken out of the source at once and used later: in memory, and what is too much for it on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedRandom

import pyarrow as pa

from lakefeed.errors import SourceUnavailableError

MEMORY_BYTES = 64 * 1024 * 1024


@contextmanager
def put_aside(batches: Iterable[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
    """All of ``batches`` are read on entry; the block is given them one after another."""
    kept: list[pa.RecordBatch] = []
    size, rest = 0, iter(batches)
    for batch in rest:
        kept.append(batch)
        size += batch.nbytes
        if size >= MEMORY_BYTES:
            break
    else:
        yield iter(kept)
        return
    # Without a name: nothing is left behind, however the process ends.
    with tempfile.TemporaryFile(prefix="lakefeed-") as file:
        _write(file, kept, rest)
        with pa.ipc.open_stream(file) as stored:
            yield iter(stored)


def _write(file: BufferedRandom, kept: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> None:
    """Both into ``file``, from its beginning to its beginning."""
    try:
        with pa.ipc.new_stream(file, kept[0].schema) as out:
            while kept:
                out.write_batch(kept.pop(0))
            for batch in rest:
                out.write_batch(batch)
        file.seek(0)
    except OSError as error:
        raise SourceUnavailableError(
            f"a part of a table cannot be put aside in {tempfile.gettempdir()} ({error.strerror})",
            remedy="Make room there, or set TMPDIR to a directory that has it; or: PRAGMA journal_mode=WAL.",
        ) from error

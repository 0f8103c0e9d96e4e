"""SegmentWriter: streams the batches of one change set into segment files, one table and schema version each.

Memory is bounded whatever the size of the change set: small batches are gathered into row groups, and all that is
gathered, over all tables, has one limit. So has the number of open files. Nothing written here exists for a reader
until a commit file names it.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from lakefeed.change.batch import OP, SEQ, Operation
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import JournalError
from lakefeed.journal.atomic import fsync_directory
from lakefeed.journal.commit import StoredSegment
from lakefeed.journal.layout import Layout
from lakefeed.journal.options import JournalOptions
from lakefeed.journal.segment_file import ROW_GROUP_ROWS, SegmentFile

_GATHERED_TABLE_BYTES = 8 * 1024 * 1024
_GATHERED_TOTAL_BYTES = 64 * 1024 * 1024
_OPEN_FILES = 128  # well below the usual limit of 1024 descriptors of a process
_OPERATIONS = np.array([int(operation) for operation in Operation])


@dataclass(slots=True)
class _Stream:
    """One table under its schema version of the moment: what is gathered, and the file it goes to."""

    schema: TableSchema
    gathered: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    file: SegmentFile | None = None


class SegmentWriter:
    """Use: ``add`` for every batch, ``finish`` once; ``discard`` instead if anything goes wrong.

    ``prefix`` begins each file name and is unique to the attempt, so that leftovers of a crash never clash.
    ``seq_base`` is added to the place of every row in the change set.
    """

    def __init__(self, layout: Layout, options: JournalOptions, *, prefix: str, seq_base: int) -> None:
        self._layout = layout
        self._options = options
        self._prefix = prefix
        self._seq_base = seq_base
        self._streams: OrderedDict[TableId, _Stream] = OrderedDict()
        self._done: list[StoredSegment] = []
        self._parts = itertools.count()
        self._folders: set[Path] = set()
        self._last_seq: dict[TableId, int] = {}
        self._gathered_bytes = 0
        self.rows = 0

    @property
    def last_seq(self) -> int | None:
        """The highest place of a row so far, before ``seq_base`` is added; None if there was no row."""
        return max(self._last_seq.values(), default=None)

    def add(self, schema: TableSchema, data: pa.RecordBatch) -> None:
        """Take one batch of a table under a numbered schema. JournalError if it is out of order."""
        if data.num_rows == 0:
            return
        self._check(schema.table, data)
        stream = self._stream(schema)
        stream.gathered.append(data)
        stream.rows += data.num_rows
        stream.bytes += data.nbytes
        self._gathered_bytes += data.nbytes
        self.rows += data.num_rows
        if stream.rows >= ROW_GROUP_ROWS or stream.bytes >= _GATHERED_TABLE_BYTES:
            self._write(stream)
        if self._gathered_bytes > _GATHERED_TOTAL_BYTES:
            self._write(max(self._streams.values(), key=lambda other: other.bytes))

    def finish(self) -> tuple[StoredSegment, ...]:
        """Make every file and its directory durable. The segments come ordered by table, then by seq."""
        for stream in self._streams.values():
            self._write(stream)
        open_files = [stream.file for stream in self._streams.values() if stream.file is not None]
        self._done += self._finish_files(open_files)
        if self._options.fsync:
            for folder in self._folders:
                fsync_directory(folder)
        return tuple(sorted(self._done, key=lambda stored: (stored.segment.table, stored.segment.first_seq)))

    def discard(self) -> None:
        """Remove everything this writer wrote. What cannot be removed is cleaned up at the next open."""
        for stream in self._streams.values():
            if stream.file is not None:
                stream.file.discard()
        for stored in self._done:
            with suppress(OSError):
                Path(stored.segment.path).unlink(missing_ok=True)

    def _check(self, table: TableId, data: pa.RecordBatch) -> None:
        seq = data.column(SEQ).to_numpy()
        previous = self._last_seq.get(table, -1)
        if int(seq[0]) <= previous or not bool(np.all(seq[1:] > seq[:-1])):
            raise JournalError(f"rows of {table} are out of order: each seq must be above the one before ({previous})")
        if not bool(np.all(np.isin(data.column(OP).to_numpy(), _OPERATIONS))):
            raise JournalError(f"rows of {table} have an operation that is none of {', '.join(Operation.__members__)}")
        self._last_seq[table] = int(seq[-1])

    def _stream(self, schema: TableSchema) -> _Stream:
        """A new version ends the table's file, so that the segments of a table never overlap in seq."""
        stream = self._streams.setdefault(schema.table, _Stream(schema))
        self._streams.move_to_end(schema.table)
        if stream.schema.version != schema.version:
            self._write(stream)
            if stream.file is not None:
                self._close(stream, stream.file)
            stream.schema = schema
        return stream

    def _write(self, stream: _Stream) -> None:
        """Turn what a stream has gathered into a row group, and close the file if it is large enough."""
        if not stream.gathered:
            return
        if stream.file is None:
            stream.file = self._open(stream.schema)
        gathered, self._gathered_bytes = stream.gathered, self._gathered_bytes - stream.bytes
        stream.gathered, stream.rows, stream.bytes = [], 0, 0
        stream.file.write(gathered, self._seq_base)
        if stream.file.bytes >= self._options.segment_bytes:
            self._close(stream, stream.file)

    def _open(self, schema: TableSchema) -> SegmentFile:
        writing = [(stream, stream.file) for stream in self._streams.values() if stream.file is not None]
        if len(writing) >= _OPEN_FILES:
            self._close(*writing[0])  # the one that waited longest for rows
        folder = self._layout.segment_folder(schema.table)
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            self._folders.add(folder.parent)
        self._folders.add(folder)
        return SegmentFile(folder / f"{self._prefix}-{next(self._parts)}.parquet", schema)

    def _close(self, stream: _Stream, file: SegmentFile) -> None:
        self._done.append(file.finish(fsync=self._options.fsync))
        stream.file = None

    def _finish_files(self, files: list[SegmentFile]) -> list[StoredSegment]:
        """Together where there are several: the file system serves parallel fsyncs with one flush."""
        if len(files) < 2 or not self._options.fsync:
            return [file.finish(fsync=self._options.fsync) for file in files]
        with ThreadPoolExecutor(min(8, len(files)), "lakefeed-fsync") as pool:
            return list(pool.map(lambda file: file.finish(fsync=True), files))

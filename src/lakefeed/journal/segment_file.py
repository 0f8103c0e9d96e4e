"""Segments: the Parquet files of a change set, one table and schema version each. How they are written and checked.

They are exactly what Spark reads: the table's own columns, then Lakefeed's, with plain types only. Size and checksum
are computed as the bytes are written, so that committing a segment needs no read; whoever reads it later calls
``check_segment`` first. Nothing written here exists for a reader until a commit file names it.
"""

from __future__ import annotations

import itertools
import weakref
import zlib
from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakefeed.change.batch import ABSENT, OP, POSITION, SEQ, TIME, TXN, Operation, change_schema, replaced_values
from lakefeed.change.segment import Counts, Segment
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import JournalDamagedError, JournalError
from lakefeed.journal.layout import Layout
from lakefeed.journal.options import JournalOptions
from lakefeed.storage.base import NewFile, Storage

ROW_GROUP_ROWS = 65_536
_GATHERED_TABLE_BYTES = 8 * 1024 * 1024
_GATHERED_TOTAL_BYTES = 64 * 1024 * 1024
_OPEN_FILES = 128  # well below the usual limit of 1024 descriptors of a process
_READ_BYTES = 1024 * 1024
_OPERATIONS = np.array([int(operation) for operation in Operation])
# Few different values per row group: worth a dictionary. For the table's own columns, with keys and texts, a dictionary
# was slower and larger than zstd alone.
_DICTIONARY = [OP, POSITION, TIME, TXN]


def check_size(segment: Segment, size: int | None, place: str) -> None:
    """JournalDamagedError, naming the place, unless the file exists and has the size in its commit. None: no file."""
    number = place.rpartition("/")[2].partition("-")[0].lstrip("0")
    if size is None:
        raise JournalDamagedError(f"{place} is missing; change set {number} names it")
    if size != segment.bytes:
        raise JournalDamagedError(f"{place} has {size} bytes; change set {number} says {segment.bytes} were written")


def check_segment(segment: Segment) -> None:
    """JournalDamagedError, naming the file, unless it is byte for byte what was written. Reads the whole file."""
    path = Path(segment.path)
    check_size(segment, path.stat().st_size if path.exists() else None, segment.path)
    checksum = 0
    with Path(segment.path).open("rb") as file:
        while block := file.read(_READ_BYTES):
            checksum = zlib.crc32(block, checksum)
    if segment.crc32 is not None and checksum != segment.crc32:
        raise JournalDamagedError(f"{segment.path} fails its checksum; it has changes of {segment.table}")


def newest_time(segment: Segment) -> float | None:
    """Commit time, in the source, of the newest change in a segment, from its footer. None if it was just trimmed."""
    return max((high for _, high in _times(segment)), default=None)


def oldest_time(segment: Segment) -> float | None:
    """As ``newest_time``, for the oldest change."""
    return min((low for low, _ in _times(segment)), default=None)


def _times(segment: Segment) -> list[tuple[float, float]]:
    """The oldest and the newest time of each row group."""
    try:
        footer = pq.read_metadata(segment.path)
    except (OSError, pa.ArrowInvalid):
        return []
    column = footer.schema.names.index(TIME)
    groups = (footer.row_group(group).column(column).statistics for group in range(footer.num_row_groups))
    known: list[Any] = [one for one in groups if one is not None and one.has_min_max]
    return [(one.min.timestamp(), one.max.timestamp()) for one in known]


class SegmentFile:
    """One segment while it is written: open from the constructor to ``end`` or ``discard``.

    It is the output file of its own Parquet writer, so that ``write`` counts the size (``bytes``) and the checksum.
    """

    closed = False

    def __init__(self, root: Storage, name: str, schema: TableSchema) -> None:
        """The columns are those of a ChangeBatch, with dictionaries replaced by plain types."""
        self._path = root.path(name)
        self.bytes = 0
        self._crc32 = 0
        self._discarded = False
        self._schema = schema
        self._counts = np.zeros(len(Operation) + 1, np.int64)
        self._first_seq = -1
        self._last_seq = -1
        self._truncated_at: int | None = None
        self._absent: set[str] = set()
        self._replaced = Counter[str]()
        plain = [
            one.with_type(one.type.value_type) if pa.types.is_dictionary(one.type) else one
            for one in change_schema(schema)
        ]
        self._columns = pa.schema(plain)
        self.file: NewFile = root.new_file(name)
        try:
            self._parquet = pq.ParquetWriter(
                pa.PythonFile(weakref.proxy(self), "w"),  # weak: no garbage collector sees Arrow's reference
                self._columns,
                compression="zstd",
                compression_level=1,
                use_dictionary=_DICTIONARY,  # type: ignore[arg-type]  # the stubs know only bool
                write_statistics=True,
                store_schema=False,
            )
        except BaseException:  # a type that Parquet does not have
            self.file.discard()
            raise

    def add(self, batches: Sequence[pa.RecordBatch], seq_base: int) -> None:
        """Add batches, in order, as row groups of their own. Adds ``seq_base`` to their seq."""
        for batch in batches:
            if batch.schema.metadata:
                self._replaced.update(replaced_values(batch.schema))
        data = pa.Table.from_batches(batches).cast(self._columns)
        seq = pc.add(data.column(SEQ), seq_base)
        data = data.set_column(data.schema.get_field_index(SEQ), self._columns.field(SEQ), seq)
        operations, seqs, absent = data.column(OP).to_numpy(), seq.to_numpy(), data.column(ABSENT)
        if self._first_seq < 0:
            self._first_seq = int(seqs[0])
        self._last_seq = int(seqs[-1])
        number = np.bincount(operations, minlength=len(Operation) + 1)
        self._counts += number
        if number[Operation.TRUNCATE]:
            self._truncated_at = int(seqs[operations == Operation.TRUNCATE][-1])
        if absent.null_count < len(absent):
            self._absent.update(name for name in pc.unique(pc.list_flatten(absent)).to_pylist() if name is not None)
        self._parquet.write_table(data, row_group_size=ROW_GROUP_ROWS)

    def write(self, data: Any) -> int:
        """Called by Parquet with the next bytes of the file."""
        block = memoryview(data)
        self.bytes += block.nbytes
        if not self._discarded:
            self._crc32 = zlib.crc32(block, self._crc32)
            self.file.write(block)
        return block.nbytes

    def flush(self) -> None:
        """Nothing is buffered here."""

    def close(self) -> None:
        """Arrow may call this at any time. The storage closes the file, since it decides about the fsync."""

    def end(self) -> Segment:
        """Write the footer, and describe the segment. The file exists, durably, once its storage has finished it."""
        self._parquet.close()
        number = self._counts.tolist()
        return Segment(
            table=self._schema.table,
            path=self._path,
            rows=sum(number),
            bytes=self.bytes,
            schema_version=self._schema.version,
            first_seq=self._first_seq,
            last_seq=self._last_seq,
            counts=Counts(
                inserted=number[Operation.INSERT] + number[Operation.READ],
                updated=number[Operation.UPDATE],
                deleted=number[Operation.DELETE],
                truncated=number[Operation.TRUNCATE],
            ),
            truncated_at=self._truncated_at,
            absent=tuple(sorted(self._absent)),
            replaced=tuple(
                sorted((name, count) for name, count in self._replaced.items() if name in self._schema.names)
            ),
            crc32=self._crc32,
        )

    def discard(self) -> None:
        """Close and remove the file, whatever state it is in. The Parquet library insists on writing a footer."""
        self._discarded = True
        with suppress(JournalError, OSError, pa.ArrowException):
            self._parquet.close()
        self.file.discard()


@dataclass(slots=True)
class _Stream:
    """One table under its current schema version: the gathered batches, and the file they go to."""

    schema: TableSchema
    gathered: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    file: SegmentFile | None = None


class SegmentWriter:
    """Streams the batches of one change set into segment files.

    Use: ``add`` for every batch, ``finish`` once; ``discard`` instead if anything goes wrong. Memory is bounded
    whatever the size of the change set: small batches are gathered into row groups, with a limit for each table and one
    for all together. The number of open files is limited, too. ``prefix`` begins each file name and is unique to the
    attempt, so that leftovers of a crash never collide. ``last_seq`` is the journal's: initially the one before the
    change set, from which its rows count on. ``rows`` is the number of rows so far.
    """

    def __init__(
        self,
        layout: Layout,
        options: JournalOptions,
        *,
        prefix: str,
        last_seq: int,
    ) -> None:
        self.rows = 0
        self.last_seq = last_seq
        self._layout = layout
        self._options = options
        self._prefix = prefix
        self._seq_base = last_seq + 1
        self._streams: OrderedDict[TableId, _Stream] = OrderedDict()
        self._done: list[tuple[Segment, NewFile]] = []
        self._parts = itertools.count()
        self._last_seqs: dict[TableId, int] = {}
        self._gathered_bytes = 0

    def add(self, schema: TableSchema, data: pa.RecordBatch) -> None:
        """Take one batch of a table under a numbered schema. JournalError if its rows are out of order."""
        if data.num_rows == 0:
            return
        table, seq, previous = schema.table, data.column(SEQ).to_numpy(), self._last_seqs.get(schema.table, -1)
        if int(seq[0]) <= previous or not bool(np.all(seq[1:] > seq[:-1])):
            raise JournalError(f"rows of {table} are out of order: each seq must be above the one before ({previous})")
        if not bool(np.all(np.isin(data.column(OP).to_numpy(), _OPERATIONS))):
            raise JournalError(f"rows of {table} have an operation other than {', '.join(Operation.__members__)}")
        self._last_seqs[table] = int(seq[-1])
        self.last_seq = max(self.last_seq, self._seq_base + int(seq[-1]))
        stream = self._streams.setdefault(table, _Stream(schema))
        self._streams.move_to_end(table)
        if stream.schema.version != schema.version:  # end the file, so that a table's segments never overlap in seq
            self._write(stream)
            if stream.file is not None:
                self._close(stream, stream.file)
            stream.schema = schema
        stream.gathered.append(data)
        stream.rows += data.num_rows
        stream.bytes += data.nbytes
        self._gathered_bytes += data.nbytes
        self.rows += data.num_rows
        if stream.rows >= ROW_GROUP_ROWS or stream.bytes >= _GATHERED_TABLE_BYTES:
            self._write(stream)
        if self._gathered_bytes > _GATHERED_TOTAL_BYTES:
            self._write(max(self._streams.values(), key=lambda other: other.bytes))

    def finish(self) -> dict[TableId, list[Segment]]:
        """Make every file durable under its name. Returns the segments of each table in the order of their seq."""
        for stream in self._streams.values():
            self._write(stream)
        for file in [stream.file for stream in self._streams.values() if stream.file is not None]:
            self._done.append((file.end(), file.file))
        self._layout.root.finish([file for _, file in self._done])
        segments: dict[TableId, list[Segment]] = {}
        for segment in sorted((one for one, _ in self._done), key=lambda segment: segment.first_seq):
            segments.setdefault(segment.table, []).append(segment)
        return segments

    def discard(self) -> None:
        """Remove everything this writer wrote. Whatever cannot be removed is cleaned up at the next open."""
        for stream in self._streams.values():
            if stream.file is not None:
                stream.file.discard()
        for _, file in self._done:
            file.discard()

    def _write(self, stream: _Stream) -> None:
        """Turn the gathered batches of a stream into a row group, and close the file if it is large enough."""
        if not stream.gathered:
            return
        if stream.file is None:
            writing = [(other, other.file) for other in self._streams.values() if other.file is not None]
            if len(writing) >= _OPEN_FILES:
                self._close(*writing[0])  # the one that waited longest for rows
            name = self._layout.segment(stream.schema.table, f"{self._prefix}-{next(self._parts)}")
            stream.file = SegmentFile(self._layout.root, name, stream.schema)
        gathered, self._gathered_bytes = stream.gathered, self._gathered_bytes - stream.bytes
        stream.gathered, stream.rows, stream.bytes = [], 0, 0
        stream.file.add(gathered, self._seq_base)
        if stream.file.bytes >= self._options.segment_bytes:
            self._close(stream, stream.file)

    def _close(self, stream: _Stream, file: SegmentFile) -> None:
        segment = file.end()
        file.file.close()
        self._done.append((segment, file.file))
        stream.file = None

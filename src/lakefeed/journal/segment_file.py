"""SegmentFile: one Parquet file while it is being written.

Exactly what Spark reads: the table's own columns, then Lakefeed's, with plain types only. The size and the checksum
are counted as the bytes go by, so a segment is never read back to be committed.
"""

from __future__ import annotations

import errno
import io
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakefeed.change.batch import ABSENT, OP, POSITION, SEQ, TIME, TXN, Operation, change_schema
from lakefeed.change.segment import Counts, Segment
from lakefeed.change.table import TableSchema
from lakefeed.errors import JournalError, JournalFullError
from lakefeed.journal.commit import StoredSegment

ROW_GROUP_ROWS = 65_536
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# Few different values in a row group: worth a dictionary. For the table's own columns it was slower and larger
# than zstd alone on keys and texts.
_DICTIONARY = [OP, POSITION, TIME, TXN]


def segment_schema(schema: TableSchema) -> pa.Schema:
    """The columns of a segment: those of a ChangeBatch, with dictionaries made plain."""
    plain = [
        pa.field(column.name, column.type.value_type, column.nullable)
        if pa.types.is_dictionary(column.type)
        else column
        for column in change_schema(schema)
    ]
    return pa.schema(plain)


class SegmentFile:
    """Open from the constructor to ``finish`` or ``discard``. ``bytes`` is the size so far."""

    def __init__(self, path: Path, schema: TableSchema) -> None:
        self.path = path
        self._schema = schema
        self._layout = segment_schema(schema)
        self._sink = _Sink(path)
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, "w"),
            self._layout,
            compression="zstd",
            compression_level=1,
            use_dictionary=_DICTIONARY,  # type: ignore[arg-type]  # the stubs know only bool
            write_statistics=True,
            store_schema=False,
        )
        self._counts = Counts()
        self._rows = 0
        self._first_seq = -1
        self._last_seq = -1
        self._truncated_at: int | None = None
        self._absent: set[str] = set()

    @property
    def bytes(self) -> int:
        return self._sink.bytes

    def write(self, batches: Sequence[pa.RecordBatch], seq_base: int) -> None:
        """Add batches, in order, as row groups of their own. Their seq becomes ``seq_base`` + seq."""
        data = pa.Table.from_batches(batches).cast(self._layout)
        seq = pc.add(data.column(SEQ), seq_base)
        data = data.set_column(data.schema.get_field_index(SEQ), self._layout.field(SEQ), seq)
        self._note(data)
        self._writer.write_table(data, row_group_size=ROW_GROUP_ROWS)

    def finish(self, *, fsync: bool) -> StoredSegment:
        """Write the footer, make the file durable (its directory is the caller's) and describe it."""
        self._writer.close()
        self._sink.settle(fsync=fsync)
        segment = Segment(
            table=self._schema.table,
            path=str(self.path),
            rows=self._rows,
            bytes=self._sink.bytes,
            schema_version=self._schema.version,
            first_seq=self._first_seq,
            last_seq=self._last_seq,
            counts=self._counts,
            truncated_at=self._truncated_at,
            absent=tuple(sorted(self._absent)),
        )
        return StoredSegment(segment, self._sink.crc32)

    def discard(self) -> None:
        """Close and remove the file, whatever state it is in."""
        self._sink.mute()
        with suppress(JournalError, OSError, pa.ArrowException):
            self._writer.close()
        with suppress(JournalError):
            self._sink.settle(fsync=False)
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _note(self, data: pa.Table) -> None:
        """What the commit says of the segment, column-wise."""
        if not self._rows:
            self._first_seq = int(data.column(SEQ)[0].as_py())
        operations = data.column(OP).to_numpy()
        seqs = data.column(SEQ).to_numpy()
        number = np.bincount(operations, minlength=len(Operation) + 1)
        self._counts += Counts(
            inserted=int(number[Operation.INSERT] + number[Operation.READ]),
            updated=int(number[Operation.UPDATE]),
            deleted=int(number[Operation.DELETE]),
            truncated=int(number[Operation.TRUNCATE]),
        )
        if number[Operation.TRUNCATE]:
            self._truncated_at = int(seqs[operations == Operation.TRUNCATE][-1])
        absent = data.column(ABSENT)
        if absent.null_count < len(absent):
            self._absent.update(name for name in pc.unique(pc.list_flatten(absent)).to_pylist() if name is not None)
        self._last_seq = int(seqs[-1])
        self._rows += data.num_rows


class _Sink(io.RawIOBase):
    """The file under a ParquetWriter, which only appends to it."""

    def __init__(self, path: Path) -> None:
        self.bytes = 0
        self.crc32 = 0
        self._path = path
        self._muted = False
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _named(path, error) from error

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        block = memoryview(data)
        if not self._muted:
            self.crc32 = zlib.crc32(block, self.crc32)
            self._write_all(block)
        self.bytes += block.nbytes
        return block.nbytes

    def flush(self) -> None:
        """Nothing is held back here."""

    def tell(self) -> int:
        return self.bytes

    def mute(self) -> None:
        """Swallow what still comes: the Parquet library insists on writing a footer."""
        self._muted = True

    def close(self) -> None:
        """Arrow's to call at any time: only ``settle`` really closes, because it decides about the fsync."""

    def settle(self, *, fsync: bool) -> None:
        if self._descriptor < 0:
            return
        try:
            if fsync:
                os.fsync(self._descriptor)
        except OSError as error:
            raise _named(self._path, error) from error
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write_all(self, data: memoryview) -> None:
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            raise _named(self._path, error) from error


def _named(path: Path, error: OSError) -> JournalError:
    if error.errno in _NO_ROOM:
        return JournalFullError(f"no room left to write {path}: {error.strerror}")
    return JournalError(f"{path} cannot be written: {error.strerror or error}")

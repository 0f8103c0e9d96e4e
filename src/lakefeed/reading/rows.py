"""A segment's rows as Arrow batches of the read's columns. Column by column; a task needs nothing but its partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition

from lakefeed.change.batch import ABSENT, OP, POSITION, SEQ, TIME, TXN, Operation
from lakefeed.change.segment import Segment
from lakefeed.errors import DecodeError, JournalError
from lakefeed.journal.segment_file import check_segment
from lakefeed.reading.follow import ReadColumn
from lakefeed.reading.shape import CHANGE_SET, METADATA

Array = Any
"""An Arrow array; the type stubs of Arrow's kernels do not follow a type that is known at run time only."""

_BATCH_ROWS = 16_384
"""Rows handed to Spark at a time: enough for vector work, little enough for wide rows."""

_OPERATIONS = pa.array([None, *(Operation(number).name.lower() for number in range(1, len(Operation) + 1))])
_CARRIES_NOTHING = pa.array([Operation.DELETE, Operation.TRUNCATE], pa.int8())


@dataclass(frozen=True, slots=True)
class SegmentRead:
    """One segment, the number of its change set, and how its rows become rows of the read."""

    table: str
    number: int
    segment: Segment
    columns: tuple[ReadColumn, ...]


@dataclass(frozen=True)
class ChangePartition(InputPartition):
    """What one Spark task reads: a segment, or small ones that follow each other."""

    segments: tuple[SegmentRead, ...]


def read_partition(partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """Rows in seq order. Where there is no partition at all, Spark asks for None."""
    if isinstance(partition, ChangePartition):
        for segment in partition.segments:
            yield from read_segment(segment)


def read_segment(segment: SegmentRead) -> Iterator[pa.RecordBatch]:
    """The segment's rows in seq order, once its file has proven to be what was written."""
    path = segment.segment.path
    try:
        file = pq.ParquetFile(path)
        check_segment(segment.segment)
    except FileNotFoundError as error:
        raise JournalError(
            f"{path}, with change set {segment.number} of table {segment.table}, was trimmed before it could "
            "be read, or is not reachable from this worker",
            remedy="Raise journal.keep_change_sets and read again; on a cluster, keep the journal where every "
            "executor can read it.",
        ) from error
    with file:
        for batch in file.iter_batches(batch_size=_BATCH_ROWS):
            yield project(batch, segment)


def project(batch: pa.RecordBatch, segment: SegmentRead) -> pa.RecordBatch:
    """One batch of the segment with the read's columns."""
    own = [_own(batch, column, segment) for column in segment.columns]
    metadata = {
        OP: pc.take(_OPERATIONS, batch.column(OP)),
        CHANGE_SET: pa.repeat(pa.scalar(segment.number, pa.int64()), batch.num_rows),
        SEQ: batch.column(SEQ),
        POSITION: batch.column(POSITION),
        TIME: batch.column(TIME),
        TXN: batch.column(TXN),
        ABSENT: renamed_absent(batch.column(ABSENT), segment.columns),
    }
    fields = [pa.field(column.name, column.type) for column in segment.columns]
    arrays = [*own, *(metadata[field.name].cast(field.type) for field in METADATA)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*fields, *METADATA]))


def _own(batch: pa.RecordBatch, column: ReadColumn, segment: SegmentRead) -> Array:
    if column.origin is not None:
        return batch.column(column.origin).cast(column.type)
    nothing = _nulls(batch.num_rows, column.type)
    if column.default is None:
        return nothing
    carried = pc.invert(pc.is_in(batch.column(OP), value_set=_CARRIES_NOTHING))
    return pc.if_else(carried, default_scalar(column, segment.table), nothing)


def _nulls(rows: int, kind: Any) -> Array:
    return pa.nulls(rows, kind)


def default_scalar(column: ReadColumn, table: str) -> Any:
    """What rows from before a column was added read as. The default is JSON; the column has its own type."""
    try:
        return _scalar(column.default, column.type)
    except (pa.ArrowException, ValueError) as error:
        raise DecodeError(
            f"table {table}: the default {column.default!r} of column '{column.name}' is not a {column.type}",
            remedy="Read only change sets from after the column was added.",
        ) from error


def _scalar(value: Any, kind: Any) -> Any:
    if pa.types.is_timestamp(kind) and kind.tz is not None and isinstance(value, str):
        try:
            return pa.scalar(value).cast(kind)
        except pa.ArrowException:  # no zone in the text: UTC, as everywhere in the lake
            naive: Any = pa.scalar(value).cast(pa.timestamp("us"))
            return pc.assume_timezone(naive, "UTC")
    if pa.types.is_decimal(kind) and isinstance(value, float):
        return pa.scalar(repr(value)).cast(kind)
    return pa.scalar(value).cast(kind)


def renamed_absent(absent: Array, columns: tuple[ReadColumn, ...]) -> Array:
    """The lists of columns that were not sent, in the target's names; NULL where all of the target's were."""
    if absent.null_count == len(absent):
        return absent
    known = [column for column in columns if column.origin is not None]
    names = pa.array([column.name for column in known], pa.string())
    origins = pa.array([column.origin for column in known], pa.string())
    place: Array = pc.index_in(pc.list_flatten(absent), value_set=origins)
    kept = pc.is_valid(place)
    parent: Array = pc.list_parent_indices(absent)
    parents = parent.filter(kept).to_numpy()
    counts = np.bincount(parents, minlength=len(absent))
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32(), mask=np.append(counts == 0, False))
    return pa.ListArray.from_arrays(offsets, pc.take(names, place.filter(kept)))

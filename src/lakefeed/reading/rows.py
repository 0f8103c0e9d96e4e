"""A segment's rows as Arrow batches with the read's columns, column by column. A task needs only its partition."""

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
from lakefeed.reading.columns import ReadColumn
from lakefeed.reading.shape import CHANGE_SET, METADATA

Array = Any
"""An Arrow array; the stubs of Arrow's kernels cannot express a type that is known only at run time."""

_BATCH_ROWS = 16_384
"""Rows passed to Spark at a time: enough for vectorised work, few enough for wide rows."""

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
    """What one Spark task reads: a segment, or several small consecutive ones."""

    segments: tuple[SegmentRead, ...]


def read_partition(partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """Rows in seq order. If there is no partition at all, Spark passes None."""
    if isinstance(partition, ChangePartition):
        for segment in partition.segments:
            yield from read_segment(segment)


def read_segment(segment: SegmentRead) -> Iterator[pa.RecordBatch]:
    """The segment's rows in seq order, after checking that its file is what was written."""
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
    own: list[Array] = []
    for column in segment.columns:
        if column.origin is not None:
            own.append(batch.column(column.origin).cast(column.type))
            continue
        kind: Any = column.type
        values: Array = pa.nulls(batch.num_rows, kind)
        if column.default is not None:
            carried = pc.invert(pc.is_in(batch.column(OP), value_set=_CARRIES_NOTHING))
            values = pc.if_else(carried, default_scalar(column, segment.table), values)
        own.append(values)
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


def default_scalar(column: ReadColumn, table: str) -> Any:
    """The value of a column in rows from before it was added. The default is JSON; the column has its own type."""
    value: Any = column.default
    kind: Any = column.type
    try:
        if pa.types.is_timestamp(kind) and kind.tz is not None and isinstance(value, str):
            try:
                return pa.scalar(value).cast(kind)
            except pa.ArrowException:  # a text without a zone means UTC, as everywhere in the lake
                naive: Any = pa.scalar(value).cast(pa.timestamp("us"))
                return pc.assume_timezone(naive, "UTC")
        if pa.types.is_decimal(kind) and isinstance(value, float):
            return pa.scalar(repr(value)).cast(kind)
        return pa.scalar(value).cast(kind)
    except (pa.ArrowException, ValueError) as error:
        raise DecodeError(
            f"table {table}: the default {value!r} of column '{column.name}' is not a {kind}",
            remedy="Read only change sets from after the column was added.",
        ) from error


def renamed_absent(absent: Array, columns: tuple[ReadColumn, ...]) -> Array:
    """The lists of columns that were not sent, under the target's names; NULL if all of the target's were sent."""
    if absent.null_count == len(absent):
        return absent
    known = [column for column in columns if column.origin is not None]
    names = pa.array([column.name for column in known], pa.string())
    origins = pa.array([column.origin for column in known], pa.string())
    index: Array = pc.index_in(pc.list_flatten(absent), value_set=origins)
    kept = pc.is_valid(index)
    parent: Array = pc.list_parent_indices(absent)
    parents = parent.filter(kept).to_numpy()
    counts = np.bincount(parents, minlength=len(absent))
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32(), mask=np.append(counts == 0, False))
    return pa.ListArray.from_arrays(offsets, pc.take(names, index.filter(kept)))

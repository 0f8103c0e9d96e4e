"""Snapshot chunks, read in this process and shaped like changes: rows with the operation READ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakefeed.capture.base import ChangeCapture
from lakefeed.change.batch import METADATA, OP, POSITION, SEQ, ChangeBatch, Operation, change_schema
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position
from lakefeed.change.table import TableSchema
from lakefeed.errors import DecodeError, StateError
from lakefeed.flow.runtime_progress import SnapshotCursor


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """A chunk's rows, None if it has none and is not its table's first; ``bracket`` is what they are states of."""

    change_set: ChangeSet | None
    bracket: tuple[Position, Position]


class ChunkFeed:
    """Reads one chunk at a time; ``cursor`` is behind the last one that was read."""

    def __init__(self, capture: ChangeCapture, cursor: SnapshotCursor, chunk_rows: int) -> None:
        self._capture = capture
        self._chunk_rows = chunk_rows
        self.cursor = cursor

    def read(self, stream: Position | None) -> ChunkRead | None:
        """The next chunk, or None if it was older than ``stream`` and has to be read again.

        A log position can be reached before its rows are visible to a reader. A chunk from before the stream's
        position would put old values over changes that have already been delivered; one from behind it is put right
        by the changes that follow.
        """
        if stream is None:
            raise StateError("a snapshot chunk cannot be read before the stream has a position")
        if self.cursor.schema is None:
            plan = self._capture.snapshot(self.cursor.current, chunk_rows=self._chunk_rows)
            self.cursor = self.cursor.planned(plan)
        schema = self.cursor.schema
        assert schema is not None  # noqa: S101  # planned() set it
        batches, bracket = self._rows(stream)
        if bracket[0] < stream:
            return None
        first = self.cursor.chunk == 0
        self.cursor = self.cursor.advanced()
        if self.cursor.schema is None:  # that was the table's last
            self._capture.copied(schema.table)
        return ChunkRead(_change_set(schema, batches, bracket, stream, first), bracket)

    def _rows(self, stream: Position) -> tuple[list[pa.RecordBatch], tuple[Position, Position]]:
        if not self.cursor.chunks:
            return [], (stream, stream)
        with self._capture.chunk(self.cursor.chunks[self.cursor.chunk]).open() as reader:
            batches = [batch for batch in reader if batch.num_rows]
            return batches, (reader.low, reader.high)


def _change_set(
    schema: TableSchema,
    rows: Sequence[pa.RecordBatch],
    bracket: tuple[Position, Position],
    stream: Position,
    first: bool,
) -> ChangeSet | None:
    """The first set of a table carries its schema, so that an empty table is seen too."""
    if not rows and not first:
        return None
    batches, total = [], 0
    for batch in rows:
        batches.append(_as_changes(schema, batch, total, bracket[0]))
        total += batch.num_rows
    return ChangeSet(stream, stream, tuple(batches), total, schemas=(schema,) if first else ())


def _as_changes(schema: TableSchema, batch: pa.RecordBatch, start: int, low: Position) -> ChangeBatch:
    if tuple(batch.schema.names) != schema.names:
        raise DecodeError(
            f"a chunk of {schema.table} has the columns {', '.join(batch.schema.names)}; "
            f"{', '.join(schema.names)} were planned",
            remedy="The table was altered during its snapshot: delete the checkpoint to start the snapshot anew.",
        )
    rows = batch.num_rows
    layout = change_schema(schema)
    known = {
        OP: pa.array(np.full(rows, int(Operation.READ), dtype=np.int8)),
        SEQ: pa.array(np.arange(start, start + rows, dtype=np.int64)),
        POSITION: pa.DictionaryArray.from_arrays(np.zeros(rows, dtype=np.int32), pa.array([low.encode()])),
    }
    metadata = [known.get(field.name, pa.nulls(rows, field.type)) for field in METADATA]
    own = [column.cast(layout.field(index).type) for index, column in enumerate(batch.columns)]
    return ChangeBatch(schema, pa.RecordBatch.from_arrays([*own, *metadata], schema=layout))

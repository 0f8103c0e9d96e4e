"""From rows to changes: which operation each is, and the metadata that goes with it.

An event is the row as a poll found it. What happened to the row between two polls is not seen: the transaction id of an
event names the poll, so that nobody takes it for a transaction of the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.poll.followed import Followed
from lakefeed.capture.poll.marking import Marking
from lakefeed.capture.poll.stamp import Instants
from lakefeed.change.batch import ABSENT, METADATA, OP, POSITION, SEQ, TIME, TXN, ChangeBatch, Operation, change_schema
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class Events:
    """Changes of one table in the order in which they are to be applied. ``rows`` has the delivered columns."""

    schema: TableSchema
    rows: pa.RecordBatch
    operations: Any
    times: Instants

    @property
    def count(self) -> int:
        return int(self.rows.num_rows)


def classified(followed: Followed, marking: Marking, rows: pa.RecordBatch, times: Instants) -> Events:
    """A deleted row is a delete; created and updated at the same instant is an insert; everything else an update.

    Whoever applies them must not rely on the difference: a row that was inserted and updated between two polls is an
    update of a row that the lake has never seen.
    """
    operations = pa.array(np.full(rows.num_rows, int(Operation.UPDATE), np.int8))
    created = marking.created(rows)
    if created is not None:
        is_new = pc.fill_null(pc.equal(created, marking.updated(rows)), False)
        operations = pc.if_else(is_new, pa.scalar(int(Operation.INSERT), pa.int8()), operations)
    deleted = deleted_rows(followed, rows)
    if deleted is not None:
        operations = pc.if_else(deleted, pa.scalar(int(Operation.DELETE), pa.int8()), operations)
    return Events(followed.schema, delivered(followed.schema, rows, deleted), operations, times)


def deleted_rows(followed: Followed, rows: pa.RecordBatch) -> Any | None:
    """A boolean array, None where no row can be marked as deleted."""
    if followed.soft_time is not None:
        return pc.is_valid(rows.column(followed.soft_time))
    if followed.soft_flag is None:
        return None
    flag: Any = rows.column(followed.soft_flag)
    return pc.fill_null(flag if pa.types.is_boolean(flag.type) else pc.not_equal(flag, pa.scalar(0)), False)


def delivered(schema: TableSchema, rows: pa.RecordBatch, deleted: Any | None) -> pa.RecordBatch:
    """The delivered columns; of a deleted row only the key."""
    arrays = []
    for column in schema.columns:
        values: Any = rows.column(column.name)
        if deleted is not None and column.name not in schema.key:
            values = pc.if_else(deleted, pa.scalar(None, values.type), values)
        arrays.append(values)
    return pa.RecordBatch.from_arrays(arrays, names=list(schema.names))


def deletes(schema: TableSchema, keys: pa.RecordBatch, at_us: int) -> Events:
    """Deletes of rows that are gone, by their keys."""
    empty: Any = pa.nulls(keys.num_rows)
    arrays: list[Any] = [
        keys.column(column.name) if column.name in schema.key else empty.cast(column.type) for column in schema.columns
    ]
    rows = pa.RecordBatch.from_arrays(arrays, names=list(schema.names))
    operations = pa.array(np.full(keys.num_rows, int(Operation.DELETE), np.int8))
    return Events(schema, rows, operations, np.full(keys.num_rows, at_us, np.int64))


def change_batches(found: Sequence[Events], end: Position, polled_us: int) -> tuple[ChangeBatch, ...]:
    """All events as one run: numbered by time over all tables, each table's in its own order."""
    everything = np.concatenate([events.times for events in found]) if found else np.empty(0, np.int64)
    # What is late within a table must not be numbered before what it follows there, in the same piece or another.
    latest: dict[TableId, np.int64] = {}
    for start, events in zip(_starts(found), found, strict=True):
        piece = everything[start : start + events.count]
        np.maximum.accumulate(piece, out=piece)
        if events.count:
            floor = latest.get(events.schema.table, piece[0])
            np.maximum(piece, floor, out=piece)
            latest[events.schema.table] = piece[-1]
    places = np.empty(len(everything), np.int64)
    places[np.argsort(everything, kind="stable")] = np.arange(len(everything))
    poll = f"poll {datetime.fromtimestamp(polled_us / 1e6, UTC).isoformat(timespec='milliseconds')}"
    return tuple(
        _batch(events, places[start : start + events.count], end, poll)
        for start, events in zip(_starts(found), found, strict=True)
    )


def _starts(found: Sequence[Events]) -> list[int]:
    return [sum(events.count for events in found[:place]) for place in range(len(found))]


def _batch(events: Events, places: Instants, end: Position, poll: str) -> ChangeBatch:
    count = events.count
    layout = change_schema(events.schema)
    columns: dict[str, Any] = {
        OP: events.operations,
        SEQ: pa.array(places),
        POSITION: _repeated(end.encode(), count),
        TIME: pa.array(events.times).cast(pa.timestamp("us", tz="UTC")),
        TXN: _repeated(poll, count),
        ABSENT: pa.nulls(count, METADATA.field(ABSENT).type),
    }
    arrays = [columns[name] if name in columns else events.rows.column(name) for name in layout.names]
    return ChangeBatch(events.schema, pa.RecordBatch.from_arrays(arrays, schema=layout))


def _repeated(text: str, count: int) -> Any:
    return pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array([text]))

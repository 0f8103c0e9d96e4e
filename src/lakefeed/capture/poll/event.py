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

from lakefeed.capture.poll.table import Instants, PolledTable
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


def classified(table: PolledTable, rows: pa.RecordBatch, times: Instants) -> Events:
    """A deleted row is a delete; created and updated at the same instant is an insert; everything else an update.

    Whoever applies them must not rely on the difference: a row that was inserted and updated between two polls is an
    update of a row that the lake has never seen. Of a deleted row only the key is delivered.
    """
    operations = _all(Operation.UPDATE, rows)
    inserted, deleted = table.are_inserts(rows), table.are_deleted(rows)
    if inserted is not None:
        operations = pc.if_else(inserted, _all(Operation.INSERT, rows), operations)
    delivered: Any = rows.select(list(table.schema.names))
    if deleted is not None:
        operations = pc.if_else(deleted, _all(Operation.DELETE, rows), operations)
        for index, column in enumerate(table.schema.columns):
            if column.name not in table.key:
                values = pc.if_else(deleted, pa.scalar(None, column.type), delivered.column(index))
                delivered = delivered.set_column(index, column.name, values)
    return Events(table.schema, delivered, operations, times)


def deletes(schema: TableSchema, keys: pa.RecordBatch, at_us: int) -> Events:
    """Deletes of rows that are gone, by their keys."""
    empty: Any = pa.nulls(keys.num_rows)
    arrays: list[Any] = [
        keys.column(column.name) if column.name in schema.key else empty.cast(column.type) for column in schema.columns
    ]
    rows = pa.RecordBatch.from_arrays(arrays, names=list(schema.names))
    return Events(schema, rows, _all(Operation.DELETE, rows), np.full(keys.num_rows, at_us, np.int64))


def _all(operation: Operation, rows: pa.RecordBatch) -> Any:
    return pa.array(np.full(rows.num_rows, int(operation), np.int8))


def change_batches(found: Sequence[Events], end: Position, polled_us: int) -> tuple[ChangeBatch, ...]:
    """All events as one run: numbered by time over all tables, each table's in its own order."""
    # What is late within a table must not be numbered before what it follows there, in the same piece or another.
    latest: dict[TableId, np.int64] = {}
    pieces = [np.empty(0, np.int64)]
    for events in found:
        piece = np.maximum.accumulate(events.times)
        if events.count:
            piece = np.maximum(piece, latest.get(events.schema.table, piece[0]))
            latest[events.schema.table] = piece[-1]
        pieces.append(piece)
    everything = np.concatenate(pieces)
    numbers = np.empty(len(everything), np.int64)
    numbers[np.argsort(everything, kind="stable")] = np.arange(len(everything))
    poll = f"poll {datetime.fromtimestamp(polled_us / 1e6, UTC).isoformat(timespec='milliseconds')}"

    batches, start = [], 0
    for events in found:
        count, layout = events.count, change_schema(events.schema)
        columns: dict[str, Any] = {
            **dict(zip(events.rows.schema.names, events.rows.columns, strict=True)),
            OP: events.operations,
            SEQ: pa.array(numbers[start : start + count]),
            POSITION: pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array([end.encode()])),
            TIME: pa.array(events.times).cast(pa.timestamp("us", tz="UTC")),
            TXN: pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array([poll])),
            ABSENT: pa.nulls(count, METADATA.field(ABSENT).type),
        }
        data = pa.RecordBatch.from_arrays([columns[name] for name in layout.names], schema=layout)
        batches.append(ChangeBatch(events.schema, data))
        start += count
    return tuple(batches)


def unchanged(rows: pa.RecordBatch, before: pa.RecordBatch | None, key: Sequence[str]) -> Any:
    """A boolean array: which of ``rows`` are in ``before``, equal in every column.

    By content and not by time alone: a row that changed twice within one time stamp is delivered twice.
    """
    if before is None or before.num_rows == 0 or not rows.schema.equals(before.schema):
        return pa.array([False] * rows.num_rows, pa.bool_())
    index: Any = pc.index_in(key_texts(rows, key), value_set=key_texts(before, key))
    same: Any = pc.is_valid(index)
    for mine, theirs in zip(rows.columns, before.columns, strict=True):
        other: Any = theirs.take(index)
        # NULL is NULL here, and NaN is NaN: a row that never equals itself would be delivered for ever.
        is_float = pa.types.is_floating(mine.type)
        nothing = [pc.is_null(values, nan_is_null=is_float) for values in (mine, other)]
        equal: Any = pc.equal(mine, other)
        same = pc.and_(same, pc.or_(pc.fill_null(equal, False), pc.and_(*nothing)))
    return same


def in_keys(rows: pa.RecordBatch, others: pa.RecordBatch, key: Sequence[str]) -> Any:
    """A boolean array: which of ``rows`` have a key that is in ``others``."""
    return pc.is_in(key_texts(rows, key), value_set=key_texts(others, key))


def key_texts(rows: pa.RecordBatch, key: Sequence[str]) -> Any:
    """One value for each row that only an equal key has. A single column is its own."""
    if len(key) == 1:
        return rows.column(key[0])
    parts: list[Any] = []
    for name in key:
        value = rows.column(name)
        text: Any = value if pa.types.is_binary(value.type) else value.cast(pa.string()).cast(pa.binary())
        # The length goes before each part: ('a:b', 'c') and ('a', 'b:c') must not look alike.
        size = pc.binary_length(text).cast(pa.string()).cast(pa.binary())
        parts += [size, pa.scalar(b":"), text]
    return pc.binary_join_element_wise(*parts, pa.scalar(b""))

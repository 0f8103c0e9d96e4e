"""Small builders for tables, batches and change sets, so that a test contains only what matters to it.

people = table("main.people", {"id": pa.int64(), "name": pa.string()}, key=("id",))
rows = batch(people, [("insert", {"id": 1, "name": "Ada"}), ("delete", {"id": 2}), ("truncate", {})])
journal.append(change_set(None, 10, rows))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakefeed.change.batch import ABSENT, OP, POSITION, SEQ, TIME, TXN, ChangeBatch, Operation, change_schema
from lakefeed.change.change_set import ChangeSet, TableNotice
from lakefeed.change.position import Position, SqliteSequence
from lakefeed.change.segment import Window
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.journal.segment_file import check_segment

Row = tuple[str, Mapping[str, Any]]
"""``("insert" | "update" | "delete" | "truncate" | "read", {column: value})``; a column left out is NULL."""

COMMITTED_AT = datetime(2024, 1, 1, tzinfo=UTC)


def at(sequence: int) -> SqliteSequence:
    """A position for tests: ``at(7)``."""
    return SqliteSequence(sequence)


def table(name: str, columns: Mapping[str, pa.DataType], key: Sequence[str] = ()) -> TableSchema:
    """A schema that the journal has not numbered yet. Key columns are NOT NULL, the others are nullable."""
    made = tuple(Column(column, kind, nullable=column not in key) for column, kind in columns.items())
    return TableSchema(TableId.parse(name), made, tuple(key))


def batch(
    schema: TableSchema,
    rows: Sequence[Row],
    *,
    start_seq: int = 0,
    position: Position | int | None = None,
    time: datetime = COMMITTED_AT,
    absent: Mapping[int, Sequence[str]] | None = None,
) -> ChangeBatch:
    """Rows of one table as a ChangeBatch, all in one transaction.

    ``start_seq`` is the seq of the first row in the change set; the others follow without gaps. ``absent`` lists, by
    row index, the columns that the source did not send. The transaction id is the text of the position.
    """
    found = _position(position)
    unsent = absent or {}
    columns: dict[str, list[Any]] = {name: [values.get(name) for _, values in rows] for name in schema.names}
    columns[OP] = [int(Operation[operation.upper()]) for operation, _ in rows]
    columns[SEQ] = list(range(start_seq, start_seq + len(rows)))
    columns[POSITION] = [found.encode() if found else None] * len(rows)
    columns[TIME] = [time] * len(rows)
    columns[TXN] = [found.text() if found else None] * len(rows)
    columns[ABSENT] = [list(unsent[row]) if row in unsent else None for row in range(len(rows))]
    layout = change_schema(schema)
    arrays = [pa.array(columns[field.name], field.type) for field in layout]
    return ChangeBatch(schema, pa.RecordBatch.from_arrays(arrays, schema=layout))


def change_set(
    start: Position | int | None,
    end: Position | int,
    *batches: ChangeBatch,
    schemas: Sequence[TableSchema] = (),
    notices: Sequence[TableNotice] = (),
) -> ChangeSet:
    """A change set with these ``batches``; plain numbers mean ``at(number)``."""
    until = _position(end)
    assert until is not None
    rows = sum(part.rows for part in batches)
    return ChangeSet(_position(start), until, batches, rows, tuple(schemas), tuple(notices))


def _position(position: Position | int | None) -> Position | None:
    return at(position) if isinstance(position, int) else position


def read_window(window: Window) -> list[dict[str, Any]]:
    """All rows of a window, in its order, as they are in the segment files."""
    rows: list[dict[str, Any]] = []
    for segment in window.segments:
        check_segment(segment)
        rows += pq.ParquetFile(segment.path).read().to_pylist()
    return rows

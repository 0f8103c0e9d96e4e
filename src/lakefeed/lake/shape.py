"""Shape: the columns of a lake table. The source's own columns, then those that the mode adds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from lakefeed.change.batch import ABSENT, POSITION, SEQ, TXN
from lakefeed.change.table import Column, TableSchema
from lakefeed.errors import TableStoppedError
from lakefeed.lake.base import TableCopy
from lakefeed.lake.file_chunk import CurrentRows
from lakefeed.lake.mode import Append, Mirror, Mode, Temporal

_INSTANT = pa.timestamp("us", tz="UTC")
COMMITTED_AT, OPERATION = "_lakefeed_committed_at", "_lakefeed_operation"
UNKNOWN_TIME = "TIMESTAMP'1970-01-01 00:00:00+00:00'"
"""In Spark SQL, where a time is needed and the source told none. The same at every replay, which a clock is not."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a mode adds to a table's columns. ``copied`` are the values of those columns in rows of a copy."""

    mode: Mode

    def added(self) -> tuple[Column, ...]:
        """The mode's own columns, behind the source's."""
        if isinstance(self.mode, Temporal):
            return _temporal(self.mode)
        if isinstance(self.mode, Append):
            return _append()
        return _mirror(self.mode)

    def schema(self, source: TableSchema) -> TableSchema:
        """The lake table's schema for a source schema, with its version. TableStoppedError if names collide."""
        added = self.added()
        taken = {name.lower() for name in source.names}
        for column in added:
            if column.name.lower() in taken:
                raise TableStoppedError(
                    f"table {source.table} has a column '{column.name}', which the mode needs for itself",
                    remedy="Give the mode's column another name in the configuration.",
                    table=str(source.table),
                )
        return replace(source, columns=(*source.columns, *added))

    def current(self) -> CurrentRows | None:
        """Which of the table's rows are the source's; None for a mode that keeps no rows, only changes."""
        if isinstance(self.mode, Append):
            return None
        if isinstance(self.mode, Temporal):
            return CurrentRows(self.mode.is_current)
        return CurrentRows(self.mode.soft_delete, null=True)

    def source_rows(self, rows: pa.Table) -> pa.Table | None:
        """The source's rows, with its own columns, out of the lake table's; None for a mode that has only changes."""
        current = self.current()
        if current is None:
            return None
        own = {column.name for column in self.added()}
        return current.of_table(rows).select([name for name in rows.column_names if name not in own])

    def copied(self, copy: TableCopy) -> dict[str, Any]:
        """For each added column the value that every copied row has. The time is when the copy was planned."""
        planned = datetime.fromtimestamp(copy.generation / 1000, UTC)
        position = copy.position.encode() if copy.position is not None else None
        if isinstance(self.mode, Temporal):
            values: dict[str, Any] = {
                self.mode.valid_from: planned,
                self.mode.valid_to: None,
                self.mode.is_current: True,
                SEQ: 0,
            }
            return values
        told = {OPERATION: "read", COMMITTED_AT: planned, POSITION: position, SEQ: 0, TXN: None}
        return {column.name: told.get(column.name) for column in self.added()}


def _temporal(mode: Temporal) -> tuple[Column, ...]:
    return (
        Column(mode.valid_from, _INSTANT),
        Column(mode.valid_to, _INSTANT),
        Column(mode.is_current, pa.bool_()),
        Column(SEQ, pa.int64()),
    )


def _append() -> tuple[Column, ...]:
    return (
        Column(OPERATION, pa.string()),
        Column(SEQ, pa.int64()),
        Column(POSITION, pa.string()),
        Column(COMMITTED_AT, _INSTANT),
        Column(TXN, pa.string()),
        Column(ABSENT, pa.list_(pa.string())),  # last: no file statistics are kept behind a list
    )


def _mirror(mode: Mirror) -> tuple[Column, ...]:
    kinds: dict[str, pa.DataType] = {"operation": pa.string(), "position": pa.string(), "committed_at": _INSTANT}
    told = tuple(Column(f"_lakefeed_{choice}", kinds[choice]) for choice in mode.metadata)
    return (*((Column(mode.soft_delete, _INSTANT),) if mode.soft_delete else ()), *told)

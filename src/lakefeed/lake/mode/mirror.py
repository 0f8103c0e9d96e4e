"""Mirror: the table equals the source at the window's end. ``upsert`` has the ways there.

With ``soft_delete`` a deleted row stays as it was, with the time of its deletion; a new insert clears that time.
With ``metadata`` each row describes its last change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from lakefeed.change.batch import OP, POSITION, TIME, Operation
from lakefeed.change.segment import Window
from lakefeed.change.table import Column
from lakefeed.errors import ConfigError
from lakefeed.lake.mode.base import (
    COMMITTED_AT,
    INSTANT,
    OPERATION,
    UNKNOWN_TIME,
    CurrentRows,
    Mode,
    check_name,
    checked_names,
    operation_text,
)
from lakefeed.lake.mode.changes import window_changes
from lakefeed.lake.mode.collapse import collapse, truncates_as_deletes
from lakefeed.lake.mode.keyless import keyless_step
from lakefeed.lake.mode.upsert import ModeColumns, left_rows, mark_step, merge_step, packed, upsert_step
from lakefeed.lake.spark.type import quoted
from lakefeed.lake.store import AppendRows, Step, TableStore
from lakefeed.lake.window import key_bounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakefeed.lake.base import TableCopy

_METADATA: dict[str, tuple[str, pa.DataType, str]] = {
    "operation": (OPERATION, pa.string(), operation_text(f"s.{OP}")),
    "position": (POSITION, pa.string(), f"s.{POSITION}"),
    "committed_at": (COMMITTED_AT, INSTANT, f"s.{TIME}"),
}
"""What ``metadata`` can add about each row's last change: the choice, its column, and its value in Spark SQL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror(Mode):
    """The lake table equals the source table: current rows.

    ``soft_delete`` names a timestamp column: deleted rows stay, and it has the time of their deletion; in all other
    rows it is NULL. ``metadata`` adds columns that describe each row's last change. ``keyless`` is for a table without
    a key: ``match`` counts equal rows; ``append`` appends inserts, and any other change stops the table.
    """

    name: ClassVar[str] = "mirror"
    equals_source: ClassVar[bool] = True

    soft_delete: str | None = None
    metadata: tuple[str, ...] = ()
    keyless: str = "match"

    def __post_init__(self) -> None:
        if self.soft_delete is not None:
            check_name("mirror", "soft_delete", self.soft_delete, such_as="deleted_at")
        object.__setattr__(self, "metadata", checked_names("mirror", "metadata", self.metadata))
        for option, given, choices in (
            ("metadata", self.metadata, tuple(_METADATA)),
            ("keyless", (self.keyless,), ("match", "append")),
        ):
            for value in given:
                if value not in choices:
                    raise ConfigError(
                        f"mode mirror: '{value}' is not a choice for {option}",
                        remedy=f"Choose from: {', '.join(choices)}.",
                    )

    def added_columns(self) -> tuple[Column, ...]:
        deleted_at = (Column(self.soft_delete, INSTANT),) if self.soft_delete else ()
        return (*deleted_at, *(Column(*_METADATA[choice][:2]) for choice in self.metadata))

    def copied_values(self, copy: TableCopy, planned: datetime) -> dict[str, Any]:
        position = copy.position.encode() if copy.position is not None else None
        values = {OPERATION: "read", COMMITTED_AT: planned, POSITION: position}
        return {column.name: values.get(column.name) for column in self.added_columns()}

    def current_rows(self) -> CurrentRows:
        return CurrentRows(self.soft_delete, null=True)

    def step(self, session: SparkSession, window: Window, store: TableStore) -> Step:
        deleted_at = f"CASE WHEN s.{OP} = {int(Operation.DELETE)} THEN coalesce(s.{TIME}, {UNKNOWN_TIME}) END"
        values = {self.soft_delete: deleted_at} if self.soft_delete else {}
        values |= {_METADATA[choice][0]: _METADATA[choice][2] for choice in self.metadata}
        used = tuple(name for name in (POSITION, TIME) if any(f"s.{name}" in value for value in values.values()))
        own = ModeColumns(new=values, onto=values, metadata=used, keeps_deleted=self.soft_delete is not None)
        key = window.target.key
        if not key:
            return keyless_step(session, window, store, own, appends=self.keyless == "append")
        if self.soft_delete is None:
            return upsert_step(session, window, store, own)
        there = f"{quoted(self.soft_delete)} IS NULL"
        changes = window_changes(session, window, lambda: store.read(session).where(there), own.metadata)
        if window.truncated_at is not None:
            # A truncate deletes every row, and each must stay: read them all.
            changes = truncates_as_deletes(changes, store.read(session).where(there), key)
            return merge_step(collapse(changes, window, keep_deleted=True), window, None, own)
        bounds = key_bounds(window)
        changes = collapse(changes, window, keep_deleted=True)
        extent = store.extent(key[0], bounds)
        if extent is not None and extent.touched_files == 0:
            return AppendRows(packed(left_rows(changes, window, own), window))
        merge = merge_step(changes, window, bounds, own)
        if extent is not None and extent.markable is not None:
            return mark_step(session, store, window, merge, extent.markable)
        return replace(merge, within=extent.replaceable if extent is not None else None)

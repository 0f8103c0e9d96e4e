"""Append: every change of a window as a row of the table, with its metadata. Only ever appends.

``_lakefeed_seq`` orders the rows; copied rows have 0 and the operation ``read``. A delete has the key and NULL in the
other columns, a truncate has NULL in all. ``_lakefeed_absent`` names the columns of an update that the source did not
send: they are NULL here and not in the source. An update that changes the key is a delete and an insert; values that
the source did not send with it come from the old key's rows. A before image is a row with the operation ``before``,
directly ahead of its change. Changes that a copy may already show (a window that is not exact) become rows, too: the
last change of a key by seq is right in any case.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from lakefeed.change.batch import ABSENT, OP, POSITION, SEQ, TIME, TXN
from lakefeed.change.segment import Window
from lakefeed.change.table import Column
from lakefeed.lake.mode.base import COMMITTED_AT, INSTANT, OPERATION, CurrentRows, Mode, operation_text
from lakefeed.lake.mode.changes import window_changes
from lakefeed.lake.mode.upsert import packed
from lakefeed.lake.spark.type import quoted
from lakefeed.lake.window import incomplete_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakefeed.lake.base import TableCopy
    from lakefeed.lake.store import Step, TableStore


_KNOWN = "_lakefeed_known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(Mode):
    """The change log: every change as a row, in order, with its metadata. Lakefeed never updates a row of it."""

    name: ClassVar[str] = "append"
    uses_key: ClassVar[bool] = False
    drop_column: ClassVar[str] = "keep"  # a change log is there for the past

    def added_columns(self) -> tuple[Column, ...]:
        return (
            Column(OPERATION, pa.string()),
            Column(SEQ, pa.int64()),
            Column(POSITION, pa.string()),
            Column(COMMITTED_AT, INSTANT),
            Column(TXN, pa.string()),
            Column(ABSENT, pa.list_(pa.string())),  # last: columns behind a list get no file statistics
        )

    def copied_values(self, copy: TableCopy, planned: datetime) -> dict[str, Any]:
        position = copy.position.encode() if copy.position is not None else None
        return {OPERATION: "read", SEQ: 0, POSITION: position, COMMITTED_AT: planned, TXN: None, ABSENT: None}

    def current_rows(self) -> CurrentRows | None:
        return None

    def step(self, session: SparkSession, window: Window, store: TableStore) -> Step:  # the seam's
        from pyspark.sql import functions as F  # noqa: N812

        from lakefeed.lake.store import AppendRows

        stored = (lambda: self._last_values(store.read(session), window)) if window.target.key else None
        changes = window_changes(session, window, stored, (POSITION, TIME, TXN, ABSENT), is_log=True)
        rows = changes.select(
            *(F.col(quoted(name)) for name in window.target.names),
            F.expr(operation_text(OP)).alias(OPERATION),
            F.col(SEQ),
            F.col(POSITION),
            F.col(TIME).alias(COMMITTED_AT),
            F.col(TXN),
            F.col(ABSENT),
        )
        return AppendRows(packed(rows, window))

    def _last_values(self, logged: DataFrame, window: Window) -> DataFrame:
        """For each key in the change log, its row's last values in the columns that the window does not always carry.

        Leaves out keys whose row the log does not have whole, and keys whose last change is a delete.
        """
        from pyspark.sql import functions as F  # noqa: N812

        names = tuple(incomplete_columns(window))
        made = F.max(F.when(F.col(OPERATION).isin("insert", "read"), F.col(SEQ)))
        found, known = [], made.isNotNull()
        for name in names:
            absent = F.coalesce(F.array_contains(F.col(ABSENT), name), F.lit(False))
            sent = F.when(F.col(OPERATION).isin("insert", "update", "read") & ~absent, F.col(SEQ))
            found.append(F.max_by(F.col(quoted(name)), sent).alias(name))
            known &= F.max(sent) >= made
        grouped = logged.groupBy(*(F.col(quoted(name)) for name in window.target.key))
        known &= F.max_by(F.col(OPERATION), F.col(SEQ)) != "delete"
        return grouped.agg(*found, known.alias(_KNOWN)).where(_KNOWN)

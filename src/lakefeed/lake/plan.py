"""From a window to a step, by mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakefeed.change.segment import Window
from lakefeed.errors import TableStoppedError
from lakefeed.lake.change_log import append_step
from lakefeed.lake.keyless import keyless_step
from lakefeed.lake.mirror import mirror_step
from lakefeed.lake.mode import Append, Mode, Temporal
from lakefeed.lake.step import Step
from lakefeed.lake.store import TableStore
from lakefeed.lake.temporal import temporal_step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def planned_step(session: SparkSession, mode: Mode, window: Window, store: TableStore) -> Step:
    """The one commit that brings the table to the window's end. The table has the window's target schema already."""
    if isinstance(mode, Append):
        return append_step(session, window)
    if isinstance(mode, Temporal):
        if not window.target.key:
            raise TableStoppedError(
                f"table {window.table} has no key, so there is nothing whose versions could be told apart",
                remedy=f"Give {window.table} a primary key, or mode mirror or append by a rule of its own.",
                table=str(window.table),
            )
        return temporal_step(session, window, store, mode)
    if not window.target.key:
        return keyless_step(session, window, store, mode)
    return mirror_step(session, window, store, mode)

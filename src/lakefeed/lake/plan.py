"""From a window to a step, by mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakefeed.change.segment import Window
from lakefeed.errors import TableStoppedError
from lakefeed.lake.mirror import mirror_step
from lakefeed.lake.mode import Mirror, Mode, mode_name
from lakefeed.lake.step import Step
from lakefeed.lake.store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def planned_step(session: SparkSession, mode: Mode, window: Window, store: TableStore) -> Step:
    """The one commit that brings the table to the window's end. The table has the window's target schema already."""
    if not isinstance(mode, Mirror):
        raise TableStoppedError(f"table {window.table}: mode {mode_name(mode)} is not there yet")
    if not window.target.key:
        raise TableStoppedError(
            f"table {window.table} has no key, so its changes cannot be matched with the lake table's rows",
            remedy=f"Give {window.table} a primary key, or leave it out of the table patterns.",
            table=str(window.table),
        )
    return mirror_step(session, window, store)

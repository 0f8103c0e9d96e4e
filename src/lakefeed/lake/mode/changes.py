"""The changes of a window in the form for a mode: under the lake table's columns, by its rule, moved rows complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lakefeed.change.segment import Window
from lakefeed.lake.mode.moved import with_moved_values
from lakefeed.lake.rule.changes import ruled_changes, ruled_keys
from lakefeed.lake.spark.type import quoted
from lakefeed.lake.window import RuledWindow, read_changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def window_changes(
    session: SparkSession,
    window: Window,
    stored: Callable[[], DataFrame] | None,
    metadata: Sequence[str] = (),
    *,
    is_log: bool = False,
) -> DataFrame:
    """As ``window.read_changes`` gives them, under the columns of ``window.target``.

    ``stored`` gives the table's rows from before the window, one for each key, with the columns that a change may lack;
    None if no change lacks a value. ``is_log`` is for a mode that keeps changes: it gets before images, too, and an
    insert that a rule's condition leaves out gives no row.
    """
    if isinstance(window, RuledWindow):
        changes = read_changes(session, window.inner, metadata, before_images=is_log)
        known = stored if window.absent else None
        moved = with_moved_values if window.exact or not is_log else None
        changes = ruled_changes(changes, window, known, moved, is_log=is_log)
    else:
        changes = read_changes(session, window, metadata, before_images=is_log)
    if window.absent and stored is not None and (window.exact or not is_log):
        changes = with_moved_values(changes, window, stored)
    return changes


def window_keys(session: SparkSession, window: Window) -> DataFrame:
    """The key of each change of a window, with repetitions."""
    if isinstance(window, RuledWindow):
        return ruled_keys(read_changes(session, window.inner), window)
    return read_changes(session, window).select(*map(quoted, window.target.key))

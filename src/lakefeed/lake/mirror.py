"""Mirror: the table equals the source at the window's end. See ``upsert`` for the ways there.

With ``soft_delete`` a deleted row stays as it was, with the time of its deletion; inserting it again clears that.
With ``metadata`` each row tells of its last change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakefeed.change.batch import OP, POSITION, TIME, Operation
from lakefeed.change.segment import Window
from lakefeed.lake.bounds import key_bounds
from lakefeed.lake.collapse import collapse, collapsed_window
from lakefeed.lake.mode import Mirror
from lakefeed.lake.projection import incomplete_columns, read_changes
from lakefeed.lake.shape import COMMITTED_AT, OPERATION, UNKNOWN_TIME
from lakefeed.lake.sparktype import quoted
from lakefeed.lake.step import AppendRows, Step
from lakefeed.lake.store import TableStore
from lakefeed.lake.truncation import truncates_as_deletes
from lakefeed.lake.upsert import Own, left_rows, merge_step, packed, upsert_step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def mirror_step(session: SparkSession, window: Window, store: TableStore, mode: Mirror) -> Step:
    """What brings the table, which has the window's target schema, to the window's end."""
    if mode.soft_delete is None:
        return upsert_step(session, window, store, own_columns(mode))
    if window.truncated_at is not None:
        return _truncated(session, window, store, mode)
    own = own_columns(mode)
    bounds = key_bounds(window)
    changes = collapsed_window(session, window, own.told, keep_deleted=True)
    extent = store.extent(window.target.key[0], bounds)
    if extent is not None and extent.touched_files == 0:
        return AppendRows(packed(left_rows(changes, window, own), window))
    return merge_step(changes, window, bounds, own)


def own_columns(mode: Mirror) -> Own:
    """The columns that the options add, as SQL over a collapsed change ``s``."""
    deleted_at = f"CASE WHEN s.{OP} = {int(Operation.DELETE)} THEN coalesce(s.{TIME}, {UNKNOWN_TIME}) END"
    values = {mode.soft_delete: deleted_at} if mode.soft_delete else {}
    values |= {f"_lakefeed_{choice}": _METADATA[choice] for choice in mode.metadata}
    told = tuple(name for name in (POSITION, TIME) if any(f"s.{name}" in value for value in values.values()))
    return Own(new=values, onto=values, told=told, keeps_deleted=mode.soft_delete is not None)


def operation_text(column: str) -> str:
    """The SQL of an operation's name in lower case."""
    names = ", ".join(f"'{operation.name.lower()}'" for operation in Operation)
    return f"elt(CAST({column} AS INT), {names})"


_METADATA = {
    OPERATION.removeprefix("_lakefeed_"): operation_text(f"s.{OP}"),
    POSITION.removeprefix("_lakefeed_"): f"s.{POSITION}",
    COMMITTED_AT.removeprefix("_lakefeed_"): f"s.{TIME}",
}


def _truncated(session: SparkSession, window: Window, store: TableStore, mode: Mirror) -> Step:
    """A truncate deletes every row that was there, and these must stay: each is looked at."""
    own = own_columns(mode)
    key = window.target.key
    there = store.read(session).where(f"{quoted(mode.soft_delete or '')} IS NULL")
    changes = truncates_as_deletes(read_changes(session, window, own.told), there, key)
    return merge_step(collapse(changes, key, incomplete_columns(window), keep_deleted=True), window, None, own)

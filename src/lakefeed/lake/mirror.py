"""Mirror: the changes of a window onto the table, so that it equals the source at the window's end. One commit.

Four ways to the same rows; the cheapest that is sound is taken:

- *replace*: after a truncate, the table is what came after it.
- *append*: no file of the table can have a key of the window, by the table's own statistics. Nothing to look up.
- *rewrite*: nearly every file would be rewritten anyway. The rows that stay are read once, without those of the
  window's keys, and written with what the window leaves: half the work of a merge, which reads everything twice.
- *merge*: one MERGE, with the bounds of the window's keys, so that files outside of them are not read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lakefeed.change.batch import OP, Operation
from lakefeed.change.segment import Window
from lakefeed.lake.bounds import KeyBounds, key_bounds
from lakefeed.lake.collapse import FRESH, collapsed_window
from lakefeed.lake.projection import CARRIED, incomplete_columns, read_changes
from lakefeed.lake.sparktype import quoted, spark_type
from lakefeed.lake.step import AppendRows, MergeRows, ReplaceRows, Step
from lakefeed.lake.store import Extent, TableStore

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

INCOMPLETE = "LAKEFEED_INCOMPLETE_ROW"
"""In the error of a change that did not carry all columns, for a row that the table does not have."""

REWRITE_SHARE = 0.7
"""Of the table's bytes in files that may have the window's keys, from which rewriting it all is cheaper."""

_SURELY_TOUCHED = 4
"""Changes per file, at least, from which a file that may have one of the keys is taken to have one."""

_FILE_BYTES = 128 << 20
_BROADCAST_ROWS = 1_000_000


def mirror_step(session: SparkSession, window: Window, store: TableStore) -> Step:
    """What brings the table, which has the window's target schema, to the window's end."""
    if window.truncated_at is not None:
        return ReplaceRows(_left(collapsed_window(session, window), window))
    bounds = key_bounds(window)
    extent = store.extent(window.target.key[0], bounds)
    if extent is not None and extent.touched_files == 0:
        return AppendRows(_left(collapsed_window(session, window), window))
    if extent is not None and _rewrites(window, extent):
        return ReplaceRows(_rewritten(session, window, store, extent))
    return merge_step(collapsed_window(session, window), window, bounds)


def merge_step(changes: DataFrame, window: Window, bounds: KeyBounds | None) -> MergeRows:
    """``changes``: one row per key, as ``collapse`` leaves them."""
    flags = _flags(window)
    names = window.target.names
    key = window.target.key
    updates = ", ".join(f"t.{quoted(name)} = {_onto(window, name, flags)}" for name in names if name not in key)
    values = ", ".join(_whole(window, name, flags) for name in names)
    clauses = (
        f"WHEN MATCHED AND s.{OP} = {int(Operation.DELETE)} THEN DELETE",
        *((f"WHEN MATCHED THEN UPDATE SET {updates}",) if updates else ()),
        f"WHEN NOT MATCHED AND s.{OP} <> {int(Operation.DELETE)}",
        f"THEN INSERT ({', '.join(map(quoted, names))}) VALUES ({values})",  # noqa: S608  # names are quoted
    )
    return MergeRows(changes, _condition(window, bounds), clauses)


def _rewrites(window: Window, extent: Extent) -> bool:
    whole = not window.absent  # a column that was not carried needs the table's row, which a merge has
    many = window.rows >= _SURELY_TOUCHED * extent.touched_files
    return whole and many and extent.touched_bytes >= REWRITE_SHARE * extent.bytes


def _rewritten(session: SparkSession, window: Window, store: TableStore, extent: Extent) -> DataFrame:
    """The rows whose keys the window does not have, and what the window leaves of those it has."""
    from pyspark.sql import functions as F  # noqa: N812

    names = [quoted(name) for name in window.target.names]
    keys = read_changes(session, window).select(*(F.col(quoted(name)) for name in window.target.key)).alias("s")
    if window.rows <= _BROADCAST_ROWS:
        keys = F.broadcast(keys)
    condition = F.expr(_matches(window))
    kept = store.read(session).select(*names).alias("t").join(keys, condition, "left_anti")
    partitions = max(session.sparkContext.defaultParallelism, math.ceil(extent.bytes / _FILE_BYTES))
    return kept.unionByName(_left(collapsed_window(session, window), window)).coalesce(partitions)


def _left(changes: DataFrame, window: Window) -> DataFrame:
    """What collapsed changes leave where the table has none of their rows."""
    from pyspark.sql import functions as F  # noqa: N812

    flags = _flags(window)
    columns: list[Column] = [
        F.expr(_whole(window, name, flags)).alias(name) for name in window.target.names
    ]  # fmt: skip
    return changes.alias("s").where(F.col(OP) != int(Operation.DELETE)).select(*columns)


def _matches(window: Window) -> str:
    # A key column that may be NULL (SQLite allows it) is compared so that NULL equals NULL.
    return " AND ".join(
        f"t.{quoted(name)} {'<=>' if window.target.column(name).nullable else '='} s.{quoted(name)}"
        for name in window.target.key
    )


def _condition(window: Window, bounds: KeyBounds | None) -> str:
    within = bounds.condition("t") if bounds is not None else None
    return f"{_matches(window)} AND {within}" if within else _matches(window)


def _flags(window: Window) -> dict[str, str]:
    return {name: CARRIED + str(index) for index, name in enumerate(incomplete_columns(window))}


def _whole(window: Window, name: str, flags: dict[str, str]) -> str:
    """A column of a row that the table does not have: every column must have been carried."""
    value = f"s.{quoted(name)}"
    if name not in flags:
        return value
    return f"CASE WHEN s.{flags[name]} THEN {value} ELSE {_refusal(window, name)} END"


def _onto(window: Window, name: str, flags: dict[str, str]) -> str:
    """A column of a row that the table has: what was not carried keeps the table's value."""
    value = f"s.{quoted(name)}"
    if name not in flags:
        return value
    kept = f"CASE WHEN s.{FRESH} THEN {_refusal(window, name)} ELSE t.{quoted(name)} END"
    return f"CASE WHEN s.{flags[name]} THEN {value} ELSE {kept} END"


def _refusal(window: Window, name: str) -> str:
    kind = spark_type(window.target.column(name).type)
    return f"CAST(raise_error('{INCOMPLETE}') AS {kind})"

"""Temporal: the changes of a window as versions of rows (SCD type 2). One commit.

    changes of the window ─┐
                           ├─ by key, in order of seq ─ which of them open or close a version ─ rows of the merge
    last versions of the  ─┘
    keys that it touches

- A version is opened by an insert and by an update that changes a tracked column, compared so that NULL equals NULL
  and NaN equals NaN. Other updates are written into the version that is open. A delete closes it.
- The effective time is the source's commit time, but never before that of the key's last opening or closing: clocks
  step back, intervals do not. Changes of one commit time make versions of no length, in order of seq; they are kept,
  so that the table does not depend on how change sets were grouped.
- A change without a commit time takes that of the one before; the first one of a key ``UNKNOWN_TIME``.
- Changes that the copied rows may already show (a window that is not exact) make no history: they are written into
  the current versions, as a mirror would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakefeed.change.batch import SEQ, TIME
from lakefeed.change.segment import Window
from lakefeed.lake.bounds import key_bounds, lowest_time, narrowed
from lakefeed.lake.mode import Temporal
from lakefeed.lake.projection import read_changes
from lakefeed.lake.shape import UNKNOWN_TIME
from lakefeed.lake.sparktype import quoted
from lakefeed.lake.step import AppendRows, MergeRows, RewriteRows, Step
from lakefeed.lake.store import Extent, TableStore
from lakefeed.lake.tracking import tracked_columns
from lakefeed.lake.truncation import truncates_as_deletes
from lakefeed.lake.upsert import Own, file_count, keys_of, matches, packed, rewrites_files, upsert_step
from lakefeed.lake.versions import STORED, Versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def temporal_step(session: SparkSession, window: Window, store: TableStore, mode: Temporal) -> Step:
    """What brings the table, which has the window's target schema, to the window's end."""
    from pyspark.sql import functions as F  # noqa: N812

    versions = Versions(window, mode, tracked_columns(mode, window.target))
    if not window.exact:
        return upsert_step(session, window, store, _in_place(mode))
    bounds = key_bounds(window)
    changes = read_changes(session, window, (TIME,))
    if window.truncated_at is None:
        extent = store.extent(window.target.key[0], bounds)
        if extent is not None and extent.touched_files == 0:
            return AppendRows(packed(versions.rows(versions.of_changes(changes)).drop(STORED), window))
        if extent is not None and extent.replaceable is not None and rewrites_files(window, extent):
            return _rewritten(store.read_files(session, extent.replaceable), changes, versions, extent)
        bounds = narrowed(bounds, window, extent.bytes if extent is not None else 0)
    within = bounds.condition("t") if bounds is not None else None
    stored = store.read(session).alias("t").where(_worth_reading(window, mode)).where(within or "true")
    if window.truncated_at is None:
        stored = stored.join(keys_of(changes, window), F.expr(matches(window)), "left_semi")
    else:
        changes = truncates_as_deletes(changes, stored.where(quoted(mode.is_current)), window.target.key)
    rows = versions.rows(versions.of_changes(changes).unionByName(versions.of_table(stored)))
    return _merge(rows, window, mode, within)


def _in_place(mode: Temporal) -> Own:
    new = {
        mode.valid_from: f"coalesce(s.{TIME}, {UNKNOWN_TIME})",
        mode.valid_to: "CAST(NULL AS TIMESTAMP)",
        mode.is_current: "true",
        SEQ: "0L",
    }
    return Own(new=new, only=f"t.{quoted(mode.is_current)}", told=(TIME,))


def _worth_reading(window: Window, mode: Temporal) -> str:
    """Current versions, and closed ones that end after the window's first change: only clocks that step make those."""
    lowest = lowest_time(window)
    if lowest is None:
        return "true"
    return f"(t.{quoted(mode.is_current)} OR t.{quoted(mode.valid_to)} > {lowest})"


def _rewritten(stored: DataFrame, changes: DataFrame, versions: Versions, extent: Extent) -> RewriteRows:
    """The touched files anew: the current versions of the window's keys, and what the window makes of them."""
    from pyspark.sql import functions as F  # noqa: N812

    window, mode = versions.window, versions.mode
    stored, keys = stored.alias("t"), keys_of(changes, window)
    concerned = stored.where(_worth_reading(window, mode)).join(keys, F.expr(matches(window)), "left_semi")
    events = versions.of_changes(changes).unionByName(versions.of_table(concerned))
    made = versions.rows(events, unchanged=True).drop(STORED)
    others = stored.join(keys, F.expr(f"{matches(window)} AND t.{quoted(mode.is_current)}"), "left_anti")
    rows = others.select(*map(quoted, made.columns)).unionByName(made)
    assert extent.replaceable is not None  # noqa: S101  # the caller has looked
    return RewriteRows(rows.coalesce(file_count(rows, extent.touched_bytes)), extent.replaceable)


def _merge(rows: DataFrame, window: Window, mode: Temporal, within: str | None) -> MergeRows:
    """Versions that the table has are matched with its current ones, the others match nothing and are inserted."""
    target = window.target
    # Both say the same. Files without a current version are known by their count of NULLs; booleans have no bounds.
    current = f"t.{quoted(mode.is_current)} AND t.{quoted(mode.valid_to)} IS NULL"
    condition = " AND ".join(part for part in (matches(window), f"s.{STORED}", current, within) if part)
    changing = [*(name for name in target.names if name not in target.key), mode.valid_to, mode.is_current]
    updates = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in changing)
    names = [*target.names, mode.valid_from, mode.valid_to, mode.is_current, SEQ]
    values = ", ".join(f"s.{quoted(name)}" for name in names)
    clauses = (
        f"WHEN MATCHED THEN UPDATE SET {updates}",
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(map(quoted, names))}) VALUES ({values})",  # noqa: S608  # names are quoted
    )
    return MergeRows(rows, condition, clauses, window.counts.total)

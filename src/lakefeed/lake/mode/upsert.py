"""Upsert: what a window leaves of each key, onto the table's rows. One commit.

Four ways to the same rows; the cheapest that is sound is taken:

- *replace*: after a truncate, the table is what came after it.
- *append*: no file of the table can have a key of the window, by the table's own statistics. Nothing to look up.
- *rewrite*: the files that may have the window's keys would be rewritten anyway, or are small. Their rows are read
  once, without those of the window's keys, and written with what the window leaves: half the work of a merge, which
  reads everything twice. A format that cannot exchange files rewrites them all, if nearly all are touched.
- *merge*: one MERGE, with the bounds of the window's keys, so that files outside of them are not read, or with all of
  the keys, if they are few.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakefeed.change.batch import OP, SEQ, Operation
from lakefeed.change.segment import Window
from lakefeed.lake.mode.collapse import FRESH, HELD, collapse
from lakefeed.lake.mode.moved import with_moved_values
from lakefeed.lake.spark.error import INCOMPLETE, INCOMPLETE_COPY
from lakefeed.lake.spark.type import quoted, spark_type
from lakefeed.lake.store import (
    BROADCAST_ROWS,
    AppendRows,
    Extent,
    MergeRows,
    ReplaceRows,
    RewriteRows,
    Step,
    TableStore,
)
from lakefeed.lake.window import KeyBounds, incomplete_columns, key_bounds, narrowed, read_changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REWRITE_SHARE = 0.7
"""Of the table's bytes in files that may have the window's keys, from which rewriting it all is cheaper."""

SMALL_BYTES = 32 << 20
"""In files that may have the window's keys, up to which to rewrite them is cheaper than to find out which ones do."""

_SURELY_TOUCHED = 4
"""Changes per file, at least, from which a file that may have one of the keys is taken to have one."""

_FILE_BYTES = 128 << 20
_FILE_ROWS = 200_000
_TASK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """The mode's own columns, as Spark SQL over the collapsed change ``s`` and, in ``onto``, the table's row ``t``.

    ``new`` is what they are in a row that the table does not have, ``onto`` in one that it has; those not named there
    stay. ``only`` limits the rows of the table that changes concern. ``metadata`` are the metadata columns that the
    expressions use. With ``keeps_deleted`` a delete removes no row: it writes ``onto``, and values stay as they were.
    """

    new: Mapping[str, str] = field(default_factory=dict)
    onto: Mapping[str, str] = field(default_factory=dict)
    only: str | None = None
    metadata: tuple[str, ...] = ()
    keeps_deleted: bool = False

    @property
    def left(self) -> str:
        """The SQL condition that a collapsed change leaves a row where there was none."""
        return f"s.{HELD}" if self.keeps_deleted else f"s.{OP} <> {int(Operation.DELETE)}"


NOTHING_OWN = Own()


def upsert_step(session: SparkSession, window: Window, store: TableStore, own: Own) -> Step:
    """The cheapest sound way; for modes whose deletes remove rows."""
    from pyspark.sql import functions as F  # noqa: N812

    changes = read_changes(session, window, own.metadata)
    if window.absent:
        changes = with_moved_values(changes, window, lambda: store.read(session).alias("t").where(own.only or "true"))
    if window.truncated_at is not None:  # what lies before it is gone with it
        later = changes.where((F.col(SEQ) > window.truncated_at) & (F.col(OP) != int(Operation.TRUNCATE)))
        rows = left_rows(collapse(later, window), window, own)
        if own.only:  # the table's other rows stay
            others = store.read(session).alias("t").where(f"NOT ({own.only})").select(*map(quoted, rows.columns))
            rows = rows.unionByName(others)
        return ReplaceRows(rows)

    collapsed, bounds, key = collapse(changes, window), key_bounds(window), window.target.key
    extent = store.extent(key[0], bounds)
    if extent is not None and extent.touched_files == 0:
        return AppendRows(packed(left_rows(collapsed, window, own), window))
    count = 0
    if extent is not None and not window.absent and own.onto == own.new:  # a merge has the table's row at hand
        count = rewritten_files(session, window, extent)
    if extent is None or not count:
        bounds = narrowed(bounds, window, extent.bytes if extent is not None else 0)
        return merge_step(collapsed, window, bounds, own)

    # Stored rows, with what the window leaves instead of the rows of its keys.
    rows, old = left_rows(collapsed, window, own), extent.replaceable
    stored = store.read_files(session, old) if old is not None else store.read(session)
    condition = f"{matches(window)} AND {own.only}" if own.only else matches(window)
    keys = read_changes(session, window).select(*map(quoted, key)).alias("s")
    keys = F.broadcast(keys) if window.counts.total <= BROADCAST_ROWS else keys
    kept = stored.alias("t").join(keys, F.expr(condition), "left_anti").select(*map(quoted, rows.columns))
    rows = kept.unionByName(rows).coalesce(count)
    return ReplaceRows(rows) if old is None else RewriteRows(rows, old)


def merge_step(changes: DataFrame, window: Window, bounds: KeyBounds | None, own: Own = NOTHING_OWN) -> MergeRows:
    """``changes``: one row per key, as ``collapse`` leaves them."""
    flags = incomplete_columns(window)
    names, key = window.target.names, window.target.key
    sets: dict[str, str] = {}
    for name in names:
        value = f"s.{quoted(name)}"
        if name in key:
            continue
        if name in flags:  # what was not carried keeps the table's value
            kept = f"CASE WHEN s.{FRESH} THEN {refusal(window, name)} ELSE t.{quoted(name)} END"
            value = f"CASE WHEN s.{flags[name]} THEN {value} ELSE {kept} END"
        sets[name] = f"CASE WHEN s.{HELD} THEN {value} ELSE t.{quoted(name)} END" if own.keeps_deleted else value
    new = {name: f"s.{quoted(name)}" for name in names} | dict(own.new)
    new |= {name: _whole(window, name, flag) for name, flag in flags.items()}
    within = bounds.condition("t") if bounds is not None else None
    return MergeRows(
        rows=changes,
        condition=" AND ".join(part for part in (matches(window), own.only, within) if part),
        deletes=None if own.keeps_deleted else f"s.{OP} = {int(Operation.DELETE)}",
        updates={**sets, **own.onto},
        inserts=new,
        inserts_if=own.left,
        replaces=not flags and not own.keeps_deleted and own.onto == own.new,
        count=window.counts.total,
    )


def left_rows(changes: DataFrame, window: Window, own: Own = NOTHING_OWN) -> DataFrame:
    """What collapsed changes leave where the table has none of their rows."""
    from pyspark.sql import functions as F  # noqa: N812

    flags = incomplete_columns(window)
    values = {name: f"s.{quoted(name)}" for name in window.target.names} | dict(own.new)
    values |= {name: _whole(window, name, flag) for name, flag in flags.items()}
    columns = [F.expr(value).alias(name) for name, value in values.items()]
    return changes.alias("s").where(own.left).select(*columns)


def _whole(window: Window, name: str, flag: str) -> str:
    """A column of a row that the table does not have: it must have been carried."""
    return f"CASE WHEN s.{flag} THEN s.{quoted(name)} ELSE {refusal(window, name)} END"


def matches(window: Window) -> str:
    """The SQL condition that a change ``s`` is of the row ``t``."""
    # A key column that may be NULL (SQLite allows it) is compared so that NULL equals NULL.
    return " AND ".join(
        f"t.{quoted(column.name)} {'<=>' if column.nullable else '='} s.{quoted(column.name)}"
        for column in window.target.key_columns
    )


def refusal(window: Window, name: str) -> str:
    """The SQL that stops the table instead of giving a value for a column that nobody sent."""
    error = INCOMPLETE if window.exact else INCOMPLETE_COPY
    return f"CAST(raise_error('{error}') AS {spark_type(window.target.column(name).type)})"


def packed(rows: DataFrame, window: Window) -> DataFrame:
    """In as many files as the window's changes are worth, and no more than there are tasks."""
    wanted = math.ceil(window.counts.total / _FILE_ROWS)
    return rows.coalesce(max(1, min(wanted, rows.sparkSession.sparkContext.defaultParallelism)))


def rewritten_files(session: SparkSession, window: Window, extent: Extent) -> int:
    """In how many files to write the touched ones again: large ones, but work for every task. 0 if a merge is cheaper.

    A store that cannot exchange files writes all of them again.
    """
    many = window.counts.total >= _SURELY_TOUCHED * extent.touched_files
    if extent.replaceable is not None:
        size, is_cheaper = extent.touched_bytes, many or extent.touched_bytes <= SMALL_BYTES
    else:
        size, is_cheaper = extent.bytes, many and extent.touched_bytes >= REWRITE_SHARE * extent.bytes
    least = session.sparkContext.defaultParallelism if size > _TASK_BYTES else 1
    return max(least, math.ceil(size / _FILE_BYTES)) if is_cheaper else 0

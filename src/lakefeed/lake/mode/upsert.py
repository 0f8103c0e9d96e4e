"""Upsert: applies the last state of each key in a window to the table's rows. One commit.

Five ways lead to the same rows. Lakefeed takes the cheapest sound one:

- *replace*: after a truncate, the table is what came after it.
- *append*: by the table's own statistics, no file can have a key of the window. There is nothing to find.
- *rewrite*: a merge would rewrite the files that may have the window's keys anyway, or they are small. Read their rows
  once, without those of the window's keys, and write them with the window's: half the work of a merge, which reads
  everything twice. A format that cannot exchange files rewrites them all, if nearly all are touched.
- *mark*: the table allows single rows to be marked as deleted. Read its key columns to find the window's rows, mark
  those, and add the window's: no file is written again.
- *merge*: one MERGE, with the bounds of the window's keys, so that Spark skips files outside of them, or with all keys,
  if they are few.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lakefeed.change.batch import OP, SEQ, Operation
from lakefeed.change.segment import Window
from lakefeed.lake.mode.changes import window_changes, window_keys
from lakefeed.lake.mode.collapse import FRESH, HAS_VALUES, collapse
from lakefeed.lake.mode.small import small_step
from lakefeed.lake.spark.driver import Driver
from lakefeed.lake.spark.error import INCOMPLETE, INCOMPLETE_COPY, UNSENT
from lakefeed.lake.spark.type import quoted, spark_type, text_literal
from lakefeed.lake.store import (
    BROADCAST_ROWS,
    AppendRows,
    Extent,
    MarkRows,
    MergeRows,
    Replaceable,
    ReplaceRows,
    RewriteRows,
    Step,
    TableStore,
)
from lakefeed.lake.vector import FILE, ROW
from lakefeed.lake.window import KeyBounds, RuledWindow, incomplete_columns, key_bounds, narrowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REWRITE_SHARE = 0.7
"""If files that may have the window's keys have this share of the table's bytes, rewriting it all is cheaper."""

SMALL_BYTES = 32 << 20
"""Up to so many bytes it is cheaper to rewrite the files that may have the window's keys than to find out which do."""

_SURELY_TOUCHED = 4
"""From so many changes per file on, every file that may have one of the keys counts as one that has."""

_DELETED = "_lakefeed_deleted"
_FILE_BYTES = 128 << 20
_FILE_ROWS = 200_000
_TASK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeColumns:
    """The mode's own columns, as Spark SQL over the collapsed change ``s`` and, in ``onto``, the table's row ``t``.

    ``new`` has their values in a row that the table does not have, ``onto`` in one that it has; columns that ``onto``
    does not name stay. ``only`` limits the table's rows that changes apply to. ``metadata`` are the metadata columns
    that the expressions use. With ``keeps_deleted`` a delete removes no row: it writes ``onto``, and the other values
    stay.
    """

    new: Mapping[str, str] = field(default_factory=dict)
    onto: Mapping[str, str] = field(default_factory=dict)
    only: str | None = None
    metadata: tuple[str, ...] = ()
    keeps_deleted: bool = False

    @property
    def left(self) -> str:
        """The SQL condition under which a collapsed change makes a row where there was none."""
        return f"s.{HAS_VALUES}" if self.keeps_deleted else f"s.{OP} <> {int(Operation.DELETE)}"


NO_MODE_COLUMNS = ModeColumns()


def upsert_step(session: SparkSession, window: Window, store: TableStore, own: ModeColumns) -> Step:
    """The step by the cheapest sound way, for modes whose deletes remove rows."""
    from pyspark.sql import functions as F  # noqa: N812

    key, bounds, extent = window.target.key, None, None
    if window.truncated_at is None:
        bounds = key_bounds(window)
        extent = store.extent(key[0], bounds)
        if own == NO_MODE_COLUMNS and extent is not None:
            small = small_step(session, window, store, extent)
            if small is not None:
                return small
    changes = window_changes(
        session, window, lambda: store.read(session).alias("t").where(own.only or "true"), own.metadata
    )
    if window.truncated_at is not None:  # changes before it no longer count
        later = changes.where((F.col(SEQ) > window.truncated_at) & (F.col(OP) != int(Operation.TRUNCATE)))
        rows = left_rows(collapse(later, window), window, own)
        if own.only:  # the table's other rows stay
            others = store.read(session).alias("t").where(f"NOT ({own.only})").select(*map(quoted, rows.columns))
            rows = rows.unionByName(others)
        return ReplaceRows(rows)

    collapsed = collapse(changes, window)
    if extent is not None and extent.touched_files == 0:
        return AppendRows(packed(left_rows(collapsed, window, own), window))
    if extent is not None and extent.markable is not None:
        return mark_step(session, store, window, merge_step(collapsed, window, bounds, own), extent.markable)
    count = 0
    if extent is not None and not window.absent and own.onto == own.new:  # else only a merge has the table's row
        count = rewritten_files(session, window, extent)
    if extent is None or not count:
        bounds = narrowed(bounds, window, extent.bytes if extent is not None else 0)
        merge = merge_step(collapsed, window, bounds, own)
        return replace(merge, within=extent.replaceable if extent is not None else None)

    # Stored rows, but those of the window's keys, and the window's rows.
    rows, old = left_rows(collapsed, window, own), extent.replaceable
    stored = store.read_files(session, old) if old is not None else store.read(session)
    condition = f"{matches(window)} AND {own.only}" if own.only else matches(window)
    keys = window_keys(session, window).alias("s")
    keys = F.broadcast(keys) if window.counts.total <= BROADCAST_ROWS else keys
    kept = stored.alias("t").join(keys, F.expr(condition), "left_anti").select(*map(quoted, rows.columns))
    rows = kept.unionByName(rows).coalesce(count)
    return ReplaceRows(rows) if old is None else RewriteRows(rows, old)


def merge_step(
    changes: DataFrame, window: Window, bounds: KeyBounds | None, own: ModeColumns = NO_MODE_COLUMNS
) -> MergeRows:
    """The merge of ``changes``, which ``collapse`` has made: one row per key."""
    flags = incomplete_columns(window)
    names, key = window.target.names, window.target.key
    sets: dict[str, str] = {}
    for name in names:
        value = f"s.{quoted(name)}"
        if name in key:
            continue
        if name in flags:  # a column that was not carried keeps the table's value
            kept = f"CASE WHEN s.{FRESH} THEN {refusal(window, name)} ELSE t.{quoted(name)} END"
            value = f"CASE WHEN s.{flags[name]} THEN {value} ELSE {kept} END"
        sets[name] = f"CASE WHEN s.{HAS_VALUES} THEN {value} ELSE t.{quoted(name)} END" if own.keeps_deleted else value
    new = {name: f"s.{quoted(name)}" for name in names} | dict(own.new)
    new |= {name: _whole(window, name, flag) for name, flag in flags.items()}
    within = bounds.condition("t") if bounds is not None else None
    return MergeRows(
        rows=changes,
        condition=f"{matches(window)} AND {own.only}" if own.only else matches(window),
        bounds=within,
        deletes=None if own.keeps_deleted else f"s.{OP} = {int(Operation.DELETE)}",
        updates={**sets, **own.onto},
        inserts=new,
        inserts_if=own.left,
        replaces=not flags and not own.keeps_deleted and own.onto == own.new,
        count=window.counts.total,
    )


def mark_step(session: SparkSession, store: TableStore, window: Window, merge: MergeRows, old: Replaceable) -> MarkRows:
    """The same as ``merge``, by marking the rows that match it and adding new ones.

    If it ``replaces`` matches, it reads of the table only the columns of the condition; else also those that stay as
    they are.
    """
    from pyspark.sql import functions as F  # noqa: N812

    def of_table(names: Iterable[str], texts: Iterable[str]) -> list[str]:
        joined = " ".join(texts)
        return [name for name in names if f"t.{quoted(name)}" in joined]

    few, names = merge.count <= BROADCAST_ROWS, list(merge.inserts)
    inserts = [F.expr(value).alias(name) for name, value in merge.inserts.items()]
    inserted = merge.rows.alias("s").where(merge.inserts_if or "true")
    if merge.replaces:
        keys = window_keys(session, window).alias("s")
        stored = store.located(session, old, of_table(names, [merge.on])).alias("t")
        met = stored.join(F.broadcast(keys) if few else keys, F.expr(merge.on), "left_semi")
        rows = packed(inserted.select(*inserts), window)
        return MarkRows(gone=met.select(FILE, ROW), rows=rows, old=old, count=merge.count)

    values = {name: merge.updates.get(name, f"t.{quoted(name)}") for name in names}
    used = of_table(names, [merge.on, merge.deletes or "", *values.values()])
    changes = merge.rows.alias("s")
    stored = store.located(session, old, used).alias("t")
    gone = F.expr(merge.deletes or "false")
    met = stored.join(F.broadcast(changes) if few else changes, F.expr(merge.on), "inner").select(
        # A deleted row needs only its key; its other values may be unknown.
        *(
            (F.expr(value) if name in window.target.key else F.when(~gone, F.expr(value))).alias(name)
            for name, value in values.items()
        ),
        gone.alias(_DELETED),
        F.col(FILE),
        F.col(ROW),
    )
    met = store.live(met, old, merge.count)
    there = (F.broadcast(met) if few else met).alias("t")
    new = inserted.join(there, F.expr(matches(window)), "left_anti").select(*inserts)
    updated = met.where(~F.col(_DELETED)).select(*map(quoted, names))
    rows = packed(updated.unionByName(new), window)
    return MarkRows(gone=met.select(FILE, ROW), rows=rows, old=old, count=merge.count)


def left_rows(changes: DataFrame, window: Window, own: ModeColumns = NO_MODE_COLUMNS) -> DataFrame:
    """The rows that collapsed changes make where the table has none of their keys."""
    from pyspark.sql import functions as F  # noqa: N812

    flags = incomplete_columns(window)
    values = {name: f"s.{quoted(name)}" for name in window.target.names} | dict(own.new)
    values |= {name: _whole(window, name, flag) for name, flag in flags.items()}
    columns = [F.expr(value).alias(name) for name, value in values.items()]
    return changes.alias("s").where(own.left).select(*columns)


def _whole(window: Window, name: str, flag: str) -> str:
    """A column of a row that the table does not have: a change must have carried it."""
    return f"CASE WHEN s.{flag} THEN s.{quoted(name)} ELSE {refusal(window, name)} END"


def matches(window: Window) -> str:
    """The SQL condition under which a change ``s`` and a row ``t`` have the same key."""
    # In a key column that may be NULL (SQLite allows it), NULL equals NULL. The origin of a union is the same in all
    # changes: as a literal it skips the files of the other parts.
    origin = window.ruled.origin if isinstance(window, RuledWindow) else None
    literals = {origin[0]: text_literal(origin[1])} if origin is not None else {}
    return " AND ".join(
        f"t.{quoted(column.name)} = {literals[column.name]}"
        if column.name in literals
        else f"t.{quoted(column.name)} {'<=>' if column.nullable else '='} s.{quoted(column.name)}"
        for column in window.target.key_columns
    )


def refusal(window: Window, name: str) -> str:
    """The SQL that stops the table, because nobody has sent this column's value."""
    # A row that begins to meet a rule's condition is new to the table, so nobody has its unsent values.
    enters = isinstance(window, RuledWindow) and window.ruled.where is not None
    error = (UNSENT if enters else INCOMPLETE) if window.exact else INCOMPLETE_COPY
    return f"CAST(raise_error('{error}') AS {spark_type(window.target.column(name).type)})"


def packed(rows: DataFrame, window: Window) -> DataFrame:
    """The rows in as many partitions as the window's changes need files, and no more than the cores."""
    wanted = math.ceil(window.counts.total / _FILE_ROWS)
    return rows.coalesce(max(1, min(wanted, Driver(rows.sparkSession).cores)))


def rewritten_files(session: SparkSession, window: Window, extent: Extent) -> int:
    """The number of files to write for the touched ones: large ones, but work for every core. 0 if a merge is cheaper.

    A store that cannot exchange files rewrites all of them.
    """
    many = window.counts.total >= _SURELY_TOUCHED * extent.touched_files
    if extent.replaceable is not None:
        size, is_cheaper = extent.touched_bytes, many or extent.touched_bytes <= SMALL_BYTES
    else:
        size, is_cheaper = extent.bytes, many and extent.touched_bytes >= REWRITE_SHARE * extent.bytes
    least = Driver(session).cores if size > _TASK_BYTES else 1
    return max(least, math.ceil(size / _FILE_BYTES)) if is_cheaper else 0

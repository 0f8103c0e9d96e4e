"""A rule on a window: turns changes of the source's rows into changes of the lake table's. Spark expressions only.

  1 if a change did not carry a value that the rule needs (unchanged TOAST), take it from the key's changes before it in
    the window, or from the table, if that has the source's value. With a condition, do the same for the values of masks
    and expressions on such columns: a row may leave and come back within the window
  2 does the condition hold after the change? If the change sent none of the columns that it reads: as before
  3 an insert or update for which it does not hold becomes a delete: the row leaves the table, or was never in it. If it
    begins to hold, the change is an update that finds no row, which every mode takes for an insert
  4 values, masks and names

A value that nobody can know stops the table (``UNSENT``); it never becomes NULL. In a table without a key all values
identify a row, and deletes carry them: every change for which the condition does not hold is skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from lakefeed.change.batch import ABSENT, OP, SEQ, Operation
from lakefeed.change.segment import Window
from lakefeed.lake.location import filesystem
from lakefeed.lake.rule.resolve import Resolved, RuledColumn
from lakefeed.lake.schema.projection import lineage, steps
from lakefeed.lake.spark.error import INCOMPLETE_COPY, UNSENT
from lakefeed.lake.spark.type import quoted, spark_type
from lakefeed.lake.window import RuledWindow, absent_names, incomplete_columns, read_changes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LEFT_OUT = "where: rows left out"
EARLY = "mask before the journal"
REPLACED = "out_of_range"

_HOLDS = "_lakefeed_holds"  # does the condition hold after this event?
_KEPT = "_lakefeed_kept_"  # prefix: the rule's values of columns that a change may lack
_STORED = "_lakefeed_of_table"  # is it the table's row, and no change?
_GONE = (int(Operation.DELETE), int(Operation.TRUNCATE))
_MADE = (int(Operation.INSERT), int(Operation.READ))


def ruled_window(window: Window, ruled: Resolved) -> RuledWindow:
    """The same changes for a lake table that a rule makes; the rule is resolved on ``window.target``."""
    given = {one.name: getattr(window, one.name) for one in fields(Window)}
    return RuledWindow(**{**given, "target": ruled.schema}, inner=window, ruled=ruled)


Moved = Callable[["DataFrame", Window, Callable[[], "DataFrame"], Sequence[str]], "DataFrame"]
"""The type of ``mode.moved.with_moved_values``, which modes pass in."""


def ruled_changes(
    changes: DataFrame,
    window: RuledWindow,
    stored: Callable[[], DataFrame] | None,
    moved: Moved | None,
    *,
    is_log: bool,
) -> DataFrame:
    """``changes`` of ``window.inner``, as ``read_changes`` gives them, as changes of the lake table's rows.

    ``stored`` gives the table's rows from before the window, one for each key. ``is_log``: every change becomes a row,
    so an insert for which the condition does not hold is skipped.
    """
    from pyspark.sql import functions as F  # noqa: N812

    ruled, flags = window.ruled, incomplete_columns(window.inner)
    is_keyed = bool(window.inner.target.key)
    used = {name for one in ruled.columns if one.sql is not None for name in one.inputs} | set(ruled.where_inputs)
    lacking = [name for name in flags if name in used or ruled.where is not None]
    fillable = [name for name in lacking if name in ruled.plain]
    made = [one for one in ruled.columns if one.sql is not None and one.inputs and set(one.inputs) <= flags.keys()]
    kept = {f"{_KEPT}{index}": one for index, one in enumerate(made if ruled.where is not None and not is_log else ())}
    if (fillable or kept) and stored is not None and ruled.key_is_plain:  # 1
        table, names = stored(), tuple(dict.fromkeys((*window.inner.target.key, *fillable)))
        if fillable and moved is not None:
            changes = moved(changes, window.inner, lambda: source_rows(table, ruled, names), fillable)
        rows = table.select(
            *(F.col(quoted(ruled.plain[name])).alias(name) for name in names),
            *(F.col(quoted(one.column.name)).alias(name) for name, one in kept.items()),
        )
        changes = _completed(changes, window, rows, fillable, kept)
    kept = {name: one for name, one in kept.items() if name in changes.columns}
    holds = _holds(changes, window) if ruled.where is not None else F.lit(True)  # 2
    if ruled.where is not None:
        changes = changes.withColumn(_HOLDS, holds)
    if _STORED in changes.columns:
        changes = changes.where(~F.col(_STORED)).drop(_STORED)

    is_live = ~F.col(OP).isin(*_GONE)
    if ruled.where is not None:  # 3
        passed_over = F.col(OP).isin(*_MADE, int(Operation.BEFORE)) if is_log else F.col(OP) == int(Operation.BEFORE)
        passed_over = passed_over if is_keyed else F.col(OP) != int(Operation.TRUNCATE)
        changes = changes.where(F.col(_HOLDS) | ~passed_over)
        is_live = is_live & F.col(_HOLDS) if is_keyed else is_live
    gone = F.when(F.col(OP) == int(Operation.TRUNCATE), F.col(OP)).otherwise(
        F.lit(int(Operation.DELETE)).cast("tinyint")
    )
    own_flags = incomplete_columns(window)
    values = []  # 4
    by_column = {one.column.name: name for name, one in kept.items()}
    for one in ruled.columns:
        value = _value(one, flags, window)
        if one.column.name in by_column:
            known, is_sent = F.col(by_column[one.column.name]), _all(flags[name] for name in one.inputs)
            value = F.when(known.isNotNull() & ~is_sent, known.getField("v")).otherwise(value)
        if is_keyed and one.column.name not in window.target.key:
            value = F.when(is_live, value)
        values.append(value.alias(one.column.name))
    inputs = {one.column.name: one.inputs for one in window.ruled.columns}
    carried = {name: _all(flags[given] for given in inputs[name] if given in flags) for name in own_flags}
    carried |= {name: carried[name] | F.col(kept).isNotNull() for name, kept in by_column.items()}
    rest = [name for name in changes.columns if name.startswith("_lakefeed_") and name not in (OP, _HOLDS, ABSENT)]
    rest = [name for name in rest if name not in flags.values() and name not in by_column.values()]
    extra = [absent_names(carried).alias(ABSENT)] if ABSENT in changes.columns else []
    op = F.when(is_live, F.col(OP)).otherwise(gone) if is_keyed else F.col(OP)
    return changes.select(
        *values,
        op.alias(OP),
        *map(F.col, rest),
        *extra,
        *(carried[name].alias(flag) for name, flag in own_flags.items()),
    )


def source_rows(rows: DataFrame, ruled: Resolved, names: Sequence[str]) -> DataFrame:
    """The lake table's rows under the source's names: the columns ``names``, which have the source's values."""
    from pyspark.sql import functions as F  # noqa: N812

    return rows.select(*(F.col(quoted(ruled.plain[name])).alias(name) for name in dict.fromkeys(names)))


def ruled_keys(changes: DataFrame, window: RuledWindow) -> DataFrame:
    """The keys of the changes of ``window.inner``, in the lake table's columns."""
    from pyspark.sql import functions as F  # noqa: N812

    known = {one.column.name: one for one in window.ruled.columns}
    return changes.select(*(F.expr(known[name].value).alias(name) for name in window.target.key))


def _completed(
    changes: DataFrame, window: RuledWindow, stored: DataFrame, names: Sequence[str], kept: Mapping[str, RuledColumn]
) -> DataFrame:
    """The changes, with the table's rows of the same keys as events before them, and updates with the values that they
    did not carry.

    A value from before the key's last insert or delete does not count. ``kept`` are columns of ``stored`` with values
    that the rule has made: updates get them as structs, if no change since has sent one of their inputs.
    """
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as F  # noqa: N812

    flags, key = incomplete_columns(window.inner), window.inner.target.key
    keys = changes.select(*map(quoted, key)).distinct()
    rows = stored.join(keys, list(key), "left_semi").select(
        "*",
        F.lit(int(Operation.READ)).cast("tinyint").alias(OP),
        F.lit(-1).cast("bigint").alias(SEQ),
        F.lit(True).alias(_STORED),
        *(F.lit(name in names).alias(flag) for name, flag in flags.items()),
    )
    changes = changes.withColumns(
        {
            name: F.when(
                _all(flags[given] for given in one.inputs) & ~F.col(OP).isin(*_GONE), F.expr(str(one.sql))
            ).cast(str(spark_type(one.column.type)))
            for name, one in kept.items()
        }
    )
    events = changes.withColumn(_STORED, F.lit(False)).unionByName(rows, allowMissingColumns=True)
    so_far = Over.partitionBy(*map(quoted, key)).orderBy(SEQ).rowsBetween(Over.unboundedPreceding, Over.currentRow)
    resets = F.max(F.when(F.col(OP).isin(*_MADE, int(Operation.DELETE)), F.col(SEQ))).over(so_far)
    filled: dict[str, Column] = {}
    for name in names:
        flag = F.col(flags[name])
        sent = F.when(flag & ~F.col(OP).isin(*_GONE), F.struct(F.col(quoted(name)).alias("v"), F.col(SEQ).alias("seq")))
        newest = F.last(sent, ignorenulls=True).over(so_far)
        is_known = (newest.getField("seq") >= F.coalesce(resets, F.lit(-2))) & (F.col(OP) == int(Operation.UPDATE))
        filled[name] = F.when(flag, F.col(quoted(name))).otherwise(newest.getField("v"))
        filled[flags[name]] = flag | F.coalesce(is_known, F.lit(False))
    for name, one in kept.items():
        # After a change that sent some of its inputs, nobody knows the value.
        some = reduce(lambda first, other: first | other, (F.col(flags[given]) for given in one.inputs))
        is_event = (F.col(_STORED) | some) & ~F.col(OP).isin(*_GONE)
        whole = F.col(_STORED) | _all(flags[given] for given in one.inputs)
        sent = F.when(is_event, F.struct(F.col(name).alias("v"), F.col(SEQ).alias("seq"), whole.alias("whole")))
        newest = F.last(sent, ignorenulls=True).over(so_far)
        is_known = (newest.getField("seq") >= F.coalesce(resets, F.lit(-2))) & newest.getField("whole")
        filled[name] = F.when(is_known & (F.col(OP) == int(Operation.UPDATE)), newest)
    return events.withColumns(filled)


def _holds(changes: DataFrame, window: RuledWindow) -> Column:
    """Does the condition hold after a change? With a key, never after a delete or truncate."""
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as F  # noqa: N812

    ruled, flags = window.ruled, incomplete_columns(window.inner)
    condition = F.coalesce(F.expr(str(ruled.where)), F.lit(False))
    if not window.inner.target.key:
        return F.when(F.col(OP) == int(Operation.TRUNCATE), F.lit(True)).otherwise(condition)
    is_gone = F.col(OP).isin(*_GONE)
    lacking = [flags[name] for name in ruled.where_inputs if name in flags]
    if not lacking:
        return F.when(is_gone, F.lit(False)).otherwise(condition)
    is_known = _all(lacking)
    unknown = F.expr(f"CAST(raise_error('{UNSENT if window.exact else INCOMPLETE_COPY}') AS BOOLEAN)")
    if _STORED not in changes.columns or len(lacking) < len(ruled.where_inputs):
        return F.when(is_gone, F.lit(False)).when(is_known, condition).otherwise(unknown)
    # A change may lack all inputs of the condition: then it holds if it held before, that is, if the table has the row.
    state = F.when(F.col(_STORED), F.lit(True)).when(is_gone, F.lit(False)).when(is_known, condition)
    before = Over.partitionBy(*map(quoted, window.inner.target.key)).orderBy(SEQ)
    before = before.rowsBetween(Over.unboundedPreceding, -1)
    held = F.coalesce(F.last(state, ignorenulls=True).over(before), F.lit(False))
    nothing_sent = ~reduce(lambda one, other: one | other, map(F.col, lacking)) & (F.col(OP) == int(Operation.UPDATE))
    return F.when(F.col(_STORED) | is_gone | is_known, state).when(nothing_sent, held).otherwise(unknown)


def _value(one: RuledColumn, flags: dict[str, str], window: RuledWindow) -> Column:
    """The column's value. If a change carried some of its inputs alone, nobody knows the value."""
    from pyspark.sql import functions as F  # noqa: N812

    lacking = [flags[name] for name in one.inputs if name in flags]
    if one.sql is None or not lacking:
        return F.expr(one.value)
    error = UNSENT if window.exact else INCOMPLETE_COPY
    unknown = F.expr(f"CAST(raise_error('{error}') AS {spark_type(one.column.type)})")
    if len(lacking) == len(one.inputs):  # nothing was sent: the value is what it was
        nothing = ~reduce(lambda first, other: first | other, map(F.col, lacking))
        return F.when(_all(lacking), F.expr(one.sql)).when(~nothing, unknown)
    return F.when(_all(lacking), F.expr(one.sql)).otherwise(unknown)


def _all(flags: Any) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return reduce(lambda one, other: one & other, map(F.col, flags), F.lit(True))


def touched_by_window(session: SparkSession, window: Window, early: Iterable[str]) -> Counter[str]:
    """How many values of a window each rule has changed, by the footers of its files; and for how many rows the
    condition did not hold, by a small job. ``early`` are the columns that capture has masked. The segments say how many
    values ``out_of_range`` has replaced."""
    inner, ruled = (window.inner, window.ruled) if isinstance(window, RuledWindow) else (window, None)
    made = [one for one in ruled.columns if one.rule is not None] if ruled is not None else []
    by = {str(one.rule): one.inputs[0] if one.inputs else None for one in made}
    by |= {f"{EARLY} {name}": name for name in early if name in inner.target.names}
    rows, nulls = sum(segment.rows for segment in window.segments), Counter[str | None]()
    for segment in window.segments if by else ():
        origin = lineage(steps(inner.schemas, segment.schema_version, inner.target.version))
        files, place = filesystem(segment.path)
        footer = pq.read_metadata(place, filesystem=files)
        leaves: list[Any] = [footer.schema.column(index) for index in range(len(footer.schema))]
        at = {leaf.name: index for index, leaf in enumerate(leaves) if leaf.path == leaf.name}
        groups: list[Any] = [footer.row_group(number) for number in range(footer.num_row_groups)]
        for name in {one for one in by.values() if one is not None}:
            index = at.get(origin[name] or "")
            known = [one.column(index).statistics for one in groups] if index is not None else []
            nulls[name] += sum(one.null_count for one in known if one is not None) if known else segment.rows
    found = Counter({what: rows - nulls[name] for what, name in by.items()})
    if ruled is not None and ruled.where is not None:
        live = ", ".join(map(str, (*_MADE, int(Operation.UPDATE))))
        outside = f"{OP} IN ({live}) AND NOT coalesce(({ruled.where}), false)"
        found[LEFT_OUT] = read_changes(session, inner).where(outside).count()
    for segment in window.segments:
        found.update({f"{REPLACED} {name}": count for name, count in segment.replaced})
    return found

"""Collapse: all changes of one key as one row. Spark expressions only.

The order is ``_lakefeed_seq``, which is total, so the outcome does not depend on files, partitions or retries. The last
operation wins. A column that the last change did not carry gets its newest carried value since the key's last insert or
delete. If there is none, the column's ``CARRIED`` flag is false, and the table's value stays.

If the mode keeps deleted rows, the last operation still wins, but the values are those of the row when it was deleted.
``HAS_VALUES`` says whether any change carried values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakefeed.change.batch import OP, SEQ, Operation
from lakefeed.change.segment import Window
from lakefeed.lake.spark.type import quoted
from lakefeed.lake.store import BROADCAST_ROWS
from lakefeed.lake.window import incomplete_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FRESH = "_lakefeed_fresh"
"""Did the window insert or delete the key? Then no value of the table's row belongs to the collapsed row."""

HAS_VALUES = "_lakefeed_has_values"
"""For modes that keep deleted rows: did a change carry values? If not, the table's row keeps its own."""

# Columns of the aggregation. No column of the source can have such a name.
_LAST = "_lakefeed_last"  # the columns of the last change
_KEPT = "_lakefeed_kept"  # the columns of the last change that was not a delete
_RESET = "_lakefeed_reset"  # the seq of the last insert or delete
_VALUE, _SENT = "_lakefeed_value", "_lakefeed_sent"  # prefixes: the newest carried value of a column, and its seq
_TRUNCATES = "_lakefeed_truncates"

_LEAST_ROWS = 20_000
"""From so many rows in a window on, it pays to read it twice."""


def collapse(changes: DataFrame, window: Window, *, keep_deleted: bool = False) -> DataFrame:
    """One row per key: its columns, and ``_lakefeed_op`` and other metadata of its last change.

    ``changes`` are the window's, as ``read_changes`` gives them, without truncates. If the window has incomplete
    columns, the rows also have their CARRIED flags and FRESH; with ``keep_deleted``, HAS_VALUES.
    """
    from pyspark.sql import functions as F  # noqa: N812

    key, incomplete = window.target.key, incomplete_columns(window)
    names = [name for name in changes.columns if name != SEQ and name not in incomplete.values()]
    rest = [name for name in names if name not in key and name not in incomplete]
    own = [name for name in rest if keep_deleted and not name.startswith("_lakefeed_")]
    is_delete = F.col(OP) == int(Operation.DELETE)

    if not keep_deleted and not incomplete and _LEAST_ROWS <= window.counts.total <= BROADCAST_ROWS:
        # Find each key's last seq over narrow columns, then read the rows of these. To aggregate whole rows, Spark
        # would sort them twice and shuffle them.
        newest = changes.groupBy(*(F.col(quoted(name)) for name in key)).agg(F.max(SEQ).alias(SEQ)).select(SEQ)
        return changes.join(F.broadcast(newest), SEQ, "left_semi").select(*map(quoted, names))

    last = F.struct(*(F.col(quoted(name)) for name in rest if name not in own))
    found = [F.max_by(last, F.col(SEQ)).alias(_LAST)]
    if keep_deleted:
        found.append(F.max(~is_delete).alias(HAS_VALUES))
    if own:
        kept = F.struct(*(F.col(quoted(name)) for name in own))
        found.append(F.max_by(kept, F.when(~is_delete, F.col(SEQ))).alias(_KEPT))
    if incomplete:
        # No value from before the key's last insert or delete belongs to the row, unless the mode keeps deleted rows.
        resets = [int(Operation.INSERT), int(Operation.READ), *([] if keep_deleted else [int(Operation.DELETE)])]
        found.append(F.max(F.when(F.col(OP).isin(resets), F.col(SEQ))).alias(_RESET))
    for name, flag in incomplete.items():
        sent_at = F.when(F.col(flag) & ~is_delete, F.col(SEQ))  # a delete carries nothing
        found += [F.max_by(F.col(quoted(name)), sent_at).alias(_VALUE + flag), F.max(sent_at).alias(_SENT + flag)]
    grouped = changes.groupBy(*(F.col(quoted(name)) for name in key)).agg(*found)

    values = []
    for name in names:
        if name in key:
            value = F.col(quoted(name))
        elif name in incomplete:
            value = F.col(_VALUE + incomplete[name])
        else:
            value = F.col(_KEPT if name in own else _LAST).getField(name)
        values.append(value.alias(name))
    if keep_deleted:
        values.append(F.col(HAS_VALUES))
    for flag in incomplete.values():
        since = F.coalesce(F.col(_RESET), F.lit(-1))
        values.append(F.coalesce(F.col(_SENT + flag) >= since, F.lit(False)).alias(flag))
    if incomplete:
        values.append(F.col(_RESET).isNotNull().alias(FRESH))
    return grouped.select(*values)


def truncates_as_deletes(changes: DataFrame, there: DataFrame, key: Sequence[str]) -> DataFrame:
    """``changes`` with each truncate replaced by a delete of every row that existed at its time.

    ``there``: the table's rows that exist before the window. The deletes have the truncate's seq, time and position.
    """
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as F  # noqa: N812

    keys = [F.col(quoted(name)) for name in key]
    is_truncate = F.col(OP) == int(Operation.TRUNCATE)
    rows = changes.where(~is_truncate).withColumn(_TRUNCATES, F.lit(False))
    standing = there.select(*keys, F.lit(int(Operation.READ)).cast("tinyint").alias(OP), F.lit(-1).alias(SEQ))
    every_key = rows.select(*keys).union(standing.select(*keys)).distinct()
    truncates = changes.where(is_truncate).drop(*key).withColumn(_TRUNCATES, F.lit(True))
    deletes = every_key.crossJoin(F.broadcast(truncates)).withColumn(OP, F.lit(int(Operation.DELETE)).cast("tinyint"))
    events = rows.unionByName(deletes).unionByName(standing, allowMissingColumns=True)
    before = F.lag(F.col(OP)).over(Over.partitionBy(*keys).orderBy(SEQ))
    was_there = F.coalesce(before != int(Operation.DELETE), F.lit(False))
    events = events.withColumn("_lakefeed_was_there", was_there)
    needed = (F.col(SEQ) >= 0) & (~F.col(_TRUNCATES) | F.col("_lakefeed_was_there"))
    return events.where(needed).drop(_TRUNCATES, "_lakefeed_was_there")

"""Moved rows: the source may not send large values with an update that changes a key. The lake has them under the old
key.

Such an update is a delete of the old key and, directly behind it, an insert of the new one that lists the unsent
columns (``change.batch``). The insert gets for each such column the value that the old key had at its delete:

  1 the value that the window's own changes of the old key carried since its last insert
  2 if that insert also lacks values, the value that it gets itself: back along the chain, twice as far in each round
  3 else the table's value under the key that the chain began with
So chains (1 → 2 → 3), swaps and reused keys come out exactly, wherever the window begins.

While the copied rows may already show some of the changes (a window that is not exact), the table's row of the old key
may be a later one. Then 3 does not apply, and the insert becomes an update: its value is that of the table's own row,
if that can be no other; else Lakefeed copies the table again (``upsert.refusal``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from lakefeed.change.batch import ABSENT, OP, SEQ, Operation
from lakefeed.change.segment import Window
from lakefeed.lake.location import filesystem
from lakefeed.lake.spark.driver import Driver
from lakefeed.lake.spark.type import quoted
from lakefeed.lake.window import absent_names, incomplete_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TO = "_lakefeed_to"  # the seq of the insert that lacks values
_BACK = "_lakefeed_back"  # the seq of the insert that made the old key's row, if that lacks values, too
_FROM = "_lakefeed_from_"  # prefix: the key under which the table has the values
_OF = "_lakefeed_of_"  # prefix: the seq of the change that carried a column
_FOUND, _STORED = "_lakefeed_found", "_lakefeed_stored_"
_BROADCAST_ROWS = 1_000  # with large values


def with_moved_values(
    changes: DataFrame, window: Window, stored: Callable[[], DataFrame], names: Sequence[str] | None = None
) -> DataFrame:
    """``changes`` of the window, as ``read_changes`` gives them, with the unsent values of moved rows: in all columns,
    or in those of ``names``.

    ``stored`` gives the table's rows from before the window, one for each key: the key and the incomplete columns. An
    insert whose value is not found keeps its ``CARRIED`` flag false.
    """
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as F  # noqa: N812

    count = _moved_rows(window)
    if not count:
        return changes
    key, flags = window.target.key, incomplete_columns(window)
    flags = {name: flag for name, flag in flags.items() if names is None or name in names}
    is_insert, is_delete = F.col(OP) == int(Operation.INSERT), F.col(OP) == int(Operation.DELETE)
    lacks = is_insert & ~reduce(lambda one, other: one & other, (F.col(flag) for flag in flags.values()))

    # 1 For each delete directly before such an insert: the values that the changes before it carried.
    before = Over.partitionBy(*map(quoted, key)).orderBy(SEQ).rowsBetween(Over.unboundedPreceding, -1)
    made = F.last(F.when(is_insert, F.struct(F.col(SEQ), lacks.alias("lacks"))), ignorenulls=True).over(before)
    carried = {}
    for flag in flags.values():
        seq = F.last(F.when(F.col(flag) & ~is_delete, F.col(SEQ)), ignorenulls=True).over(before)
        carried[_OF + flag] = F.when(seq >= F.coalesce(made.getField(SEQ), F.lit(-1)), seq)
    back = F.when(made.getField("lacks"), made.getField(SEQ)).alias(_BACK)
    old_key = [F.col(quoted(name)).alias(f"{_FROM}{index}") for index, name in enumerate(key)]
    events = changes.where(F.col(OP) != int(Operation.BEFORE))
    deletes = events.select((F.col(SEQ) + 1).alias(_TO), OP, back, *old_key, *_aliased(carried)).where(is_delete)
    moved = changes.where(lacks).select(F.col(SEQ).alias(_TO))
    driver = Driver(changes.sparkSession)
    links = driver.checkpoint(deletes.drop(OP).join(moved, _TO))

    # 2 Each round follows links twice as far, and takes over what is known of the insert at their end.
    while not links.where(F.col(_BACK).isNotNull()).isEmpty():
        behind = links.select(F.col(_TO).alias(_BACK), *(F.col(name).alias(f"{name}~") for name in links.columns[1:]))
        joined = links.join(behind, _BACK, "left")
        taken = {name: F.coalesce(F.col(name), F.col(f"{name}~")) for name in carried}
        follows = F.col(_BACK).isNotNull()
        for index in range(len(key)):
            name = f"{_FROM}{index}"
            taken[name] = F.when(follows, F.col(f"{name}~")).otherwise(F.col(name))
        further = F.col(f"{_BACK}~").alias(_BACK)
        order = [name for name in links.columns if name in taken]
        links = driver.checkpoint(joined.select(_TO, further, *(taken[name].alias(name) for name in order)))

    # 3 The values themselves: from the changes that carried them, and from the table.
    found = links
    for name, flag in flags.items():
        values = changes.select(F.col(SEQ).alias(_OF + flag), F.col(quoted(name)).alias(f"{_OF}value_{flag}"))
        found = found.join(values, _OF + flag, "left")
    if window.exact:
        rows = stored().select(
            *(F.col(quoted(name)).alias(f"{_STORED}key_{index}") for index, name in enumerate(key)),
            *(F.col(quoted(name)).alias(_STORED + flag) for name, flag in flags.items()),
            F.lit(True).alias(_FOUND),
        )
        same = [F.col(f"{_FROM}{index}").eqNullSafe(F.col(f"{_STORED}key_{index}")) for index in range(len(key))]
        found = found.join(rows, same, "left")
    else:
        nothing = {_STORED + flag: F.lit(None) for flag in flags.values()} | {_FOUND: F.lit(False)}
        found = found.withColumns(nothing)
    found = found.select(
        F.col(_TO),
        *(F.col(_OF + flag).isNotNull().alias(_OF + flag) for flag in flags.values()),
        *(F.col(f"{_OF}value_{flag}") for flag in flags.values()),
        *(F.col(_STORED + flag) for flag in flags.values()),
        F.coalesce(F.col(_FOUND), F.lit(False)).alias(_FOUND),
    )
    found = F.broadcast(found) if count <= _BROADCAST_ROWS else found
    completed = changes.join(found, changes[SEQ] == found[_TO], "left")
    columns: dict[str, Column] = {name: F.col(quoted(name)) for name in changes.columns}
    for name, flag in flags.items():
        value = F.when(F.col(_OF + flag), F.col(f"{_OF}value_{flag}")).otherwise(F.col(_STORED + flag))
        columns[name] = F.when(F.col(flag) | F.col(_TO).isNull(), F.col(quoted(name))).otherwise(value)
        columns[flag] = F.col(flag) | F.coalesce(F.col(_OF + flag) | F.col(_FOUND), F.lit(False))
    result = completed.select(*_aliased(columns))
    if ABSENT in changes.columns:
        result = result.withColumn(ABSENT, absent_names({name: F.col(flag) for name, flag in flags.items()}))
    if window.exact:
        return result
    return result.withColumn(OP, F.when(lacks, F.lit(int(Operation.UPDATE)).cast("tinyint")).otherwise(F.col(OP)))


def _aliased(columns: dict[str, Column]) -> list[Column]:
    return [column.alias(name) for name, column in columns.items()]


def _moved_rows(window: Window) -> int:
    """How many inserts of the window lack values. Reads two small columns of the segments that have such rows."""
    count = 0
    for segment in window.segments:
        if segment.absent:
            files, place = filesystem(segment.path)
            read = pq.read_table(place, columns=[OP, ABSENT], filesystem=files)
            is_insert = read.column(OP).to_numpy() == int(Operation.INSERT)
            count += int((is_insert & read.column(ABSENT).is_valid().to_numpy()).sum())
    return count

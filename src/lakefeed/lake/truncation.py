"""Truncation: a truncate as the deletes that it stands for, where deletes leave something behind. Spark only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakefeed.change.batch import OP, SEQ, Operation
from lakefeed.lake.sparktype import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TRUNCATES = "_lakefeed_truncates"


def truncates_as_deletes(changes: DataFrame, there: DataFrame, key: Sequence[str]) -> DataFrame:
    """``changes`` with, in place of each truncate, a delete of every row that was there at its time.

    ``there``: the table's rows that exist before the window. The deletes have the truncate's seq, time and position.
    """
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as F  # noqa: N812

    keys = [F.col(quoted(name)) for name in key]
    is_truncate = F.col(OP) == int(Operation.TRUNCATE)
    rows = changes.where(~is_truncate).withColumn(_TRUNCATES, F.lit(False))
    standing = there.select(*keys, F.lit(int(Operation.READ)).cast("tinyint").alias(OP), F.lit(-1).alias(SEQ))
    every_key = rows.select(*keys).union(standing.select(*keys)).distinct()
    marks = changes.where(is_truncate).drop(*key).withColumn(_TRUNCATES, F.lit(True))
    deletes = every_key.crossJoin(F.broadcast(marks)).withColumn(OP, F.lit(int(Operation.DELETE)).cast("tinyint"))
    events = rows.unionByName(deletes).unionByName(standing, allowMissingColumns=True)
    before = F.lag(F.col(OP)).over(Over.partitionBy(*keys).orderBy(SEQ))
    was_there = F.coalesce(before != int(Operation.DELETE), F.lit(False))
    events = events.withColumn("_lakefeed_was_there", was_there)
    needed = (F.col(SEQ) >= 0) & (~F.col(_TRUNCATES) | F.col("_lakefeed_was_there"))
    return events.where(needed).drop(_TRUNCATES, "_lakefeed_was_there")

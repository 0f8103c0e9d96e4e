"""The invariants of a history table, and the rows that break them. Spark expressions only; for ``verify``.

Per key: at most one version is current, intervals are not negative and do not overlap, and a version is current if and
only if it has no end. A gap is no error: the row did not exist then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakefeed.change.batch import SEQ
from lakefeed.lake.mode.base import Interval
from lakefeed.lake.spark.type import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PROBLEM = "problem"


def temporal_violations(versions: DataFrame, key: Sequence[str], mode: Interval) -> DataFrame:
    """The versions that break an invariant, one row for each broken one: key, interval, seq and ``problem``.

    Empty for a correct table. ``versions`` is a whole table of mode temporal, or all versions of some keys. Starts no
    Spark job.
    """
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as F  # noqa: N812

    keys = [F.col(quoted(name)) for name in key]
    of_key = Over.partitionBy(*keys)
    begins, ends, current = (F.col(quoted(name)) for name in (mode.valid_from, mode.valid_to, mode.is_current))
    inspected = versions.select(
        *keys, begins, ends, current, F.col(SEQ),
        F.lead(begins).over(of_key.orderBy(SEQ)).alias("_lakefeed_next"),
        F.sum(F.when(current, 1).otherwise(0)).over(of_key).alias("_lakefeed_current"),
    )  # fmt: skip
    following = F.col("_lakefeed_next")
    problems = {
        "it has no beginning": begins.isNull(),
        "it ends before it begins": ends < begins,
        "it overlaps with the version after it": following.isNotNull() & (ends.isNull() | (ends > following)),
        "it is current and has an end, or neither": F.coalesce(current, F.lit(False)) != ends.isNull(),
        "it is not the only current one of its key": current & (F.col("_lakefeed_current") > 1),
    }
    holding = [F.when(condition, F.lit(text)) for text, condition in problems.items()]
    found = inspected.withColumn(PROBLEM, F.explode(F.array_compact(F.array(*holding))))
    return found.drop("_lakefeed_next", "_lakefeed_current")

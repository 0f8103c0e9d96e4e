"""Collapse: of all changes of one key, what is left of them, as one row. Spark expressions only.

The order is ``_lakefeed_seq``, which is total, so the outcome does not depend on files, partitions or retries. The last
operation wins. A column that the last change did not carry has its newest carried value since the key was last
inserted or deleted; if there is none, the row says so (``CARRIED`` is false) and the table's value stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakefeed.change.batch import OP, SEQ, Operation
from lakefeed.change.segment import Window
from lakefeed.lake.projection import CARRIED, incomplete_columns, read_changes
from lakefeed.lake.sparktype import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FRESH = "_lakefeed_fresh"
"""Was the key inserted or deleted here? Then nothing of the table's row belongs to what is left."""


def collapsed_window(session: SparkSession, window: Window) -> DataFrame:
    """One row per key of a window. What lies before the last truncate is gone with it."""
    from pyspark.sql import functions as F  # noqa: N812

    changes = read_changes(session, window)
    if window.truncated_at is not None:
        changes = changes.where((F.col(SEQ) > window.truncated_at) & (F.col(OP) != int(Operation.TRUNCATE)))
    return collapse(changes, window.target.key, incomplete_columns(window))


def collapse(changes: DataFrame, key: Sequence[str], incomplete: Sequence[str] = ()) -> DataFrame:
    """One row per ``key``: its columns and ``_lakefeed_op``; with ``incomplete`` ones, CARRIED for each, and FRESH."""
    from pyspark.sql import functions as F  # noqa: N812

    flags = {name: CARRIED + str(index) for index, name in enumerate(incomplete)}
    hidden = {SEQ, *flags.values()}
    names = [name for name in changes.columns if name not in hidden]
    rest = [name for name in names if name not in key and name not in flags]
    last = F.max_by(F.struct(*(F.col(quoted(name)) for name in rest)), F.col(SEQ)).alias("_last")
    carried = [part for name, flag in flags.items() for part in _newest_carried(name, flag)]
    resets = [_last_reset().alias("_reset")] if flags else []
    grouped = changes.groupBy(*(F.col(quoted(name)) for name in key)).agg(last, *resets, *carried)
    own = [_value(name, key, flags).alias(name) for name in names]
    if not flags:
        return grouped.select(*own)
    carries = [_is_carried(flag).alias(flag) for flag in flags.values()]
    return grouped.select(*own, *carries, F.col("_reset").isNotNull().alias(FRESH))


def _value(name: str, key: Sequence[str], flags: dict[str, str]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    if name in key:
        return F.col(quoted(name))
    return F.col(f"_value{flags[name]}") if name in flags else F.col("_last").getField(name)


def _newest_carried(name: str, flag: str) -> tuple[Column, Column]:
    """The newest carried value of a column and its seq. A delete carries nothing."""
    from pyspark.sql import functions as F  # noqa: N812

    sent_at = F.when(F.col(flag) & (F.col(OP) != int(Operation.DELETE)), F.col(SEQ))
    return F.max_by(F.col(quoted(name)), sent_at).alias(f"_value{flag}"), F.max(sent_at).alias(f"_seq{flag}")


def _last_reset() -> Column:
    """The seq of the key's last insert or delete: nothing from before it belongs to the row."""
    from pyspark.sql import functions as F  # noqa: N812

    resets = [int(Operation.INSERT), int(Operation.READ), int(Operation.DELETE)]
    return F.max(F.when(F.col(OP).isin(resets), F.col(SEQ)))


def _is_carried(flag: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    sent_at = F.col(f"_seq{flag}")
    return F.coalesce(sent_at >= F.coalesce(F.col("_reset"), F.lit(-1)), F.lit(False))

"""Collapse: of all changes of one key, what is left of them, as one row. Spark expressions only.

The order is ``_lakefeed_seq``, which is total, so the outcome does not depend on files, partitions or retries. The last
operation wins. A column that the last change did not carry has its newest carried value since the key was last
inserted or deleted; if there is none, the row says so (``CARRIED`` is false) and the table's value stands.

Where deleted rows are kept, the last operation is still the one that counts, but the values are those that the row had
when it was deleted; ``HELD`` says whether any change carried values at all.
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

HELD = "_lakefeed_held"
"""Where deleted rows are kept: was there a change that carried values? If not, the table's row keeps its own."""


# What a key's changes come to, before it is a row. No column of the source can be called so.
_LAST = "_lakefeed_last"  # the columns of the last change
_KEPT = "_lakefeed_kept"  # those of the last change that was not a delete
_RESET = "_lakefeed_reset"  # the seq of the last insert or delete
_VALUE, _SENT = "_lakefeed_value", "_lakefeed_sent"  # prefixes: the newest carried value of a column, and its seq


def collapsed_window(
    session: SparkSession, window: Window, told: Sequence[str] = (), *, keep_deleted: bool = False
) -> DataFrame:
    """One row per key of a window. What lies before the last truncate is gone with it.

    ``told`` are further metadata columns: the row has those of its last change.
    """
    from pyspark.sql import functions as F  # noqa: N812

    changes = read_changes(session, window, told)
    if window.truncated_at is not None:
        changes = changes.where((F.col(SEQ) > window.truncated_at) & (F.col(OP) != int(Operation.TRUNCATE)))
    return collapse(changes, window.target.key, incomplete_columns(window), keep_deleted=keep_deleted)


def collapse(
    changes: DataFrame, key: Sequence[str], incomplete: Sequence[str] = (), *, keep_deleted: bool = False
) -> DataFrame:
    """One row per ``key``: its columns, ``_lakefeed_op`` and other metadata of the last change.

    With ``incomplete`` columns also CARRIED for each, and FRESH; with ``keep_deleted`` also HELD.
    """
    from pyspark.sql import functions as F  # noqa: N812

    flags = {name: CARRIED + str(index) for index, name in enumerate(incomplete)}
    hidden = {SEQ, *flags.values()}
    names = [name for name in changes.columns if name not in hidden]
    rest = [name for name in names if name not in key and name not in flags]
    own = [name for name in rest if keep_deleted and not name.startswith("_lakefeed_")]
    last = [_newest([name for name in rest if name not in own], F.col(SEQ)).alias(_LAST)]
    if keep_deleted:
        last += [F.max(~_is_delete()).alias(HELD)]
        last += [_newest(own, F.when(~_is_delete(), F.col(SEQ))).alias(_KEPT)] if own else []
    carried = [part for name, flag in flags.items() for part in _newest_carried(name, flag)]
    resets = [_last_reset(keep_deleted=keep_deleted).alias(_RESET)] if flags else []
    grouped = changes.groupBy(*(F.col(quoted(name)) for name in key)).agg(*last, *resets, *carried)
    sources = {name: _VALUE + flag for name, flag in flags.items()} | dict.fromkeys(own, _KEPT)
    values = [_value(name, key, sources).alias(name) for name in names]
    held = [F.col(HELD)] if keep_deleted else []
    if not flags:
        return grouped.select(*values, *held)
    carries = [_is_carried(flag).alias(flag) for flag in flags.values()]
    return grouped.select(*values, *held, *carries, F.col(_RESET).isNotNull().alias(FRESH))


def _newest(names: Sequence[str], order: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.max_by(F.struct(*(F.col(quoted(name)) for name in names)), order)


def _is_delete() -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(OP) == int(Operation.DELETE)


def _value(name: str, key: Sequence[str], sources: dict[str, str]) -> Column:
    """``sources``: where a column that is not in ``_LAST`` is to be found."""
    from pyspark.sql import functions as F  # noqa: N812

    if name in key:
        return F.col(quoted(name))
    source = sources.get(name, _LAST)
    return F.col(source).getField(name) if source in (_LAST, _KEPT) else F.col(source)


def _newest_carried(name: str, flag: str) -> tuple[Column, Column]:
    """The newest carried value of a column and its seq. A delete carries nothing."""
    from pyspark.sql import functions as F  # noqa: N812

    sent_at = F.when(F.col(flag) & ~_is_delete(), F.col(SEQ))
    return F.max_by(F.col(quoted(name)), sent_at).alias(_VALUE + flag), F.max(sent_at).alias(_SENT + flag)


def _last_reset(*, keep_deleted: bool) -> Column:
    """The seq of the key's last insert or delete: nothing from before it belongs to the row, unless it is kept."""
    from pyspark.sql import functions as F  # noqa: N812

    resets = [int(Operation.INSERT), int(Operation.READ), *([] if keep_deleted else [int(Operation.DELETE)])]
    return F.max(F.when(F.col(OP).isin(resets), F.col(SEQ)))


def _is_carried(flag: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    sent_at = F.col(_SENT + flag)
    return F.coalesce(sent_at >= F.coalesce(F.col(_RESET), F.lit(-1)), F.lit(False))

"""Append: every change of a window as a row of the table, with what the source tells of it. Only ever appends.

A row's place is ``_lakefeed_seq``; copied rows have 0 and the operation ``read``. A delete has the key and NULL in the
other columns, a truncate has NULL in all; ``_lakefeed_absent`` names the columns of an update that the source did not
send, which are NULL here and are not NULL there. A before image is a row of the operation ``before``, directly ahead of
its change. Changes that a copy may already show (a window that is not exact) are rows all the same: the last change of
a key by seq is right in any case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakefeed.change.batch import ABSENT, OP, POSITION, SEQ, TIME, TXN
from lakefeed.change.segment import Window
from lakefeed.lake.mirror import operation_text
from lakefeed.lake.projection import read_changes
from lakefeed.lake.shape import COMMITTED_AT, OPERATION
from lakefeed.lake.sparktype import quoted
from lakefeed.lake.step import AppendRows
from lakefeed.lake.upsert import packed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def append_step(session: SparkSession, window: Window) -> AppendRows:
    """The window's changes as rows of the change log."""
    from pyspark.sql import functions as F  # noqa: N812

    changes = read_changes(session, window, (POSITION, TIME, TXN, ABSENT), before_images=True)
    own = [F.col(quoted(name)) for name in window.target.names]
    rows = changes.select(
        *own,
        F.expr(operation_text(OP)).alias(OPERATION),
        F.col(SEQ),
        F.col(POSITION),
        F.col(TIME).alias(COMMITTED_AT),
        F.col(TXN),
        F.col(ABSENT),
    )
    return AppendRows(packed(rows, window))

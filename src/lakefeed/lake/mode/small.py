"""A small window over a small table: one Spark job of one task, written as one or two SQL statements.

A window of a few thousand changes costs plans, jobs and tasks, not rows (docs/decisions/0013-small-windows.md). So
Spark broadcasts and shuffles nothing, and analyses a statement or two instead of a dozen frames:

- To exchange files, the job takes the table's rows as the oldest change of their key, and keeps the last change of each
  key: it reads every file once.
- To mark rows, the job that writes what the window leaves also reads the table's keys, keeps none of them, and reports
  where the window's rows lie (Spark's ``observe``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakefeed.change.batch import OP, SEQ, Operation
from lakefeed.change.segment import Window
from lakefeed.lake.spark.type import quoted
from lakefeed.lake.store import Extent, MarkRows, RewriteRows, TableStore
from lakefeed.lake.vector import ROW, observed
from lakefeed.lake.window import RuledWindow, read_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHANGES, _STORED = "lakefeed_window", "lakefeed_stored"
_MOST_BYTES, _MOST_CHANGES = 8 << 20, 50_000
"""Limits of the rewritten files and of the window: one task reads and writes so much in tenths of a second."""
_MOST_MARKED_BYTES = 32 << 20
"""The limit of the files where one task reads the keys alone."""


def small_step(
    session: SparkSession, window: Window, store: TableStore, extent: Extent
) -> RewriteRows | MarkRows | None:
    """Rewrite the touched files, with the window's changes, as one file; or mark the old rows and add one file.

    None if the table allows neither, one task is not enough, a rule makes the rows, or the changes have several schemas
    or columns that the source did not send.
    """
    if window.counts.total > _MOST_CHANGES or window.absent or not extent.touched_files:
        return None
    if {segment.schema_version for segment in window.segments} != {window.target.version}:
        return None
    if isinstance(window, RuledWindow):  # one statement cannot say what a rule does to rows
        return None
    old = extent.markable or extent.replaceable
    marks = extent.markable is not None
    most = (extent.bytes, _MOST_MARKED_BYTES) if marks else (extent.touched_bytes, _MOST_BYTES)
    if old is None or most[0] > most[1]:
        return None
    key, names = window.target.key, window.target.names
    keys, columns = ", ".join(map(quoted, key)), ", ".join(map(quoted, names))
    read_segments(session, window.target, window.segments, (OP, SEQ)).createOrReplaceTempView(_CHANGES)
    before = f" WHERE {OP} <> {int(Operation.BEFORE)}" if window.has_before_images else ""
    changes = f"SELECT {columns}, {OP}, {SEQ} FROM {_CHANGES}{before}"  # noqa: S608  # names are quoted
    if not marks:
        store.read_files(session, old).createOrReplaceTempView(_STORED)
        stored = f"SELECT {columns}, CAST({int(Operation.READ)} AS TINYINT) AS {OP}, -1L AS {SEQ} FROM {_STORED}"  # noqa: S608  # as above
        changes = f"{stored} UNION ALL {changes}"
    rest = ", ".join(quoted(name) for name in names if name not in key)
    last = ", ".join(quoted(name) if name in key else f"last.{quoted(name)} AS {quoted(name)}" for name in names)
    rows = session.sql(
        f"""SELECT {last} FROM (
              SELECT {keys}, max_by(struct({rest}{", " if rest else ""}{OP}), {SEQ}) AS last
              FROM (SELECT /*+ COALESCE(1) */ * FROM ({changes}))
              GROUP BY {keys})
            WHERE last.{OP} <> {int(Operation.DELETE)}"""  # noqa: S608  # as above
    )
    if not marks:
        return RewriteRows(rows, old)

    store.located(session, old, key).createOrReplaceTempView(_STORED)
    same = " AND ".join(
        f"t.{quoted(column.name)} {'<=>' if column.nullable else '='} s.{quoted(column.name)}"
        for column in window.target.key_columns
    )
    # Without the bounds of the window's keys: Spark writes them into the code that it generates, which it would compile
    # again for each window. To read all keys of a table this small is quicker. Not a semi-join: Spark would push it
    # below the hint, and exchange both sides. A row that several changes meet is reported once for each of them.
    gone = session.sql(
        f"""SELECT /*+ SHUFFLE_HASH(s) */ t.*
            FROM (SELECT /*+ COALESCE(1) */ * FROM {_STORED}) t
            JOIN (SELECT /*+ COALESCE(1) */ {keys} FROM {_CHANGES}) s ON {same}"""  # noqa: S608  # as above
    )
    # No row passes this filter, because a row's number is never negative. Spark does not know that, and reads them all.
    seen, report = observed(gone)
    none = seen.where(f"{ROW} < 0").selectExpr(
        *(quoted(name) if name in key else f"NULL AS {quoted(name)}" for name in names)
    )
    rows = rows.union(none).coalesce(1)
    return MarkRows(gone=gone, rows=rows, old=old, count=window.counts.total, report=report)

"""A small window over a small table: one Spark job of one task, told to Spark in one statement.

What a window of a few thousand changes costs is not its rows: it is plans, jobs and tasks. So the table's rows take
part in the collapse as the oldest change of their key, and the last change of each key is what is left: every file is
read once, nothing is broadcast or exchanged, and Spark analyses one statement instead of a dozen frames
(docs/decisions/0013-small-windows.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakefeed.change.batch import OP, SEQ, Operation
from lakefeed.change.segment import Window
from lakefeed.lake.spark.type import quoted
from lakefeed.lake.store import Extent, RewriteRows, TableStore
from lakefeed.lake.window import RuledWindow, read_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHANGES, _STORED = "lakefeed_window", "lakefeed_stored"
_MOST_BYTES, _MOST_CHANGES = 8 << 20, 50_000
"""Of the files that are written again, and of the window: one task reads and writes them in tenths of a second."""


def small_step(session: SparkSession, window: Window, store: TableStore, extent: Extent) -> RewriteRows | None:
    """The touched files again, with the window's changes, as one file.

    None where files cannot be exchanged, one task is not enough, or the changes are not all of one schema and whole.
    """
    versions, old = {segment.schema_version for segment in window.segments}, extent.replaceable
    few = extent.touched_bytes <= _MOST_BYTES and window.counts.total <= _MOST_CHANGES
    if old is None or not old.files or not few or versions != {window.target.version} or window.absent:
        return None
    if isinstance(window, RuledWindow):  # what a rule makes of rows is more than one statement says
        return None
    key, names = window.target.key, window.target.names
    read_segments(session, window.target, window.segments, (OP, SEQ)).createOrReplaceTempView(_CHANGES)
    store.read_files(session, old).createOrReplaceTempView(_STORED)
    columns = ", ".join(map(quoted, names))
    rest = ", ".join(quoted(name) for name in names if name not in key)
    last = ", ".join(quoted(name) if name in key else f"last.{quoted(name)} AS {quoted(name)}" for name in names)
    before = f" WHERE {OP} <> {int(Operation.BEFORE)}" if window.has_before_images else ""
    rows = session.sql(
        f"""SELECT {last} FROM (
              SELECT {", ".join(map(quoted, key))}, max_by(struct({rest}{", " if rest else ""}{OP}), {SEQ}) AS last
              FROM (SELECT /*+ COALESCE(1) */ * FROM (
                SELECT {columns}, CAST({int(Operation.READ)} AS TINYINT) AS {OP}, -1L AS {SEQ} FROM {_STORED}
                UNION ALL
                SELECT {columns}, {OP}, {SEQ} FROM {_CHANGES}{before}))
              GROUP BY {", ".join(map(quoted, key))})
            WHERE last.{OP} <> {int(Operation.DELETE)}"""  # noqa: S608  # names are quoted
    )
    return RewriteRows(rows, old)

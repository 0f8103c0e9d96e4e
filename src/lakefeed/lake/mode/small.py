"""A small window over a small table: one Spark job of one task, told to Spark in one statement.

What a window of a few thousand changes costs is not its rows: it is plans, jobs and tasks. So everything is read in one
task, where rows of the table meet the window's keys in a hash table: nothing is broadcast or exchanged, only changes
are sorted, and Spark analyses one statement instead of a dozen frames (docs/decisions/0013-small-windows.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from lakefeed.change.batch import OP, SEQ, Operation
from lakefeed.change.segment import Window
from lakefeed.lake.spark.type import quoted, text_literal
from lakefeed.lake.store import BROADCAST_ROWS, Extent, RewriteRows, TableStore
from lakefeed.lake.window import RuledWindow, read_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHANGES, _STORED = "lakefeed_window", "lakefeed_stored"
_MOST_BYTES, _MOST_CHANGES = 8 << 20, 50_000
"""Of the files that are written again, and of the window: one task reads and writes them in tenths of a second."""


def small_step(session: SparkSession, window: Window, store: TableStore, extent: Extent) -> RewriteRows | None:
    """The touched files again, with the window's changes, as one file.

    None where files cannot be exchanged, one task is not enough, or the changes are not all of one schema and whole.
    What is only read (``Extent.is_written``) has as many tasks as its files are worth, and the keys are sent to each.
    """
    versions, old = {segment.schema_version for segment in window.segments}, extent.replaceable
    few = extent.touched_bytes <= _MOST_BYTES and window.counts.total <= _MOST_CHANGES
    if not extent.is_written:
        few = window.counts.total <= BROADCAST_ROWS
    if old is None or not old.files or not few or versions != {window.target.version} or window.absent:
        return None
    if isinstance(window, RuledWindow):  # what a rule makes of rows is more than one statement says
        return None
    key, names, lineage = window.target.key, window.target.names, store.lineage
    one_task, join = ("/*+ COALESCE(1) */", "SHUFFLE_HASH") if extent.is_written else ("", "BROADCAST")
    # A session that only reads is the user's, and several threads may be at it.
    views = (_CHANGES, _STORED) if extent.is_written else (f"{_CHANGES}_{uuid4().hex}", f"{_STORED}_{uuid4().hex}")
    read_segments(session, window.target, window.segments, (OP, SEQ)).createOrReplaceTempView(views[0])
    store.read_files(session, old).createOrReplaceTempView(views[1])
    rest = [quoted(name) for name in names if name not in key]
    keys = ", ".join(map(quoted, key))
    stored = ", ".join(f"t.{name}" for name in (*map(quoted, names), *lineage))
    left = ", ".join(quoted(name) if name in key else f"last.{quoted(name)}" for name in names)
    unknown = "".join(f", CAST(NULL AS BIGINT) AS {name}" for name in lineage)
    before = f" WHERE {OP} <> {int(Operation.BEFORE)}" if window.has_before_images else ""
    rows = session.sql(
        f"""WITH changes AS (SELECT {one_task} * FROM {views[0]}{before}),
              stored AS (SELECT {one_task} * FROM {views[1]})
            SELECT {one_task} * FROM (
              SELECT /*+ {join}(s) */ {stored} FROM stored AS t LEFT ANTI JOIN changes AS s ON {matches(window)}
              UNION ALL
              SELECT {left}{unknown} FROM (
                SELECT {keys}, max_by(struct({", ".join((*rest, OP))}), {SEQ}) AS last FROM changes GROUP BY {keys})
              WHERE last.{OP} <> {int(Operation.DELETE)})"""  # noqa: S608  # names are quoted
    )
    for view in views if not extent.is_written else ():
        session.catalog.dropTempView(view)
    return RewriteRows(rows, old)


def matches(window: Window) -> str:
    """The SQL condition that a change ``s`` is of the row ``t``."""
    # A key column that may be NULL (SQLite allows it) is compared so that NULL equals NULL. The origin of a union is
    # the same in all changes: as a literal it leaves the files of the other parts out.
    origin = window.ruled.origin if isinstance(window, RuledWindow) else None
    literals = {origin[0]: text_literal(origin[1])} if origin is not None else {}
    return " AND ".join(
        f"t.{quoted(column.name)} = {literals[column.name]}"
        if column.name in literals
        else f"t.{quoted(column.name)} {'<=>' if column.nullable else '='} s.{quoted(column.name)}"
        for column in window.target.key_columns
    )

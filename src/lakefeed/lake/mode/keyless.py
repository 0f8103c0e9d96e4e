"""Keyless: the mirror of a table without a key. Only all its values identify a row, so equal rows are counted.

The source must send whole rows: a delete carries the deleted row, an update comes as a delete of the old row and an
insert of the new one. A delete removes one of n equal rows; which one makes no difference. So a window comes down to a
number for each distinct row: inserts minus deletes. Above zero, so many rows are added; below, so many of the table's
are removed, matched one to one.

A MERGE cannot delete one of several equal rows. It deletes them all, and inserts again those that stay: in one commit.

A change that the copied rows already have must not count again. If the copy was read at one position of the source's
log, Lakefeed skips the changes up to there. Otherwise nobody knows which these are, and it copies the table again.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakefeed.change.batch import OP, POSITION, SEQ, Operation
from lakefeed.change.position import decode_position
from lakefeed.change.segment import Counts, Window
from lakefeed.errors import RebuildCause, RebuildNeededError, TableStoppedError
from lakefeed.lake.location import filesystem
from lakefeed.lake.mode.changes import window_changes
from lakefeed.lake.mode.upsert import ModeColumns
from lakefeed.lake.spark.error import NO_SUCH_ROW
from lakefeed.lake.spark.type import quoted
from lakefeed.lake.store import AppendRows, MergeRows, ReplaceRows, Step, TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TAKES = "_lakefeed_takes"  # does this row delete the table's rows that are equal to it?
_SOURCE = "_lakefeed_source"
_TABLE, _INSERT, _DELETE = 0, 1, 2


def keyless_step(session: SparkSession, window: Window, store: TableStore, own: ModeColumns, *, appends: bool) -> Step:
    """The step that brings the table to the window's end. TableStoppedError for changes that no row can match.

    ``appends``: the table takes inserts alone.
    """
    from pyspark.sql import functions as F  # noqa: N812

    first, counts = after_copy(window)
    problem = None
    if own.keeps_deleted:
        problem = "has no key, so Lakefeed cannot keep its deleted rows: nothing tells them from equal ones"
    elif not window.exact and window.copied_at is None:
        raise RebuildNeededError(
            f"table {window.table} has no key and changed during its copy: nobody knows which of these changes the copy"
            " has",
            remedy="The next sync copies the table again by itself, until nobody changes it during the copy. With a"
            " primary key, or another mode by a rule of its own (append keeps every change as a row), one copy is"
            " enough.",
            table=str(window.table),
            cause=RebuildCause.COPY,
        )
    elif appends and counts.total > counts.inserted:
        problem = "has no key and takes inserts alone (keyless: append), and the source sent other changes"
    elif counts.updated:
        problem = "has no key, and the source sent an update without the old row"
    if problem:
        raise TableStoppedError(
            f"table {window.table} {problem}",
            remedy=f"Give {window.table} a primary key, or another mode by a rule of its own (append keeps every change"
            " as a row); then remove the lake table, and the pipeline copies it again.",
            table=str(window.table),
        )

    # Inserts and deletes as rows of the table, with their kind and order.
    kind = F.when(F.col(OP) == int(Operation.DELETE), F.lit(_DELETE)).otherwise(F.lit(_INSERT))
    changes = window_changes(session, window, None, own.metadata).alias("s")
    changes = changes.where(f"{OP} <> {int(Operation.TRUNCATE)} AND {SEQ} >= {first}")
    changes = changes.select(
        *(F.col(quoted(name)) for name in window.target.names),
        *(F.expr(value).alias(name) for name, value in own.new.items()),
        kind.alias(_SOURCE),
        F.col(SEQ),
    )
    if window.truncated_at is not None and window.truncated_at >= first:
        return ReplaceRows(_counted(changes.where(f"{SEQ} > {window.truncated_at}"), window).drop(_TAKES))
    if not counts.deleted:
        return AppendRows(changes.drop(_SOURCE, SEQ))

    # The table's rows that are equal to a deleted one, counted together with the changes.
    equal = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(name)}" for name in window.target.names)
    deleted = changes.where(F.col(_SOURCE) == _DELETE).alias("s")
    stored = store.read(session).alias("t").join(deleted, F.expr(equal), "left_semi")
    columns = [F.col(quoted(name)) for name in changes.columns if name not in (_SOURCE, SEQ)]
    stored = stored.select(*columns, F.lit(_TABLE).alias(_SOURCE), F.lit(0).cast("bigint").alias(SEQ))
    rows = _counted(changes.unionByName(stored), window)
    return MergeRows(
        rows=rows,
        condition=f"s.{_TAKES} AND {equal}",
        deletes="true",
        updates={},
        inserts={name: f"s.{quoted(name)}" for name in rows.columns if name != _TAKES},
        inserts_if=f"NOT s.{_TAKES}",
        replaces=True,
        count=counts.total,
    )


def after_copy(window: Window) -> tuple[int, Counts]:
    """The first seq of a window that the copied rows do not have, and the counts of the changes from there on. Seq and
    position grow together, so it reads the segments from the last one back to the one with the copy's position."""
    if window.copied_at is None:
        return 0, window.counts
    first, counts = (window.last_seq or 0) + 1, Counts()
    for segment in sorted(window.segments, key=lambda one: one.last_seq, reverse=True):
        files, place = filesystem(segment.path)
        rows = pq.read_table(place, columns=[SEQ, POSITION, OP], filesystem=files)
        texts = rows.column(POSITION).unique().to_pylist()
        later = pa.array([one for one in texts if decode_position(str(one)) > window.copied_at], pa.string())
        rest = rows.filter(pc.is_in(rows.column(POSITION), value_set=later))
        if rest.num_rows:
            first = min(first, rest.column(SEQ).combine_chunks()[0].as_py())
            found = Counter(rest.column(OP).to_pylist())
            kinds = (Operation.INSERT, Operation.UPDATE, Operation.DELETE, Operation.TRUNCATE)
            counts += Counts(*(found[int(kind)] for kind in kinds))
        if rest.num_rows < rows.num_rows:
            break
    return first, counts


def _counted(rows: DataFrame, window: Window) -> DataFrame:
    """For equal rows: the new ones, the table's that stay, and one row that deletes all of the table's."""
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as F  # noqa: N812

    values = [F.col(quoted(name)) for name in window.target.names]
    source = F.col(_SOURCE)
    own = [name for name in rows.columns if name != _SOURCE]
    equal = Over.partitionBy(*values)
    newest = [F.col(quoted(name)).desc() for name in reversed(own) if name not in window.target.names]
    added = F.when(source == _INSERT, 1).when(source == _DELETE, -1).otherwise(0)
    counted = rows.select(
        "*",
        F.sum(added).over(equal).alias("_lakefeed_more"),
        F.sum(F.when(source == _TABLE, 1).otherwise(0)).over(equal).alias("_lakefeed_there"),
        F.row_number().over(Over.partitionBy(*values, source).orderBy(*newest)).alias("_lakefeed_nth"),
    )
    more, there, nth = (F.col(f"_lakefeed_{name}") for name in ("more", "there", "nth"))
    missing = F.expr(f"CAST(raise_error('{NO_SUCH_ROW}') AS BOOLEAN)")
    takes = F.when(source != _DELETE, F.lit(False)).when(more + there < 0, missing).otherwise(F.lit(True))
    stays = (more < 0) & (nth > -more)
    chosen = F.when(source == _INSERT, nth <= more).when(source == _TABLE, stays).otherwise((more < 0) & (nth == 1))
    return counted.where(chosen).select(*(quoted(name) for name in own if name != SEQ), takes.alias(_TAKES))

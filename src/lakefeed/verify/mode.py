"""What the rows of a lake table say about the source's rows, by mode, for all rows of some keys. Arrow only.

A history table (mode temporal) keeps invariants per key: at most one version is current, intervals are not negative and
do not overlap, and a version is current if and only if it has no end. ``lake.mode.check`` checks the same with Spark.

A table of changes (mode append) determines rows: the last change of a key by seq is the row, unless it is a delete. A
column that the change did not carry has the value of the newest change that did. Nothing before a truncate counts, and
before images never do. Without a key a row is identified by all its values, and its count is inserts minus deletes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.change.batch import ABSENT, SEQ
from lakefeed.lake.mode import Interval
from lakefeed.lake.mode.base import OPERATION
from lakefeed.verify.rows import Row, rows_of

CHANGE_COLUMNS = (OPERATION, SEQ, ABSENT)
"""The columns of a table of changes that describe a change."""


def history_faults(versions: pa.Table, key: Sequence[str], mode: Interval) -> Counter[str]:
    """How many versions violate each invariant."""
    if versions.num_rows == 0:
        return Counter()
    order = [*key, SEQ]
    rows = versions.select([*order, mode.valid_from, mode.valid_to, mode.is_current])
    rows = rows.sort_by([(name, "ascending") for name in order]).combine_chunks()
    begins, ends = (
        np.asarray(rows.column(name).cast(pa.timestamp("us")).to_numpy(), dtype="datetime64[us]")
        for name in (mode.valid_from, mode.valid_to)
    )
    open_ended = np.isnat(ends)
    current = rows.column(mode.is_current).to_numpy(zero_copy_only=False).astype(bool)
    found = {
        "have no beginning": np.isnat(begins),
        "end before they begin": ends < begins,
        "overlap with the version after them": _same_as_next(rows, key) & (open_ended[:-1] | (ends[:-1] > begins[1:])),
        "are current and have an end, or neither": current != open_ended,
    }
    return Counter({what: int(np.count_nonzero(which)) for what, which in found.items() if which.any()})


def fault_sentences(faults: Mapping[str, int]) -> Iterator[str]:
    yield from (f"versions that {what}: {count:,}" for what, count in faults.items())


def last_truncate(changes: pa.RecordBatch) -> int:
    """The seq of the newest truncate; -1 if there is none. It has no key, so it applies to every bucket."""
    operations: Any = changes.column(OPERATION)
    found: Any = changes.filter(pc.equal(operations, pa.scalar("truncate"))).column(SEQ)
    return int(pc.max(found).as_py()) if len(found) else -1


def current_rows(changes: pa.Table, key: Sequence[str], names: Sequence[str], truncated_at: int) -> pa.Table:
    """The rows that result from the changes, with the columns ``names``. ``changes`` are all changes of some keys."""
    operations: Any = changes.column(OPERATION)
    seqs: Any = changes.column(SEQ)
    idle = pc.is_in(operations, value_set=pa.array(["truncate", "before"]))
    rows = changes.filter(pc.and_(pc.invert(idle), pc.greater(seqs, pa.scalar(truncated_at))))
    if key:
        rows = rows.sort_by([(name, "ascending") for name in (*key, SEQ)]).combine_chunks()
    kept_operations: Any = rows.column(OPERATION)
    is_delete = pc.equal(kept_operations, pa.scalar("delete")).to_numpy(zero_copy_only=False).astype(bool)
    if not key:
        wanted = rows.select(list(names)).combine_chunks()
        left: Counter[Row] = Counter()
        example: dict[Row, int] = {}
        for index, (row, is_gone) in enumerate(zip(rows_of(wanted), is_delete, strict=True)):
            left[row] += -1 if is_gone else 1
            example[row] = index
        indices = [example[row] for row, count in left.items() for _ in range(count)]
        return wanted.take(pa.array(indices, pa.int64()))
    last = np.append(~_same_as_next(rows, key), True)[: rows.num_rows]
    chosen = np.flatnonzero(last & ~is_delete)
    starts = np.maximum.accumulate(np.where(np.append(True, last[:-1])[: rows.num_rows], np.arange(rows.num_rows), 0))
    absent: Any = rows.column(ABSENT)
    partial = np.flatnonzero(absent.is_valid().to_numpy(zero_copy_only=False))
    listed = absent.take(pa.array(partial)).to_pylist()
    columns = []
    for name in names:
        # For each row, the newest one up to it that carried the column. It may belong to another key, before this key's
        # first row; -1 if there is none.
        carried = np.arange(rows.num_rows)
        carried[[index for index, lacking in zip(partial, listed, strict=True) if name in lacking]] = -1
        newest = (np.maximum.accumulate(carried) if rows.num_rows else carried)[chosen]
        known = newest >= starts[chosen]
        taken = rows.column(name).take(pa.array(np.where(known, newest, 0), pa.int64()))
        columns.append(taken if known.all() else pc.if_else(pa.array(known), taken, pa.scalar(None, taken.type)))
    return pa.Table.from_arrays(columns, names=list(names))


def _same_as_next(rows: pa.Table, key: Sequence[str]) -> Any:
    """For each of the sorted rows but the last: whether the next one has the same key."""
    if rows.num_rows < 2:
        return np.zeros(0, dtype=bool)
    same = np.ones(rows.num_rows - 1, dtype=bool)
    for name in key:
        column: Any = rows.column(name)
        one, other = column.slice(0, len(same)), column.slice(1)
        equal = pc.or_kleene(pc.and_(pc.is_null(one), pc.is_null(other)), pc.equal(one, other))
        same &= np.asarray(pc.fill_null(equal, False).to_numpy(zero_copy_only=False), dtype=bool)
    return same

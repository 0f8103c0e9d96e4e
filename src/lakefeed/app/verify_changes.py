"""The rows that a table of changes (mode append) leaves: its current-state view, for all changes of some keys.

The last change of a key by seq is the row, unless it is a delete. A column that the change did not carry has the value
of the newest one that did. Before a truncate nothing counts, and before images never do. Without a key a row is all its
values, and what is left of it is a number: inserts minus deletes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.app.verify_history import same_as_next
from lakefeed.app.verify_rows import Row, rows_of
from lakefeed.change.batch import ABSENT, SEQ
from lakefeed.lake.mode.base import OPERATION

TOLD = (OPERATION, SEQ, ABSENT)
"""The columns of the change log that say what a change was."""


def last_truncate(changes: pa.RecordBatch) -> int:
    """The seq of the newest truncate; -1 if there is none. It has no key, so it concerns every bucket."""
    operations: Any = changes.column(OPERATION)
    found: Any = changes.filter(pc.equal(operations, pa.scalar("truncate"))).column(SEQ)
    return int(pc.max(found).as_py()) if len(found) else -1


def current_rows(changes: pa.Table, key: Sequence[str], names: Sequence[str], truncated_at: int) -> pa.Table:
    """What the changes leave, with the columns ``names``. ``changes`` are all that some keys have."""
    operations: Any = changes.column(OPERATION)
    seqs: Any = changes.column(SEQ)
    idle = pc.is_in(operations, value_set=pa.array(["truncate", "before"]))
    counted = changes.filter(pc.and_(pc.invert(idle), pc.greater(seqs, pa.scalar(truncated_at))))
    return _last_of_each(counted, key, names) if key else _left_by_count(counted, names)


def _last_of_each(changes: pa.Table, key: Sequence[str], names: Sequence[str]) -> pa.Table:
    rows = changes.sort_by([(name, "ascending") for name in (*key, SEQ)]).combine_chunks()
    last = np.append(~same_as_next(rows, key), True)[: rows.num_rows]
    alive = ~_is_delete(rows)
    chosen = np.flatnonzero(last & alive)
    starts = np.maximum.accumulate(np.where(np.append(True, last[:-1])[: rows.num_rows], np.arange(rows.num_rows), 0))
    columns = []
    for name in names:
        places = _newest_carried(rows, name)
        found = places[chosen]
        known = found >= starts[chosen]
        taken = rows.column(name).take(pa.array(np.where(known, found, 0), pa.int64()))
        columns.append(taken if known.all() else pc.if_else(pa.array(known), taken, pa.scalar(None, taken.type)))
    return pa.Table.from_arrays(columns, names=list(names))


def _newest_carried(rows: pa.Table, name: str) -> Any:
    """For each row the place of the newest one, itself included, that carried the column; -1 if there is none.

    It may be of another key: whoever asks knows where its key begins.
    """
    places = np.arange(rows.num_rows)
    absent: Any = rows.column(ABSENT)
    told = np.flatnonzero(absent.is_valid().to_numpy(zero_copy_only=False))
    listed = absent.take(pa.array(told)).to_pylist()
    lacking = [place for place, names in zip(told, listed, strict=True) if name in names]
    places[lacking] = -1
    return np.maximum.accumulate(places) if rows.num_rows else places


def _left_by_count(changes: pa.Table, names: Sequence[str]) -> pa.Table:
    wanted = changes.select(list(names)).combine_chunks()
    left: Counter[Row] = Counter()
    example: dict[Row, int] = {}
    for place, (row, is_gone) in enumerate(zip(rows_of(wanted), _is_delete(changes), strict=True)):
        left[row] += -1 if is_gone else 1
        example[row] = place
    places = [example[row] for row, count in left.items() for _ in range(count)]
    return wanted.take(pa.array(places, pa.int64()))


def _is_delete(changes: pa.Table) -> Any:
    operations: Any = changes.column(OPERATION)
    return pc.equal(operations, pa.scalar("delete")).to_numpy(zero_copy_only=False).astype(bool)

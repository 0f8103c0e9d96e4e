"""The invariants of a history table, by a reader that the pipeline does not use. Small tables: all of it is in memory.

Per key: at most one version is current, intervals are not negative and do not overlap, and a version is current if and
only if it has no end. For tables of any size there is ``lake.temporal_check``, which says the same with Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.change.batch import SEQ
from lakefeed.lake.mode import Temporal


def history_problems(versions: pa.Table, key: Sequence[str], mode: Temporal) -> Iterator[str]:
    """What is wrong, as sentences; nothing for a table that is as it should be."""
    if versions.num_rows == 0:
        return
    order = [*key, SEQ]
    rows = versions.sort_by([(name, "ascending") for name in order]).combine_chunks()
    begins, ends = _instants(rows.column(mode.valid_from)), _instants(rows.column(mode.valid_to))
    open_ended = np.isnat(ends)
    current = rows.column(mode.is_current).to_numpy(zero_copy_only=False).astype(bool)
    same_key = _same_as_next(rows, key)
    following = begins[1:]
    overlapping = same_key & (open_ended[:-1] | (ends[:-1] > following))
    yield from _counted("have no beginning", np.isnat(begins))
    yield from _counted("end before they begin", ends < begins)
    yield from _counted("overlap with the version after them", overlapping)
    yield from _counted("are current and have an end, or neither", current != open_ended)


def _instants(column: pa.ChunkedArray[Any]) -> Any:
    return np.asarray(column.cast(pa.timestamp("us")).to_numpy(), dtype="datetime64[us]")


def _same_as_next(rows: pa.Table, key: Sequence[str]) -> Any:
    same = np.ones(rows.num_rows - 1, dtype=bool)
    for name in key:
        column: Any = rows.column(name)
        one, other = column.slice(0, rows.num_rows - 1), column.slice(1)
        equal = pc.or_kleene(pc.and_(pc.is_null(one), pc.is_null(other)), pc.equal(one, other))
        same &= np.asarray(pc.fill_null(equal, False).to_numpy(zero_copy_only=False), dtype=bool)
    return same


def _counted(what: str, found: Any) -> Iterator[str]:
    if count := int(np.count_nonzero(found)):
        yield f"{count:,} versions {what}"

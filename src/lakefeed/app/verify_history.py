"""The invariants of a history table, by a reader that the pipeline does not use, over all versions of some keys.

Per key: at most one version is current, intervals are not negative and do not overlap, and a version is current if and
only if it has no end. ``lake.mode.check`` says the same with Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.change.batch import SEQ
from lakefeed.lake.mode import Interval


def history_problems(versions: pa.Table, key: Sequence[str], mode: Interval) -> Iterator[str]:
    """What is wrong, as sentences; nothing for a table that is as it should be."""
    yield from told(history_faults(versions, key, mode))


def history_faults(versions: pa.Table, key: Sequence[str], mode: Interval) -> Counter[str]:
    """How many versions break which invariant."""
    if versions.num_rows == 0:
        return Counter()
    order = [*key, SEQ]
    rows = versions.select([*order, mode.valid_from, mode.valid_to, mode.is_current])
    rows = rows.sort_by([(name, "ascending") for name in order]).combine_chunks()
    begins, ends = _instants(rows.column(mode.valid_from)), _instants(rows.column(mode.valid_to))
    open_ended = np.isnat(ends)
    current = rows.column(mode.is_current).to_numpy(zero_copy_only=False).astype(bool)
    following = begins[1:]
    overlapping = same_as_next(rows, key) & (open_ended[:-1] | (ends[:-1] > following))
    found = {
        "have no beginning": np.isnat(begins),
        "end before they begin": ends < begins,
        "overlap with the version after them": overlapping,
        "are current and have an end, or neither": current != open_ended,
    }
    return Counter({what: int(np.count_nonzero(which)) for what, which in found.items() if which.any()})


def told(faults: Mapping[str, int]) -> Iterator[str]:
    yield from (f"{count:,} versions {what}" for what, count in faults.items())


def same_as_next(rows: pa.Table, key: Sequence[str]) -> Any:
    """Of sorted rows, for each but the last: does the next one have the same key?"""
    if rows.num_rows < 2:
        return np.zeros(0, dtype=bool)
    same = np.ones(rows.num_rows - 1, dtype=bool)
    for name in key:
        column: Any = rows.column(name)
        one, other = column.slice(0, len(same)), column.slice(1)
        equal = pc.or_kleene(pc.and_(pc.is_null(one), pc.is_null(other)), pc.equal(one, other))
        same &= np.asarray(pc.fill_null(equal, False).to_numpy(zero_copy_only=False), dtype=bool)
    return same


def _instants(column: pa.ChunkedArray[Any]) -> Any:
    return np.asarray(column.cast(pa.timestamp("us")).to_numpy(), dtype="datetime64[us]")

"""Differences: what a full comparison found, handed over as files, to go through the journal like all changes.

    <directory>/<schema.table>/<number>/*.parquet     the key columns, and ``_lakefeed_found``: deleted or changed

A directory appears by one rename, complete. Its number is its time in milliseconds. The comparison ran beside the
source's writers, so each key is looked up in the source, in one consistent read, before anything is delivered. How far
a directory has been delivered is part of the position, so that it is delivered to the end, once, over crashes; then it
is removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakefeed.capture.dialect import Dialect, Session, key_rows
from lakefeed.capture.poll.event import Events, classified, deletes, in_keys
from lakefeed.capture.poll.query import Queries
from lakefeed.capture.poll.table import PolledTable
from lakefeed.capture.snapshot import combined
from lakefeed.change.batch import CHANGED, FOUND
from lakefeed.change.table import TableId
from lakefeed.change.watermark import Mark

SLICE_ROWS = 10_000
_LOOKUP_ROWS = 500


class DifferencesDirectory:
    """What waits for one table."""

    def __init__(self, root: Path, table: TableId) -> None:
        self.path = root / quote(str(table), safe=" .")

    def next(self, after: Mark | None) -> tuple[pa.RecordBatch, Mark] | None:
        """The first keys that have not been delivered, and the mark that says that they have been."""
        for number, path in self._numbered():
            if after is not None and number < after.instant_us:
                continue
            offset = _offset(after, number)
            rows = pq.read_table(path, partitioning=None).combine_chunks()
            part = rows.slice(offset, SLICE_ROWS).to_batches()
            if part:
                return part[0], Mark(number, (offset + part[0].num_rows,))
        return None

    def forget(self, confirmed: Mark) -> None:
        """Remove what is durable elsewhere, up to ``confirmed``."""
        for number, path in self._numbered():
            rows = sum(pq.read_metadata(file).num_rows for file in path.glob("*.parquet"))
            is_over = number == confirmed.instant_us and _offset(confirmed, number) >= rows
            if number < confirmed.instant_us or is_over:
                shutil.rmtree(path, ignore_errors=True)

    def _numbered(self) -> Iterator[tuple[int, Path]]:
        if self.path.is_dir():
            yield from sorted((int(path.name), path) for path in self.path.iterdir() if path.name.isdigit())


def mark_name(table: TableId) -> str:
    """The name under which a position says how far the differences of a table have been delivered."""
    return f"{table}#full-diff"


def looked_up(
    dialect: Dialect, session: Session, table: PolledTable, found: pa.RecordBatch, now_us: int
) -> list[Events]:
    """What the source itself has under the keys that a comparison found, in one consistent read.

    A key that is not there is a delete, whatever was found; one that is there is delivered as it is now if it was
    found to be different, and is nothing if it was found to be missing: it has come back.
    """
    # In the types of the source: Spark, which wrote the keys, has others for some (times in nanoseconds).
    keys = found.select(list(table.key)).cast(table.arrow(table.key))
    wanted, schema = key_rows(keys, table.key), table.arrow(table.read_names)
    batches: list[pa.RecordBatch] = []
    with session.consistent():
        for start in range(0, len(wanted), _LOOKUP_ROWS):
            query = Queries(dialect, table).by_key(wanted[start : start + _LOOKUP_ROWS])
            batches += session.read(query, schema)
    rows = combined(batches, schema)
    deleted = table.are_deleted(rows)
    alive = rows if deleted is None else rows.filter(pc.invert(deleted))
    gone = keys.filter(pc.invert(in_keys(keys, alive, table.key)))
    changed = keys.filter(pc.equal(found.column(FOUND), pa.scalar(CHANGED)))
    now = alive.filter(in_keys(alive, changed, table.key))
    events = [deletes(table.schema, gone, now_us)] if gone.num_rows else []
    if now.num_rows:
        events.append(classified(table, now, table.times(now, expect_order=False)))
    return events


def _offset(mark: Mark | None, number: int) -> int:
    """How many keys of directory ``number`` are delivered."""
    return int(mark.key[0]) if mark is not None and mark.key and mark.instant_us == number else 0

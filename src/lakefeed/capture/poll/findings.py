"""Findings: what a full comparison found, handed over as files, so that it goes through the journal like all changes.

    <directory>/<schema.table>/<number>/*.parquet     the key columns, and ``_lakefeed_found``: deleted or changed

A directory appears by one rename, complete. Its number is its time in milliseconds. The rows are only suspects: each is
looked up in the source, in one consistent read, before anything is said of it. How far a directory has been delivered
is part of the position, so that it is delivered to the end, once, over crashes; then it is removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakefeed.capture.dialect import Dialect, Session, key_rows
from lakefeed.capture.poll.event import Events, classified, deleted_rows, deletes
from lakefeed.capture.poll.followed import Followed
from lakefeed.capture.poll.marking import Marking
from lakefeed.capture.poll.query import Queries
from lakefeed.capture.poll.reading import combined
from lakefeed.capture.poll.window import key_texts
from lakefeed.change.suspect import CHANGED, FOUND
from lakefeed.change.table import TableId
from lakefeed.change.watermark import Mark

SLICE_ROWS = 10_000
_LOOKUP_ROWS = 500


@dataclass(frozen=True, slots=True)
class Slice:
    """Some suspects of one directory, and the mark that says that they have been delivered."""

    keys: pa.RecordBatch
    mark: Mark


class FindingsDirectory:
    """What waits for one table."""

    def __init__(self, root: Path, table: TableId) -> None:
        self.place = root / quote(str(table), safe=" .")

    @staticmethod
    def mark_name(table: TableId) -> str:
        """The name under which a position says how far the findings of a table have been delivered."""
        return f"{table}#full-diff"

    def next(self, after: Mark | None) -> Slice | None:
        """The first suspects that have not been delivered."""
        for number, path in self._numbered():
            if after is not None and number < after.instant_us:
                continue
            offset = _offset(after, number)
            rows = pq.read_table(path, partitioning=None).combine_chunks()
            part = rows.slice(offset, SLICE_ROWS).to_batches()
            if part:
                return Slice(part[0], Mark(number, (offset + part[0].num_rows,)))
        return None

    def forget(self, confirmed: Mark) -> None:
        """Remove what is durable elsewhere, up to ``confirmed``."""
        for number, path in self._numbered():
            if number < confirmed.instant_us or (
                number == confirmed.instant_us and _offset(confirmed, number) >= _rows(path)
            ):
                shutil.rmtree(path, ignore_errors=True)

    def _numbered(self) -> Iterator[tuple[int, Path]]:
        if self.place.is_dir():
            yield from sorted((int(path.name), path) for path in self.place.iterdir() if path.name.isdigit())


def looked_up(
    connector: Dialect, session: Session, followed: Followed, suspects: pa.RecordBatch, now_us: int
) -> list[Events]:
    """What the source itself says of the suspects, in one consistent read.

    A key that is not there is a delete, whatever was suspected; one that is there is delivered as it is now if it was
    found to be different, and is nothing if it was found to be missing: it has come back.
    """
    keys = _keys(suspects, followed)
    rows = _found(connector, session, followed, keys)
    marks = deleted_rows(followed, rows)
    alive = rows if marks is None else rows.filter(pc.invert(marks))
    there = pc.is_in(key_texts(keys, followed.key), value_set=key_texts(alive, followed.key))
    gone = keys.filter(pc.invert(there))
    changed = _keys(suspects.filter(pc.equal(suspects.column(FOUND), pa.scalar(CHANGED))), followed)
    wanted = alive.filter(pc.is_in(key_texts(alive, followed.key), value_set=key_texts(changed, followed.key)))
    events = [deletes(followed.schema, gone, now_us)] if gone.num_rows else []
    if wanted.num_rows:
        marking = Marking(followed)
        events.append(classified(followed, marking, wanted, marking.times(wanted, expect_order=False)))
    return events


def _keys(suspects: pa.RecordBatch, followed: Followed) -> pa.RecordBatch:
    """In the types of the source: Spark, which wrote them, has others for some (times in nanoseconds)."""
    kinds = pa.schema([pa.field(name, followed.column(name).type) for name in followed.key])
    return suspects.select(list(followed.key)).cast(kinds)


def _found(connector: Dialect, session: Session, followed: Followed, keys: pa.RecordBatch) -> pa.RecordBatch:
    queries = Queries(connector, followed)
    wanted = key_rows(keys, followed.key)
    batches: list[pa.RecordBatch] = []
    with session.consistent():
        for start in range(0, len(wanted), _LOOKUP_ROWS):
            batches += session.read(queries.by_key(wanted[start : start + _LOOKUP_ROWS]), followed.reading)
    return combined(batches, followed.reading)


def _offset(mark: Mark | None, number: int) -> int:
    """How many suspects of directory ``number`` are delivered."""
    return int(mark.key[0]) if mark is not None and mark.key and mark.instant_us == number else 0


def _rows(path: Path) -> int:
    return sum(pq.read_metadata(file).num_rows for file in path.glob("*.parquet"))

"""A batch read: the change sets from ``start`` to ``end``, as they were when the DataFrame was made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from lakefeed.change.table import TableSchema
from lakefeed.reading.columns import read_columns
from lakefeed.reading.feed import Part, TableFeed
from lakefeed.reading.options import Edge, ReadOptions, remedy_in_text
from lakefeed.reading.rows import ChangePartition, SegmentRead, read_partition

PARTITION_BYTES = 8 * 1024 * 1024
"""Starting a Python task costs far more than reading a small segment, so a task must be worth its start."""


class ChangeReader(DataSourceReader):
    """Reads (after, upto] under ``target``. Rows in a partition are in seq order."""

    def __init__(self, options: ReadOptions, target: TableSchema, upto: int) -> None:
        self._options = options
        self._target = target
        self._upto = upto

    def partitions(self) -> Sequence[InputPartition]:
        with remedy_in_text():
            feed = TableFeed.open(self._options)
            after = first_wanted(self._options, feed) - 1
            return change_partitions(feed, feed.parts(after, max(after, self._upto)), self._target)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with remedy_in_text():
            yield from read_partition(partition)


def first_wanted(options: ReadOptions, feed: TableFeed) -> int:
    """The number of the first change set to read."""
    if options.start is Edge.EARLIEST:
        return feed.trimmed + 1
    if options.start is Edge.LATEST:
        return feed.head + 1
    feed.check(options.start - 1, options.start - 1)
    return options.start


def last_wanted(options: ReadOptions, feed: TableFeed) -> int:
    """The number of the last change set of a batch read. JournalError if it does not exist."""
    if not isinstance(options.end, int):
        return feed.head
    feed.check(options.end - 1, options.end)
    return options.end


def change_partitions(feed: TableFeed, parts: Sequence[Part], target: TableSchema) -> list[ChangePartition]:
    """What tasks read: a partition per segment; small neighbours share one, up to PARTITION_BYTES.

    TableStoppedError, before anything is read, if a schema version cannot be converted.
    """
    schemas = feed.schemas
    columns = {
        version: read_columns(schemas, version, target) for version in {part.segment.schema_version for part in parts}
    }
    packed: list[list[SegmentRead]] = []
    room = 0
    for part in parts:
        size = part.segment.bytes
        if size > room:
            packed.append([])
            room = PARTITION_BYTES
        room -= size
        read = SegmentRead(str(feed.table), part.number, part.segment, columns[part.segment.schema_version])
        packed[-1].append(read)
    return [ChangePartition(tuple(segments)) for segments in packed]

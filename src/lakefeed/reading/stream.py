"""A stream: offsets are change set numbers, one micro-batch is the change sets in (start, end].

Exactly-once follows from the journal: change sets never change, so a micro-batch that Spark repeats after a crash has
the same rows. An offset contains more than its number, so that this holds whatever has happened meanwhile:
- ``position``: where its change set ended in the source. It exposes a journal that was made again under the same path
  and counts from 1 again;
- ``began_after``: where the query began. Spark does not record that, and asks again if the first micro-batch was not
  finished; by then the earliest or latest change set may be another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from lakefeed.change.table import TableSchema
from lakefeed.errors import JournalError, TableStoppedError
from lakefeed.reading.batch import change_partitions, first_wanted
from lakefeed.reading.columns import read_columns
from lakefeed.reading.feed import TableFeed
from lakefeed.reading.options import ReadOptions, remedy_in_text
from lakefeed.reading.rows import read_partition

Offset = dict[str, Any]


class ChangeStream(DataSourceStreamReader):
    """Lives in one Python process from the start of a query to its end; ``read`` runs in the tasks.

    Spark 4.1 passes neither a limit nor a start to ``latestOffset`` of a Python source. But a query that continues says
    where it stands before it asks, by ``partitions(offset, offset)``; a query that has not done so is new.
    """

    def __init__(self, options: ReadOptions, target: TableSchema) -> None:
        self._options = options
        self._target = target
        self._feed: TableFeed | None = None
        self._began: int | None = None
        self._reached = 0

    def initialOffset(self) -> Offset:  # noqa: N802
        with remedy_in_text():
            feed = self._refreshed()
            return self._offset(feed, self._begun(feed))

    def latestOffset(self) -> Offset:  # noqa: N802
        """The head, so that the query of an idle table keeps up with the trim; less if a limit or a schema requires it.

        TableStoppedError if the query's columns cannot show the next change set.
        """
        with remedy_in_text():
            feed = self._refreshed()
            self._begun(feed)
            limit = self._options.max_change_sets
            after = self._reached
            upto = feed.head if limit is None else min(feed.head, after + limit)
            schemas = feed.schemas
            for part in feed.parts(after, max(after, upto)):
                if part.segment.schema_version <= self._target.version:
                    continue
                try:
                    read_columns(schemas, part.segment.schema_version, self._target)
                except TableStoppedError:
                    if part.number == after + 1:
                        raise
                    upto = part.number - 1  # deliver what comes before it first
                    break
            return self._offset(feed, upto)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        with remedy_in_text():
            feed = self._refreshed()
            after, upto = _checked(feed, start), _checked(feed, end)
            parts = feed.parts(after, upto)
            self._began, self._reached = int(end["began_after"]), upto
            return change_partitions(feed, parts, self._target)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with remedy_in_text():
            yield from read_partition(partition)

    def commit(self, end: Offset) -> None:
        """Does nothing: the pipeline decides what is kept (``journal.keep_change_sets``), not a reader."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_feed": None}  # a task gets what it needs in its partition

    def _refreshed(self) -> TableFeed:
        if self._feed is None:
            self._feed = TableFeed.open(self._options)
        else:
            self._feed.refresh()
        return self._feed

    def _begun(self, feed: TableFeed) -> int:
        """The number after which the query begins; decided once."""
        if self._began is None:
            self._began = self._reached = first_wanted(self._options, feed) - 1
        return self._began

    def _offset(self, feed: TableFeed, number: int) -> Offset:
        return {"change_set": number, "position": feed.position(number), "began_after": self._begun(feed)}


def _checked(feed: TableFeed, offset: Offset) -> int:
    """The offset's number. JournalError if the journal is not the one that the offset was made with."""
    number = int(offset["change_set"])
    feed.check(number, number)
    then, now = offset["position"], feed.position(number)
    if then and now and then != now:
        raise JournalError(
            f"the checkpoint of a query on table {feed.table} belongs to another journal than {feed.root}: change set "
            f"{number} ended at {then} when it was read, and ends at {now} here",
            remedy="Start the query with a new checkpoint location, or give it the journal that it has read so far.",
        )
    return number

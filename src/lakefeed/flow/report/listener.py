"""What a pipeline reports to whoever wants to display it. Every method does nothing by default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakefeed.change.table import TableId
    from lakefeed.flow.result import CycleResult
    from lakefeed.journal.commit import Commit
    from lakefeed.lake.full_diff import FullDiffResult


class Listener:
    """Called from the pipeline's threads, several at a time: must be quick and thread-safe, and must not raise."""

    def snapshot_started(self, table: TableId, rows_estimate: int) -> None:
        """The copy of a table begins."""

    def snapshot_progress(self, table: TableId, rows: int) -> None:
        """``rows`` more rows of the table are in the lake."""

    def snapshot_done(self, table: TableId, rows: int, seconds: float) -> None:
        """The table is copied; changes follow."""

    def captured(self, commit: Commit) -> None:
        """A change set is durable in the journal."""

    def applied(self, result: CycleResult) -> None:
        """A cycle has brought something into the lake."""

    def full_diff_progress(self, table: TableId, chunks: int, total: int) -> None:
        """``chunks`` of ``total`` chunks of the source have been read for a full comparison of the table."""

    def full_diff_done(self, table: TableId, result: FullDiffResult) -> None:
        """A full comparison has ended; what it found goes through the journal."""

    def table_error(self, table: TableId, message: str, remedy: str) -> None:
        """A table waits for a person; the others go on."""

    def standing_by(self, error: Exception) -> None:
        """Another process runs the pipeline; this one waits to take over. Called at each try."""

    def retrying(self, error: Exception, seconds: float) -> None:
        """Something failed that may be transient; it is retried after ``seconds``."""


class Listeners(Listener):
    """Passes everything on to several listeners, in their order."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = tuple(listeners)

    def snapshot_started(self, table: TableId, rows_estimate: int) -> None:
        for one in self._listeners:
            one.snapshot_started(table, rows_estimate)

    def snapshot_progress(self, table: TableId, rows: int) -> None:
        for one in self._listeners:
            one.snapshot_progress(table, rows)

    def snapshot_done(self, table: TableId, rows: int, seconds: float) -> None:
        for one in self._listeners:
            one.snapshot_done(table, rows, seconds)

    def captured(self, commit: Commit) -> None:
        for one in self._listeners:
            one.captured(commit)

    def applied(self, result: CycleResult) -> None:
        for one in self._listeners:
            one.applied(result)

    def full_diff_progress(self, table: TableId, chunks: int, total: int) -> None:
        for one in self._listeners:
            one.full_diff_progress(table, chunks, total)

    def full_diff_done(self, table: TableId, result: FullDiffResult) -> None:
        for one in self._listeners:
            one.full_diff_done(table, result)

    def table_error(self, table: TableId, message: str, remedy: str) -> None:
        for one in self._listeners:
            one.table_error(table, message, remedy)

    def retrying(self, error: Exception, seconds: float) -> None:
        for one in self._listeners:
            one.retrying(error, seconds)

    def standing_by(self, error: Exception) -> None:
        for one in self._listeners:
            one.standing_by(error)

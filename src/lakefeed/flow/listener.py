"""What a pipeline reports to whoever wants to show it. Every method does nothing by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakefeed.change.table import TableId
    from lakefeed.flow.result import CycleResult
    from lakefeed.journal.commit import Commit
    from lakefeed.lake.full_diff import FullDiffResult


class Listener:
    """Called from the pipeline's threads, several at a time: be quick and thread-safe, and do not raise."""

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
        """So many chunks of the source, of ``total``, have been read for a full comparison of the table."""

    def full_diff_done(self, table: TableId, result: FullDiffResult) -> None:
        """A full comparison has ended; what it found goes through the journal."""

    def table_error(self, table: TableId, message: str, remedy: str) -> None:
        """A table waits for a person; the others go on."""

    def retrying(self, error: Exception, seconds: float) -> None:
        """Something failed that may pass; it is tried again after ``seconds``."""

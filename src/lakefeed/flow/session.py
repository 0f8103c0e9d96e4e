"""Everything that is open while a pipeline works, from the lease to the capture."""

from __future__ import annotations

import time
from pathlib import Path

from lakefeed.capture.base import ChangeCapture
from lakefeed.capture.compare import Comparable
from lakefeed.flow.capture_side import CaptureSide
from lakefeed.flow.full_diff import FullDiffs, FullDiffThread
from lakefeed.flow.lake_side import LakeSide
from lakefeed.flow.listener import Listener
from lakefeed.flow.maintenance import MaintenanceThread
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.status import Pulse
from lakefeed.flow.table_state import TableStates
from lakefeed.journal.journal import Journal
from lakefeed.lake.base import TableFormat


class Session:
    """Holds the lease from the first line to the last: one pipeline has one writer."""

    def __init__(
        self, capture: ChangeCapture, tables: TableFormat, root: Path, options: PipelineOptions, listener: Listener
    ) -> None:
        self.root = root
        self.journal = Journal.open(root, options=options.journal)
        try:
            states = TableStates(root)
            self.capture = CaptureSide(capture, self.journal, states, tables, listener)
            self.lake = LakeSide(tables, self.journal, states, capture.chunk, options, listener)
            self.maintenance = MaintenanceThread(states, tables, options.maintenance, options.maintenance_seconds)
            self.full_diff = FullDiffThread(_full_diffs(capture, tables, root, states, listener), listener)
            self.capture.open()
        except BaseException:
            self.close()
            raise

    def pulse(self) -> None:
        """Tell other processes that this one is alive, and which tables cannot go on."""
        tables = {str(table): texts for table, texts in self.lake.errors.items()}
        Pulse(at=time.time(), tables=tables).write(self.root)

    def close(self) -> None:
        try:
            if hasattr(self, "capture"):
                self.capture.close()
        finally:
            self.journal.close()


def _full_diffs(
    capture: ChangeCapture, tables: TableFormat, root: Path, states: TableStates, listener: Listener
) -> FullDiffs | None:
    """None for a capture that sees every delete."""
    return FullDiffs(root, capture, states, tables, listener) if isinstance(capture, Comparable) else None

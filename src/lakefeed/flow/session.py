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
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.seed import SeedStore
from lakefeed.flow.status import Pulse
from lakefeed.flow.upkeep import UpkeepThread
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
            seeds = SeedStore(root)
            self.capture = CaptureSide(capture, self.journal, seeds, tables, listener)
            self.lake = LakeSide(tables, self.journal, seeds, capture.chunk, options, listener)
            self.upkeep = UpkeepThread(seeds, tables, options.upkeep, options.upkeep_seconds)
            self.full_diff = FullDiffThread(_full_diffs(capture, tables, root, seeds, listener), listener)
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
    capture: ChangeCapture, tables: TableFormat, root: Path, seeds: SeedStore, listener: Listener
) -> FullDiffs | None:
    """None for a capture that sees every delete."""
    return FullDiffs(root, capture, seeds, tables, listener) if isinstance(capture, Comparable) else None

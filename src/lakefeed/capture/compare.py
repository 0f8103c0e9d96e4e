"""Comparable: what a capture adds if its source can be compared with the lake in full. Polling does.

A log and triggers deliver every delete; such a capture has nothing to compare and does not have these methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lakefeed.capture.base import Chunk, SnapshotPlan
from lakefeed.capture.poll.source import FullDiff
from lakefeed.change.table import TableId, TableSchema


@runtime_checkable
class Comparable(Protocol):
    """All methods may be called from any thread, beside the stream, and before ``open``."""

    def keep_state(self, directory: Path) -> None:
        """Called once, before ``open``, with the pipeline's own directory: what must outlive the process goes there."""

    def full_diff(self, table: TableId) -> FullDiff | None:
        """How the table is to be compared, and how often; None if it is only on demand."""

    def differences(self, table: TableId) -> Path | None:
        """The directory from which the capture takes what a comparison of ``table`` found; None if there is none."""

    def keys(
        self,
        table: TableId,
        *,
        known: TableSchema | None = None,
        chunk_rows: int = 1_000_000,
        whole_rows: bool = False,
    ) -> SnapshotPlan:
        """The plan of a comparison: chunks of the table's keys, or of whole rows. ``known``: as it was delivered."""

    def chunk(self, data: Mapping[str, Any]) -> Chunk:
        """A planned chunk back from its JSON."""

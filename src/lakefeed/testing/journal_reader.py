"""Read a window back with pyarrow alone: the second opinion on what the journal says it has."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq

from lakefeed.change.segment import Window
from lakefeed.journal.segment_file import check_segment


def read_window(window: Window) -> list[dict[str, Any]]:
    """All rows of a window in its own order, as the segment files have them."""
    rows: list[dict[str, Any]] = []
    for segment in window.segments:
        check_segment(segment)
        rows += pq.ParquetFile(segment.path).read().to_pylist()
    return rows

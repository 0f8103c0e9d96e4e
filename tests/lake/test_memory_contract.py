"""The lake in memory keeps the contract of every table format, so that tests with it prove something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lakefeed.change.table import TableId
from lakefeed.lake.base import TableFormat
from lakefeed.testing.format_contract import TableFormatContract
from lakefeed.testing.memory_lake import MemoryLake


class TestMemoryLake(TableFormatContract):
    def make_format(self, root: Path) -> TableFormat:
        self.lake = getattr(self, "lake", None) or MemoryLake(str(root))
        return self.lake

    def read_rows(self, tables: TableFormat, table: TableId) -> list[dict[str, Any]]:
        return self.lake.rows(str(table))

"""What one cycle of a pipeline did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lakefeed.change.position import Position
from lakefeed.change.segment import Counts
from lakefeed.change.table import TableId
from lakefeed.lake.base import TableResult


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleResult:
    """Change sets captured, changes applied by operation, and each table that was touched or stopped.

    Rows of a snapshot count as inserted. Nothing new: all counters 0, ``last_seq`` None.
    """

    change_sets: int = 0
    counts: Counts = field(default_factory=Counts)
    tables: Mapping[TableId, TableResult] = field(default_factory=dict)
    last_position: Position | None = None
    last_seq: int | None = None
    seconds: float = 0.0

    @classmethod
    def of(
        cls, tables: Mapping[TableId, TableResult], last_position: Position | None, *, last_seq: int | None = None
    ) -> CycleResult:
        """What became of ``tables``, added up."""
        counts = sum((result.counts for result in tables.values()), Counts())
        return cls(counts=counts, tables=tables, last_position=last_position if tables else None, last_seq=last_seq)

    def then(self, later: CycleResult) -> CycleResult:
        """Both as one; of a table that is in both, all its changes, and how it stood in the end."""
        tables = {**self.tables, **later.tables}
        for table in self.tables.keys() & later.tables.keys():
            counts = self.tables[table].counts + later.tables[table].counts
            tables[table] = replace(later.tables[table], counts=counts)
        return CycleResult(
            change_sets=self.change_sets + later.change_sets,
            counts=self.counts + later.counts,
            tables=tables,
            last_position=later.last_position or self.last_position,
            last_seq=self.last_seq if later.last_seq is None else later.last_seq,
            seconds=self.seconds + later.seconds,
        )

    @property
    def errors(self) -> dict[TableId, TableResult]:
        return {table: result for table, result in self.tables.items() if result.error is not None}

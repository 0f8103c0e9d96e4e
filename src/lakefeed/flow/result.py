"""What one cycle of a pipeline did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lakefeed.change.position import Position
from lakefeed.change.segment import Counts
from lakefeed.change.table import ByTable, TableId
from lakefeed.errors import LakefeedError
from lakefeed.lake.base import TableResult

if TYPE_CHECKING:
    import pandas as pd


def table_frame(tables: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """One row for each table, its name first."""
    try:
        import pandas as pd
    except ImportError as error:
        raise LakefeedError("to_pandas needs pandas, which is not installed", remedy="pip install pandas") from error
    return pd.DataFrame([{"table": name, **values} for name, values in tables.items()])


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CycleResult:
    """Change sets captured, changes applied by operation, and each table that was touched or stopped.

    Rows of a snapshot count as inserted. If nothing is new, all counters are 0 and ``last_seq`` is None. A table is
    found by its TableId or its name: ``result.tables["public.orders"]``.
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
        """The results of ``tables``, added up."""
        counts = sum((result.counts for result in tables.values()), Counts())
        return cls(counts=counts, tables=tables, last_position=last_position if tables else None, last_seq=last_seq)

    def then(self, later: CycleResult) -> CycleResult:
        """Both results as one; a table in both has all its changes, and its final state."""
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", ByTable(self.tables))

    def __repr__(self) -> str:
        counts = f"{self.counts.inserted:,} inserted, {self.counts.updated:,} updated, {self.counts.deleted:,} deleted"
        stopped = f", stopped: {', '.join(map(str, self.errors))}" if self.errors else ""
        what = counts if self.counts.total else "nothing new"
        return f"<CycleResult: {what} in {self.seconds:.1f} s{stopped}>"

    def to_dict(self) -> dict[str, Any]:
        """As plain values, ready for JSON, as ``lakefeed sync --json`` prints it, with the tables that were touched."""
        counts = self.counts
        return {
            "change_sets": self.change_sets,
            "rows": {"inserted": counts.inserted, "updated": counts.updated, "deleted": counts.deleted},
            "tables": {
                str(table): {
                    "applied": one.applied,
                    "inserted": one.counts.inserted,
                    "updated": one.counts.updated,
                    "deleted": one.counts.deleted,
                    "error": one.error,
                    "remedy": one.remedy,
                }
                for table, one in sorted(self.tables.items())
            },
            "last_position": self.last_position.encode() if self.last_position else None,
            "last_seq": self.last_seq,
            "seconds": round(self.seconds, 3),
        }

    def to_pandas(self) -> pd.DataFrame:
        """A row for each table that was touched. Needs pandas."""
        return table_frame(self.to_dict()["tables"])

    @property
    def errors(self) -> dict[TableId, TableResult]:
        return {table: result for table, result in self.tables.items() if result.error is not None}

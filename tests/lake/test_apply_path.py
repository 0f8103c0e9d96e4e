"""What one window costs on its way from the engine to a Delta commit: functions to read, and readings of the log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.entered import functions_entered

from lakefeed.change.table import TableSchema
from lakefeed.lake.base import SyncResult, TableCopy
from lakefeed.lake.delta import Delta
from lakefeed.lake.engine import Engine, Enrolled
from lakefeed.lake.route import Route
from lakefeed.testing.builders import at, batch, table
from lakefeed.testing.scripted_log import ListChunk, ScriptedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MOST_FUNCTIONS = 55
"""Properties and closures among them. Fewer is better; the whole way from a source's socket has at most 90."""


class Mirrored:
    """A mirror of three rows, its log and its engine, after one sync: in the middle of its life."""

    def __init__(self, spark: SparkSession, place: Path, **options: Any) -> None:
        (place / "segments").mkdir()
        self.log = ScriptedLog(place / "segments")
        columns: dict[str, pa.DataType] = {"id": pa.int64(), "v": pa.string()}
        self.schema: TableSchema = self.log.schema_of(table("main.t", columns, key=("id",)))
        tables = Delta(spark, place / "lake", **options).bind("shop")
        route = Route.same(self.schema.table)
        chunk = ListChunk.of(self.schema, [{"id": n, "v": "0"} for n in range(3)], read_at=1, marks=place)
        copy = TableCopy(schema=self.schema, generation=1, base=0, position=at(1), chunks=[chunk])
        self.table = tables.table(route)
        self.table.load(copy, lambda _: None)
        self.engine = Engine(tables, self.log, lambda: {route.table: Enrolled(route, 1)})
        self.sync(1)

    def sync(self, key: int) -> SyncResult:
        self.log.add(batch(self.schema, [("update", {"id": key, "v": str(self.log.head)})]))
        result = self.engine.sync_once()
        assert result.tables[self.schema.table].error is None
        return result


def test_an_update_passes_few_functions_between_the_engine_and_the_delta_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    mirrored = Mirrored(spark, tmp_path)
    entered = [name for name in functions_entered(lambda: mirrored.sync(2)) if name.startswith("lake/")]
    assert "lake/engine.py" in entered[0]
    assert any("delta/store.py" in name for name in entered)
    assert len(entered) <= MOST_FUNCTIONS, "\n".join(entered)


@pytest.mark.parametrize("masks", [False, True], ids=["files", "marks"])
def test_the_tables_log_is_read_once_for_a_commit_of_our_own(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masks: bool
) -> None:
    mirrored = Mirrored(spark, tmp_path, deletion_vectors=masks)
    readings: list[str] = []
    for name in ("__init__", "update_incremental"):
        real = getattr(DeltaTable, name)

        def counted(*arguments: Any, _real: Any = real, _name: str = name, **named: Any) -> Any:
            readings.append(_name)
            return _real(*arguments, **named)

        monkeypatch.setattr(DeltaTable, name, counted)
    for key in range(3):
        readings.clear()
        result = mirrored.sync(key)
        assert result.tables[mirrored.schema.table].applied == mirrored.log.head
        assert readings == ["update_incremental"]
    known = mirrored.engine.known(mirrored.schema.table, 1)
    assert known is not None
    assert known.applied == mirrored.table.applied(1), "what the commit returned is what the table records"

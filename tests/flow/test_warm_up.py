"""The warm-up merges by the code that merges, in a place of its own, and ends when it is not needed."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lakefeed import Delta, Iceberg, Mirror, Temporal
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.flow import warm_up as warm_up_module
from lakefeed.flow.warm_up import warm_up
from lakefeed.lake.mode import Mode
from lakefeed.lake.spark.driver import Driver
from lakefeed.lake.table import SparkTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakefeed.change.segment import Window
    from lakefeed.lake.base import Applied

pytestmark = pytest.mark.spark


TYPES: tuple[pa.DataType, ...] = (
    pa.string(), pa.binary(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.float32(), pa.float64(),
    pa.decimal128(2, 1), pa.decimal128(38, 38), pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"),
    pa.list_(pa.string()),
)  # fmt: skip
COLUMNS = tuple(Column(f"c{number}", kind, nullable=number > 1) for number, kind in enumerate(TYPES))
ODD = TableSchema(TableId("main", "odd"), COLUMNS, key=("c0", "c1"), version=7)
KEYLESS = replace(ODD, key=())


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up_module, "_begun", set())


@pytest.mark.parametrize(("kind", "modes"), [(Delta, [Mirror(), Temporal()]), (Iceberg, [Mirror()])])
def test_a_table_of_each_mode_gets_its_changes_and_nothing_of_the_lake_is_touched(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[Delta] | type[Iceberg],
    modes: list[Mode],
) -> None:
    applied: list[int] = []
    apply = SparkTable.apply

    def noted(table: SparkTable, window: Window, generation: int) -> Applied:
        result = apply(table, window, generation)
        applied.append(result.number)
        return result

    monkeypatch.setattr(SparkTable, "apply", noted)
    monkeypatch.setattr(warm_up_module, "_ROUNDS", 3)
    monkeypatch.setattr(warm_up_module, "_ROUNDS_OF_COLUMNS", 2)
    caplog.set_level(logging.INFO, "lakefeed.flow.warm_up")
    tables = kind(spark, tmp_path / "lake").bind("p")
    warm_up(tables, modes, lambda: False)
    assert not caplog.records, caplog.text
    assert applied == [1, 2, 3] * len(modes)
    warm_up(kind(spark, tmp_path / "lake").bind("q"), modes, lambda: False)
    assert applied == [1, 2, 3] * len(modes), "one pipeline warms the JVM up for all of its process"
    like = [(modes[0], ODD), (modes[0], replace(ODD, table=TableId("main", "same_columns"))), (modes[0], KEYLESS)]
    warm_up(tables, modes, lambda: False, like)
    assert not caplog.records, caplog.text
    assert applied == [1, 2, 3] * len(modes) + [1, 2], "one for tables with the same columns, none without a key"
    assert not (tmp_path / "lake").exists()


def test_it_is_over_before_it_begins_where_a_merge_came_first(spark: SparkSession, tmp_path: Path) -> None:
    warm_up(Delta(spark, tmp_path / "lake").bind("p"), [Mirror()], lambda: True)
    assert not (tmp_path / "lake").exists()


def test_what_did_not_come_to_its_end_is_begun_again_by_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied, apply = list[int](), SparkTable.apply

    def noted(table: SparkTable, window: Window, generation: int) -> Applied:
        result = apply(table, window, generation)
        applied.append(result.number)
        return result

    monkeypatch.setattr(SparkTable, "apply", noted)
    monkeypatch.setattr(warm_up_module, "_ROUNDS", 2)
    tables = Delta(spark, tmp_path / "lake").bind("p")
    warm_up(tables, [Mirror(), Temporal()], lambda: True)
    warm_up(tables, [Mirror()], lambda: len(applied) == 1)
    warm_up(tables, [Mirror()], lambda: False)
    assert applied == [1, 1, 2]


def test_a_machine_without_a_temporary_directory_or_with_workers_elsewhere_has_none(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lakefeed.flow.warm_up")
    tables = Delta(spark, tmp_path / "lake").bind("p")
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
        warm_up(tables, [Mirror()], lambda: False)
    assert "there is no warm-up, for want of a temporary directory" in caplog.text
    with monkeypatch.context() as patch:
        patch.setattr(Driver, "address", "spark://elsewhere:7077")
        warm_up(tables, [Mirror()], lambda: False)
    assert "the workers of spark://elsewhere:7077 do not see the directories of this machine" in caplog.text

"""What is Delta's own: types, names, what commits say, what is refused."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakefeed.change.table import TableSchema
from lakefeed.errors import DecodeError, TableStoppedError
from lakefeed.lake.base import Applied, TableCopy
from lakefeed.lake.delta import Delta, DeltaFormat
from lakefeed.testing.builders import at, batch, table
from lakefeed.testing.format_contract import one
from lakefeed.testing.scripted_log import ListChunk, ScriptedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EVERY_TYPE: dict[str, pa.DataType] = {
    "id": pa.int64(), "flag": pa.bool_(), "tiny": pa.int8(), "small": pa.int16(), "whole": pa.int32(),
    "real": pa.float64(), "single": pa.float32(), "text": pa.string(), "blob": pa.binary(), "day": pa.date32(),
    "instant": pa.timestamp("us", tz="UTC"), "local": pa.timestamp("us"), "money": pa.decimal128(20, 4),
    "tags": pa.list_(pa.string()),
}  # fmt: skip
ONE = {
    "id": 2**63 - 1, "flag": True, "tiny": -128, "small": 32767, "whole": -(2**31), "real": 0.1 + 0.2, "single": 1.5,
    "text": "a 'quoted' ünïcode \U0001f41f\n", "blob": b"\x00\xff", "day": date(1582, 10, 4),
    "instant": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), "local": datetime(2024, 2, 29, 1, 2, 3, 4),
    "money": Decimal("-1234567890123456.7891"), "tags": ["x", None, ""],
}  # fmt: skip
TWO: dict[str, Any] = {**dict.fromkeys(EVERY_TYPE), "id": -(2**63)}
THREE = {**ONE, "id": 3, "real": float("inf"), "text": "", "blob": b"", "tags": []}


def copy_of(schema: TableSchema, rows: list[dict[str, Any]], marks: Path, generation: int = 1) -> TableCopy:
    chunks = [ListChunk.of(schema, rows, read_at=1, marks=marks)]
    return TableCopy(schema=schema, generation=generation, base=0, position=at(1), chunks=chunks)


@pytest.fixture
def log(tmp_path: Path) -> ScriptedLog:
    (tmp_path / "segments").mkdir()
    return ScriptedLog(tmp_path / "segments")


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> DeltaFormat:
    return Delta(spark, tmp_path / "lake").bind("shop")


def by_id(rows: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    return {row["id"]: row for row in rows}


def test_every_type_is_the_same_through_copy_and_through_merge_for_both_readers(
    spark: SparkSession, tables: DeltaFormat, log: ScriptedLog, tmp_path: Path
) -> None:
    schema = log.schema_of(table("main.kinds", EVERY_TYPE, key=("id",)))
    one(tables, schema).load(copy_of(schema, [ONE, TWO], tmp_path), lambda _: None)
    log.add(batch(schema, [("insert", THREE), ("update", {**ONE, "whole": 5})]))
    one(tables, schema).apply(log.window(schema.table, 0, 1), 1)
    expected = by_id([{**ONE, "whole": 5}, TWO, THREE])
    place = one(tables, schema).location
    assert by_id(DeltaTable(place).to_pyarrow_table().to_pylist()) == expected
    by_spark = by_id(spark.read.format("delta").load(place).toArrow().to_pylist())
    assert by_spark == expected


def test_acceptance_1_each_commit_names_change_sets_and_source_position(
    tables: DeltaFormat, log: ScriptedLog, tmp_path: Path
) -> None:
    schema = log.schema_of(table("main.t", {"id": pa.int64(), "v": pa.string()}, key=("id",)))
    one(tables, schema).load(copy_of(schema, [{"id": 1, "v": "x"}], tmp_path), lambda _: None)
    log.add(batch(schema, [("insert", {"id": 2, "v": "y"})]))
    window = log.window(schema.table, 0, 1)
    one(tables, schema).apply(window, 1)
    history = DeltaTable(one(tables, schema).location).history()
    told = [json.loads(commit["userMetadata"]) for commit in history]
    assert told[0]["change_sets"] == {"after": 0, "upto": 1}
    assert (told[0]["pipeline"], told[0]["generation"], told[0]["position"]) == ("shop", 1, at(1).encode())
    assert told[1]["copy"] == {"chunks": 1, "rows": 1, "high": at(1).encode()}
    one(tables, schema).apply(window, 1)
    assert len(DeltaTable(one(tables, schema).location).history()) == len(history), "a replay committed"


def test_b03_delta_itself_refuses_a_replay_when_nobody_looked_first(
    spark: SparkSession, tables: DeltaFormat, log: ScriptedLog, tmp_path: Path
) -> None:
    """Two processes may both have read the old number: the table's own transaction decides."""
    schema = log.schema_of(table("main.t", {"id": pa.int64(), "v": pa.string()}, key=("id",)))
    one(tables, schema).load(copy_of(schema, [], tmp_path), lambda _: None)
    log.add(batch(schema, [("insert", {"id": 1, "v": "first"})]))
    window = log.window(schema.table, 0, 1)
    other = one(Delta(spark, tmp_path / "lake").bind("shop"), schema)
    assert other.applied(1) == Applied(number=0, schema_version=1, rows=0)
    one(tables, schema).apply(window, 1)
    version = DeltaTable(one(tables, schema).location).version()
    assert other.apply(window, 1) == Applied(number=1, schema_version=1, rows=1)
    assert DeltaTable(one(tables, schema).location).version() == version


def test_a_new_column_of_times_without_a_zone_in_a_list_is_added(
    tables: DeltaFormat, log: ScriptedLog, tmp_path: Path
) -> None:
    schema = log.schema_of(table("main.t", {"id": pa.int64()}, key=("id",)))
    one(tables, schema).load(copy_of(schema, [{"id": 1}], tmp_path), lambda _: None)
    times = pa.list_(pa.timestamp("us"))
    wider = log.schema_of(table("main.t", {"id": pa.int64(), "seen": times}, key=("id",)))
    noon = datetime(2024, 5, 1, 12)
    log.add(batch(wider, [("insert", {"id": 2, "seen": [noon, None]})]))
    one(tables, schema).apply(log.window(schema.table, 0, 1), 1)
    found = by_id(DeltaTable(one(tables, schema).location).to_pyarrow_table().to_pylist())
    assert {key: row["seen"] for key, row in found.items()} == {1: None, 2: [noon, None]}


def test_acceptance_6_a_partial_update_of_an_unknown_row_stops_the_table(
    tables: DeltaFormat, log: ScriptedLog, tmp_path: Path
) -> None:
    schema = log.schema_of(table("main.t", {"id": pa.int64(), "v": pa.string()}, key=("id",)))
    one(tables, schema).load(copy_of(schema, [{"id": 1, "v": "x"}], tmp_path), lambda _: None)
    log.add(batch(schema, [("update", {"id": 1, "v": "y"}), ("update", {"id": 2})], absent={1: ["v"]}))
    with pytest.raises(TableStoppedError, match="an update lacks columns") as stopped:
        one(tables, schema).apply(log.window(schema.table, 0, 1), 1)
    assert stopped.value.table == "main.t"
    assert one(tables, schema).applied(1) == Applied(number=0, schema_version=1, rows=1)
    assert DeltaTable(one(tables, schema).location).to_pyarrow_table().to_pylist() == [{"id": 1, "v": "x"}]


def test_hostile_names_of_tables_and_columns_are_only_names(
    tables: DeltaFormat, log: ScriptedLog, tmp_path: Path
) -> None:
    columns: dict[str, pa.DataType] = {
        "a`b": pa.string(),
        "s.t": pa.string(),
        "select": pa.string(),
        "né'": pa.string(),
    }
    schema = log.schema_of(table("main.../or%2Fders [x] *{é}", columns, key=("a`b", "select")))
    one(tables, schema).load(copy_of(schema, [dict.fromkeys(columns, "0")], tmp_path), lambda _: None)
    log.add(batch(schema, [("update", {**dict.fromkeys(columns, "0"), "s.t": "1"})]))
    one(tables, schema).apply(log.window(schema.table, 0, 1), 1)
    place = Path(one(tables, schema).location)
    assert place.parent == tmp_path / "lake" / "main"
    assert DeltaTable(place).to_pyarrow_table().to_pylist() == [{**dict.fromkeys(columns, "0"), "s.t": "1"}]


def test_null_in_a_key_is_a_key_like_any_other(tables: DeltaFormat, log: ScriptedLog, tmp_path: Path) -> None:
    made = table("main.t", {"id": pa.string(), "v": pa.string()})
    schema = log.schema_of(TableSchema(made.table, made.columns, ("id",)))
    one(tables, schema).load(copy_of(schema, [{"id": None, "v": "0"}, {"id": "a", "v": "0"}], tmp_path), lambda _: None)
    log.add(batch(schema, [("update", {"id": None, "v": "1"}), ("delete", {"id": "a"})]))
    one(tables, schema).apply(log.window(schema.table, 0, 1), 1)
    assert DeltaTable(one(tables, schema).location).to_pyarrow_table().to_pylist() == [{"id": None, "v": "1"}]


def test_a_table_of_somebody_else_is_not_replaced(tables: DeltaFormat, log: ScriptedLog, tmp_path: Path) -> None:
    schema = log.schema_of(table("main.t", {"id": pa.int64()}, key=("id",)))
    write_deltalake(one(tables, schema).location, pa.table({"precious": [1]}))
    with pytest.raises(TableStoppedError, match="did not make"):
        one(tables, schema).load(copy_of(schema, [], tmp_path), lambda _: None)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"id": pa.int64(), "ID": pa.string()}, "differ only in case"),
        ({"id": pa.int64(), "at": pa.time64("us")}, "no type for"),
        ({"id": pa.int64(), "_lakefeed_op": pa.int8()}, "uses for itself"),
    ],
)
def test_what_delta_cannot_hold_stops_the_table_before_anything_is_written(
    tables: DeltaFormat, log: ScriptedLog, tmp_path: Path, columns: dict[str, pa.DataType], said: str
) -> None:
    schema = log.schema_of(table("main.t", columns, key=("id",)))
    with pytest.raises(TableStoppedError, match=said):
        one(tables, schema).load(copy_of(schema, [], tmp_path), lambda _: None)
    assert not Path(one(tables, schema).location).exists()


def test_an_error_inside_a_task_arrives_as_what_it_is_and_leaves_no_table(
    tables: DeltaFormat, log: ScriptedLog, tmp_path: Path
) -> None:
    schema = log.schema_of(table("main.t", {"id": pa.int64()}, key=("id",)))
    other = table("main.t", {"id": pa.string()}, key=("id",))
    good = ListChunk.of(schema, [{"id": 1}], read_at=1, marks=tmp_path)
    bad = ListChunk.of(other, [{"id": "x"}], read_at=1, marks=tmp_path)
    copy = TableCopy(schema=schema, generation=1, base=0, position=at(1), chunks=[good, bad])
    with pytest.raises(DecodeError, match="a chunk has the columns"):
        one(tables, schema).load(copy, lambda _: None)
    assert one(tables, schema).applied(1) is None
    fine = TableCopy(schema=schema, generation=1, base=0, position=at(1), chunks=[good])
    assert one(tables, schema).load(fine, lambda _: None).rows == 1
    assert DeltaTable(one(tables, schema).location).to_pyarrow_table().to_pylist() == [{"id": 1}]


def test_deletion_vectors_can_be_had_and_rows_are_counted_without_those_that_are_marked(
    spark: SparkSession, log: ScriptedLog, tmp_path: Path
) -> None:
    tables = Delta(spark, tmp_path / "lake", deletion_vectors=True).bind("shop")
    schema = log.schema_of(table("main.t", {"id": pa.int64(), "v": pa.string()}, key=("id",)))
    one(tables, schema).load(copy_of(schema, [{"id": one, "v": "x"} for one in range(100)], tmp_path), lambda _: None)
    log.add(batch(schema, [("update", {"id": 1, "v": "y"}), ("delete", {"id": 2})]))
    one(tables, schema).apply(log.window(schema.table, 0, 1), 1)
    assert one(tables, schema).applied(1) == Applied(number=1, schema_version=1, rows=99)
    place = one(tables, schema).location
    assert "deletionVectors" in (DeltaTable(place).protocol().reader_features or [])
    rows = spark.read.format("delta").load(place).toArrow().to_pylist()
    expected = {one: "x" for one in range(100) if one != 2} | {1: "y"}
    assert {row["id"]: row["v"] for row in rows} == expected
    assert len(rows) == len(expected)

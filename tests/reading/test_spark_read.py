"""``spark.read.format("lakefeed")`` against what the journal itself says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from tests.reading.journals import PEOPLE, PETS, add, add_people, opened, rows_of

from lakefeed.change.table import Column, TableSchema
from lakefeed.testing.builders import table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

EVERY_TYPE: dict[str, pa.DataType] = {
    "id": pa.int64(), "flag": pa.bool_(), "tiny": pa.int8(), "small": pa.int16(), "whole": pa.int32(),
    "real": pa.float64(), "single": pa.float32(), "text": pa.string(), "blob": pa.binary(), "day": pa.date32(),
    "instant": pa.timestamp("us", tz="UTC"), "local": pa.timestamp("us"), "money": pa.decimal128(20, 4),
    "tags": pa.list_(pa.string()), "hours": pa.list_(pa.time64("us")), "hour": pa.time64("us"), "a.`b": pa.string(),
}  # fmt: skip
ONE: dict[str, Any] = {
    "id": 2**63 - 1, "flag": True, "tiny": -128, "small": 32767, "whole": -(2**31), "real": 0.1 + 0.2, "single": 1.5,
    "text": "a 'quoted' ünïcode \U0001f41f\n", "blob": b"\x00\xff", "day": date(1582, 10, 4),
    "instant": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), "local": datetime(2024, 2, 29, 1, 2, 3, 4),
    "money": Decimal("-1234567890123456.7891"), "tags": ["x", None, ""], "hours": [time(1, 2, 3, 4)],
    "hour": time(23, 59, 59, 999999), "a.`b": "c",
}  # fmt: skip


def read(spark: SparkSession, root: Path, name: str = "main.people", **options: object) -> DataFrame:
    reader = spark.read.format("lakefeed").option("journal", str(root)).option("table", name)
    return reader.options(**{key: str(value) for key, value in options.items()}).load()


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame.orderBy("_lakefeed_seq").toArrow().to_pylist()
    return found


def test_a_batch_read_equals_the_journal(reading: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        add(journal, ("insert", {"id": 1, "name": "Ada"}), ("read", {"id": 2, "name": None}))
        add(journal, ("insert", {"id": 1}), schema=PETS)
        add(journal)
        add(journal, ("update", {"id": 1}), ("delete", {"id": 2}), ("truncate", {}), absent={0: ["name"]})
        frame = read(reading, tmp_path)
        assert rows(frame) == rows_of(journal)
        assert [row["_lakefeed_op"] for row in rows(frame)] == ["insert", "read", "update", "delete", "truncate"]
        assert [row["_lakefeed_absent"] for row in rows(frame)] == [None, None, ["name"], None, None]
        assert rows(read(reading, tmp_path, start=2, end=3)) == []
        assert [row["_lakefeed_change_set"] for row in rows(read(reading, tmp_path, start=2))] == [4, 4, 4]
        assert [row["id"] for row in rows(read(reading, tmp_path, end=1))] == [1, 2]


def test_a_dataframe_shows_the_same_rows_however_often_it_is_read(reading: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        add_people(journal, [1])
        frame = read(reading, tmp_path)
        add_people(journal, [2])
        assert [row["id"] for row in rows(frame)] == [1]
        assert [row["id"] for row in rows(read(reading, tmp_path))] == [1, 2]


def test_every_type_arrives_as_it_is_and_times_of_day_as_texts(reading: SparkSession, tmp_path: Path) -> None:
    kinds = table("main.kinds", EVERY_TYPE, key=("id",))
    nothing: dict[str, Any] = {**dict.fromkeys(EVERY_TYPE), "id": -(2**63)}
    with opened(tmp_path) as journal:
        add(journal, ("insert", ONE), ("insert", nothing), schema=kinds)
    found = [{name: row[name] for name in EVERY_TYPE} for row in rows(read(reading, tmp_path, "main.kinds"))]
    texts = {"hour": "23:59:59.999999", "hours": ["01:02:03.000004"]}
    assert found == [{**ONE, **texts}, nothing]


def test_a_large_segment_arrives_whole(reading: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        add(journal, *(("insert", {"id": one, "name": str(one)}) for one in range(40_000)))
    frame = read(reading, tmp_path)
    assert frame.selectExpr("count(*)", "sum(id)", "count(distinct name)").first() == (40_000, 799_980_000, 40_000)


def versions() -> list[TableSchema]:
    """A column is renamed, one added with a default, one dropped, one widened."""
    key, name = Column("id", pa.int32(), nullable=False, id="1"), Column("name", pa.string(), id="2")
    first = TableSchema(PEOPLE.table, (key, name, Column("age", pa.int64(), id="3")), ("id",))
    second = replace(first, columns=(key, Column("called", pa.string(), id="2"), Column("age", pa.int64(), id="3")))
    city = Column("city", pa.string(), id="4", default="Łódź")
    third = replace(first, columns=(replace(key, type=pa.int64()), second.columns[1], city))
    return [first, second, third]


def test_rows_of_older_schema_versions_are_read_under_the_newest(reading: SparkSession, tmp_path: Path) -> None:
    first, second, third = versions()
    with opened(tmp_path) as journal:
        add(journal, ("insert", {"id": 1, "name": "a", "age": 5}), ("delete", {"id": 9}), schema=first)
        add(journal, ("insert", {"id": 2, "called": "b", "age": 6}), schema=second)
        add(journal, ("insert", {"id": 2**40, "called": "c", "city": "Oslo"}), schema=third)
    own = [tuple(row[name] for name in ("id", "called", "city")) for row in rows(read(reading, tmp_path))]
    assert own == [(1, "a", "Łódź"), (9, None, None), (2, "b", "Łódź"), (2**40, "c", "Oslo")]
    assert "age" not in read(reading, tmp_path).columns
    earlier = rows(read(reading, tmp_path, end=2))
    assert [(row["id"], row["called"], row["age"]) for row in earlier] == [(1, "a", 5), (9, None, None), (2, "b", 6)]


def test_a_type_that_was_changed_for_another_is_an_error_with_a_way_out(reading: SparkSession, tmp_path: Path) -> None:
    texts = table("main.people", {"id": pa.string(), "name": pa.string()}, key=("id",))
    with opened(tmp_path) as journal:
        add_people(journal, [1])
        add(journal, ("insert", {"id": "two", "name": "b"}), schema=texts)
    with pytest.raises(
        PySparkException, match=r"'id' is string in schema version 2, but int64 in 1.*'start' and 'end'"
    ):
        rows(read(reading, tmp_path))
    assert [row["id"] for row in rows(read(reading, tmp_path, start=2))] == ["two"]
    assert [row["id"] for row in rows(read(reading, tmp_path, end=1))] == [1]


def test_what_was_trimmed_is_an_error_and_earliest_is_what_is_left(reading: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path, keep=0) as journal:
        add_people(journal, range(1, 5))
        journal.trim(3)
    assert [row["id"] for row in rows(read(reading, tmp_path))] == [4]
    with pytest.raises(
        PySparkException, match=r"change sets 2 to 3 .* are needed.* trimmed .* it has 4 to 4.*keep_change_sets"
    ):
        rows(read(reading, tmp_path, start=2))
    with pytest.raises(PySparkException, match=r"change set 9 of table [a-z.]+ is needed.* ends with 4"):
        read(reading, tmp_path, end=9)


def test_a_wrong_option_reaches_the_user_as_a_sentence_with_the_choices(reading: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        add_people(journal, [1])
    with pytest.raises(PySparkException, match=r"no option 'tables'. The options are path, pipeline, journal, table"):
        read(reading, tmp_path, tables="x")
    with pytest.raises(PySparkException, match=r"never seen table main\.x\. Set the option 'table' .*: main\.people"):
        read(reading, tmp_path, "main.x")
    with pytest.raises(PySparkException, match=r"'max_change_sets' is for spark.readStream"):
        rows(read(reading, tmp_path, max_change_sets=1))
    reader = reading.read.format("lakefeed").option("journal", str(tmp_path)).option("table", "main.people")
    with pytest.raises(PySparkException, match=r"is not read with the schema .*Leave \.schema"):
        reader.schema("id int").load().collect()

"""What is Iceberg's own: types, names, what commits say, what is refused, what another process may do meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.lake.iceberg_reader import history, metadata_file, read_iceberg, static_table
from tests.lake.test_delta import EVERY_TYPE, ONE, THREE, TWO, by_id, copy_of

from lakefeed.change.table import Column, TableSchema
from lakefeed.errors import CommitFailedError, DecodeError, TableStoppedError
from lakefeed.lake.base import Applied, LakeTable, TableCopy
from lakefeed.lake.iceberg import Iceberg, IcebergFormat
from lakefeed.lake.iceberg.java import Marking
from lakefeed.lake.iceberg.schema import Drop
from lakefeed.lake.layout import Layout
from lakefeed.lake.spark.error import ConcurrentModification
from lakefeed.lake.store import Stamp
from lakefeed.testing.builders import at, batch, table
from lakefeed.testing.format_contract import one
from lakefeed.testing.scripted_log import ListChunk, ScriptedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
COLUMNS: dict[str, pa.DataType] = {"id": pa.int64(), "v": pa.string()}
STAMP = Stamp(generation=1, number=1, metadata={})


@pytest.fixture
def log(tmp_path: Path) -> ScriptedLog:
    (tmp_path / "segments").mkdir()
    return ScriptedLog(tmp_path / "segments")


@pytest.fixture
def schema(log: ScriptedLog) -> TableSchema:
    return log.schema_of(table("main.t", COLUMNS, key=("id",)))


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> IcebergFormat:
    return Iceberg(spark, tmp_path / "lake").bind("shop")


@pytest.fixture
def lake_table(tables: IcebergFormat, schema: TableSchema, tmp_path: Path) -> LakeTable:
    """Rows 1 to 3, with the value 0."""
    rows = [{"id": number, "v": "0"} for number in (1, 2, 3)]
    one(tables, schema).load(copy_of(schema, rows, tmp_path), lambda _: None)
    return one(tables, schema)


def content(lake_table: LakeTable) -> dict[int, str]:
    rows = read_iceberg(lake_table.location)
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["v"] for row in rows}


def data_files(lake_table: LakeTable) -> set[str]:
    return {task.file.file_path for task in static_table(lake_table.location).scan().plan_files()}


def test_every_type_is_the_same_through_copy_and_through_merge_for_both_readers(
    spark: SparkSession, tables: IcebergFormat, log: ScriptedLog, tmp_path: Path
) -> None:
    schema = log.schema_of(table("main.kinds", EVERY_TYPE, key=("id",)))
    one(tables, schema).load(copy_of(schema, [ONE, TWO], tmp_path), lambda _: None)
    log.add(batch(schema, [("insert", THREE), ("update", {**ONE, "whole": 5})]))
    one(tables, schema).apply(log.window(schema.table, 0, 1), 1)
    expected = by_id([{**ONE, "whole": 5}, TWO, THREE])
    place = one(tables, schema).location
    assert by_id(read_iceberg(place)) == expected
    assert by_id(spark.read.format("iceberg").load(place).toArrow().to_pylist()) == expected


def test_acceptance_1_each_commit_names_change_sets_and_source_position(
    lake_table: LakeTable, schema: TableSchema, log: ScriptedLog
) -> None:
    log.add(batch(schema, [("update", {"id": 2, "v": "y"})]))
    window = log.window(schema.table, 0, 1)
    lake_table.apply(window, 1)
    before = history(lake_table.location)
    copied, merged = (json.loads(summary["lakefeed.commit"]) for summary in before)
    assert copied["copy"] == {"chunks": 1, "rows": 3, "high": at(1).encode()}
    assert merged["change_sets"] == {"after": 0, "upto": 1}
    assert (merged["pipeline"], merged["generation"], merged["position"]) == ("shop", 1, at(1).encode())
    assert before[1]["lakefeed.applied"] == "1"
    metadata = metadata_file(lake_table.location)
    lake_table.apply(window, 1)
    assert metadata_file(lake_table.location) == metadata, "a replay committed"


def test_keys_that_no_file_can_have_are_appended_and_others_are_merged(
    lake_table: LakeTable, schema: TableSchema, log: ScriptedLog
) -> None:
    log.add(batch(schema, [("insert", {"id": 7, "v": "7"}), ("insert", {"id": 8, "v": "8"})]))
    log.add(batch(schema, [("delete", {"id": 7}), ("update", {"id": 1, "v": "1"})]))
    for number in (1, 2):
        lake_table.apply(log.window(schema.table, number - 1, number), 1)
    snapshots = static_table(lake_table.location).metadata.snapshots
    assert [one.summary.operation.value for one in snapshots] == ["append", "append", "overwrite"]
    assert content(lake_table) == {1: "1", 2: "0", 3: "0", 8: "8"}
    assert lake_table.applied(1) == Applied(number=2, schema_version=1, rows=4)


def between(target: Any, method: str, *, before: Callable[[], None]) -> None:
    """Something happens right before a method of one object is called; only the first time."""
    real = getattr(target, method)
    left = [before]

    def replaced(*args: Any) -> Any:
        if left:
            left.pop()()
        return real(*args)

    setattr(target, method, replaced)


@pytest.mark.parametrize(
    ("owner", "method"), [("store", "write"), ("java", "publish")], ids=["before writing", "before publishing"]
)
@pytest.mark.parametrize("key", [2, 9], ids=["merge", "append"])
def test_b03_of_two_processes_that_both_looked_first_only_one_commits(
    spark: SparkSession, lake_table: Any, schema: TableSchema, log: ScriptedLog, tmp_path: Path,
    owner: str, method: str, key: int, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    log.add(batch(schema, [("insert", {"id": key, "v": "1"})]))
    log.add(batch(schema, [("insert", {"id": key, "v": "2"})]))
    other = one(Iceberg(spark, tmp_path / "lake").bind("shop"), schema)

    def both() -> None:
        other.apply(log.window(schema.table, 0, 1), 1)
        other.apply(log.window(schema.table, 1, 2), 1)

    target: Any = lake_table._store if owner == "store" else lake_table._store.library
    if key == 2:  # a row of that key is there: it is marked, and not written by Spark's own commit
        target, method = (target, "_mark") if owner == "store" else (Marking, "commit")
    monkeypatch.setattr(target, method, getattr(target, method))  # put back at the end
    between(target, method, before=both)
    lake_table.apply(log.window(schema.table, 0, 1), 1)
    assert content(lake_table)[key] == "2"
    applied = [summary.get("lakefeed.applied") for summary in history(lake_table.location)]
    assert applied == ["0", "1", "2"]
    found = lake_table.applied(1)
    assert found is not None
    assert found.number == 2


@pytest.mark.parametrize("key", [1, 9], ids=["marked", "published"])
def test_a_commit_whose_answer_was_lost_is_read_back_and_one_that_failed_is_done_again(
    lake_table: Any, schema: TableSchema, log: ScriptedLog, key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, method = (Marking, "commit") if key == 1 else (lake_table._store.library, "publish")
    real = getattr(owner, method)

    def lost(*given: Any) -> None:
        real(*given)
        raise RuntimeError("org.apache.iceberg.exceptions.CommitStateUnknownException: Connection reset")

    def refused(*_: Any) -> None:
        raise RuntimeError("org.apache.iceberg.exceptions.CommitStateUnknownException: 504 Gateway Timeout")

    log.add(batch(schema, [("insert", {"id": key, "v": "1"})]))
    log.add(batch(schema, [("insert", {"id": key + 1, "v": "2"})]))
    monkeypatch.setattr(owner, method, lost)
    lake_table.apply(log.window(schema.table, 0, 1), 1)
    found = lake_table.applied(1)
    assert found == Applied(number=1, schema_version=1, rows=3 if key == 1 else 4)
    monkeypatch.setattr(owner, method, refused)
    with pytest.raises(CommitFailedError):
        lake_table.apply(log.window(schema.table, 1, 2), 1)
    assert content(lake_table).get(key + 1) != "2", "what is not committed is not to be seen"
    monkeypatch.setattr(owner, method, real)
    lake_table.apply(log.window(schema.table, 1, 2), 1)
    assert content(lake_table) == {1: "0", 2: "0", 3: "0"} | {key: "1", key + 1: "2"}


@pytest.mark.parametrize("replaces", [False, True], ids=["a later group", "the first group of another copy"])
def test_a_copy_adds_nothing_to_a_table_that_another_process_has_changed_since_it_was_asked(
    lake_table: Any, schema: TableSchema, log: ScriptedLog, replaces: bool
) -> None:
    log.add(batch(schema, [("insert", {"id": 9, "v": "9"})]))
    library: Any = lake_table._store.library
    addition = library.replacing([], {}, Layout()) if replaces else library.appending()
    owned = {"lakefeed.owner": "shop/main.t"}

    def expected() -> bool:
        """It is as expected; right after that the other process commits."""
        lake_table.apply(log.window(schema.table, 0, 1), 1)
        return True

    with pytest.raises(Exception, match="CommitFailedException"):
        addition.commit([], owned, {"mine": "yes"}, expected)
    assert content(lake_table) == {1: "0", 2: "0", 3: "0", 9: "9"}
    assert "mine" not in static_table(lake_table.location).properties
    # What others do before that, while files are written, is in its way only if it is not as expected.
    addition = library.appending()
    log.add(batch(schema, [("insert", {"id": 10, "v": "10"})]))
    lake_table.apply(log.window(schema.table, 1, 2), 1)
    addition.commit([], owned, {"mine": "yes"}, lambda: True)
    assert content(lake_table) == {1: "0", 2: "0", 3: "0", 9: "9", 10: "10"}
    assert static_table(lake_table.location).properties["mine"] == "yes"


def test_a_copy_adds_nothing_to_a_table_that_has_lost_a_column_since_its_files_got_their_ids(
    spark: SparkSession, lake_table: Any
) -> None:
    library: Any = lake_table._store.library
    addition = library.appending()
    library.alter([Drop("v")], {}, {})
    with pytest.raises(ConcurrentModification, match="somebody has changed the column v"):
        addition.commit([], {"lakefeed.owner": "shop/main.t"}, {}, lambda: True)


def test_columns_follow_in_one_commit_that_rewrites_nothing(
    lake_table: Any, schema: TableSchema, log: ScriptedLog
) -> None:
    key, value = schema.columns
    ids = (Column("id", key.type, key.nullable, id="1"), Column("v", value.type, id="2"))
    first = log.schema_of(TableSchema(schema.table, ids, schema.key))
    renamed = Column("text", pa.string(), id="2")
    level, day = (
        Column("level", pa.int32(), default=7, id="3"),
        Column("day", pa.date32(), default="2024-02-29", id="4"),
    )
    second = log.schema_of(TableSchema(schema.table, (level, ids[0], renamed, day), schema.key))
    log.add(batch(second, [("insert", {"id": 9, "text": "9", "level": 1, "day": None})]))
    files, version = data_files(lake_table), int(metadata_file(lake_table.location).name.split(".")[0][1:])
    lake_table.evolve(log.window(schema.table, 0, 1), STAMP, Applied(number=0, schema_version=1, rows=None))
    assert int(metadata_file(lake_table.location).name.split(".")[0][1:]) == version + 1
    assert data_files(lake_table) == files
    assert lake_table.applied(1) == Applied(number=0, schema_version=second.version, rows=3)
    lake_table.evolve(log.window(schema.table, 0, 1), STAMP, Applied(number=0, schema_version=1, rows=None))
    assert int(metadata_file(lake_table.location).name.split(".")[0][1:]) == version + 1, "evolved twice"
    lake_table.apply(log.window(schema.table, 0, 1), 1)
    rows = {
        row["id"]: (list(row), row["text"], row["level"], str(row["day"])) for row in read_iceberg(lake_table.location)
    }
    assert rows[1] == (["level", "id", "text", "day"], "0", 7, "2024-02-29")
    assert rows[9] == (["level", "id", "text", "day"], "9", 1, "None")
    assert first.version < second.version


def test_acceptance_6_a_partial_update_of_an_unknown_row_stops_the_table(
    lake_table: LakeTable, schema: TableSchema, log: ScriptedLog
) -> None:
    log.add(batch(schema, [("update", {"id": 1, "v": "y"}), ("update", {"id": 44})], absent={1: ["v"]}))
    with pytest.raises(TableStoppedError, match="an update lacks columns"):
        lake_table.apply(log.window(schema.table, 0, 1), 1)
    assert lake_table.applied(1) == Applied(number=0, schema_version=1, rows=3)
    assert set(content(lake_table).values()) == {"0"}


def test_hostile_names_of_tables_and_columns_are_only_names(
    tables: IcebergFormat, log: ScriptedLog, tmp_path: Path
) -> None:
    names = ("a`b", "s.t", "select", "né'")
    schema = log.schema_of(
        table("main.../or%2Fders [x] *{é}", dict.fromkeys(names, pa.string()), key=("a`b", "select"))
    )
    one(tables, schema).load(copy_of(schema, [dict.fromkeys(names, "0")], tmp_path), lambda _: None)
    log.add(batch(schema, [("update", {**dict.fromkeys(names, "0"), "s.t": "1"})]))
    one(tables, schema).apply(log.window(schema.table, 0, 1), 1)
    place = one(tables, schema).location
    assert Path(place).parent == tmp_path / "lake" / "main"
    assert read_iceberg(place) == [{**dict.fromkeys(names, "0"), "s.t": "1"}]


def test_null_in_a_key_is_a_key_like_any_other(tables: IcebergFormat, log: ScriptedLog, tmp_path: Path) -> None:
    made = table("main.t", {"id": pa.string(), "v": pa.string()})
    schema = log.schema_of(TableSchema(made.table, made.columns, ("id",)))
    one(tables, schema).load(copy_of(schema, [{"id": None, "v": "0"}, {"id": "a", "v": "0"}], tmp_path), lambda _: None)
    log.add(batch(schema, [("update", {"id": None, "v": "1"}), ("delete", {"id": "a"})]))
    one(tables, schema).apply(log.window(schema.table, 0, 1), 1)
    assert read_iceberg(one(tables, schema).location) == [{"id": None, "v": "1"}]


def test_a_table_of_somebody_else_is_not_replaced(
    spark: SparkSession, lake_table: LakeTable, schema: TableSchema, tmp_path: Path
) -> None:
    other = one(Iceberg(spark, tmp_path / "lake").bind("other"), schema)
    with pytest.raises(TableStoppedError, match="did not make"):
        other.load(copy_of(schema, [], tmp_path, generation=5), lambda _: None)
    assert len(content(lake_table)) == 3


def test_an_error_inside_a_task_arrives_as_what_it_is_and_leaves_no_table(
    tables: IcebergFormat, schema: TableSchema, tmp_path: Path
) -> None:
    good = ListChunk.of(schema, [{"id": 1, "v": "0"}], read_at=1, marks=tmp_path)
    bad = ListChunk.of(table("main.t", {"id": pa.string()}, key=("id",)), [{"id": "x"}], read_at=1, marks=tmp_path)
    copy = TableCopy(schema=schema, generation=1, base=0, position=at(1), chunks=[good, bad])
    with pytest.raises(DecodeError, match="a chunk has the columns"):
        one(tables, schema).load(copy, lambda _: None)
    assert one(tables, schema).applied(1) is None
    fine = TableCopy(schema=schema, generation=1, base=0, position=at(1), chunks=[good])
    assert one(tables, schema).load(fine, lambda _: None).rows == 1


def test_rows_of_an_earlier_state_can_seed_another_table(
    lake_table: LakeTable, schema: TableSchema, log: ScriptedLog
) -> None:
    log.add(batch(schema, [("update", {"id": 1, "v": "1"}), ("delete", {"id": 2})]))
    log.add(batch(schema, [("delete", {"id": 3})]))
    for number in (1, 2):
        lake_table.apply(log.window(schema.table, number - 1, number), 1)
    state = next(state for state in lake_table.states(1) if state.number == 1)
    chunks = lake_table.chunks(state, schema)
    assert chunks is not None
    rows = [row for chunk in chunks for part in chunk.open().__enter__() for row in part.to_pylist()]
    assert {row["id"]: row["v"] for row in rows} == {1: "1", 3: "0"}
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("narrow", "wide", "value", "in_place"),
    [
        (pa.int32(), pa.int64(), 7, True),
        (pa.float32(), pa.float64(), 1.5, True),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), Decimal("1.25"), True),
        (pa.int32(), pa.decimal128(12, 2), Decimal(7), False),
        (pa.date32(), pa.timestamp("us"), datetime(2024, 2, 29), False),
    ],
    ids=str,
)
def test_a_widened_type_is_read_in_place_where_iceberg_can_and_rewritten_in_one_commit_where_not(
    tables: IcebergFormat, log: ScriptedLog, tmp_path: Path, narrow: pa.DataType, wide: pa.DataType, value: Any,
    in_place: bool,
) -> None:  # fmt: skip
    schema = log.schema_of(table("main.t", {"id": pa.int64(), "n": narrow}, key=("id",)))
    before = pa.scalar(value, wide).cast(narrow).as_py()
    lake_table: Any = one(tables, schema)
    lake_table.load(copy_of(schema, [{"id": 1, "n": before}, {"id": 2, "n": None}], tmp_path), lambda _: None)
    files = data_files(lake_table)
    wider = log.schema_of(table("main.t", {"id": pa.int64(), "n": wide}, key=("id",)))
    log.add(batch(wider, [("insert", {"id": 3, "n": value})]))
    lake_table.evolve(log.window(schema.table, 0, 1), STAMP, Applied(number=0, schema_version=1, rows=None))
    assert (data_files(lake_table) == files) == in_place
    assert lake_table.applied(1) == Applied(number=0, schema_version=2, rows=2)
    lake_table.apply(log.window(schema.table, 0, 1), 1)
    assert {row["id"]: row["n"] for row in read_iceberg(lake_table.location)} == {1: value, 2: None, 3: value}
    assert lake_table.applied(1) == Applied(number=1, schema_version=2, rows=3)

"""Schema changes in real tables, kind by kind and choice by choice, read by a reader that is not the writer."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.lake.iceberg_reader import read_iceberg

from lakefeed import Pipeline, PipelineOptions, Sqlite
from lakefeed.change.batch import SEQ
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.errors import RebuildNeededError, TableStoppedError
from lakefeed.failpoint import FailpointError, armed
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.base import Applied, LakeTable, TableCopy
from lakefeed.lake.delta import Delta
from lakefeed.lake.engine import Engine, Enrolled
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.mode import Append, Mirror, Mode, Temporal
from lakefeed.lake.route import Route
from lakefeed.lake.schema.policy import Evolution
from lakefeed.testing.builders import at, batch, table
from lakefeed.testing.scripted_log import ListChunk, ScriptedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS: dict[str, pa.DataType] = {"id": pa.int32(), "a": pa.int64(), "b": pa.string()}


class World:
    """One table of a lake, its log, and what a new process with another policy makes of them."""

    def __init__(self, kind: type[Delta] | type[Iceberg], spark: SparkSession, root: Path) -> None:
        (root / "segments").mkdir()
        self.log = ScriptedLog(root / "segments")
        self._kind = kind
        self._spark = spark
        self._root = root
        self.schema = self.log.schema_of(table("main.t", COLUMNS, key=("id",)))

    def lake(self, evolution: Evolution, mode: Mode | None = None) -> Delta | Iceberg:
        return self._kind(self._spark, self._root / "lake", mode=mode or Mirror(), evolution=evolution)

    def table(self, evolution: Evolution, mode: Mode, name: str = "main.t") -> LakeTable:
        """A table of that name in the lake, made of the one there is in the source."""
        route = Route(TableId.parse(name), self.schema.table, mode)
        return self.lake(evolution, mode).bind("shop").table(route)

    def load(self, *rows: dict[str, Any], mode: Mode, name: str = "main.t") -> None:
        chunk = ListChunk.of(self.schema, rows, read_at=1, marks=self._root)
        copy = TableCopy(schema=self.schema, generation=1, base=0, position=at(1), chunks=[chunk])
        self.table(Evolution(), mode, name).load(copy, lambda _: None)

    def become(self, *columns: Column, key: tuple[str, ...] = ("id",)) -> TableSchema:
        self.schema = self.log.schema_of(TableSchema(self.schema.table, columns, key))
        return self.schema

    def change(self, *rows: tuple[str, dict[str, Any]]) -> None:
        self.log.add(batch(self.schema, rows))

    def sync(self, mode: Mode) -> None:
        """As the flow does it: everything that is new."""
        tables = self.lake(Evolution(), mode).bind("shop")
        (route,) = tables.routes(self.schema.table)
        result = Engine(tables, self.log, lambda: {route.table: Enrolled(route, 1)}).sync_once()
        assert result.tables[route.table].error is None

    def apply(self, mode: Mode, name: str = "main.t", **choices: str) -> None:
        made = self.table(Evolution().with_choices(choices), mode, name)
        applied = made.applied(1)
        assert applied is not None
        made.apply(self.log.window(self.schema.table, applied.number, self.log.head), 1)

    def applied(self) -> Applied | None:
        return self.table(Evolution(), Mirror()).applied(1)

    def rows(self) -> dict[Any, dict[str, Any]]:
        found = self.read()
        assert len({row["id"] for row in found}) == len(found)
        return {row.pop("id"): row for row in found}

    def read(self, name: str = "main.t") -> list[dict[str, Any]]:
        place = self.table(Evolution(), Mirror(), name).location
        if self._kind is Iceberg:
            return read_iceberg(place)
        rows: list[dict[str, Any]] = DeltaTable(place).to_pyarrow_table().to_pylist()
        return rows


@pytest.fixture(params=[Delta, Iceberg], ids=["delta", "iceberg"])
def empty(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> World:
    return World(request.param, spark, tmp_path)


@pytest.fixture
def world(empty: World) -> World:
    empty.load({"id": 1, "a": 10, "b": "one"}, {"id": 2, "a": 20, "b": "two"}, mode=Mirror())
    return empty


LATER = datetime(2030, 1, 1, tzinfo=UTC)

ID, A, B = (Column(name, kind, nullable=name != "id") for name, kind in COLUMNS.items())


def test_an_ignored_column_never_gets_into_the_table(world: World) -> None:
    world.become(ID, A, B, Column("c", pa.string(), default="x"))
    world.change(("update", {"id": 1, "a": 11, "b": "one", "c": "y"}))
    world.apply(Mirror(), add_column="ignore")
    assert world.rows() == {1: {"a": 11, "b": "one"}, 2: {"a": 20, "b": "two"}}
    assert world.applied() == Applied(number=1, schema_version=2, rows=2)
    world.change(("insert", {"id": 3, "a": 30, "b": "three", "c": "z"}))
    world.apply(Mirror(), add_column="evolve")
    assert world.rows()[3] == {"a": 30, "b": "three"}


def test_a_dropped_column_is_kept_with_what_it_had(world: World) -> None:
    world.change(("update", {"id": 1, "a": 10, "b": "last"}), ("insert", {"id": 3, "a": 30, "b": "three"}))
    world.become(ID, A)
    world.change(("update", {"id": 2, "a": 21}), ("insert", {"id": 4, "a": 40}))
    world.apply(Mirror(), drop_column="keep")
    kept = {1: {"a": 10, "b": "last"}, 2: {"a": 21, "b": None}, 3: {"a": 30, "b": "three"}, 4: {"a": 40, "b": None}}
    assert world.rows() == kept
    world.become(ID, A, Column("b", pa.int64(), default=5))
    world.change(("update", {"id": 3, "a": 30, "b": 7}))
    world.apply(Mirror(), drop_column="evolve")
    assert world.rows()[2] == {"a": 21, "b": None, "b__2": 5}
    assert world.rows()[3] == {"a": 30, "b": None, "b__2": 7}
    assert world.rows()[1] == {"a": 10, "b": "last", "b__2": 5}


def test_acceptance_10_types_are_widened_with_every_value_there_was_and_comes(empty: World) -> None:
    world = empty
    narrow: dict[str, pa.DataType] = {
        "id": pa.int32(), "s": pa.int16(), "f": pa.float32(), "d": pa.decimal128(5, 2), "day": pa.date32(),
        "n": pa.int64(), "list": pa.list_(pa.int32()),
    }  # fmt: skip
    wide: dict[str, pa.DataType] = {
        "id": pa.int64(), "s": pa.int32(), "f": pa.float64(), "d": pa.decimal128(9, 4), "day": pa.timestamp("us"),
        "n": pa.decimal128(19, 0), "list": pa.list_(pa.int64()),
    }  # fmt: skip
    world.schema = world.log.schema_of(table("main.t", narrow, key=("id",)))
    row = {"s": -32768, "f": 0.1, "d": Decimal("999.99"), "day": date(1900, 1, 1), "n": -(2**63), "list": [1, None]}
    world.load({"id": 1, **row}, {"id": 2, **dict.fromkeys(row)}, mode=Mirror())
    world.change(("update", {"id": 2, **row}))
    world.become(*table("main.t", wide, key=("id",)).columns)
    new = {"s": 2**31 - 1, "f": 0.1, "d": Decimal("12345.6789"), "day": datetime(2024, 2, 29, 1), "n": 10**18}
    world.change(("insert", {"id": 2**40, **new, "list": [2**40]}))
    world.apply(Mirror())
    single = pa.scalar(0.1, pa.float32()).cast(pa.float64()).as_py()
    old = {**row, "f": single, "day": datetime(1900, 1, 1), "n": Decimal(-(2**63))}
    assert world.rows() == {1: old, 2: old, 2**40: {**new, "n": Decimal(10**18), "list": [2**40]}}


def test_an_incompatible_type_goes_to_a_column_of_its_own(world: World) -> None:
    world.change(("update", {"id": 2, "a": 22, "b": "two"}))
    world.become(ID, replace(A, type=pa.string()), B)
    world.change(("update", {"id": 1, "a": "ten", "b": "one"}), ("insert", {"id": 3, "a": "x", "b": None}))
    with pytest.raises(TableStoppedError, match="column 'a' changed from int64 to string") as stopped:
        world.apply(Mirror())
    assert "new_column" in stopped.value.remedy
    assert world.applied() == Applied(number=0, schema_version=1, rows=2)
    with armed("lake.before_commit", "raise"), pytest.raises(FailpointError):
        world.apply(Mirror(), change_type="new_column")
    assert world.applied() == Applied(number=0, schema_version=2, rows=2)
    world.apply(Mirror())  # the table has its columns already: what was decided holds, whatever is chosen now
    assert world.rows() == {
        1: {"a": None, "a__2": "ten", "b": "one"},
        2: {"a": 22, "a__2": None, "b": "two"},
        3: {"a": None, "a__2": "x", "b": None},
    }


def test_renames_follow_or_stop_and_a_stopped_table_goes_on_without_a_copy(world: World) -> None:
    world.become(replace(ID, id="1"), replace(A, id="2"), replace(B, id="3"))
    world.become(
        replace(ID, id="1", name="no"), replace(A, id="2", name="b"), replace(B, id="3", name="a"), key=("no",)
    )
    world.change(("update", {"no": 1, "b": 11, "a": "uno"}))
    with pytest.raises(TableStoppedError, match="column 'id' is now called 'no'"):
        world.apply(Mirror(), rename_column="stop")
    world.apply(Mirror())
    found = world.read()
    assert sorted(found, key=lambda row: row["no"]) == [{"no": 1, "b": 11, "a": "uno"}, {"no": 2, "b": 20, "a": "two"}]
    assert world.applied() == Applied(number=1, schema_version=3, rows=2)


def test_a_changed_key_stops_the_table_or_asks_for_a_copy(world: World) -> None:
    world.become(ID, A, B, key=("id", "a"))
    world.change(("insert", {"id": 1, "a": 12, "b": "x"}))
    with pytest.raises(RebuildNeededError, match=r"from \(id\) to \(id, a\)"):
        world.apply(Mirror())
    with pytest.raises(TableStoppedError, match="change_key: stop") as stopped:
        world.apply(Mirror(), change_key="stop")
    assert not isinstance(stopped.value, RebuildNeededError)
    assert world.applied() == Applied(number=0, schema_version=1, rows=2)


def test_history_goes_on_over_kept_and_new_columns(empty: World) -> None:
    world = empty
    world.load({"id": 1, "a": 10, "b": "one"}, mode=Temporal())
    world.become(ID, replace(A, type=pa.string()))
    world.log.add(batch(world.schema, [("update", {"id": 1, "a": "ten"})], time=datetime(2030, 1, 1, tzinfo=UTC)))
    world.apply(Temporal(), drop_column="keep", change_type="new_column")
    found = world.read()
    versions = {row["is_current"]: (row["a"], row["a__2"], row["b"]) for row in found}
    assert (len(found), versions) == (2, {False: (10, None, "one"), True: (None, "ten", None)})


def test_a_change_to_a_column_opens_its_version_though_the_column_is_dropped_before_the_next_sync(empty: World) -> None:
    world, first = empty, datetime(2030, 1, 1, tzinfo=UTC)
    world.load({"id": 1, "a": 10, "b": "one"}, mode=Temporal())
    world.log.add(batch(world.schema, [("update", {"id": 1, "a": 10, "b": "two"})], time=first))
    world.become(ID, A, B, Column("c", pa.int64()))
    world.log.add(batch(world.schema, [("update", {"id": 1, "a": 10, "b": "two", "c": 1})], time=first.replace(day=2)))
    world.become(ID, A)
    world.log.add(batch(world.schema, [("update", {"id": 1, "a": 10})], time=first.replace(day=3)))
    world.sync(Temporal())
    found = world.read()
    days = sorted((row["valid_from"].day, row["is_current"], row["a"]) for row in found if row["valid_from"] >= first)
    assert (len(found), days) == (3, [(1, False, 10), (2, True, 10)])
    assert {name for row in found for name in row} == {"id", "a", "valid_from", "valid_to", "is_current", SEQ}


def test_a_change_log_keeps_a_column_that_the_source_drops(empty: World) -> None:
    world = empty
    world.load({"id": 1, "a": 10, "b": "one"}, mode=Append())
    world.become(ID, A)
    world.change(("update", {"id": 1, "a": 11}))
    world.apply(Append())
    assert sorted((row["a"], row["b"]) for row in world.read()) == [(10, "one"), (11, None)]


def test_a_mirror_is_copied_where_old_rows_may_differ_and_history_and_log_go_on(empty: World) -> None:
    world, wide = empty, replace(A, type=pa.decimal128(21, 2))
    world.load({"id": 1, "a": 10, "b": "one"}, mode=Mirror())
    world.load({"id": 1, "a": 10, "b": "one"}, mode=Temporal(), name="main.t_history")
    world.load({"id": 1, "a": 10, "b": "one"}, mode=Append(), name="main.t_log")
    world.become(ID, wide, B)
    world.log.add_stale_reason(world.schema.table, "the type of a changed from bigint to numeric", ("a",))
    world.log.add(batch(world.schema, [("update", {"id": 1, "a": Decimal("10.50"), "b": "one"})], time=LATER))
    with pytest.raises(RebuildNeededError, match="the type of a changed from bigint to numeric"):
        world.apply(Mirror())
    world.apply(Temporal(), name="main.t_history")
    world.apply(Append(), name="main.t_log")
    assert world.rows() == {1: {"a": 10, "b": "one"}}
    assert sorted(row["a"] for row in world.read("main.t_history")) == [Decimal("10.00"), Decimal("10.50")]
    assert sorted(row["a"] for row in world.read("main.t_log")) == [Decimal("10.00"), Decimal("10.50")]


def test_new_values_in_a_column_of_their_own_need_no_copy_though_old_rows_may_differ(world: World) -> None:
    world.become(ID, replace(A, type=pa.string()), B)
    world.log.add_stale_reason(world.schema.table, "the type of a changed from bigint to text", ("a",))
    world.change(("update", {"id": 1, "a": "ten", "b": "one"}))
    with pytest.raises(TableStoppedError, match="change_type: stop"):
        world.apply(Mirror())
    world.apply(Mirror(), change_type="new_column")
    assert world.rows() == {1: {"a": None, "a__2": "ten", "b": "one"}, 2: {"a": 20, "a__2": None, "b": "two"}}
    world.log.add_stale_reason(world.schema.table, "changes were missed")
    world.log.add()
    with pytest.raises(RebuildNeededError, match="changes were missed"):
        world.apply(Mirror(), change_type="new_column")


def test_acceptance_10_a_pipeline_says_what_waits_and_goes_on_when_the_choice_is_made(
    empty: World, tmp_path: Path
) -> None:
    options = PipelineOptions(journal=JournalOptions(fsync=False))

    def pipeline(add_column: str) -> Pipeline:
        lake = empty.lake(Evolution(add_column=add_column))
        return Pipeline(Sqlite(tmp_path / "s.db"), lake, name="shop", options=options)

    with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as database:
        database.executescript("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT); INSERT INTO t VALUES (1, 'a')")
        with pipeline("stop") as stopping:
            stopping.sync_once()
            database.execute("INSERT INTO t VALUES (2, 'b')")
            stopping.sync_once()
            database.executescript("ALTER TABLE t ADD COLUMN n INT DEFAULT 7; INSERT INTO t VALUES (3, 'c', 8)")
            stopping.sync_once()
            found = stopping.status()
        waiting = found.tables[empty.schema.table]
        assert found.verdict == "stalled"
        assert "column 'n' (int64) was added" in (waiting.error or "")
        assert "Set evolution.add_column to evolve or ignore" in (waiting.remedy or "")
        assert empty.rows() == {1: {"v": "a"}, 2: {"v": "b"}}
        with pipeline("evolve") as evolving:
            result = evolving.sync_once()
            assert result.counts.inserted == 1, "rows were copied again"
            assert evolving.status().tables[empty.schema.table].error is None
    assert empty.rows() == {1: {"v": "a", "n": 7}, 2: {"v": "b", "n": 7}, 3: {"v": "c", "n": 8}}

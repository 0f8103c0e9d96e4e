"""Several source tables in one lake table: each one's copy, changes and truncates touch its own rows alone."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.rule.test_rows import config_of, stored, verified

from lakefeed import current, snapshot
from lakefeed.app.build import build_pipeline
from lakefeed.change.table import TableId
from lakefeed.flow.table_state import Phase, TableStates
from lakefeed.lake.mode import Mirror, Temporal
from lakefeed.lake.route import Origin, Part, Route, Routes, Rule, settled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = """
pipeline: p
source: {{kind: sqlite, path: s.db}}
lake:
  path: ./lake
  format: {format}
  tables:
    - {{match: "orders_*", name: orders, only: true, mode: {mode}, union: {{column: shard, value: "{{table}}"}}}}
"""
A, B = TableId("main", "orders@orders_a"), TableId("main", "orders@orders_b")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    connection.executescript(
        "CREATE TABLE orders_a (id INTEGER PRIMARY KEY, item TEXT); INSERT INTO orders_a VALUES (1, 'a1'), (2, 'a2');"
        "CREATE TABLE orders_b (id INTEGER PRIMARY KEY, item TEXT, note TEXT);"
        "INSERT INTO orders_b VALUES (1, 'b1', 'x'), (3, 'b3', NULL);"
    )
    yield connection
    connection.close()


def rows_of(tmp_path: Path) -> list[tuple[Any, ...]]:
    found = stored(tmp_path, "orders")
    return sorted((row["shard"], row["id"], row["item"], row["note"]) for row in found)


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_shards_share_a_lake_table_and_leave_each_others_rows_alone(
    kind: str, spark: SparkSession, tmp_path: Path, database: sqlite3.Connection
) -> None:
    config = config_of(tmp_path, CONFIG.format(format=kind, mode="mirror"))
    with build_pipeline(config, spark=spark) as pipeline:
        assert not pipeline.sync_once().errors
        assert rows_of(tmp_path) == [
            ("orders_a", 1, "a1", None), ("orders_a", 2, "a2", None), ("orders_b", 1, "b1", "x"),
            ("orders_b", 3, "b3", None),
        ]  # fmt: skip
        database.executescript(  # the same keys in both
            "UPDATE orders_a SET item = 'A1' WHERE id = 1; DELETE FROM orders_b WHERE id = 1;"
            "INSERT INTO orders_a VALUES (3, 'a3'); UPDATE orders_b SET note = 'y' WHERE id = 3;"
            "ALTER TABLE orders_a ADD COLUMN weight REAL; UPDATE orders_a SET weight = 1.5 WHERE id = 2;"
        )
        assert not pipeline.sync_once().errors
        found = verified(config, spark)
        assert {name: one.differences for name, one in found.items()} == dict.fromkeys(found, ())
        assert (found[str(A)].lake_rows, found[str(B)].lake_rows) == (3, 1)
        status = pipeline.status()
        assert (status.tables[A].state, status.tables[A].rows) == ("live", 3 if kind == "delta" else None)
        pipeline.maintain()

        # A third shard comes: the others' rows stay, and are not read again.
        database.executescript(
            "CREATE TABLE orders_c (id INTEGER PRIMARY KEY, item TEXT); INSERT INTO orders_c VALUES (1, 'c1');"
            "UPDATE orders_b SET item = 'B3' WHERE id = 3;"
        )
        assert not pipeline.sync_once().errors
    assert rows_of(tmp_path) == [
        ("orders_a", 1, "A1", None), ("orders_a", 2, "a2", None), ("orders_a", 3, "a3", None),
        ("orders_b", 3, "B3", "y"), ("orders_c", 1, "c1", None),
    ]  # fmt: skip


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_one_shard_is_copied_again_and_a_fresh_read_has_all_of_them(
    kind: str, spark: SparkSession, tmp_path: Path, database: sqlite3.Connection
) -> None:
    config = config_of(tmp_path, CONFIG.format(format=kind, mode="mirror"))
    with build_pipeline(config, spark=spark) as pipeline:
        assert not pipeline.sync_once().errors
    build_pipeline(config, spark=spark).rebuild(str(B), from_source=True)
    states = TableStates(config.state()).all()
    assert [table for table, state in states.items() if state.phase is Phase.STAGED] == [B]
    database.execute("INSERT INTO orders_a (id, item) VALUES (9, 'a9')")
    with build_pipeline(config, spark=spark) as pipeline:
        assert not pipeline.sync_once().errors
    after = TableStates(config.state()).all()
    assert {table: one.generation for table, one in after.items()} == {
        table: one.generation for table, one in states.items()
    }
    found = verified(config, spark)
    assert {name: one.differences for name, one in found.items()} == dict.fromkeys(found, ())

    # As fresh as the journal, and all tables at one change set: a union is one table.
    database.execute("UPDATE orders_b SET item = 'newest' WHERE id = 3")
    with build_pipeline(config, spark=spark) as pipeline:
        pipeline.sync_once(tables=[str(A)])
    fresh = {
        (row["shard"], row["id"]): row["item"] for row in current(spark, tmp_path / "lake", "main.orders").collect()
    }
    assert fresh["orders_b", 3] == "newest"
    assert len(fresh) == 5
    whole = snapshot(spark, tmp_path / "lake")
    assert list(whole) == ["main.orders"]
    assert whole["main.orders"].count() == 5


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [pytest.param("delta", marks=pytest.mark.slow), "iceberg"])
def test_a_column_of_another_type_stops_its_shard_alone_and_what_cannot_be_done_in_place_is_copied_again(
    kind: str, spark: SparkSession, tmp_path: Path, database: sqlite3.Connection
) -> None:
    config = config_of(tmp_path, CONFIG.format(format=kind, mode="mirror"))
    database.executescript(
        "CREATE TABLE orders_c (id INTEGER PRIMARY KEY, item INTEGER); INSERT INTO orders_c VALUES (1, 7);"
    )
    with build_pipeline(config, spark=spark) as pipeline:
        (failed,) = pipeline.sync_once().errors.values()
        error = str(failed.error)
        assert "the lake table main.orders, which several source tables feed, has the column item as string" in error
        database.executescript(
            "DROP TABLE orders_c; ALTER TABLE orders_b RENAME COLUMN note TO remark;"
            "UPDATE orders_b SET remark = 'z' WHERE id = 1; ALTER TABLE orders_a ADD COLUMN kind TEXT DEFAULT 'k';"
        )
        for _ in range(4):  # the copy of the third may fail once more before its drop is seen
            errors = pipeline.sync_once().errors
        assert not errors
    rows = {(row["shard"], row["id"]): row for row in stored(tmp_path, "orders")}
    assert rows["orders_b", 1]["remark"] == "z"
    assert rows["orders_b", 1]["note"] is None  # it was copied again
    assert (rows["orders_a", 1]["kind"], rows["orders_b", 1]["kind"]) == ("k", None)
    found = verified(config, spark)
    assert {name: one.differences for name, one in found.items() if "orders_c" not in name} == {
        str(A): (), str(B): ()
    }  # fmt: skip


def test_what_cannot_share_a_lake_table_is_told_before_anything_is_made() -> None:
    shards = [TableId("a", "t"), TableId("b", "t")]
    union = Rule("t", name="whole", namespace="lake", only=True, union=Origin("shard", "{schema}"))
    routes = Routes(Mirror(), [union])
    both = [route for shard in shards for route in routes.of(shard)]
    whole = TableId("lake", "whole")
    assert both[0] == Route(TableId("lake", "whole@a"), shards[0], Mirror(), Part(whole, "shard", "a"))
    assert [one.stored for one in both] == [whole, whole]
    assert routes.layout(both[0]).partition_by == ("shard",)
    chosen, clashes = settled(both, {})
    assert (list(chosen), clashes) == ([TableId("lake", "whole@a"), TableId("lake", "whole@b")], ())

    same = Routes(Mirror(), [Rule("t", name="whole", only=True, namespace="lake", union=Origin(value="{table}"))])
    _, (clash,) = settled([route for shard in shards for route in same.of(shard)], {})
    assert "source tables a.t and b.t would both feed the lake table lake.whole" in clash.problem
    assert "and each a value of its own" in clash.remedy
    plain = Route(whole, TableId("c", "t"), Mirror())
    chosen, (clash,) = settled([plain, *both], {})
    assert list(chosen) == [one.table for one in both]
    assert clash.second == plain
    assert "without union" in clash.problem
    other = Routes(Temporal(), [union]).of(shards[1])
    assert len(settled([both[0], *other], {})[1]) == 1


def test_the_example_of_the_page_plans_a_part_for_each_shard(tmp_path: Path, database: sqlite3.Connection) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "choosing.md").read_text()
    (example,) = [one for one in re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "union" in one]
    config = config_of(tmp_path, example.replace("shop.db", "s.db"))
    planned = build_pipeline(config).plan().tables
    assert [(one.table, one.made_by) for one in planned] == [
        (A, "shard is 'orders_a'"), (B, "shard is 'orders_b'"),
    ]  # fmt: skip

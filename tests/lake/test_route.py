"""Which lake tables a source table feeds."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lakefeed import Delta, Pipeline, Sqlite
from lakefeed.capture.base import Level
from lakefeed.change.table import TableId
from lakefeed.lake.mode import Append, Mirror, Temporal
from lakefeed.lake.route import Route, Routes, Rule, settled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS, PEOPLE = TableId("main", "orders"), TableId("main", "people")


def test_a_table_feeds_one_of_its_own_name_in_the_lakes_mode() -> None:
    assert Routes(Append()).of(ORDERS) == (Route(ORDERS, ORDERS, Append()),)


def test_a_rule_without_a_name_gives_the_mode_and_the_last_one_counts() -> None:
    routes = Routes(Mirror(), [Rule("*", Append()), Rule("main.ord*", Temporal())])
    assert routes.of(ORDERS) == (Route.same(ORDERS, Temporal()),)
    assert routes.of(PEOPLE) == (Route.same(PEOPLE, Append()),)


def test_a_rule_with_a_name_adds_a_table() -> None:
    routes = Routes(Mirror(), [Rule("orders", Temporal(), "{table}_history"), Rule("*", Append(), "{table}_log")])
    history, changes = TableId("main", "orders_history"), TableId("main", "orders_log")
    assert routes.of(ORDERS) == (
        Route.same(ORDERS),
        Route(history, ORDERS, Temporal()),
        Route(changes, ORDERS, Append()),
    )
    assert [route.table.name for route in routes.of(PEOPLE)] == ["people", "people_log"]


def test_of_two_rules_for_one_lake_table_the_second_is_refused() -> None:
    routes = Routes(Mirror(), [Rule("orders", Temporal(), "x"), Rule("*", Append(), "x")])
    found, (clash,) = settled(routes.of(ORDERS), {})
    assert found[TableId("main", "x")].mode == Temporal()
    assert "two rules make the lake table main.x of main.orders, as temporal and append" in clash.problem
    assert clash.remedy.startswith("In the rule that makes main.x of main.orders as append, write a name of its own")
    made = {clash.second.table: clash.second}
    assert settled(routes.of(ORDERS), made)[0] == {ORDERS: Route.same(ORDERS), **made}, "what is there goes on"


def _nothing() -> SparkSession:
    raise AssertionError("copies of a few rows need no Spark")


@pytest.mark.parametrize(
    ("name", "tables", "clashing"),
    [("history", ("orders", "people"), "history"), ("{table}_log", ("orders", "orders_log"), "orders_log")],
)
def test_two_source_tables_of_one_lake_table_are_named_and_the_first_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, tables: tuple[str, str], clashing: str
) -> None:
    source, lake = tmp_path / "shop.db", tmp_path / "lake"
    with closing(sqlite3.connect(source, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute(f"CREATE TABLE {tables[0]} (id INTEGER PRIMARY KEY)")
        writer.execute(f"INSERT INTO {tables[0]} VALUES (1)")

        def made() -> Pipeline:
            rules = [Rule("*", Append(), name)] if name == "history" else [Rule("orders", Append(), name)]
            return Pipeline(Sqlite(source), Delta(_nothing, lake, rules=rules), name="p")

        with made() as pipeline:
            assert pipeline.check() == ()
            pipeline.sync_once()
            writer.execute(f"CREATE TABLE {tables[1]} (id INTEGER PRIMARY KEY, other TEXT)")
            writer.execute(f"INSERT INTO {tables[1]} VALUES (2, 'x')")
        with made() as pipeline:
            (finding,) = pipeline.check()
            assert finding.level is Level.ERROR
            assert all(f"main.{one}" in finding.problem for one in (*tables, clashing))
            pipeline.sync_once()
            pipeline.sync_once()
        assert sum("both feed" in record.message for record in caplog.records) == 1, "told once, not in every cycle"
    first = DeltaTable(str(lake / "main" / clashing)).to_pyarrow_table()
    assert first.column("id").to_pylist() == [1], "what was there goes on as it was"
    assert "other" not in first.column_names
    if clashing != tables[1]:  # its own lake table does not suffer
        assert DeltaTable(str(lake / "main" / tables[1])).to_pyarrow_table().column("id").to_pylist() == [2]


def test_of_two_new_tables_the_one_of_that_name_feeds_it() -> None:
    log = TableId("main", "orders_log")
    routes = Routes(Mirror(), [Rule("orders", Append(), "{table}_log")])
    found, (clash,) = settled([*routes.of(ORDERS), *routes.of(log)], {})
    assert found[log] == Route.same(log)
    assert (clash.first.source, clash.second.source) == (log, ORDERS)
    assert "makes main.orders_log of main.orders as append," in clash.remedy
    kept, (clash,) = settled([*routes.of(ORDERS), *routes.of(log)], {log: Route(log, ORDERS, Append())})
    assert (kept[log].source, clash.second.source, clash.is_left) == (ORDERS, log, False)


def test_no_table_takes_over_what_another_one_has_left() -> None:
    history = TableId("main", "history")
    routes = Routes(Mirror(), [Rule("*", Append(), "history")])
    fed = {history: Route(history, PEOPLE, Append())}
    found, (clash,) = settled(routes.of(ORDERS), fed)
    assert list(found) == [ORDERS]
    assert (clash.first.source, clash.second.source, clash.is_left) == (PEOPLE, ORDERS, True)
    assert "lakefeed rebuild FILE main.history --from-source" in clash.remedy
    back, _ = settled([*routes.of(ORDERS), *routes.of(PEOPLE)], fed)
    assert back[history].source == PEOPLE, "it goes on if it is there again"

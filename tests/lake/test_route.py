"""Which lake tables a source table feeds."""

from __future__ import annotations

import pytest

from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError
from lakefeed.lake.mode import Append, Mirror, Temporal
from lakefeed.lake.route import Route, Routes, Rule

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


def test_two_rules_for_one_lake_table_are_refused() -> None:
    routes = Routes(Mirror(), [Rule("orders", Temporal(), "x"), Rule("*", Append(), "x")])
    with pytest.raises(ConfigError, match=r"two rules make the lake table main\.x, as temporal and append"):
        routes.of(ORDERS)

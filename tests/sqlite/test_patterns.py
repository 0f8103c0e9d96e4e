"""Table patterns: one place, one set of rules (T24)."""

from __future__ import annotations

import pytest

from lakefeed.capture.select import TablePatterns
from lakefeed.change.choice import is_literal
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError

TABLES = [TableId("main", name) for name in ("orders", "order_items", "Customers", "a.b")]


def matched(*patterns: str, folds_case: bool = True) -> list[str]:
    found = TablePatterns(patterns, default_schema="main", folds_case=folds_case).choose(TABLES)
    return [str(table) for table in found]


def test_t24_a_star_matches_every_table() -> None:
    assert matched("*") == ["main.Customers", "main.a.b", "main.order_items", "main.orders"]


def test_t24_a_pattern_without_schema_means_the_default_schema() -> None:
    assert matched("orders") == matched("main.orders") == ["main.orders"]


def test_t24_a_plain_name_is_not_a_prefix() -> None:
    assert matched("order_item?") == ["main.order_items"]
    with pytest.raises(ConfigError, match="'order'"):
        matched("order")


def test_t24_case_folds_only_where_the_database_folds_it() -> None:
    assert matched("CUSTOMERS") == ["main.Customers"]
    with pytest.raises(ConfigError, match="'CUSTOMERS'"):
        matched("CUSTOMERS", folds_case=False)


def test_t24_a_table_that_two_patterns_match_is_taken_once() -> None:
    assert matched("orders", "order*", "*.orders") == ["main.order_items", "main.orders"]


def test_t24_a_pattern_with_an_exclamation_mark_takes_tables_away_wherever_it_stands() -> None:
    assert matched("*", "!order*") == matched("!main.order*", "*") == ["main.Customers", "main.a.b"]
    assert matched("*", "!nothing_yet_*", "!CUSTOMERS") == ["main.a.b", "main.order_items", "main.orders"]
    with pytest.raises(ConfigError, match="every table pattern excludes tables"):
        matched("!orders")


def test_t24_a_pattern_that_matches_nothing_names_itself_and_the_tables_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        matched("orders", "invoices")
    assert "'invoices' matches no table" in caught.value.message
    assert "main.Customers, main.a.b, main.order_items, main.orders" in caught.value.message


def test_a_long_list_of_tables_is_cut() -> None:
    many = [TableId("main", f"t{number:03}") for number in range(50)]
    with pytest.raises(ConfigError, match=r"main\.t019 and 30 more\n"):
        TablePatterns(["x"], default_schema="main", folds_case=True).choose(many)


def test_a_database_without_tables_is_said_to_have_none() -> None:
    with pytest.raises(ConfigError, match="no tables that can be captured"):
        TablePatterns(["*"], default_schema="main", folds_case=True).choose([])


def test_a_literal_pattern_has_no_wildcard() -> None:
    assert is_literal("main.orders")
    assert not any(map(is_literal, ("*", "order?", "[ab]")))


def test_where_no_table_is_seen_at_all_a_right_may_be_missing() -> None:
    with pytest.raises(ConfigError) as caught:
        TablePatterns(["orders"], default_schema="main", folds_case=True).choose([])
    assert caught.value.remedy.endswith("run `lakefeed check`: a right may be missing.")

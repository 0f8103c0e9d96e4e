"""Table patterns as MySQL and MariaDB read them."""

from __future__ import annotations

from lakefeed.capture.mysql.dialect import MysqlDialect
from lakefeed.capture.select import TablePatterns
from lakefeed.change.table import TableId


def test_a_pattern_without_a_dot_means_that_table_in_any_database() -> None:
    orders, others = TableId("shop", "orders"), TableId("crm", "orders")
    patterns = TablePatterns(["orders"], default_schema=MysqlDialect.default_schema, folds_case=MysqlDialect.folds_case)
    assert patterns.choose([orders, others, TableId("shop", "items")]) == (others, orders)

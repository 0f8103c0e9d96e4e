"""Lake and source, row by row: the lake read by deltalake, the source by plain SQL."""

from __future__ import annotations

from tests.compare import compare_postgres_table, compare_sqlite_table
from tests.crash.mysql_shop import MysqlShop
from tests.crash.postgres_shop import NAMES, PostgresShop
from tests.crash.shop import Shop

from lakefeed.capture.mysql.dialect import MysqlDialect, MysqlVerifyReader
from lakefeed.change.table import TableId
from lakefeed.lake.mode import Mirror
from lakefeed.verify.compare import Comparison, compare_at


def assert_lake_equals_source(shop: Shop) -> None:
    _assert_equal(
        [
            compare_sqlite_table(shop.database, TableId("main", name), shop.directory / "lake" / "main" / name)
            for name in ("account", "entry", "event")
        ]
    )


def assert_lake_equals_postgres(shop: PostgresShop) -> None:
    _assert_equal(
        [
            compare_postgres_table(shop.dsn, TableId("public", name), shop.directory / "lake" / "public" / name)
            for name in NAMES
        ]
    )


def assert_lake_equals_mysql(shop: MysqlShop) -> None:
    dialect, lake = MysqlDialect(shop.server.dsn, shop.server.flavour), shop.directory / "lake" / "shop"
    tables = [TableId("shop", name) for name in NAMES]
    _assert_equal(
        [compare_at(table, MysqlVerifyReader(dialect, table), lake / table.name, Mirror()) for table in tables]
    )


def _assert_equal(compared: list[Comparison]) -> None:
    for one in compared:
        assert one.equal, f"{one.table}: {one.differences}"
    assert sum(one.source_rows for one in compared) > 100, "the writer has left too little to compare"

"""Lake and source, row by row: the lake read by deltalake, the source by plain SQL."""

from __future__ import annotations

from tests.compare import compare_postgres_table, compare_sqlite_table
from tests.crash.postgres_shop import NAMES, PostgresShop
from tests.crash.shop import Shop

from lakefeed.change.table import TableId
from lakefeed.verify.compare import Comparison


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


def _assert_equal(compared: list[Comparison]) -> None:
    for one in compared:
        assert one.equal, f"{one.table}: {one.differences}"
    assert sum(one.source_rows for one in compared) > 100, "the writer has left too little to compare"

"""Lake and source, row by row: the lake read by deltalake, the source by SQLite itself."""

from __future__ import annotations

from tests.crash.shop import Shop

from lakefeed.app.verify import compare_sqlite_table
from lakefeed.change.table import TableId


def assert_lake_equals_source(shop: Shop) -> None:
    rows = 0
    for name in ("account", "entry", "event"):
        table = TableId("main", name)
        compared = compare_sqlite_table(shop.database, table, shop.directory / "lake" / "main" / name)
        assert compared.equal, f"{table}: {compared.differences}"
        rows += compared.source_rows
    assert rows > 100, "the writer has left too little to compare"

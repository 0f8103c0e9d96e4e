"""Live verification and repair of PostgreSQL tables, by log and by polling: brackets, key ranges, types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres.conftest import dsn, server, servers  # noqa: F401  # fixtures
from tests.verify.shop import Shop, writing

from lakefeed.app.build import build_lake
from lakefeed.app.config import load_config
from lakefeed.change.table import TableId
from lakefeed.flow.table_state import TableStates

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]
CONFIG = """
pipeline: shop
source: {{kind: postgres, dsn: "{dsn}"{more}}}
lake:
  path: ./lake
  format: {format}
sync: {{interval_seconds: 0.2}}
"""
TABLE = """
CREATE TABLE items (
  a int, b text, price numeric(12,2), at timestamptz DEFAULT now(), tags text[], rate float8, body text,
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (a, b));
INSERT INTO items SELECT n, 'k' || n, n / 7.0, now(), ARRAY['x', NULL, n::text],
  CASE n % 5 WHEN 0 THEN '-0' WHEN 1 THEN 'NaN' ELSE n::float8 END, repeat(md5(n::text), 200)
  FROM generate_series(1, 2000) AS n;
"""


def made(place: Path, spark: Any, dsn: str, kind: str, more: str = "") -> Shop:  # noqa: F811
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLE)
    shop = Shop(place, spark, CONFIG.format(dsn=dsn, format=kind, more=more))
    shop.sync()
    return shop


def writer(dsn: str) -> Callable[[int], None]:  # noqa: F811
    def write(number: int) -> None:
        low = number * 37 % 1500 + 1
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "UPDATE items SET price = price + 1, updated_at = clock_timestamp() WHERE a BETWEEN %s AND %s",
                (low, low + 20),
            )

    return write


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_damage_is_found_and_repaired_under_a_writer(tmp_path: Path, spark: Any, dsn: str, kind: str) -> None:  # noqa: F811
    shop = made(tmp_path, spark, dsn, kind)
    session, target = (spark, f"delta.`{tmp_path}/lake/public/items`") if kind == "delta" else iceberg(shop)
    session.sql(f"DELETE FROM {target} WHERE a = 1801")
    session.sql(
        f"UPDATE {target} SET tags = CASE a WHEN 1802 THEN array('x', '1802', NULL) ELSE tags END, "
        "rate = CASE a WHEN 1804 THEN NULL WHEN 2000 THEN 0.0D ELSE rate END, "
        "body = CASE a WHEN 1805 THEN concat(body, ' ') ELSE body END, "
        "b = CASE a WHEN 1806 THEN 'other' ELSE b END WHERE a > 1801"
    )
    with shop.running(), writing(writer(dsn), 0.1):
        done = shop.repair("public.items", chunk_rows=300)
        told = "\n".join(done.found.differences)
        assert done.found.differing == 7, told
        for part in ("a=1801", "tags is", "rate is", "body is", "only in the lake: a=1806, b='other'", "rate is -0.0"):
            assert part in told, told
        assert (done.found.source_rows, done.left, done.is_equal) == (2000, 0, True), done.answer
        found = shop.compared("public.items")
        assert found.equal, found.differences
        assert (found.source_rows, found.lake_rows) == (2000, 2000)


def iceberg(shop: Shop) -> tuple[Any, str]:
    """A session with the lake's catalog, and the table's name there."""
    config = load_config(shop.file)
    route = TableStates(config.state()).all()[TableId("public", "items")].route
    table: Any = build_lake(config, shop.spark).bind("shop").table(route)
    return table._own_session(), table._store._sql_name


def test_polled_rows_are_compared_and_repaired(tmp_path: Path, spark: Any, dsn: str) -> None:  # noqa: F811
    more = ', capture: poll, poll_seconds: 0.3, rules: {"*": {safety_lag_seconds: 0}}'
    shop = made(tmp_path, spark, dsn, "delta", more)
    spark.sql(f"UPDATE delta.`{tmp_path / 'lake' / 'public' / 'items'}` SET body = NULL WHERE a = 1900")
    with shop.running(), writing(writer(dsn), 0.2):
        done = shop.repair("public.items")
        assert done.found.differing == 1, done.found.differences
        assert done.is_equal, done

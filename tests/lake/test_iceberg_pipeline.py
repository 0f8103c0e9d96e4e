"""A whole pipeline with `format: iceberg`, from the configuration file to tables that equal the source."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.compare import compare_sqlite_table

from lakefeed.app.build import build_pipeline
from lakefeed.app.config import load_config
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError

pytestmark = pytest.mark.spark
ORDERS = TableId("main", "orders")
CONFIG = """
pipeline: shop
source:
  kind: sqlite
  path: shop.db
lake:
  path: ./lake
  format: iceberg
"""


@pytest.mark.usefixtures("spark")
def test_a_database_is_mirrored_into_iceberg_through_changes_of_rows_and_columns_and_restarts(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "shop.yaml")
    create = "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT);"
    steps = [
        f"{create} INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'c');",
        "UPDATE orders SET item = 'B' WHERE id=2; DELETE FROM orders WHERE id = 1; INSERT INTO orders VALUES (9, 0);",
        "ALTER TABLE orders ADD COLUMN price REAL DEFAULT 1.5; INSERT INTO orders VALUES (10, 'o', NULL);",
        "ALTER TABLE orders RENAME COLUMN item TO article; UPDATE orders SET article = 'x' WHERE id = 3;",
    ]
    for step in steps:
        with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
            database.executescript(step)
        with build_pipeline(config) as pipeline:
            pipeline.sync_once()
            result = pipeline.sync_once()
        assert all(table.error is None for table in result.tables.values())
        found = compare_sqlite_table(tmp_path / "shop.db", ORDERS, tmp_path / "lake" / "main" / "orders")
        assert found.differences == ()
    assert found.lake_rows == 4


def test_a_catalog_for_delta_tables_is_refused_and_not_left_out_in_silence(tmp_path: Path) -> None:
    wrong = CONFIG.replace("format: iceberg", "format: delta\n  catalog: {type: rest, uri: 'http://localhost'}")
    (tmp_path / "shop.yaml").write_text(wrong)
    (tmp_path / "shop.db").touch()
    with pytest.raises(ConfigError, match=r"lake\.catalog is for Iceberg"):
        build_pipeline(load_config(tmp_path / "shop.yaml"))

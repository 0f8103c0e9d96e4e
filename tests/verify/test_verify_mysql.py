"""Live verification and repair of MySQL and MariaDB tables, under a writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.mysql.conftest import database, server, servers  # noqa: F401  # fixtures
from tests.verify.shop import Shop, writing

from lakefeed.testing.server.mysql import MysqlServer

CONFIG = """
pipeline: shop
source: {{kind: {kind}, dsn: "{dsn}", tables: ["{database}.*"]}}
lake: {{path: ./lake}}
sync: {{interval_seconds: 0.2}}
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_damage_is_found_and_repaired_under_a_writer(
    tmp_path: Path,
    spark: Any,
    server: MysqlServer,  # noqa: F811
    database: str,  # noqa: F811
) -> None:
    connection = server.connect(database=database)

    def run(statement: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)

    run("CREATE TABLE items (id varchar(20) PRIMARY KEY, price decimal(12,2), at datetime(6)) CHARACTER SET utf8mb4")
    for start in range(0, 1000, 500):
        rows = ", ".join(f"('Key {number}', {number}, now(6))" for number in range(start, start + 500))
        run(f"INSERT INTO items VALUES {rows}")
    shop = Shop(tmp_path, spark, CONFIG.format(kind=server.flavour, dsn=server.dsn, database=database))
    shop.sync()
    table = f"delta.`{tmp_path / 'lake' / database / 'items'}`"
    spark.sql(f"UPDATE {table} SET price = 0.5 WHERE id = 'Key 900'")
    spark.sql(f"DELETE FROM {table} WHERE id = 'Key 901'")
    spark.sql(f"INSERT INTO {table} SELECT concat('x', id), price, at FROM {table} WHERE id = 'Key 902'")
    writes = "UPDATE items SET price = price + 1 WHERE id = 'Key {}'"
    with shop.running(), writing(lambda number: run(writes.format(number % 800))):
        done = shop.repair(f"{database}.items", chunk_rows=300)
        assert done.found.differing == 3, done.found.differences
        assert (done.found.source_rows, done.left, done.is_equal) == (1000, 0, True), done
        found = shop.compared(f"{database}.items")
        assert found.equal, found.differences
    connection.close()

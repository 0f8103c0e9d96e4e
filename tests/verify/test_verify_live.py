"""``lakefeed verify`` beside a running pipeline and a writer: damage is found with key and column, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.verify.shop import CONFIG, Shop, writing

pytestmark = pytest.mark.spark
ITEMS = """
CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, price REAL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
INSERT INTO items SELECT i, 'item ' || i, i / 2.0 FROM n;
"""
TABLES = ("main.items", "main.items_history", "main.items_log")


def damage(shop: Shop, table: str, *statements: str) -> None:
    """Change the lake table behind the pipeline's back, by Spark's own SQL."""
    place = shop.place / "lake" / "main" / table
    target = f"delta.`{place}`"
    for statement in statements:
        shop.spark.sql(statement.format(table=target))


@pytest.fixture
def shop(tmp_path: Path, spark: Any) -> Shop:
    found = Shop(tmp_path, spark, CONFIG.format(format="delta"))
    found.execute(ITEMS)
    found.sync()
    return found


def test_a_running_pipeline_is_equal_under_a_writer_and_damage_is_found_with_key_and_column(shop: Shop) -> None:
    def write(number: int) -> None:
        key = number % 150 + 1
        shop.execute(
            f"BEGIN; UPDATE items SET price = {number} WHERE id = {key}; DELETE FROM items WHERE id = {key + 1};"
            f"INSERT INTO items VALUES ({key + 1}, 'again {number}', {number}); COMMIT"
            if number % 3
            else f"UPDATE items SET name = 'x{number}' WHERE id = {key}"
        )

    with shop.running(), writing(write):
        found = shop.verify()
        assert found.equal, [one.differences for _, one in found.tables]
        assert {one.source_rows for _, one in found.tables} == {200}
        damage(
            shop,
            "items",
            "DELETE FROM {table} WHERE id = 160",
            "UPDATE {table} SET name = NULL WHERE id = 161",
            "UPDATE {table} SET price = -0.5 WHERE id = 162",
            "INSERT INTO {table} VALUES (999, 'extra', 1.0)",
            "INSERT INTO {table} SELECT * FROM {table} WHERE id = 163",
            "UPDATE {table} SET id = 1000 - id WHERE id IN (170, 171)",
        )
        damage(
            shop,
            "items_history",
            "UPDATE {table} SET valid_to = valid_from WHERE id = 180 AND is_current",
            "UPDATE {table} SET price = 7 WHERE id = 181 AND is_current",
        )
        found = shop.verify()
    told = {str(one.table): one.differences for _, one in found.tables}
    assert told["main.items"][0] == "9 rows differ from the source"
    assert set(told["main.items"][1:]) == {
        "missing in the lake: id=160",
        "id=161: name is 'item 161' in the source, None in the lake",
        "id=162: price is 81.0 in the source, -0.5 in the lake",
        "2 times in the lake and 1 times in the source: id=163",
        "missing in the lake: id=170",
        "missing in the lake: id=171",
        "only in the lake: id=829",
        "only in the lake: id=830",
        "only in the lake: id=999",
    }
    assert told["main.items_log"] == ()
    assert told["main.items_history"][:2] == (
        "1 row differs from the source",
        "id=181: price is 90.5 in the source, 7.0 in the lake",
    )
    assert "id=180" in told["main.items_history"][3]
    assert "it is current and has an end" in told["main.items_history"][3]


def test_a_repair_brings_exactly_the_differing_rows_through_the_journal(shop: Shop) -> None:
    def write(number: int) -> None:
        shop.execute(f"UPDATE items SET price = {number} WHERE id = {number % 150 + 1}")

    with shop.running(), writing(write):
        damage(
            shop,
            "items",
            "DELETE FROM {table} WHERE id = 160",
            "UPDATE {table} SET name = NULL WHERE id = 161",
            "INSERT INTO {table} VALUES (999, 'extra', 1.0)",
            "INSERT INTO {table} SELECT * FROM {table} WHERE id = 163",
        )
        damage(shop, "items_history", "UPDATE {table} SET price = 7 WHERE id = 181 AND is_current")
        done = shop.repair("main.items")
        assert (done.found.differing, done.left) == (4, 0), done
        assert done.is_equal
        assert done.answer is not None
        assert (done.answer.rows, done.answer.deleted) == (3, 1)
        done = shop.repair("main.items_history")
        assert (done.found.differing, done.left, done.is_equal) == (1, 0, True), done
        found = shop.verify()
    assert found.equal, [one.differences for _, one in found.tables]
    history = shop.spark.read.format("delta").load(str(shop.place / "lake" / "main" / "items_history"))
    versions = history.where("id = 181").orderBy("_lakefeed_seq").collect()
    assert [(row["price"], row["is_current"]) for row in versions] == [(7.0, False), (90.5, True)], "history is kept"

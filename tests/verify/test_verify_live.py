"""``lakefeed verify`` beside a running pipeline and a writer: damage is found with key and column, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.verify.shop import CONFIG, Shop, writing

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
ITEMS = """
CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, price REAL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
INSERT INTO items SELECT i, 'item ' || i, i / 2.0 FROM n;
"""


def damage(shop: Shop, table: str, *statements: str) -> None:
    """Change the lake table behind the pipeline's back, by Spark's own SQL."""
    for statement in statements:
        shop.spark.sql(statement.format(table=f"delta.`{shop.place / 'lake' / 'main' / table}`"))


def test_damage_is_found_with_key_and_column_under_a_writer_and_repaired_through_the_journal(
    tmp_path: Path, spark: Any
) -> None:
    shop = Shop(tmp_path, spark, CONFIG.format(format="delta"))
    shop.execute(ITEMS)
    shop.sync()
    damage(
        shop,
        "items",
        "DELETE FROM {table} WHERE id = 160",
        "UPDATE {table} SET name = CASE id WHEN 161 THEN NULL ELSE name END,"
        " price = CASE id WHEN 162 THEN -0.5 ELSE price END,"
        " id = CASE WHEN id IN (170, 171) THEN 341 - id WHEN id = 172 THEN 829 ELSE id END"
        " WHERE id BETWEEN 161 AND 172",
        "INSERT INTO {table} SELECT * FROM {table} WHERE id = 163",
    )
    damage(
        shop,
        "items_history",
        "UPDATE {table} SET price = 7, valid_to = CASE id WHEN 180 THEN valid_from END WHERE id IN (180, 181)",
    )

    def write(number: int) -> None:
        key = number % 150 + 1
        shop.execute(
            f"BEGIN; UPDATE items SET price = {number} WHERE id = {key}; DELETE FROM items WHERE id = {key + 1};"
            f"INSERT INTO items VALUES ({key + 1}, 'again {number}', {number}); COMMIT"
            if number % 3
            else f"UPDATE items SET name = 'x{number}' WHERE id = {key}"
        )

    swapped = "id={0}: name is 'item {0}' in the source, 'item {1}' in the lake; "
    swapped += "price is {2} in the source, {3} in the lake"
    with shop.running(), writing(write, 0.1):
        told = {str(one.table): one.differences for _, one in shop.verify(chunk_rows=40).tables}
        assert told["main.items"][0] == "8 rows differ from the source"
        assert set(told["main.items"][1:]) == {
            "missing in the lake: id=160",
            "id=161: name is 'item 161' in the source, None in the lake",
            "id=162: price is 81.0 in the source, -0.5 in the lake",
            "2 times in the lake and 1 times in the source: id=163",
            swapped.format(170, 171, 85.0, 85.5),
            swapped.format(171, 170, 85.5, 85.0),
            "missing in the lake: id=172",
            "only in the lake: id=829",
        }
        assert told["main.items_log"] == ()
        history = told["main.items_history"]
        assert history[0] == "2 rows differ from the source"
        assert "id=181: price is 90.5 in the source, 7.0 in the lake" in history
        assert any("a version of id=180" in one and "current and has an end" in one for one in history), history
        done = shop.repair("main.items")
        assert (done.found.differing, done.left, done.is_equal) == (8, 0, True), done
        assert done.answer is not None
        assert (done.answer.rows, done.answer.deleted) == (7, 1)
        again = shop.compared("main.items")
        assert again.equal, again.differences
        assert (again.source_rows, again.lake_rows) == (200, 200)


def test_a_repair_of_a_history_table_opens_a_version(tmp_path: Path, spark: Any) -> None:
    shop = Shop(tmp_path, spark, CONFIG.format(format="delta").replace("    - {match: items}\n", ""))
    shop.execute(ITEMS)
    shop.sync()
    damage(shop, "items_history", "UPDATE {table} SET price = 7 WHERE id = 181")
    with shop.running():
        done = shop.repair("main.items_history")
    assert (done.found.differing, done.left, done.is_equal) == (1, 0, True), done
    rows = spark.read.format("delta").load(str(tmp_path / "lake" / "main" / "items_history"))
    versions = rows.where("id = 181").orderBy("_lakefeed_seq").collect()
    assert [(row["price"], row["is_current"]) for row in versions] == [(7.0, False), (90.5, True)], "history is kept"


def test_a_part_of_a_union_is_compared_and_repaired_with_its_own_columns(tmp_path: Path, spark: Any) -> None:
    union = '- {{match: "orders_*", name: orders, only: true, union: {{column: shard, value: "{{table}}"}}}}'
    config = CONFIG.partition("    - {{match: items}}")[0] + f"    {union}\nsync: {{{{interval_seconds: 0.2}}}}\n"
    shop = Shop(tmp_path, spark, config.format(format="delta"))
    shop.execute(
        "CREATE TABLE orders_a (id INTEGER PRIMARY KEY, item TEXT); INSERT INTO orders_a VALUES (1, 'a1'), (3, 'a3');"
        "CREATE TABLE orders_b (id INTEGER PRIMARY KEY, item TEXT, note TEXT);"
        "INSERT INTO orders_b VALUES (1, 'b1', 'x'), (3, 'b3', NULL);"
    )
    shop.sync()
    damage(shop, "orders", "UPDATE {table} SET note = '?' WHERE shard = 'orders_b' AND id = 3")
    with shop.running():
        told = {str(one.table): one.differences for _, one in shop.verify().tables}
        assert told["main.orders@orders_a"] == (), "the other part's columns are no difference"
        assert told["main.orders@orders_b"][0] == "1 row differs from the source"
        assert "note is None in the source, '?' in the lake" in told["main.orders@orders_b"][1]
        done = shop.repair("main.orders@orders_b")
    assert (done.found.differing, done.left, done.is_equal) == (1, 0, True), done

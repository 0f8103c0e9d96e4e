"""``lakefeed verify`` on lakes that a real pipeline keeps: every mode, both formats, chosen columns."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lakefeed.app.build import build_lake, build_pipeline
from lakefeed.app.command.verify import verify
from lakefeed.app.config import load_config
from lakefeed.change.table import TableId

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]
CONFIG = """
pipeline: shop
source: {{kind: sqlite, path: shop.db}}
lake:
  path: ./lake
  format: {format}
  evolution: {{add_column: ignore, drop_column: keep}}
  tables:
    - {{match: items, mode: temporal, name: "{{table}}_history"}}
    - {{match: items, mode: append, name: "{{table}}_log"}}
"""
TABLES = ("main.items", "main.items_history", "main.items_log")


class Shop:
    def __init__(self, place: Path, kind: str) -> None:
        self.file = place / "shop.yaml"
        self.file.write_text(CONFIG.format(format=kind))
        self._database = place / "shop.db"

    def execute(self, script: str) -> None:
        with closing(sqlite3.connect(self._database)) as connection, connection:
            connection.executescript(script)

    def sync(self, script: str) -> None:
        self.execute(script)
        with build_pipeline(load_config(self.file)) as pipeline:
            for _ in range(2):  # the copy, then what came after it
                result = pipeline.sync_once()
        assert all(table.error is None for table in result.tables.values())


def answer(shop: Shop, capsys: pytest.CaptureFixture[str], expected: int) -> dict[str, Any]:
    capsys.readouterr()
    code = verify(shop.file, as_json=True)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == expected, found
    assert set(found["tables"]) == set(TABLES)
    tables: dict[str, Any] = found["tables"]
    return tables


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_every_mode_is_compared_and_chosen_columns_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    shop = Shop(tmp_path, kind)
    shop.sync("CREATE TABLE items (id INTEGER PRIMARY KEY, a TEXT, b TEXT); INSERT INTO items VALUES (1,'a','b');")
    shop.sync(
        "INSERT INTO items VALUES (2, 'x', NULL), (3, 'y', 'z'); UPDATE items SET a = 'a2' WHERE id = 1;"
        "DELETE FROM items WHERE id = 3; UPDATE items SET b = 'b2' WHERE id = 1;"
    )
    for table in answer(shop, capsys, 0).values():
        assert (table["source_rows"], table["lake_rows"]) == (2, 2)
        assert (table["differences"], table["chosen"]) == ([], [])
    shop.execute("UPDATE items SET a = 'unseen' WHERE id = 2")
    for table in answer(shop, capsys, 1).values():
        assert table["differences"][0] == "1 row is only in the source, 1 only in the lake"
    shop.sync("ALTER TABLE items DROP COLUMN b; ALTER TABLE items ADD c TEXT; UPDATE items SET c = 'c' WHERE id = 1;")
    for table in answer(shop, capsys, 0).values():
        assert table["chosen"] == [
            "column c of the source is ignored",
            "column b is kept, and the source no longer feeds it",
        ]
    shop.execute("UPDATE items SET a = 'unseen too' WHERE id = 2")
    for table in answer(shop, capsys, 1).values():
        assert "unseen too" in str(table["differences"]), "the other columns are compared all the same"
    assert verify(shop.file) == 1
    said = capsys.readouterr()
    assert "main.items: column c of the source is ignored; not compared" in said.out
    assert f"Remedy: lakefeed repair {shop.file} main.items reads the differing rows again" in said.out
    assert "main.items_log: comparing" in said.err


@pytest.mark.parametrize("kind", [pytest.param("delta", marks=pytest.mark.slow), "iceberg"])
def test_columns_that_a_rule_leaves_out_are_in_no_lake_table_and_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    shop = Shop(tmp_path, kind)
    shop.file.write_text(shop.file.read_text() + '    - {match: items, columns: ["*", "!b"]}\n')
    shop.sync("CREATE TABLE items (id INTEGER PRIMARY KEY, b TEXT, a TEXT); INSERT INTO items VALUES (1, 'b', 'a');")
    shop.sync("INSERT INTO items VALUES (2, 'x', 'y'); UPDATE items SET b = 'c' WHERE id = 1;")
    for table in answer(shop, capsys, 0).values():
        assert table["source_rows"] == table["lake_rows"] == 2
        assert table["chosen"] == ["column b of the source is left out by its rule"]
    lake = build_lake(load_config(shop.file))
    for name in TABLES:
        stored = lake.rows(TableId.parse(name))
        assert stored is not None
        assert stored.schema.names[:2] == ["id", "a"]
        assert "b" not in stored.schema.names


def test_a_lake_table_that_is_gone_is_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = Shop(tmp_path, "delta")
    shop.sync("CREATE TABLE items (id INTEGER PRIMARY KEY, a TEXT)")
    place = tmp_path / "lake" / "main" / "items"
    place.rename(tmp_path / "elsewhere")
    assert answer(shop, capsys, 1)["main.items"]["differences"] == [f"there is no table at {place}"]

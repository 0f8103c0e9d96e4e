"""`lakefeed plan --sql`: what a migration of the source would mean for each lake table, tried on a scratch database."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakefeed.app import cli

SCHEMA = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, qty INTEGER);
CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE audit (id INTEGER PRIMARY KEY, what TEXT);
CREATE TABLE same (id INTEGER PRIMARY KEY);
INSERT INTO orders VALUES (1, 'a', 2);
"""
MIGRATION = """
ALTER TABLE orders ADD COLUMN note TEXT;
ALTER TABLE people ADD COLUMN kind TEXT DEFAULT 'k';
ALTER TABLE audit RENAME COLUMN what TO told;
CREATE TABLE new (id INTEGER PRIMARY KEY);
"""


@pytest.fixture
def planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.executescript(SCHEMA)
    before = (tmp_path / "shop.db").read_bytes()

    def run(migration: str, expected: int, **lake: Any) -> dict[str, dict[str, Any]]:
        config = {"pipeline": "shop", "source": {"kind": "sqlite", "path": "shop.db"}, "lake": {"path": "l", **lake}}
        (tmp_path / "shop.yaml").write_text(yaml.safe_dump(config))
        (tmp_path / "m.sql").write_text(migration)
        capsys.readouterr()
        code = cli.execute(["plan", str(tmp_path / "shop.yaml"), "--sql", str(tmp_path / "m.sql"), "--json"])
        output = capsys.readouterr()
        assert code == expected, output
        assert (tmp_path / "shop.db").read_bytes() == before
        assert not (tmp_path / "l").exists()
        found = json.loads(output.out)
        return {one["table"]: one for one in found["tables"]} if "tables" in found else {"": found}

    return run


def test_a_migration_is_tried_on_a_scratch_database_and_each_lake_table_says_what_it_costs(planned: Any) -> None:
    found = planned(MIGRATION, 0)
    assert {name: one["outcome"] for name, one in found.items()} == {
        "main.orders": "metadata", "main.people": "rewrite", "main.audit": "rewrite", "main.same": "nothing",
        "main.new": "copy",
    }  # fmt: skip
    assert found["main.orders"]["changes"] == ["column note (TEXT) is added"]
    assert found["main.audit"]["changes"] == ["column what is called told"]
    found = planned(MIGRATION, 0, format="iceberg")
    assert {name: one["outcome"] for name, one in found.items() if name != "main.new"} == {
        "main.orders": "metadata", "main.people": "metadata", "main.audit": "metadata", "main.same": "nothing",
    }  # fmt: skip


def test_what_the_policy_or_a_rule_does_not_allow_stops_its_table_and_a_dropped_table_is_left(planned: Any) -> None:
    found = planned(
        "ALTER TABLE orders ADD COLUMN note TEXT; ALTER TABLE people RENAME COLUMN name TO called; DROP TABLE audit;",
        1,
        evolution={"add_column": "stop"},
        tables=[{"match": "people", "mask": {"name": "redact"}}],
    )
    assert {name: one["outcome"] for name, one in found.items()} == {
        "main.orders": "stop", "main.people": "stop", "main.audit": "leave", "main.same": "nothing",
    }  # fmt: skip
    assert "its evolution says add_column: stop" in found["main.orders"]["reason"]
    assert "mask names the column name" in found["main.people"]["reason"]


def test_a_migration_that_fails_is_told(planned: Any) -> None:
    assert "m.sql fails on a database with the tables of the source" in str(planned("ALTER TABLE nope DROP x;", 2))

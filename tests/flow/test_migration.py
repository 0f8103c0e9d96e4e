"""`lakefeed plan --sql`: what a migration of the source would mean for each lake table, tried on a scratch database."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from tests.postgres.conftest import dsn, server, servers

from lakefeed.app import cli

__all__ = ["dsn", "server", "servers"]

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
    assert found["main.audit"]["changes"] == ["column what is renamed to told"]
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
    assert "masks or makes the column name, but the source has called" in found["main.people"]["reason"]


def test_a_migration_that_fails_is_told(planned: Any) -> None:
    assert "m.sql fails on a database with the tables of the source" in str(planned("ALTER TABLE nope DROP x;", 2))


OF_POSTGRES = """
CREATE SCHEMA shop;
CREATE TABLE shop.orders (id int PRIMARY KEY, item text, qty int);
CREATE TABLE shop.people (id int PRIMARY KEY, email text);
CREATE TABLE shop.audit (id int PRIMARY KEY, what text);
CREATE TABLE shop.same (id int PRIMARY KEY);
CREATE TABLE shop.gone (id int PRIMARY KEY);
INSERT INTO shop.orders VALUES (1, 'a', 2);
"""
MIGRATION_OF_POSTGRES = """
ALTER TABLE shop.orders ADD COLUMN note text;
ALTER TABLE shop.people RENAME COLUMN email TO mail;
ALTER TABLE shop.audit ADD COLUMN kind text DEFAULT 'k';
DROP TABLE shop.gone;
CREATE TABLE shop.new (id int PRIMARY KEY);
"""


@pytest.mark.timeout(300)
def test_a_migration_of_postgresql_is_tried_on_a_server_of_its_own(
    dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(OF_POSTGRES)
        lake = {"path": "l", "tables": [{"match": "shop.*", "mask": {"email": "redact"}}]}
        config = {"pipeline": "m", "source": {"kind": "postgres", "dsn": dsn, "tables": ["shop.*"]}, "lake": lake}
        (tmp_path / "shop.yaml").write_text(yaml.safe_dump(config))
        (tmp_path / "m.sql").write_text(MIGRATION_OF_POSTGRES)
        capsys.readouterr()
        code = cli.execute(["plan", str(tmp_path / "shop.yaml"), "--sql", str(tmp_path / "m.sql"), "--json"])
        output = capsys.readouterr()
        assert code == 1, output
        found = {one["table"]: one for one in json.loads(output.out)["tables"]}
        assert {name: one["outcome"] for name, one in found.items()} == {
            "shop.orders": "metadata", "shop.people": "stop", "shop.audit": "rewrite", "shop.same": "nothing",
            "shop.gone": "leave", "shop.new": "copy",
        }  # fmt: skip
        assert "masks or makes the column email, but the source has mail instead" in found["shop.people"]["reason"]
        assert found["shop.orders"]["changes"] == ["column note (text) is added"]
        left = connection.execute("SELECT count(*) FROM shop.orders").fetchone()
        slots = connection.execute("SELECT count(*) FROM pg_replication_slots").fetchone()
        assert (left, slots) == ((1,), (0,))
    assert not (tmp_path / "l").exists()

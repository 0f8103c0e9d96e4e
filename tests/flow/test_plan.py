"""`lakefeed plan`: what a start would do, for every source, and nothing is changed by asking."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres.conftest import dsn, server, servers

from lakefeed.app import cli
from lakefeed.flow.pipeline import Pipeline
from lakefeed.flow.plan.start import Action, Plan, PlannedTable

__all__ = ["dsn", "server", "servers"]

SQLITE = """
pipeline: p
source: {{kind: sqlite, path: shop.db, tables: ["*", "!audit"]{more}}}
lake:
  path: ./lake
  tables:
    - {{match: people, columns: ["!tax"], types: {{age: string}}}}
    - {{match: orders, mode: temporal}}
"""


def image(directory: Path) -> dict[str, str]:
    """Every file below a directory, byte by byte."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.executescript(
            "CREATE TABLE people (id INTEGER PRIMARY KEY, tax TEXT, age INTEGER, updated_at TEXT);"
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL, updated_at TEXT);"
            "CREATE TABLE audit (id INTEGER);"
            "INSERT INTO people VALUES (1, 'x', 41, '2026-01-01 00:00:00'), (2, 'y', 42, '2026-01-01 00:00:00')"
        )
    file = tmp_path / "p.yaml"
    file.write_text(SQLITE.format(more=""))
    return file


def planned(file: Path) -> Plan:
    with Pipeline.from_yaml(file) as pipeline:
        return pipeline.plan()


def by_name(plan: Plan) -> dict[str, PlannedTable]:
    return {str(one.table): one for one in plan.tables}


@pytest.mark.parametrize("capture", ["trigger", "poll"])
def test_a_plan_shows_tables_columns_types_and_rules_and_changes_no_byte(shop: Path, capture: str) -> None:
    shop.write_text(SQLITE.format(more=f", capture: {capture}"))
    before = image(shop.parent)
    plan = planned(shop)
    assert image(shop.parent) == before
    tables = by_name(plan)
    assert tables.keys() == {"main.people", "main.orders"}
    people = tables["main.people"]
    assert (people.action, people.reason, people.rows, people.rules) == ("copy", "new in the pipeline", 2, ("people",))
    assert [(one.name, one.source_type, one.lake_type, one.note) for one in people.columns] == [
        ("id", "INTEGER", "bigint", ""),
        ("tax", "TEXT", None, "left out"),
        ("age", "INTEGER", "string" if capture == "poll" else people.columns[2].lake_type, ""),
        ("updated_at", "TEXT", "string", ""),
    ]
    assert tables["main.orders"].mode == "temporal"
    assert not plan.is_refused


def test_a_plan_says_what_a_changed_configuration_would_rebuild(shop: Path) -> None:
    with Pipeline.from_yaml(shop) as pipeline:
        assert not pipeline.sync_once().errors
    before = image(shop.parent)
    assert {one.action for one in planned(shop).tables} == {Action.FOLLOW}
    shop.write_text(shop.read_text().replace('"!tax"', '"!age"').replace(", types: {age: string}", ""))
    shop.write_text(shop.read_text().replace("temporal", "append").replace("path: shop.db", "path: ./shop.db"))
    tables = by_name(planned(shop))
    people, orders = tables["main.people"], tables["main.orders"]
    assert (people.action, people.reason) == ("stop", "the rule now leaves out age; the rule now takes tax")
    assert people.remedy.endswith(f"lakefeed rebuild {shop} main.people --from-source")
    assert orders.action == "stop"
    assert "it was made as temporal of main.orders; the configuration now says append" in orders.reason
    shop.write_text(shop.read_text().replace('"!audit"', '"!orders"').replace("match: orders", "match: audit"))
    left = by_name(planned(shop))
    assert left["main.orders"].action == "leave"
    assert left["main.audit"].action == "copy"
    after = image(shop.parent)
    assert {name: after[name] for name in before if name != "p.yaml"} == {
        name: digest for name, digest in before.items() if name != "p.yaml"
    }


def test_the_command_prints_a_table_for_people_and_json_for_machines(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(["plan", str(shop)]) == 0
    text = capsys.readouterr().out
    assert "Nothing was changed." in text
    assert "main.people, of main.people: key (id); rules: people" in text
    assert "left out" in text
    assert cli.execute(["plan", str(shop), "--tables", "ordres"]) == 2
    assert "no lake table matches 'ordres'" in capsys.readouterr().err
    assert cli.execute(["plan", str(shop), "--json", "--tables", "ord*"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert (table["table"], table["action"], table["columns"][1]["lake_type"]) == ("main.orders", "copy", "double")
    shop.write_text(shop.read_text().replace("match: orders", "match: ordres"))
    assert cli.execute(["plan", str(shop)]) == 1
    assert "the rule for ordres in lake.tables matches no table" in capsys.readouterr().out


def test_a_plan_of_postgresql_makes_no_slot_and_no_publication(dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    config = 'pipeline: p\nsource: {{kind: postgres, dsn: "{dsn}"{more}}}\nlake: {{path: ./lake, out_of_range: null}}\n'
    query = "SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()), (SELECT count(*)"
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute(
            "CREATE TABLE t (id int PRIMARY KEY, tags text[], valid_to timestamptz, updated_at timestamptz);"
            "INSERT INTO t SELECT i FROM generate_series(1, 1000) i; CREATE TABLE keyless (id int);"
            "CREATE TABLE parts (id int PRIMARY KEY, updated_at timestamptz) PARTITION BY RANGE (id);"
            "CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (0) TO (100);"
            "INSERT INTO parts SELECT i FROM generate_series(1, 50) i; ANALYZE"
        )
        for more in ("", ", capture: poll"):
            file.write_text(config.format(dsn=dsn, more=more))  # YAML's own null is the rule of that name
            tables = by_name(planned(file))
            assert tables.keys() == {"public.t", "public.parts"}
            table = tables["public.t"]
            assert (table.rows, tables["public.parts"].rows) == (1000, 50)
            assert table.bytes is not None
            assert table.bytes > 0
            columns = [(one.lake_type, one.note) for one in table.columns[:3]]
            ruled = "out of range: null"
            assert columns == [("int", ""), ("array<string>", ruled), ("timestamp", ruled)]
            counts: Any = writer.execute(f"{query} FROM pg_publication)".encode()).fetchone()
            assert counts == (0, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["p.yaml"]


RULED = """
pipeline: p
source: {kind: sqlite, path: shop.db, tables: [people]}
lake:
  path: ./lake
  salt: a long secret text
  tables:
    - match: people
      where: age > 40
      mask: {tax: hash}
      rename: {updated_at: changed}
      transform: {decade: "age div 10", age: "age + 0"}
    - {match: main.people, mask: {id: tokenize}, sensitive: true}
"""


def test_a_plan_shows_masks_names_and_expressions(shop: Path) -> None:
    shop.write_text(RULED)
    (people,) = planned(shop).tables
    assert people.rules == ("people", "main.people")
    assert "where age > 40" in people.made_by
    assert [(one.name, one.lake_name, one.lake_type, one.note) for one in people.columns] == [
        ("id", "id", "string", "mask before the journal: tokenize"),
        ("tax", "tax", "string", "mask: hash"),
        ("age", "age", "expression", "by expression"),
        ("updated_at", "changed", "string", ""),
        ("decade", "decade", "expression", "new, by expression"),
    ]


def test_a_changed_rule_for_rows_is_planned_as_a_rebuild(shop: Path) -> None:
    """A renamed column is written by no Spark."""
    config = RULED[: RULED.index("      where")] + "      rename: {updated_at: changed}\n"
    shop.write_text(config)
    with Pipeline.from_yaml(shop) as pipeline:
        assert not pipeline.sync_once().errors
    assert [one.action for one in planned(shop).tables] == [Action.FOLLOW]
    shop.write_text(config.replace("changed", "seen"))
    (people,) = planned(shop).tables
    assert people.action == "stop"
    assert "its rule has changed since it was copied" in people.reason
    assert people.remedy.endswith(f"lakefeed rebuild {shop} main.people --from-source")

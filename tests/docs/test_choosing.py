"""The examples of docs/choosing.md and docs/types.md, as they stand there."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import yaml
from deltalake import DeltaTable
from tests.postgres.conftest import dsn, server, servers

from lakefeed import Pipeline
from lakefeed.app import cli
from lakefeed.app.build import build_pipeline
from lakefeed.app.config import load_config
from lakefeed.capture.base import Level
from lakefeed.lake.reader import read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["dsn", "server", "servers"]

DOCS = Path(__file__).resolve().parents[2] / "docs"


def examples(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def test_the_plan_that_the_page_shows_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (shown,) = examples("choosing.md", "text")
    command, _, output = shown.partition("\n")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.executescript(
            "CREATE TABLE people (id INTEGER PRIMARY KEY, tax TEXT);"
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL);"
            "INSERT INTO people VALUES (1, 'x'), (2, 'y'); INSERT INTO orders VALUES (1, 9.5), (2, 8.0)"
        )
    lake: dict[str, Any] = {"path": "./lake", "tables": [{"match": "people", "columns": ["!tax"]}]}
    config = {"pipeline": "shop", "source": {"kind": "sqlite", "path": "shop.db"}, "lake": lake}
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    assert cli.execute(command.removeprefix("$ lakefeed ").split()) == 0
    assert capsys.readouterr().out.strip() == output.strip()


@pytest.mark.parametrize("page", ["types.md", "choosing.md"])
def test_the_rules_that_a_page_shows_work(page: str, dsn: str, tmp_path: Path) -> None:
    (example,) = [one for one in map(yaml.safe_load, examples(page, "yaml")) if "bookings" in str(one)]
    config = {"pipeline": "p", "source": {"kind": "postgres", "dsn": dsn}, **example}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(config))
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute(
            "CREATE TABLE bookings (id int PRIMARY KEY, tags text[], amount numeric, opens time, valid_to timestamptz,"
            " day_note date)"
        )
        writer.execute("INSERT INTO bookings VALUES (1, '{a,b}', 12.5, '08:00', 'infinity', '2026-01-01')")
    with Pipeline.from_yaml(tmp_path / "p.yaml") as pipeline:  # one chunk: no Spark
        assert not pipeline.sync_once().errors
    (row,) = DeltaTable(str(tmp_path / "lake" / "public" / "bookings")).to_pyarrow_table().to_pylist()
    assert row["tags"] == "{a,b}"
    assert row["valid_to"] == datetime.max.replace(tzinfo=UTC)
    if page == "types.md":
        assert (row["amount"], row["opens"], row["day_note"]) == (Decimal("12.5000"), 28_800_000_000, "2026-01-01")


@pytest.mark.spark
def test_the_example_runs(spark: SparkSession, tmp_path: Path) -> None:
    (example,) = [one for one in examples("choosing.md", "yaml") if "people.db" in one]
    (tmp_path / "people.yaml").write_text(example)
    with closing(sqlite3.connect(tmp_path / "people.db")) as database:
        database.executescript(
            "CREATE TABLE people (id INTEGER PRIMARY KEY, first TEXT, last TEXT, email TEXT, phone TEXT, country TEXT,"
            ' tax_number TEXT, "Order ID" INTEGER);'
            "INSERT INTO people VALUES (1, 'Ann', 'Ohm', 'ann@example.org', '030-123456', 'DE', '47-11', 7),"
            " (2, 'Bo', 'Po', 'b', '1', 'FR', '47-12', 8);"
            "CREATE TABLE accounts (iban TEXT PRIMARY KEY, cents INTEGER); INSERT INTO accounts VALUES ('DE44', 1);"
            'CREATE TABLE orders (id INTEGER PRIMARY KEY, "CustomerID" INTEGER, created_at TIMESTAMP);'
            "INSERT INTO orders VALUES (1, 1, '2026-01-02 03:04:05'); CREATE TABLE audit_x (id INTEGER PRIMARY KEY);"
        )
        database.commit()
    config = load_config(tmp_path / "people.yaml", {"LAKEFEED_SALT": "a long secret"})
    with build_pipeline(config, spark=spark) as pipeline:
        assert not [one for one in pipeline.check() if one.level is Level.ERROR]
        assert not pipeline.sync_once().errors
    lake = tmp_path / "lake" / "main"
    assert sorted(path.name for path in lake.iterdir()) == ["accounts", "orders", "people"]
    people = read_table(lake / "people")
    assert people is not None
    (ann,) = people.to_pylist()
    assert {**ann, "email": len(ann["email"])} == {
        "id": 1, "first": "Ann", "last": "Ohm", "email": 64, "phone": "030***", "country": "DE", "order_id": 7,
        "full_name": "Ann Ohm",
    }  # fmt: skip
    orders = DeltaTable(lake / "orders")
    assert orders.metadata().partition_columns == ["created_at_day"]
    assert [field.name for field in orders.schema().fields][:2] == ["id", "customer_id"]
    assert not [path for path in (tmp_path / "lake").rglob("*") if path.is_file() and b"DE44" in path.read_bytes()]

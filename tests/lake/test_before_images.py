"""Before images, from the configuration file to the tables of every mode beside each other."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from tests.lake.iceberg_reader import read_iceberg

from lakefeed.app.build import build_pipeline
from lakefeed.app.cli import execute
from lakefeed.app.config import load_config
from lakefeed.change.segment import Counts
from lakefeed.change.table import TableId
from lakefeed.reading.source import register_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CONFIG = """
pipeline: shop
source:
  kind: sqlite
  path: shop.db
  before_images: true
lake:
  path: ./lake
  format: {kind}
  tables:
    - {{match: goods, mode: append, name: "{{table}}_log"}}
    - {{match: goods, mode: temporal, name: "{{table}}_history"}}
"""
CHANGES = (
    "INSERT INTO goods VALUES (4, 'bed', 4)",
    "UPDATE goods SET price = price + 1 WHERE id < 3",
    "UPDATE goods SET id = 30 WHERE id = 3",
    "DELETE FROM goods WHERE id = 1",
)
LOG = [
    ("insert", 4, "bed", 4),
    ("before", 1, "lamp", 1), ("update", 1, "lamp", 2), ("before", 2, "chair", 2), ("update", 2, "chair", 3),
    ("before", 3, "sofa", 3), ("delete", 3, None, None), ("insert", 30, "sofa", 3),
    ("before", 1, "lamp", 2), ("delete", 1, None, None),
]  # fmt: skip


def write(place: Path, *statements: str) -> None:
    with closing(sqlite3.connect(place / "shop.db")) as database, database:
        for statement in statements:
            database.execute(statement)


def read(place: Path, kind: str, name: str) -> list[dict[str, Any]]:
    location = str(place / "lake" / "main" / name)
    rows: list[dict[str, Any]] = (
        DeltaTable(location).to_pyarrow_table().to_pylist() if kind == "delta" else read_iceberg(location)
    )
    return rows


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_a_change_log_shows_rows_as_they_were_and_the_tables_beside_it_do_not_care(
    spark: SparkSession, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop.yaml").write_text(CONFIG.format(kind=kind))
    write(tmp_path, "CREATE TABLE goods (id INTEGER PRIMARY KEY, name TEXT, price INT)")
    write(tmp_path, "INSERT INTO goods VALUES (1, 'lamp', 1), (2, 'chair', 2), (3, 'sofa', 3)")
    with build_pipeline(load_config(tmp_path / "shop.yaml")) as pipeline:
        pipeline.sync_once()
        write(tmp_path, *CHANGES)
        result = pipeline.sync_once()
    expected = Counts(inserted=2, updated=2, deleted=2)
    assert {table: one.counts for table, one in result.tables.items()} == {
        TableId("main", name): expected for name in ("goods", "goods_log", "goods_history")
    }

    log = sorted(read(tmp_path, kind, "goods_log"), key=lambda row: int(row["_lakefeed_seq"]))
    told = [(row["_lakefeed_operation"], row["id"], row["name"], row["price"]) for row in log]
    assert sorted(told[:3]) == [("read", 1, "lamp", 1), ("read", 2, "chair", 2), ("read", 3, "sofa", 3)]
    assert told[3:] == LOG

    now = {(2, "chair", 3), (4, "bed", 4), (30, "sofa", 3)}
    assert {tuple(row.values()) for row in read(tmp_path, kind, "goods")} == now
    versions = read(tmp_path, kind, "goods_history")
    assert {(row["id"], row["name"], row["price"]) for row in versions if row["is_current"]} == now
    assert sorted((row["id"], row["price"]) for row in versions) == [
        (1, 1),
        (1, 2),
        (2, 2),
        (2, 3),
        (3, 3),
        (4, 4),
        (30, 3),
    ]

    register_source(spark)
    changes = spark.read.format("lakefeed").options(path=str(tmp_path / "lake"), pipeline="shop", table="main.goods")
    found = changes.load().orderBy("_lakefeed_seq").collect()
    assert [(row["_lakefeed_op"], row["id"], row["name"], row["price"]) for row in found] == LOG

    assert execute(["journal", str(tmp_path / "shop.yaml"), "--json"]) == 0
    assert sum(one["rows"] for one in json.loads(capsys.readouterr().out)["change_sets"]) == expected.total


def test_a_table_made_again_from_the_journal_passes_them_over(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(CONFIG.format(kind="delta"))
    write(tmp_path, "CREATE TABLE goods (id INTEGER PRIMARY KEY, name TEXT, price INT)")
    write(tmp_path, "INSERT INTO goods VALUES (1, 'lamp', 1), (2, 'chair', 2), (3, 'sofa', 3)")
    config = load_config(tmp_path / "shop.yaml")
    with build_pipeline(config) as pipeline:
        pipeline.sync_once()
        write(tmp_path, *CHANGES)
        pipeline.sync_once()
    before = read(tmp_path, "delta", "goods_history")
    assert execute(["rebuild", str(tmp_path / "shop.yaml"), "main.goods_history"]) == 0
    with build_pipeline(config) as pipeline:
        assert not pipeline.sync_once().errors
    told = [
        {(row["id"], row["price"], row["is_current"]) for row in rows}
        for rows in (before, read(tmp_path, "delta", "goods_history"))
    ]
    assert told[0] == told[1]

"""Conditions, masks, expressions and names of a rule, end to end: SQLite into Delta and Iceberg, in every mode, and
what independent readers then see."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lakefeed import current
from lakefeed.app.build import build_lake, build_pipeline, build_verification
from lakefeed.app.config import Config, load_config
from lakefeed.capture.base import Level
from lakefeed.change.mask import MASKS, masked
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, LakeError
from lakefeed.lake.reader import read_table
from lakefeed.lake.rule.expression import mask_sql
from lakefeed.verify.compare import Comparison

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SALT = "a long secret text"
CONFIG = """
pipeline: p
source:
  kind: sqlite
  path: s.db
lake:
  path: ./lake
  format: {format}
  salt: "${{SALT}}"
  tables:
    - match: people
      where: country = 'DE'
      mask: {{email: hash, phone: partial}}
      transform: {{full_name: "concat(first, ' ', last)", last: upper(last)}}
      rename: {{"Order ID": order_id}}
    - {{match: people, name: kept, options: {{soft_delete: deleted_at}}}}
    - {{match: people, name: versions, mode: temporal}}
    - {{match: people, name: changes, mode: append}}
"""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    connection.executescript(
        "CREATE TABLE people (id INTEGER PRIMARY KEY, first TEXT, last TEXT, email TEXT, phone TEXT,"
        ' "Order ID" INTEGER, country TEXT);'
        "INSERT INTO people VALUES (1, 'Ann', 'Ohm', 'ann@x.de', '030-123456', 7, 'DE'),"
        " (2, 'Bo', 'Po', NULL, '1', 8, 'DE'), (3, 'Cy', 'Zen', 'cy@x.fr', '2', 9, 'FR');"
    )
    yield connection
    connection.close()


def config_of(path: Path, text: str) -> Config:
    (path / "p.yaml").write_text(text)
    return load_config(path / "p.yaml", {"SALT": SALT})


def verified(config: Config, spark: SparkSession) -> dict[str, Comparison]:
    """What `lakefeed verify` finds, by lake table."""
    verification = replace(build_verification(config, "sync"), lake=build_lake(config, spark))
    return {str(one.table): one for _, one in verification.run(lambda _table: lambda _side, _rows: None).tables}


def stored(path: Path, name: str) -> list[dict[str, Any]]:
    table = read_table(path / "lake" / "main" / name)
    assert table is not None
    return sorted(table.to_pylist(), key=lambda row: (row.get("_lakefeed_seq") or 0, row["id"]))


def hashed(text: str) -> str:
    return hashlib.sha256((SALT + text).encode()).hexdigest()


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_t25_rows_come_and_go_by_the_condition_and_values_are_what_the_rule_says_in_every_mode(
    kind: str, spark: SparkSession, tmp_path: Path, database: sqlite3.Connection
) -> None:
    config = config_of(tmp_path, CONFIG.format(format=kind))
    lake = build_lake(config, spark)
    with build_pipeline(config, spark=spark) as pipeline:
        assert not pipeline.sync_once().errors
        assert [row["id"] for row in stored(tmp_path, "people")] == [1, 2]
        database.executescript(
            "UPDATE people SET country = 'FR' WHERE id = 1; UPDATE people SET country = 'DE' WHERE id = 3;"
            "UPDATE people SET phone = '040-7654321', last = 'Poe' WHERE id = 2;"
            "UPDATE people SET last = 'x' WHERE id = 1;"
            "INSERT INTO people VALUES (4, 'Di', 'Ra', 'di@x.de', NULL, 1, 'DE'), (5, 'Ed', 'Ra', 'e', '3', 2, 'IT');"
        )
        assert not pipeline.sync_once().errors
        status = pipeline.status()
    rows = {row["id"]: row for row in stored(tmp_path, "people")}
    assert sorted(rows) == [2, 3, 4]
    assert rows[2] == {
        "id": 2, "first": "Bo", "last": "POE", "email": None, "phone": "040***", "order_id": 8, "country": "DE",
        "full_name": "Bo Poe",
    }  # fmt: skip
    assert rows[3]["email"] == hashed("cy@x.fr")
    assert rows[3]["phone"] == "***"
    kept = {row["id"]: row for row in stored(tmp_path, "kept")}
    assert sorted(kept) == [1, 2, 3, 4]
    assert kept[1]["deleted_at"] is not None
    assert kept[1]["last"] == "OHM"  # as it was when it left
    versions = [(row["id"], row["last"], row["is_current"]) for row in stored(tmp_path, "versions")]
    assert sorted(versions) == [
        (1, "OHM", False), (2, "PO", False), (2, "POE", True), (3, "ZEN", True), (4, "RA", True),
    ]  # fmt: skip
    changes = [(row["id"], row["_lakefeed_operation"], row["full_name"]) for row in stored(tmp_path, "changes")]
    assert changes == [
        (1, "read", "Ann Ohm"), (2, "read", "Bo Po"), (1, "delete", None), (3, "update", "Cy Zen"),
        (2, "update", "Bo Poe"), (1, "delete", None), (4, "insert", "Di Ra"),
    ]  # fmt: skip
    touched = status.tables[TableId("main", "people")].rules
    assert touched["mask email"] == 2 + 6 - 1  # of the copy, of the changes; one is NULL
    assert touched["where: rows left out"] == 1 + 3

    found = verified(config, spark)
    assert {name: one.differences for name, one in found.items()} == dict.fromkeys(found, ())
    assert [found[f"main.{name}"].lake_rows for name in ("people", "kept", "versions", "changes")] == [3, 3, 3, 3]
    database.execute("UPDATE people SET phone = '040-7999999' WHERE id = 2")
    assert verified(config, spark)["main.people"].equal  # the mask hides it
    database.execute("UPDATE people SET email = 'bo@x.de' WHERE id = 2")
    assert not verified(config, spark)["main.people"].equal
    with build_pipeline(config, spark=spark) as pipeline:  # in the journal, and not in the lake
        pipeline.sync_once(tables=["kept"])
    assert stored(tmp_path, "people")[0]["email"] is None
    fresh = {row["id"]: row["email"] for row in current(spark, lake, "main.people").collect()}
    assert fresh[2] == hashed("bo@x.de")
    with pytest.raises(LakeError, match="a rule with a secret in it"):
        current(spark, tmp_path / "lake", "main.people")


def test_masks_give_the_same_in_arrow_and_in_spark(spark: SparkSession) -> None:
    texts = [None, "", "a", "sechs6", "sieben7", "Grüße aus Köln", "日本語のテキスト", 'O\'Neil \\ "x"', " padded "]
    columns: dict[str, Any] = {
        "text": pa.array(texts),
        "number": pa.array([None, 0, -1, 2**63 - 1, *range(5)], pa.int64()),
        "flag": pa.array([None, True, False] * 3),
        "day": pa.array([None, date(1, 1, 1), date(2024, 2, 29), *[date(9999, 12, 31)] * 6]),
    }
    rows = spark.createDataFrame(pa.table(columns))
    salt = "s'al\\t ü"
    for name, values in columns.items():
        for mask in MASKS:
            sql = mask_sql(name, values.type, mask, salt)
            found = rows.selectExpr(f"{sql} AS v").toArrow().column("v").to_pylist()
            assert found == masked(values, mask, salt).to_pylist(), (name, mask)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("where: contry = 'DE'", "does not fit the table's columns"),
        ("where: country = ", "does not parse"),
        ("where: rand() > 0.5", "gives another value each time"),
        ("where: current_timestamp() > timestamp'2020-01-01'", "depends on more than the row"),
        ("where: count(*) > 1", "is not about one row|does not fit"),
        ("where: country", "and not a condition"),
        ("transform: {id: id + 1}", "the column is part of the key"),
        ("mask: {id: redact}", "gives different keys one value"),
        ("mask: {emial: hash}", "names the column emial"),
        ("rename: {first: last}", "gives two columns the name"),
        ("transform: {x: 'map(1, 2)'}", "CAST it"),
    ],
)
def test_what_does_not_fit_is_found_by_check(
    rule: str, problem: str, spark: SparkSession, tmp_path: Path, database: sqlite3.Connection
) -> None:
    assert database
    start = CONFIG[: CONFIG.index("      where")].format(format="delta")
    config = config_of(tmp_path, f"{start}      {rule}\n")
    found = build_pipeline(config, spark=spark).check()
    assert re.search(problem, " ".join(one.problem for one in found if one.level is Level.ERROR)), found


def test_a_rule_that_cannot_be_stops_its_table_alone_and_one_that_was_changed_says_how_to_go_on(
    spark: SparkSession, tmp_path: Path, database: sqlite3.Connection
) -> None:
    database.executescript("CREATE TABLE other (id INTEGER PRIMARY KEY, n TEXT); INSERT INTO other VALUES (7, 'x');")
    text = CONFIG[: CONFIG.index("      mask")].format(format="delta")
    with build_pipeline(config_of(tmp_path, text.replace("country = 'DE'", "nope")), spark=spark) as pipeline:
        assert "does not fit" in (pipeline.sync_once().tables[TableId("main", "people")].error or "")
    assert stored(tmp_path, "other") == [{"id": 7, "n": "x"}]
    with build_pipeline(config_of(tmp_path, text), spark=spark) as pipeline:
        assert not pipeline.sync_once().errors
        assert [row["id"] for row in stored(tmp_path, "people")] == [1, 2]
    database.execute("UPDATE people SET first = 'x'")
    changed = config_of(tmp_path, text.replace("'DE'", "'FR'"))
    told = build_pipeline(changed, spark=spark).check()
    assert any("its rule has changed since it was copied" in one.problem for one in told if one.level is Level.ERROR)
    planned = {str(one.table): one for one in build_pipeline(changed, spark=spark).plan().tables}["main.people"]
    assert (planned.action, "its rule has changed" in planned.reason) == ("stop", True)
    with build_pipeline(changed, spark=spark) as pipeline:
        error = pipeline.sync_once().tables[TableId("main", "people")]
        assert "its rule has changed since it was copied, from 'where country = 'DE''" in (error.error or "")
        assert "lakefeed rebuild FILE main.people --from-source" in (error.remedy or "")
        pipeline.rebuild("main.people", from_source=True)
        assert not pipeline.sync_once().errors
    assert [row["id"] for row in stored(tmp_path, "people")] == [3]
    unused = config_of(tmp_path, text.replace("match: people", "match: persons"))
    with build_pipeline(unused, spark=spark) as pipeline, pytest.raises(ConfigError, match="matches no table"):
        pipeline.sync_once()


def test_a_row_that_an_expression_fails_on_stops_its_table_with_a_remedy(
    spark: SparkSession, tmp_path: Path, database: sqlite3.Connection
) -> None:
    start = CONFIG[: CONFIG.index("      where")].format(format="delta")
    config = config_of(tmp_path, f"{start}      transform: {{share: '100 div `Order ID`'}}\n")
    with build_pipeline(config, spark=spark) as pipeline:
        assert not pipeline.sync_once().errors
        database.execute('UPDATE people SET "Order ID" = 0 WHERE id = 1')
        failed = pipeline.sync_once().tables[TableId("main", "people")]
    assert "an expression of its rule fails on a row" in (failed.error or "")
    assert "try_divide" in (failed.remedy or "")
    assert {row["share"] for row in stored(tmp_path, "people")} == {14, 12, 11}

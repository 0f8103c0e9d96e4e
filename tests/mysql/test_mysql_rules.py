"""Rules on a MySQL table by log: rows come and go by the condition, values are masked, names are the lake's."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lakefeed import Delta, Pipeline
from lakefeed.capture.mysql.source import Mysql
from lakefeed.lake.reader import read_table
from lakefeed.lake.route import Rule
from lakefeed.lake.rule.rows import RowOptions
from lakefeed.testing.server.mysql import MysqlServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_rows_come_and_go_by_the_condition_and_values_are_what_the_rule_says(
    server: MysqlServer, database: str, spark: SparkSession, tmp_path: Path
) -> None:
    rows = RowOptions(
        where="`Country Code` = 'DE'",
        mask={"email": "hash"},
        transform={"size": "length(note)"},
        naming="snake_case",
    )
    lake = Delta(spark, tmp_path, rules=[Rule("people", rows=rows)], salt="pepper")
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE {database}.people (id int PRIMARY KEY, email varchar(99),"
            " `Country Code` char(2) COMMENT 'It''s ISO 3166', note text) COMMENT 'Who they are'"
        )
        cursor.execute(f"INSERT INTO {database}.people VALUES (1, 'a@x', 'DE', 'n'), (2, 'b@x', 'FR', 'nn')")
        connection.commit()
        with Pipeline(Mysql(server.dsn, kind=server.flavour, tables=[f"{database}.*"]), lake, name="p") as pipeline:
            assert not pipeline.sync_once().errors
            cursor.execute(f"UPDATE {database}.people SET `Country Code` = 'FR' WHERE id = 1")
            cursor.execute(f"UPDATE {database}.people SET `Country Code` = 'DE' WHERE id = 2")
            connection.commit()
            assert not pipeline.sync_once().errors
    found = read_table(tmp_path / database / "people")
    assert found is not None
    hashed = hashlib.sha256(b"pepperb@x").hexdigest()
    assert found.to_pylist() == [{"id": 2, "email": hashed, "country_code": "DE", "note": "nn", "size": 2}]
    table = DeltaTable(tmp_path / database / "people")
    said = {one.name: one.metadata.get("comment") for one in table.schema().fields}
    assert (table.metadata().description, said["country_code"]) == ("Who they are", "It's ISO 3166")

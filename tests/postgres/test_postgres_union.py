"""Schemas of tenants in one lake table, by log: a truncate of one tenant, and changes of both."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from lakefeed import Delta, Iceberg, Pipeline, current
from lakefeed.capture.postgres.source import Postgres
from lakefeed.lake.mode import Mirror, Mode, Temporal
from lakefeed.lake.reader import read_table
from lakefeed.lake.route import Origin, Rule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def stored(path: Path, name: str) -> list[dict[str, Any]]:
    table = read_table(path / "lake" / "public" / name)
    assert table is not None
    return table.to_pylist()


@pytest.mark.parametrize(
    ("make", "mode"), [pytest.param(Delta, Mirror(), marks=pytest.mark.slow), (Iceberg, Temporal())]
)
def test_a_tenant_is_truncated_and_the_others_keep_their_rows(
    make: Any, mode: Mode, dsn: str, spark: SparkSession, tmp_path: Path
) -> None:
    union = Origin("tenant", "{schema}")
    rules = [Rule("sales", mode, "sales", namespace="public", only=True, union=union)]
    with psycopg.connect(dsn, autocommit=True) as writer:
        for tenant in ("one", "two"):
            writer.execute(
                f"CREATE SCHEMA {tenant}; CREATE TABLE {tenant}.sales (id int PRIMARY KEY, item text);"
                f"INSERT INTO {tenant}.sales VALUES (1, '{tenant} 1'), (2, '{tenant} 2')"
            )
        lake = make(spark, tmp_path / "lake", rules=rules)
        with Pipeline(Postgres(dsn, tables=["one.*", "two.*"]), lake, name="p") as pipeline:
            assert not pipeline.sync_once().errors
            writer.execute("TRUNCATE one.sales; INSERT INTO one.sales VALUES (2, 'new')")
            writer.execute("UPDATE two.sales SET item = 'TWO 1' WHERE id = 1")
            assert not pipeline.sync_once().errors
            rows = stored(tmp_path, "sales")
            now = {(row["tenant"], row["id"], row["item"]) for row in rows if row.get("is_current", True)}
            assert now == {("one", 2, "new"), ("two", 1, "TWO 1"), ("two", 2, "two 2")}
            assert len(rows) == (3 if mode == Mirror() else 3 + 3)  # closed: two of one tenant, one of the other
            writer.execute("DELETE FROM two.sales WHERE id = 2")
            pipeline.sync_once(tables=["public.sales@one"])
            fresh = current(spark, lake, "public.sales").where("is_current" if mode != Mirror() else "true").collect()
            assert {(row["tenant"], row["id"]) for row in fresh} == {("one", 2), ("two", 1)}

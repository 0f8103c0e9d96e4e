"""What the source says of tables and columns is what readers of the lake find there, also after it was changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from deltalake import DeltaTable

from lakefeed import Delta, Iceberg, Pipeline
from lakefeed.capture.postgres.source import Postgres
from lakefeed.lake.iceberg.catalog import HadoopMetadata
from lakefeed.lake.layout import Layout
from lakefeed.lake.route import Rule
from lakefeed.lake.rule.rows import RowOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def said(make: Any, place: Path) -> tuple[str | None, dict[str, str]]:
    """By a reader that is not Spark: of the table, and of its columns."""
    if make is Delta:
        table = DeltaTable(place)
        found = {one.name: one.metadata.get("comment") for one in table.schema().fields}
        return table.metadata().description, {name: str(text) for name, text in found.items() if text}
    iceberg = HadoopMetadata(str(place)).table()
    return iceberg.properties.get("comment"), {one.name: one.doc for one in iceberg.schema().fields if one.doc}


@pytest.mark.parametrize("make", [Delta, Iceberg])
def test_comments_are_carried_over_and_follow_the_source_at_the_next_copy(
    make: Any, dsn: str, spark: SparkSession, tmp_path: Path
) -> None:
    rules = [
        Rule("goods", rows=RowOptions(rename={"name": "called"})),
        Rule("parts", layout=Layout(partition_by=("kind",))),
    ]
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute(
            "CREATE TABLE goods (id int PRIMARY KEY, name text); COMMENT ON TABLE goods IS 'What we sell; it''s all';"
            "COMMENT ON COLUMN goods.name IS 'As on the \"label\"'; INSERT INTO goods VALUES (1, 'a');"
            "CREATE TABLE parts (id int PRIMARY KEY, kind text); COMMENT ON TABLE parts IS 'parts';"
            "COMMENT ON COLUMN parts.kind IS 'it''s a kind'; INSERT INTO parts VALUES (1, 'k')"
        )
        lake = make(spark, tmp_path / "lake", rules=rules)
        with Pipeline(Postgres(dsn, tables=["public.*"]), lake, name="p") as pipeline:
            assert not pipeline.sync_once().errors
        public = tmp_path / "lake" / "public"
        assert said(make, public / "goods") == ("What we sell; it's all", {"called": 'As on the "label"'})
        assert said(make, public / "parts") == ("parts", {"kind": "it's a kind"})
        writer.execute(
            "COMMENT ON TABLE goods IS 'new'; COMMENT ON COLUMN goods.name IS 'newer';"
            "COMMENT ON TABLE parts IS 'newest'"
        )
        pipeline = Pipeline(Postgres(dsn, tables=["public.*"]), lake, name="p")
        pipeline.rebuild("public.goods", from_source=True)
        pipeline.rebuild("public.parts", from_source=True)
        with pipeline:
            assert not pipeline.sync_once().errors
        assert said(make, public / "goods") == ("new", {"called": "newer"})
        assert said(make, public / "parts") == ("newest", {"kind": "it's a kind"})

"""Rules on a PostgreSQL table by log: large values that an update does not send are read from the lake table, in every
mode, and stop the table where the lake cannot have them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from lakefeed import Delta, Pipeline, current
from lakefeed.capture.poll.source import Pace, PostgresPolling, TableRule
from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.table import TableId
from lakefeed.lake.mode import Append, Temporal
from lakefeed.lake.reader import read_table
from lakefeed.lake.route import Rule
from lakefeed.lake.rule.rows import RowOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
LARGE = 9000


@pytest.fixture
def writer(dsn: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE docs (id int PRIMARY KEY, kind text, note text, doc text, secret text);"
            "ALTER TABLE docs ALTER doc SET STORAGE EXTERNAL, ALTER secret SET STORAGE EXTERNAL"
        )
        connection.execute(
            f"INSERT INTO docs SELECT i, CASE WHEN i < 6 THEN 'a' ELSE 'b' END, 'n', repeat('d' || i, {LARGE}),"
            f" repeat('s' || i, {LARGE}) FROM generate_series(1, 7) i"
        )
        yield connection


def lake_of(
    spark: SparkSession, path: Path, *, where: str = "kind = 'a' AND doc LIKE 'd%'", has_history: bool = True
) -> Delta:
    rows = RowOptions(
        where=where,
        mask={"secret": "hash"},
        transform={"size": "length(doc)", "label": "concat(kind, left(doc, 2), note)"},
    )
    rules = [Rule("docs", rows=rows), Rule("docs", Temporal(), "versions"), Rule("docs", Append(), "changes")]
    return Delta(spark, path / "lake", rules=rules if has_history else rules[::2], salt="pepper")


def stored(path: Path, name: str = "docs") -> dict[int, dict[str, Any]]:
    table = read_table(path / "lake" / "public" / name)
    assert table is not None
    rows = table.to_pylist()
    return {row["id"]: row for row in rows if row.get("is_current", True)}


def test_t26_values_that_an_update_does_not_send_are_the_tables_in_every_mode(
    dsn: str, writer: Any, spark: SparkSession, tmp_path: Path
) -> None:
    lake = lake_of(spark, tmp_path)
    with Pipeline(Postgres(dsn, tables=["public.docs"]), lake, name="p") as pipeline:
        warned = [one for one in pipeline.check() if "its rule needs kind, note, doc, secret" in one.problem]
        assert [one.remedy for one in warned] == ['ALTER TABLE "public"."docs" REPLICA IDENTITY FULL;'] * 3
        assert not pipeline.sync_once().errors
        before = stored(tmp_path)
        assert sorted(before) == [1, 2, 3, 4, 5]
        for statement in (
            "UPDATE docs SET note = 'new' WHERE id = 1",  # neither large value is sent
            "UPDATE docs SET kind = 'b' WHERE id = 1",  # nor when it leaves and comes back
            "UPDATE docs SET kind = 'a', note = 'again' WHERE id = 1",
            "UPDATE docs SET kind = 'b' WHERE id = 2",  # leaves
            "UPDATE docs SET kind = 'b' WHERE id = 3",
            "UPDATE docs SET kind = 'a', note = 'back', secret = secret || '!' WHERE id = 3",
            "UPDATE docs SET id = 40, note = 'moved' WHERE id = 4",
            f"UPDATE docs SET doc = repeat('x', {LARGE}) WHERE id = 5",  # leaves by the large value
        ):
            writer.execute(statement)
        assert not pipeline.sync_once().errors
        for name in ("docs", "versions"):
            rows = stored(tmp_path, name)
            assert sorted(rows) == [1, 3, 40], name
            assert [rows[number]["label"] for number in (1, 3, 40)] == ["ad1again", "ad3back", "ad4moved"], name
            for now, was in ((1, 1), (3, 3), (40, 4)):
                assert rows[now]["doc"] == f"d{was}" * LARGE
                assert (rows[now]["secret"] == before[was]["secret"]) is (now != 3)
                assert rows[now]["size"] == 2 * LARGE
        log = read_table(tmp_path / "lake" / "public" / "changes")
        assert log is not None
        last = {row["id"]: row for row in sorted(log.to_pylist(), key=lambda row: row["_lakefeed_seq"])}
        assert {number for number, row in last.items() if row["_lakefeed_operation"] != "delete"} == {1, 3, 40}
        assert last[1]["_lakefeed_absent"] == ["secret"]


def test_t26_a_row_that_comes_in_without_its_large_values_stops_its_table_with_a_remedy_that_works(
    dsn: str, writer: Any, spark: SparkSession, tmp_path: Path
) -> None:
    lake = lake_of(spark, tmp_path, has_history=False)
    with Pipeline(Postgres(dsn, tables=["public.docs"]), lake, name="p") as pipeline:
        assert not pipeline.sync_once().errors
        writer.execute("UPDATE docs SET kind = 'a' WHERE id = 6")
        failed = pipeline.sync_once().tables[TableId("public", "docs")]
        assert "its rule needs a large value that an update did not send" in (failed.error or "")
        assert "ALTER TABLE public.docs REPLICA IDENTITY FULL" in (failed.remedy or "")
        writer.execute("ALTER TABLE public.docs REPLICA IDENTITY FULL")
        for name in ("docs", "changes"):
            pipeline.rebuild(f"public.{name}", from_source=True)
        assert not pipeline.sync_once().errors
        writer.execute("UPDATE docs SET kind = 'a' WHERE id = 7")
        assert not pipeline.sync_once().errors
        assert sorted(stored(tmp_path)) == [1, 2, 3, 4, 5, 6, 7]
        assert stored(tmp_path)[7]["doc"] == "d7" * LARGE
        writer.execute("UPDATE docs SET note = 'fresh' WHERE id = 7")
        pipeline.sync_once(tables=["changes"])
    fresh = {row["id"]: row["label"] for row in current(spark, lake, "public.docs").collect()}
    assert fresh[7] == "ad7fresh"


def test_polled_rows_come_and_go_by_the_condition(dsn: str, writer: Any, spark: SparkSession, tmp_path: Path) -> None:
    writer.execute("ALTER TABLE docs ADD updated_at timestamptz DEFAULT clock_timestamp()")
    source = PostgresPolling(
        dsn, tables=["docs"], rules={"docs": TableRule(safety_lag_seconds=0)}, pace=Pace(poll_seconds=0.01)
    )
    with Pipeline(source, lake_of(spark, tmp_path, where="kind = 'a'"), name="p") as pipeline:
        pipeline.sync_once()
        writer.execute("UPDATE docs SET kind = 'b', updated_at = clock_timestamp() WHERE id = 1")
        writer.execute("UPDATE docs SET kind = 'a', updated_at = clock_timestamp() WHERE id = 7")
        assert not pipeline.sync_once().errors
    assert sorted(stored(tmp_path)) == [2, 3, 4, 5, 7]
    assert sorted(stored(tmp_path, "versions")) == [2, 3, 4, 5, 7]
    assert stored(tmp_path)[7]["label"] == "ad7n"

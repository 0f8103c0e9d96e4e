"""The whole way from PostgreSQL's log into Delta tables: what a schema change does is what the configuration says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from deltalake import DeltaTable
from tests.compare import compare_postgres_table

from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.table import TableId
from lakefeed.flow.pipeline import Pipeline
from lakefeed.flow.status import TableStatus
from lakefeed.lake.delta import Delta
from lakefeed.lake.mode import Append, Mirror, Temporal
from lakefeed.lake.route import Rule
from lakefeed.lake.schema.policy import Evolution

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TABLES = ("widened", "held", "retyped", "moved", "rekeyed", "rebuilt", "filled")
RULES = (
    Rule("widened", Temporal(), "widened_history"),
    Rule("widened", Append(), "widened_log"),
    Rule("held", Mirror(), evolution=Evolution(widen_type="stop")),
    Rule("moved", Mirror(), evolution=Evolution(change_type="new_column")),
    Rule("rekeyed", Mirror(), evolution=Evolution(change_key="stop")),
    Rule("rekeyed", Append(), "rekeyed_log"),
    Rule("filled", Mirror(), "filled_without", Evolution(add_column="ignore")),
)


@pytest.fixture
def writer(dsn: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name in TABLES:
            connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v int NOT NULL)".encode())
            connection.execute(f"INSERT INTO {name} VALUES (1, 10), (2, 20)".encode())
        yield connection


def sync(dsn: str, lake: Delta) -> dict[str, TableStatus]:
    """In a process of its own."""
    with Pipeline(Postgres(dsn), lake, name="shop") as pipeline:
        pipeline.sync_once()
        return {table.name: status for table, status in pipeline.status().tables.items()}


def read(root: Path, name: str) -> list[tuple[Any, ...]]:
    """The source's columns of every row, in order."""
    rows = DeltaTable(str(root / "public" / name)).to_pyarrow_table().to_pylist()
    own = [name for name in ("id", "v", "v__2", "n") if rows and name in rows[0]]
    return sorted((tuple(row[name] for name in own) for row in rows), key=str)


def test_acceptance_10_each_choice_decides_what_becomes_of_a_changed_table(
    dsn: str, writer: Any, tmp_path: Path, spark: SparkSession
) -> None:
    lake = Delta(spark, tmp_path, rules=RULES)
    sync(dsn, lake)
    writer.execute("UPDATE widened SET v = 11 WHERE id = 1")
    for name in ("widened", "held"):
        writer.execute(f"ALTER TABLE {name} ALTER v TYPE bigint USING v * 2")
    for name in ("retyped", "moved"):
        writer.execute(f"ALTER TABLE {name} ALTER v TYPE text USING 'was ' || v")
    for name in ("rekeyed", "rebuilt"):
        writer.execute(f"ALTER TABLE {name} DROP CONSTRAINT {name}_pkey, ADD PRIMARY KEY (id, v)")
        writer.execute(f"INSERT INTO {name} VALUES (1, 11)")
    writer.execute("ALTER TABLE filled ADD n float DEFAULT random()")
    for name, value in (("widened", 5_000_000_000), ("retyped", "'new'"), ("moved", "'new'"), ("filled", 21)):
        writer.execute(f"UPDATE {name} SET v = {value} WHERE id = 2")
    for _ in range(2):  # in the second process nothing has been forgotten
        status = sync(dsn, lake)
        stopped = {"held": "widen_type", "retyped": "change_type", "rekeyed": "change_key"}
        assert {name for name, one in status.items() if one.error} == set(stopped)
        for name, kind in stopped.items():
            assert f"{kind}: stop" in (status[name].error or "")
            assert f'pipeline.rebuild("public.{name}", from_source=True)' in (status[name].remedy or "")
            assert read(tmp_path, name) == [(1, 10), (2, 20)], "its rows stay"
    for name in ("widened", "rebuilt", "filled"):
        assert read(tmp_path, name) == sorted(writer.execute(f"SELECT * FROM {name}").fetchall(), key=str), "a copy"
    assert read(tmp_path, "filled_without") == [(1, 10), (2, 21)]
    assert read(tmp_path, "moved") == [(1, 10, None), (2, None, "new")]
    kept = [(1, 10), (1, 11), (2, 20), (2, 5_000_000_000)]
    assert read(tmp_path, "widened_history") == sorted(kept, key=str), "it goes on, and begins no new one"
    assert read(tmp_path, "widened_log") == sorted(kept, key=str)
    assert read(tmp_path, "rekeyed_log") == [(1, 10), (1, 11), (2, 20)]


def test_ddl_that_changes_rows_without_a_row_in_the_log_is_in_the_delta_table_after_the_next_sync(
    dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    """Also VACUUM FULL, which makes a new schema version without a difference."""
    table = TableId("public", "t")
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
        writer.execute("CREATE TABLE t (id int PRIMARY KEY, c int, m mood); INSERT INTO t VALUES (1, 5, 'sad')")
        with Pipeline(Postgres(dsn), Delta(spark, str(tmp_path)), name="p") as pipeline:
            pipeline.sync_once()
            for statement in (
                "VACUUM FULL t",
                "INSERT INTO t VALUES (2, 6, 'sad')",
                "ALTER TABLE t ALTER c TYPE int USING c + 1",
                "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
                "UPDATE t SET c = 9 WHERE id = 2",
            ):
                writer.execute(statement)
                for _ in range(2):
                    assert not pipeline.sync_once().errors
                assert compare_postgres_table(dsn, table, tmp_path / "public" / "t").equal, statement

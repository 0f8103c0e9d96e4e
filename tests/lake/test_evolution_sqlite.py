"""The whole way from SQLite into Delta tables: what becomes of a schema change is what the configuration says."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from lakefeed import Pipeline, PipelineOptions, Sqlite
from lakefeed.change.table import TableId
from lakefeed.flow.status import TableStatus
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.delta import Delta
from lakefeed.lake.mode import Append, Mirror, Temporal
from lakefeed.lake.route import Rule
from lakefeed.lake.schema.policy import Evolution

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TABLES = ("retyped", "moved", "copied", "rekeyed", "rebuilt", "logged")
RULES = (
    Rule("moved", Mirror(), evolution=Evolution(change_type="new_column")),
    Rule("moved", Temporal(), "moved_history", Evolution(change_type="new_column")),
    Rule("copied", Mirror(), evolution=Evolution(change_type="rebuild")),
    Rule("rekeyed", Mirror(), evolution=Evolution(change_key="stop")),
    Rule("logged", Append()),
)
REKEY = """
    BEGIN;
    CREATE TABLE fresh (id INTEGER NOT NULL, v INTEGER NOT NULL, w TEXT, PRIMARY KEY (id, v));
    INSERT INTO fresh SELECT id, v, w FROM {0};
    INSERT INTO fresh VALUES (1, 11, 'second');
    DROP TABLE {0};
    ALTER TABLE fresh RENAME TO {0};
    COMMIT;
"""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    for name in TABLES:
        connection.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, v INTEGER, w TEXT)")
        connection.execute(f"INSERT INTO {name} VALUES (1, 10, 'one'), (2, 20, 'two')")
    yield connection
    connection.close()


class Place:
    """A pipeline whose process comes and goes."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self._root = root
        self.lake = Delta(spark, root / "lake", rules=RULES)

    def pipeline(self) -> Pipeline:
        options = PipelineOptions(journal=JournalOptions(fsync=False))
        return Pipeline(Sqlite(self._root / "s.db"), self.lake, name="shop", options=options)

    def sync(self) -> dict[str, TableStatus]:
        with self.pipeline() as pipeline:
            pipeline.sync_once()
            return {table.name: status for table, status in pipeline.status().tables.items()}

    def read(self, name: str) -> list[dict[str, Any]]:
        table = DeltaTable(str(self._root / "lake" / "main" / name)).to_pyarrow_table()
        rows: list[dict[str, Any]] = table.to_pylist()
        return sorted(rows, key=lambda row: (row["id"], str(row.get("v"))))


def test_acceptance_10_each_choice_decides_what_becomes_of_a_changed_table(
    database: sqlite3.Connection, spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(spark, tmp_path)
    place.sync()
    before = {name: place.read(name) for name in TABLES}
    for name in ("retyped", "moved", "copied"):
        database.execute(f"UPDATE {name} SET v = 'many' WHERE id = 1")
    database.executescript(REKEY.format("rekeyed") + REKEY.format("rebuilt"))
    database.executescript("ALTER TABLE logged DROP COLUMN w; UPDATE logged SET v = 11 WHERE id = 1")
    for _ in range(2):  # in the second process nothing has been forgotten
        status = place.sync()
        assert {name for name, one in status.items() if one.error} == {"retyped", "rekeyed"}
        assert "column 'v' changed from int64 to string" in (status["retyped"].error or "")
        assert "change_type: stop" in (status["retyped"].error or "")
        assert "the key changed from (id) to (id, v)" in (status["rekeyed"].error or "")
        for name in ("retyped", "rekeyed"):
            assert f'pipeline.rebuild("main.{name}", from_source=True)' in (status[name].remedy or "")
            assert place.read(name) == before[name], "its rows stay"
    assert [row["v"] for row in place.read("copied")] == ["many", "20"]
    assert place.read("moved") == [
        {"id": 1, "v": None, "v__2": "many", "w": "one"},
        {"id": 2, "v": 20, "v__2": None, "w": "two"},
    ]
    assert [(row["v"], row["v__2"]) for row in place.read("moved_history")] == [(10, None), (None, "many"), (20, None)]
    assert [(row["id"], row["v"]) for row in place.read("rebuilt")] == [(1, 10), (1, 11), (2, 20)]
    assert [(row["v"], row["w"]) for row in place.read("logged")] == [(10, "one"), (11, None), (20, "two")]


def test_a_person_who_follows_the_remedy_has_the_table_again(
    database: sqlite3.Connection, spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(spark, tmp_path)
    place.sync()
    database.execute("UPDATE retyped SET v = 'many' WHERE id = 1")
    assert place.sync()["retyped"].error
    with place.pipeline() as pipeline:
        pipeline.rebuild(str(TableId("main", "retyped")), from_source=True)
    assert place.sync()["retyped"].error is None
    assert [row["v"] for row in place.read("retyped")] == ["many", "20"]

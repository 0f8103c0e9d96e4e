"""Rows whose key changed while a large value was not sent: it comes from the old key, exactly, without a copy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.postgres.conftest import new_database

from lakefeed import Append, Delta, Pipeline, Postgres, Rule, Temporal
from lakefeed.change.batch import OP, SEQ, Operation
from lakefeed.lake.mode.moved import with_moved_values
from lakefeed.lake.window import CARRIED, read_changes
from lakefeed.testing.builders import Row, batch, table
from lakefeed.testing.scripted_log import ScriptedLog
from lakefeed.testing.server.postgres import PostgresServer, find_binaries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CASES = 150
Key = tuple[int, int]


class Story:
    """Random changes of many cases, in which rows move on and on; ``values`` is each written row, whole."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)
        self.stored: dict[Key, tuple[str, str]] = {}
        self.rows: list[Row] = []
        self.absent: dict[int, Sequence[str]] = {}
        self.values: dict[int, tuple[str, str]] = {}
        for case in range(CASES):
            there = {(case, number): (f"a{case}.{number}", f"b{case}.{number}") for number in range(2)}
            self.stored |= there
            for _ in range(dice.randint(1, 12)):
                self._change(dice, there, case)

    def _change(self, dice: random.Random, there: dict[Key, tuple[str, str]], case: int) -> None:
        free = [(case, number) for number in range(4) if (case, number) not in there]
        fresh = (f"a{len(self.rows)}", f"b{len(self.rows)}")
        kind = dice.choice(["move", "move", "move", "update", "delete", "insert"])
        if kind == "insert" and free:
            self._write("insert", dice.choice(free), fresh, (), there)
        elif there and (kind != "move" or free):
            key = dice.choice(sorted(there))
            before = there[key]
            absent = tuple(name for name in ("a", "b") if dice.random() < 0.6)
            after = tuple(old if name in absent else new for name, old, new in zip("ab", before, fresh, strict=True))
            if kind == "update":
                self._write("update", key, (after[0], after[1]), absent, there)
                return
            del there[key]
            self.rows.append(("delete", {"case": key[0], "id": key[1]}))
            if kind == "move":
                self._write("insert", dice.choice(free), (after[0], after[1]), absent, there)

    def _write(
        self, kind: str, key: Key, values: tuple[str, str], absent: tuple[str, ...], there: dict[Key, tuple[str, str]]
    ) -> None:
        there[key] = self.values[len(self.rows)] = values
        if absent:
            self.absent[len(self.rows)] = absent
        sent = {name: value for name, value in zip("ab", values, strict=True) if name not in absent}
        self.rows.append((kind, {"case": key[0], "id": key[1], **sent}))


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**9))
def test_every_moved_row_gets_the_values_that_its_old_key_had(spark: SparkSession, seed: int) -> None:
    story = Story(seed)
    columns: dict[str, pa.DataType] = {"case": pa.int64(), "id": pa.int64(), "a": pa.string(), "b": pa.string()}
    with TemporaryDirectory() as directory:
        log = ScriptedLog(Path(directory))
        schema = log.schema_of(table("main.story", columns, key=("case", "id")))
        log.add(batch(schema, story.rows, absent=story.absent))
        window = log.window(schema.table, 0, 1)
        stored = spark.createDataFrame([(*key, *row) for key, row in story.stored.items()], list(columns))
        found = with_moved_values(read_changes(spark, window), window, lambda: stored).collect()
        inexact = replace(window, exact=False)
        left = with_moved_values(read_changes(spark, inexact), inexact, lambda: stored).collect()
    first = min(row[SEQ] for row in found)
    assert len(found) == len(story.rows)
    for row in found:
        index = row[SEQ] - first
        if row[OP] == Operation.INSERT:
            assert (row["a"], row["b"]) == story.values[index], story.rows[max(0, index - 8) : index + 1]
            assert (row[CARRIED + "0"], row[CARRIED + "1"]) == (True, True)
    for row in left:  # nothing of the table is believed, what the window itself has is exact
        for name, flag in (("a", row[CARRIED + "0"]), ("b", row[CARRIED + "1"])):
            if flag and row[OP] != Operation.DELETE:
                assert row[name] == story.values[row[SEQ] - first]["ab".index(name)]
        whole = row[CARRIED + "0"] and row[CARRIED + "1"]
        assert whole or row[OP] == Operation.UPDATE


def test_a_changed_key_takes_its_large_value_along_without_a_copy(tmp_path: Path, spark: SparkSession) -> None:
    rules = [Rule("t", Temporal(), name="{table}_history"), Rule("t", Append(), name="{table}_log")]
    with (
        PostgresServer.start(max(find_binaries().items())[1]) as server,
        new_database(server) as dsn,
        psycopg.connect(dsn, autocommit=True) as writer,
        Pipeline(Postgres(dsn), Delta(spark, str(tmp_path), rules=rules), name="moved") as pipeline,
    ):
        writer.execute("CREATE TABLE t (id int PRIMARY KEY, n int, big text)")
        writer.execute("ALTER TABLE t ALTER COLUMN big SET STORAGE EXTERNAL")
        writer.execute("INSERT INTO t SELECT i, 0, repeat(i::text, 5000) FROM generate_series(1, 9) AS i")
        pipeline.sync_once()
        versions = {name: DeltaTable(str(tmp_path / "public" / name)).version() for name in ("t", "t_history", "t_log")}
        writer.execute("UPDATE t SET id = 11 WHERE id = 1")  # plain
        with writer.transaction():  # a chain and a swap
            writer.execute("UPDATE t SET id = 12 WHERE id = 2")
            writer.execute("UPDATE t SET id = 22, n = 1 WHERE id = 12")
            writer.execute("UPDATE t SET id = 99 WHERE id = 3")
            writer.execute("UPDATE t SET id = 3 WHERE id = 4")
            writer.execute("UPDATE t SET id = 4 WHERE id = 99")
        writer.execute("DELETE FROM t WHERE id = 5")
        writer.execute("UPDATE t SET id = 5 WHERE id = 6")  # a key that is used again
        pipeline.sync_once()
        source = writer.execute("SELECT id, n, big FROM t ORDER BY id").fetchall()
    lake: dict[str, list[dict[str, Any]]] = {
        name: DeltaTable(str(tmp_path / "public" / name)).to_pyarrow_table().to_pylist() for name in versions
    }
    for name, version in versions.items():
        assert DeltaTable(str(tmp_path / "public" / name)).version() == version + 1, f"{name} was copied again"
    assert sorted((row["id"], row["n"], row["big"]) for row in lake["t"]) == source
    current = [row for row in lake["t_history"] if row["is_current"]]
    assert sorted((row["id"], row["n"], row["big"]) for row in current) == source
    passed = {(row["id"], row["big"]) for row in lake["t_history"]}
    assert {(12, "2" * 5000), (99, "3" * 5000)} <= passed, "what was there for a moment is history, whole"
    inserted = [row for row in lake["t_log"] if row["_lakefeed_operation"] == "insert"]
    assert len(inserted) == 7
    assert not any(row["_lakefeed_absent"] for row in inserted)
    assert {(row["id"], row["big"]) for row in inserted} >= {(11, "1" * 5000), (22, "2" * 5000), (3, "4" * 5000)}

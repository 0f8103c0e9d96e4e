"""Collapse against a plain model: hundreds of random histories, told apart by a case number, in each Spark job."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefeed.change.batch import OP, Operation
from lakefeed.change.table import TableSchema
from lakefeed.lake.mode import collapse as collapsing
from lakefeed.lake.mode.collapse import FRESH, collapse
from lakefeed.lake.window import CARRIED, read_changes
from lakefeed.testing.builders import Row, batch, table
from lakefeed.testing.scripted_log import ScriptedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CASES = 200
Key = tuple[int, str | None]
Left = tuple[int, Any, Any, bool, bool]
"""Operation, a, b, is b carried, is the key fresh."""


class History:
    """Random changes of many cases, and what they must come to."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.rows: list[Row] = []
        self.absent: dict[int, list[str]] = {}
        self.left: dict[Key, Left] = {}

    def write(self) -> None:
        for case in range(CASES):
            for _ in range(self._random.randint(1, 8)):
                self._change((case, self._random.choice(["x", "y", "", "ü", "X"])))

    def _change(self, key: Key) -> None:
        before = self.left.get(key)
        there = before is not None and before[0] != Operation.DELETE
        operation = self._random.choice([Operation.UPDATE, Operation.DELETE] if there else list(Operation)[:3])
        values = {"case": key[0], "id": key[1]}
        if operation is Operation.DELETE:
            self.left[key] = (int(operation), None, before[2] if before else None, False, True)
        else:
            a, b = self._random.choice([None, 1, 2]), self._random.choice([None, "p", "q"])
            unsent = operation is Operation.UPDATE and self._random.random() < 0.4
            fresh = operation is Operation.INSERT or (before is not None and before[4])
            if unsent:
                self.absent[len(self.rows)] = ["b"]
                carried = there and before is not None and before[3]
                self.left[key] = (int(operation), a, before[2] if carried and before else None, carried, fresh)
            else:
                self.left[key] = (int(operation), a, b, True, fresh)
            values |= {"a": a, "b": None if unsent else b}
        self.rows.append((operation.name.lower(), values))


@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(seed=st.integers(0, 10**9), cut=st.integers(1, 5))
def test_acceptance_5_any_history_collapses_to_its_last_state(spark: SparkSession, seed: int, cut: int) -> None:
    history = History(seed)
    history.write()
    with TemporaryDirectory() as directory:
        log = ScriptedLog(Path(directory))
        columns: dict[str, pa.DataType] = {"case": pa.int64(), "id": pa.string(), "a": pa.int64(), "b": pa.string()}
        schema = log.schema_of(table("main.cases", columns, key=("case", "id")))
        add_in_pieces(log, schema, history, cut)
        window = log.window(schema.table, 0, log.head)
        collapsed = collapse(read_changes(spark, window), window).collect()
    found = {(row["case"], row["id"]): row for row in collapsed}
    assert len(found) == len(collapsed), "a key is there twice"
    assert found.keys() == history.left.keys()
    flag = CARRIED + "0"
    for key, (operation, a, b, carried, fresh) in history.left.items():
        row = found[key]
        assert row[OP] == operation
        if operation == Operation.DELETE:
            continue
        assert row["a"] == a
        if flag in row:
            assert (row[flag], row[FRESH]) == (carried, fresh)
        if carried:
            assert row["b"] == b


def add_in_pieces(log: ScriptedLog, schema: TableSchema, history: History, pieces: int) -> None:
    size = len(history.rows) // pieces + 1
    for start in range(0, len(history.rows), size):
        unsent = {row - start: names for row, names in history.absent.items() if start <= row < start + size}
        log.add(batch(schema, history.rows[start : start + size], absent=unsent))


def test_a_large_window_of_whole_rows_collapses_to_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each key the last seq is looked for, and its row read: two ways to one result."""
    chance, log = random.Random(11), ScriptedLog(tmp_path)
    columns: dict[str, pa.DataType] = {"id": pa.int64(), "part": pa.string(), "a": pa.string()}
    schema = log.schema_of(table("main.t", columns, key=("id", "part")))
    for piece in range(3):
        rows: list[Row] = []
        for number in range(200):
            key = {"id": chance.randrange(20), "part": chance.choice(["x", "y"])}
            kind = chance.choice(["insert", "update", "delete"])
            rows.append((kind, key if kind == "delete" else {**key, "a": f"{piece}-{number}"}))
        log.add(batch(schema, rows))
    window = log.window(schema.table, 0, log.head)
    found = []
    for least in (0, 10**6):
        monkeypatch.setattr(collapsing, "_LEAST_ROWS", least)
        found.append(sorted(map(tuple, collapse(read_changes(spark, window), window).collect()), key=repr))
    assert found[0] == found[1]
    assert len(found[0]) == 40


@pytest.mark.parametrize("keep_deleted", [False, True])
def test_a_key_may_have_any_name_that_a_source_can_give_it(
    spark: SparkSession, tmp_path: Path, keep_deleted: bool
) -> None:
    log = ScriptedLog(tmp_path)
    names = ("_last", "_kept", "_reset", "_value", "_seq")
    columns: dict[str, pa.DataType] = {**dict.fromkeys(names, pa.int64()), "a": pa.string(), "b": pa.string()}
    schema = log.schema_of(table("main.t", columns, key=names))
    key = {name: number for number, name in enumerate(names)}
    rows: list[Row] = [("insert", {**key, "a": "1", "b": "1"}), ("update", {**key, "a": "2"})]
    log.add(batch(schema, rows, absent={1: ["b"]}))
    window = log.window(schema.table, 0, 1)
    (row,) = collapse(read_changes(spark, window), window, keep_deleted=keep_deleted).collect()
    assert {name: row[name] for name in names} == key
    assert (row["a"], row["b"], row[CARRIED + "0"], row[FRESH]) == ("2", "1", True, True)

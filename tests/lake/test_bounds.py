"""The lowest and highest key of a window, by the footers of its segments."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakefeed.change.table import Column, TableSchema
from lakefeed.lake.window import KeyBounds, key_bounds, lowest_time, narrowed
from lakefeed.testing.builders import batch, table
from lakefeed.testing.scripted_log import ScriptedLog


def many(log: ScriptedLog, schema: TableSchema, keys: range) -> None:
    for key in keys:
        log.add(batch(schema, [("insert", {"id": key})]))


def test_a_catch_up_over_hundreds_of_segments_has_bounds_too(tmp_path: Path) -> None:
    log = ScriptedLog(tmp_path)
    schema = log.schema_of(table("main.t", {"id": pa.int64()}, key=("id",)))
    many(log, schema, range(1000, 700, -1))
    window = log.window(schema.table, 0, log.head)
    assert len(window.segments) == 300
    assert key_bounds(window) == KeyBounds("id", 701, 1000)
    assert lowest_time(window) is not None


def test_a_renamed_key_is_followed_through_the_versions_of_its_segments(tmp_path: Path) -> None:
    log = ScriptedLog(tmp_path)
    key = Column("id", pa.int64(), id="1")
    old = log.schema_of(TableSchema(table("main.t", {}).table, (key,), ("id",)))
    many(log, old, range(5, 100))
    new = log.schema_of(TableSchema(old.table, (Column("number", pa.int64(), id="1"),), ("number",)))
    log.add(batch(new, [("insert", {"number": 3})]))
    assert key_bounds(log.window(old.table, 0, log.head)) == KeyBounds("number", 3, 99)


def test_one_segment_that_does_not_tell_leaves_no_bounds(tmp_path: Path) -> None:
    log = ScriptedLog(tmp_path)
    schema = log.schema_of(table("main.t", {"id": pa.int64()}, key=("id",)))
    many(log, schema, range(100))
    log.add(batch(schema, [("truncate", {})]))
    assert key_bounds(log.window(schema.table, 0, 100)) == KeyBounds("id", 0, 99)
    assert key_bounds(log.window(schema.table, 0, 101)) is None, "a NULL lies outside of any bounds"
    assert key_bounds(log.window(schema.table, 100, 100)) is None, "there is nothing in it"


def test_a_key_named_like_the_inside_of_a_list_has_bounds_of_its_own(tmp_path: Path) -> None:
    """A footer calls every list's values ``element``."""
    log = ScriptedLog(tmp_path)
    columns: dict[str, pa.DataType] = {"tags": pa.list_(pa.int64()), "element": pa.int64(), "a.b": pa.int64()}
    schema = log.schema_of(table("main.t", columns, key=("element",)))
    log.add(batch(schema, [("insert", {"element": 7, "tags": [100], "a.b": 1})]))
    assert key_bounds(log.window(schema.table, 0, 1)) == KeyBounds("element", 7, 7)
    dotted = ScriptedLog(tmp_path)
    schema = dotted.schema_of(table("main.d", columns, key=("a.b",)))
    dotted.add(batch(schema, [("insert", {"element": 7, "tags": [100], "a.b": 1})]))
    assert key_bounds(dotted.window(schema.table, 0, 1)) == KeyBounds("a.b", 1, 1)


LARGE = 1 << 30


def test_few_keys_all_over_a_large_table_are_all_named(tmp_path: Path) -> None:
    log = ScriptedLog(tmp_path)
    schema = log.schema_of(table("main.t", {"id": pa.int64()}, key=("id",)))
    log.add(batch(schema, [("insert", {"id": 900}), ("delete", {"id": -3}), ("update", {"id": 900})]))
    window = log.window(schema.table, 0, log.head)
    bounds = key_bounds(window)
    assert narrowed(bounds, window, table_bytes=1000) == bounds, "a small table is read at once"
    found = narrowed(bounds, window, LARGE)
    assert found is not None
    assert narrowed(KeyBounds("id", 1, 30), window, LARGE) == KeyBounds("id", 1, 30), "few others lie between these"
    assert found.values == (-3, 900)
    assert found.condition("t") == "t.`id` >= -3L AND t.`id` <= 900L AND t.`id` IN (-3L, 900L)"


@pytest.mark.parametrize("kind", [pa.string(), pa.date32()])
def test_other_kinds_of_keys_keep_their_bounds(tmp_path: Path, kind: pa.DataType) -> None:
    log = ScriptedLog(tmp_path)
    schema = log.schema_of(table("main.t", {"id": kind}, key=("id",)))
    log.add(batch(schema, [("insert", {"id": pa.scalar(1, pa.int32()).cast(kind).as_py()})]))
    window = log.window(schema.table, 0, log.head)
    assert narrowed(key_bounds(window), window, LARGE) == key_bounds(window)
    assert narrowed(None, window, LARGE) is None


def test_many_segments_are_not_read_for_their_keys(tmp_path: Path) -> None:
    log = ScriptedLog(tmp_path)
    schema = log.schema_of(table("main.t", {"id": pa.int64()}, key=("id",)))
    many(log, schema, range(250))
    window = log.window(schema.table, 0, log.head)
    assert narrowed(key_bounds(window), window, LARGE) == KeyBounds("id", 0, 249)

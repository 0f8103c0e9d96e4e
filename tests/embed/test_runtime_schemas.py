"""C4: the shapes that tables were delivered with are in the checkpoint, bounded, and a start tells the capture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.embed.test_runtime_polling import Shop, T

from lakefeed.change.change_set import ChangeSet, RecopyNeeded
from lakefeed.change.table import TableSchema
from lakefeed.embed.checkpoint import Checkpoint
from lakefeed.embed.options import IncrementalSnapshot, RuntimeOptions
from lakefeed.embed.progress import SCHEMAS, SchemaVersions
from lakefeed.embed.runtime import Runtime
from lakefeed.embed.store import FileCheckpointStore, MemoryCheckpointStore
from lakefeed.errors import CheckpointError, ConfigError, SourceUnavailableError
from lakefeed.testing.builders import at, batch, table
from lakefeed.testing.faulty import Fault, Faults, FaultyStore
from lakefeed.testing.runtime_contract import take_all
from lakefeed.testing.scripted import COMMIT, CRASH, SchemaChanged, ScriptedCapture, ScriptStep, insert

STREAM = RuntimeOptions(wait_seconds=0, max_events=1)


def shape(columns: int) -> TableSchema:
    names = {f"c{number}": pa.string() for number in range(columns)}
    return table("main.people", {"id": pa.int64(), **names}, key=("id",))


PEOPLE = shape(0).table


def widths(versions: tuple[TableSchema, ...]) -> list[int]:
    return [len(schema.columns) - 1 for schema in versions]


def test_c04_the_schema_history_keeps_the_newest_shapes_and_numbers_go_on(tmp_path: Path) -> None:
    script = [step for number in range(5) for step in (insert(shape(number), id=number), COMMIT)]
    capture = ScriptedCapture(script, snapshot={shape(0): []})
    with FileCheckpointStore(tmp_path, fsync=False) as store:
        runtime = Runtime(capture, store, key="k", options=replace(STREAM, schema_history_retention=2))
        runtime.start()
        take_all(runtime)
        assert widths(runtime.schema_history[PEOPLE]) == [3, 4]
        runtime.stop()
    with FileCheckpointStore(tmp_path, fsync=False) as store:
        saved = store.load("k")
        assert saved is not None
        assert widths(SchemaVersions.parse(saved.metadata[SCHEMAS]).tables[PEOPLE]) == [3, 4]
        capture.append(SchemaChanged(shape(7)), COMMIT)
        again = Runtime(capture, store, key="k", options=replace(STREAM, schema_history_retention=1))
        again.start()
        assert widths(again.schema_history[PEOPLE]) == [4], "a lower retention counts from the start on"
        assert widths((capture.recalled[PEOPLE],)) == [4]
        take_all(again)
        assert widths(again.schema_history[PEOPLE]) == [7]
        assert [schema.version for schema in again.schema_history[PEOPLE]] == [6]


def test_c04_without_a_retention_every_shape_is_kept() -> None:
    script = [step for number in range(300) for step in (SchemaChanged(shape(number % 7)), COMMIT)]
    runtime = Runtime(
        ScriptedCapture(script), MemoryCheckpointStore(), key="k",
        options=RuntimeOptions(wait_seconds=0, schema_history_retention=None),
    )  # fmt: skip
    runtime.start()
    take_all(runtime)
    assert len(runtime.schema_history[PEOPLE]) == 300


def test_c04_a_retention_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="schema_history_retention must be at least 1, not 0"):
        RuntimeOptions(schema_history_retention=0)


def test_c04_t14_a_commit_that_cannot_be_saved_moves_no_history_and_what_is_read_again_is_not_counted_twice() -> None:
    capture = ScriptedCapture([insert(shape(0), id=1), COMMIT, insert(shape(1), id=2), COMMIT])
    kept = MemoryCheckpointStore()
    store = FaultyStore(kept, Faults(Fault("save", nth=2, error=lambda: CheckpointError("full"))))
    runtime = Runtime(capture, store, key="k", options=STREAM)
    runtime.start()
    with pytest.raises(CheckpointError, match="full"):
        take_all(runtime)
    assert widths(runtime.schema_history[PEOPLE]) == [0]
    runtime.force_stop()
    again = Runtime(capture, kept, key="k", options=STREAM)
    again.start()
    assert take_all(again) == [2]
    assert widths(again.schema_history[PEOPLE]) == [0, 1]


def test_a_capture_is_told_again_after_a_lost_connection_and_of_every_table_that_is_copied() -> None:
    script: list[ScriptStep] = [insert(shape(0), id=1), COMMIT, CRASH, insert(shape(1), id=2), COMMIT]
    capture = ScriptedCapture(script, snapshot={shape(0): [{"id": 0}]})
    options = replace(STREAM, snapshot_tables=(PEOPLE,))
    runtime = Runtime(capture, MemoryCheckpointStore(), key="k", options=options)
    runtime.start()
    first = runtime.poll()
    assert first is not None
    assert widths((capture.recalled.pop(PEOPLE),)) == [0], "what the plan has"
    runtime.commit(first.token)
    with pytest.raises(SourceUnavailableError):
        take_all(runtime)
    assert PEOPLE not in capture.recalled
    assert take_all(runtime) == [2]
    assert widths((capture.recalled[PEOPLE],)) == [0], "what was delivered before the connection was lost"


def test_rows_of_one_shape_are_one_version_and_those_of_a_chunk_or_read_lazily_are_not_looked_at() -> None:
    old, new = (batch(shape(width), [("insert", {"id": 1})]) for width in (1, 2))
    versions = SchemaVersions().seen(ChangeSet(at(0), at(1), (old, old, new), 3), None)
    assert widths(versions.tables[PEOPLE]) == [1, 2]
    assert versions.seen(ChangeSet(at(1), at(2), (new,), 1), None) is versions
    assert versions.seen(ChangeSet(at(1), at(2), iter((old,)), 1), None) is versions
    assert versions.seen(ChangeSet(at(1), at(1), (old,), 1), None, is_chunk=True) is versions
    announced = ChangeSet(at(1), at(2), schemas=(replace(shape(2), fingerprint="rewritten"),))
    assert widths(versions.seen(announced, None).tables[PEOPLE]) == [1, 2, 2]
    assert SchemaVersions.parse(versions.text) == versions


@pytest.mark.parametrize("text", ["", "{}x", "[1]", '[{"table": "main.t"}]', "5"])
def test_schemas_that_cannot_be_read_are_an_error_and_not_none(text: str) -> None:
    capture, store = ScriptedCapture([insert(shape(0), id=1), COMMIT]), MemoryCheckpointStore()
    capture.open()
    capture.prepare([])
    store.save("k", Checkpoint.from_position(at(0), identity=capture.identity()).with_metadata(SCHEMAS, text))
    with pytest.raises(CheckpointError, match="schemas of the checkpoint cannot be read"):
        Runtime(capture, store, key="k", options=STREAM).start()


@pytest.mark.parametrize("copies", ["before", "beside"])
def test_c04_what_changed_while_no_process_ran_is_noticed(tmp_path: Path, copies: str) -> None:
    """A source that keeps no record itself: without what was delivered last, nobody would know."""
    shop = Shop(tmp_path / "s.db")
    shop.put(1, 2, 3)
    options = RuntimeOptions(wait_seconds=0, snapshot_tables=(T,))
    if copies == "beside":
        options = RuntimeOptions(wait_seconds=0, incremental=IncrementalSnapshot(tables=(T,)))
    with FileCheckpointStore(tmp_path / "state", fsync=False) as store:
        runtime = Runtime(shop.capture(), store, key="k", options=options)
        runtime.start()
        assert sorted(take_all(runtime)) == [1, 2, 3]
        runtime.stop()
        shop.writer.execute("ALTER TABLE t ADD COLUMN x INTEGER DEFAULT 5")
        runtime = Runtime(shop.capture(), store, key="k", options=options)
        runtime.start()
        delivery = runtime.poll()
        assert delivery is not None
        assert [one.names[-1] for found in delivery.change_sets for one in found.schemas] == ["x"]
        assert [type(one) for found in delivery.change_sets for one in found.notices] == [RecopyNeeded]
        runtime.commit(delivery.token)
        assert [schema.names[-1] for schema in runtime.schema_history[T]] == ["updated_at", "x"]
        runtime.stop()

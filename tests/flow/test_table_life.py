"""Tables that join and leave a running pipeline, in the source or in the configuration; the others are not touched."""

from __future__ import annotations

import shlex
import sqlite3
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefeed import Pipeline, PipelineOptions, Sqlite
from lakefeed.capture.base import ChangeCapture
from lakefeed.change.change_set import TableDropped
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.errors import JournalDamagedError
from lakefeed.flow import retry
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.base import TableCopy
from lakefeed.lake.mode import Mirror
from lakefeed.lake.route import Rule
from lakefeed.testing.builders import table
from lakefeed.testing.memory_lake import MemoryLake, MemoryLakeTable
from lakefeed.testing.scripted import COMMIT, HEARTBEAT, SchemaChanged, ScriptedCapture, insert

T, U = TableId("main", "t"), TableId("main", "u")
OPTIONS = PipelineOptions(journal=JournalOptions(fsync=False))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    connection.executescript(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT); INSERT INTO t VALUES (1, 'a');"
        "CREATE TABLE u (id INTEGER PRIMARY KEY, v TEXT); INSERT INTO u VALUES (1, 'u');"
    )
    yield connection
    connection.close()


@pytest.fixture
def lake(tmp_path: Path) -> MemoryLake:
    return MemoryLake(str(tmp_path / "lake"))


def pipeline_of(tmp_path: Path, lake: MemoryLake, *patterns: str) -> Pipeline:
    return Pipeline(Sqlite(tmp_path / "s.db", tables=patterns or ("*",)), lake, name="p", options=OPTIONS)


def rows(lake: MemoryLake, name: str) -> dict[int, str]:
    return {row["id"]: row["v"] for row in lake.rows(name)}


def test_a_table_that_no_pattern_matches_any_more_stays_as_it_is_and_says_so(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
    generation = lake.tables[U].generation
    with pipeline_of(tmp_path, lake, "u") as narrower:
        database.executescript("INSERT INTO t VALUES (2, 'b'); INSERT INTO u VALUES (2, 'v');")
        narrower.sync_once()
        status = narrower.status()
        assert (rows(lake, "main.t"), rows(lake, "main.u")) == ({1: "a"}, {1: "u", 2: "v"})
        assert status.tables[T].state == "dropped"
        assert "no table pattern of the configuration matches" in (status.tables[T].reason or "")
        assert (status.tables[U].state, status.tables[U].reason) == ("live", None)
        assert status.verdict == "idle", "a table that is not followed any more holds up the verdict"
    assert lake.tables[U].generation == generation, "the other table was copied anew"


def test_a_table_whose_pattern_comes_back_is_copied_anew_and_the_others_are_not(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    for patterns in (("*",), ("u",)):
        with pipeline_of(tmp_path, lake, *patterns) as pipeline:
            pipeline.sync_once()
            database.executescript("DELETE FROM t WHERE id = 1; INSERT OR REPLACE INTO t VALUES (5, 'away');")
            pipeline.sync_once()
    before = {name: found.generation for name, found in lake.tables.items()}
    with pipeline_of(tmp_path, lake) as again:
        again.sync_once()
        database.execute("INSERT INTO t VALUES (6, 'back')")
        again.sync_once()
        assert again.status().tables[T].state == "live"
    assert rows(lake, "main.t") == {5: "away", 6: "back"}
    assert lake.tables[T].generation > before[T]
    assert lake.tables[U].generation == before[U]


def test_a_table_that_was_dropped_while_nobody_looked_is_told_apart_once_the_source_says_so(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
    database.execute("DROP TABLE t")
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
        status = pipeline.status().tables[T]
        assert (status.state, status.reason) == ("dropped", "the source table was dropped or renamed")
    assert rows(lake, "main.t") == {1: "a"}


_LAST = "INSERT INTO t VALUES (2, 'last'); UPDATE t SET v = 'b' WHERE id = 1; DROP TABLE t;"


@pytest.mark.parametrize("stopped", [False, True])
def test_the_last_changes_of_a_table_that_is_dropped_reach_the_lake(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection, stopped: bool
) -> None:
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
        if not stopped:
            database.executescript(_LAST)
            pipeline.sync_once()
    if stopped:
        database.executescript(_LAST)
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
        assert pipeline.status().tables[T].state == "dropped"
    assert rows(lake, "main.t") == {1: "b", 2: "last"}


def test_a_dropped_table_that_the_lake_cannot_write_stays_until_it_can(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
        monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)
        with monkeypatch.context() as broken:
            broken.setattr(MemoryLakeTable, "apply", _no_disk)
            database.executescript(_LAST)
            assert pipeline.sync_once().errors
        assert pipeline.status().tables[T].state == "live"
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
        assert pipeline.status().tables[T].state == "dropped"
    assert rows(lake, "main.t") == {1: "b", 2: "last"}


def test_a_name_that_is_used_again_is_a_new_table_behind_the_last_changes_of_the_old_one(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
        database.executescript(_LAST)
        pipeline.sync_once()
        assert rows(lake, "main.t") == {1: "b", 2: "last"}
        database.executescript("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT); INSERT INTO t VALUES (7, 'new');")
        pipeline.sync_once()
        database.executescript("INSERT INTO t VALUES (8, 'newer')")
        pipeline.sync_once()
        assert pipeline.status().tables[T].state == "live"
    assert rows(lake, "main.t") == {7: "new", 8: "newer"}


def test_an_error_that_nobody_foresaw_in_one_copy_does_not_hold_up_the_others(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = MemoryLakeTable.load

    def full(self: MemoryLakeTable, seed: TableCopy, progress: Any) -> Any:
        if seed.schema.table == T:
            raise OSError(28, "No space left on device")
        return load(self, seed, progress)

    with monkeypatch.context() as broken, pipeline_of(tmp_path, lake) as pipeline:
        broken.setattr(MemoryLakeTable, "load", full)
        errors = pipeline.sync_once().errors
        assert list(errors) == [T]
        assert "No space left" in (errors[T].error or "")
        assert rows(lake, "main.u") == {1: "u"}
    with pipeline_of(tmp_path, lake) as pipeline:
        assert not pipeline.sync_once().errors
    assert rows(lake, "main.t") == {1: "a"}


def _no_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_renamed_table_is_a_dropped_one_and_a_new_one(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
        database.execute("ALTER TABLE t RENAME TO s")
        pipeline.sync_once()
        pipeline.sync_once()
        states = {str(name): found.state for name, found in pipeline.status().tables.items()}
    assert states == {"main.s": "live", "main.t": "dropped", "main.u": "live"}
    assert rows(lake, "main.t") == rows(lake, "main.s") == {1: "a"}


def test_a_table_that_is_added_to_a_running_pipeline_leaves_the_others_alone(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
        before = {name: found.generation for name, found in lake.tables.items()}
        database.executescript("CREATE TABLE w (id INTEGER PRIMARY KEY, v TEXT); INSERT INTO w VALUES (1, 'w');")
        pipeline.sync_once()
        database.executescript("INSERT INTO w VALUES (2, 'x'); INSERT INTO t VALUES (2, 'b');")
        pipeline.sync_once()
    assert (rows(lake, "main.w"), rows(lake, "main.t")) == ({1: "w", 2: "x"}, {1: "a", 2: "b"})
    assert {name: lake.tables[name].generation for name in before} == before


def test_a_second_lake_table_that_leaves_the_configuration_says_so_too(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    lake = MemoryLake(str(tmp_path / "lake"), rules=[Rule("t", Mirror(), "{table}_too")])
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
    without = MemoryLake(str(tmp_path / "lake"))
    without.tables = lake.tables
    with pipeline_of(tmp_path, without) as pipeline:
        pipeline.sync_once()
        status = pipeline.status().tables[TableId("main", "t_too")]
    assert (status.state, status.reason) == ("dropped", "it is no longer in the configuration")


@dataclass(frozen=True)
class Scripted:
    """A Source around a capture that keeps what a server keeps."""

    capture: ScriptedCapture

    def bind(self, pipeline: str) -> ChangeCapture:
        return self.capture


PEOPLE = table("main.people", {"id": pa.int64(), "code": pa.string()}, key=("id",))
REKEYED = TableSchema(PEOPLE.table, PEOPLE.columns, ("code",))


def test_a_key_that_changed_and_that_the_capture_did_not_report_has_the_table_copied_anew(
    tmp_path: Path, lake: MemoryLake
) -> None:
    capture = ScriptedCapture(snapshot={PEOPLE: [{"id": 1, "code": "a"}]})
    with Pipeline(Scripted(capture), lake, name="p", options=OPTIONS) as pipeline:
        pipeline.sync_once()
        first = lake.tables[PEOPLE.table].generation
        capture.append(SchemaChanged(REKEYED), insert(REKEYED, id=1, code="b"), COMMIT)
        capture.content.rows[PEOPLE.table] = [{"id": 1, "code": "a"}, {"id": 1, "code": "b"}]
        assert pipeline.sync_once().errors == {}, "one call leaves the lake right"
        found = pipeline.status().tables[PEOPLE.table]
        assert (found.state, found.error) == ("live", None)
    assert lake.rows("main.people") == [{"id": 1, "code": "a"}, {"id": 1, "code": "b"}]
    assert lake.tables[PEOPLE.table].generation > first


def test_a_source_that_takes_its_time_with_the_last_changes_of_a_dropped_table_is_waited_for(
    tmp_path: Path, lake: MemoryLake
) -> None:
    """A server that decodes its log says nothing for a while: that is not the end."""
    capture = ScriptedCapture(snapshot={PEOPLE: [{"id": 1, "code": "a"}]}, waits=True)
    with Pipeline(Scripted(capture), lake, name="p", options=replace(OPTIONS, interval_seconds=0.02)) as pipeline:
        pipeline.sync_once()
    capture.append(HEARTBEAT, insert(PEOPLE, id=2, code="last"), COMMIT, TableDropped(PEOPLE.table), COMMIT)
    del capture.content.schemas[PEOPLE.table]
    pipeline.run(for_seconds=1.0)
    assert pipeline.status().tables[PEOPLE.table].state == "dropped"
    assert lake.rows("main.people") == [{"id": 1, "code": "a"}, {"id": 2, "code": "last"}]


def test_what_waits_for_a_person_is_in_the_status(tmp_path: Path, lake: MemoryLake) -> None:
    retyped = TableSchema(PEOPLE.table, (PEOPLE.columns[0], Column("code", pa.int64())), PEOPLE.key)
    capture = ScriptedCapture(snapshot={PEOPLE: [{"id": 1, "code": "a"}]})
    with Pipeline(Scripted(capture), lake, name="p", options=OPTIONS) as pipeline:
        pipeline.sync_once()
        capture.append(SchemaChanged(retyped), insert(retyped, id=2, code=5), COMMIT)
        pipeline.sync_once()
        found = pipeline.status()
    assert found.verdict == "stalled"
    assert "1 of 1 table cannot go on" in found.reason
    assert "cannot follow RetypeColumn" in (found.tables[PEOPLE.table].error or "")
    assert found.tables[PEOPLE.table].remedy
    assert lake.rows("main.people") == [{"id": 1, "code": "a"}]


def test_a_damaged_table_state_costs_by_its_printed_remedy_one_copy_of_one_table(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
    before = {name: found.generation for name, found in lake.tables.items()}
    (pipeline.root / "tables" / "main.t.json").write_bytes(b"{")
    database.executescript("INSERT INTO t VALUES (2, 'b'); DELETE FROM t WHERE id = 1; INSERT INTO u VALUES (2, 'v');")
    with pytest.raises(JournalDamagedError) as damaged, pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
    command = shlex.split(damaged.value.remedy.partition("again: ")[2])
    subprocess.run(command, check=True)
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
    assert (rows(lake, "main.t"), rows(lake, "main.u")) == ({2: "b"}, {1: "u", 2: "v"})
    assert (lake.tables[T].generation > before[T], lake.tables[U].generation == before[U]) == (True, True)

"""Status knows what unchanged lake tables record without reading their logs, and asks every other one."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from lakefeed.app.build import build_verification
from lakefeed.app.config import load_config
from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.pipeline import Pipeline
from lakefeed.flow.report import recorded
from lakefeed.flow.report.recorded import RecordedFile, load_recorded
from lakefeed.flow.run_loop import OpenPipeline
from lakefeed.flow.status import PipelineStatus
from lakefeed.flow.table_state import TableState, TableStates
from lakefeed.lake.delta import Delta
from lakefeed.lake.delta.format import DeltaFormat
from lakefeed.lake.delta.store import DeltaStore
from lakefeed.lake.route import Part, Route
from lakefeed.storage.location import storage_at

NAMES = ("a", "b", "c")


def refused() -> SparkSession:
    raise AssertionError("tables this small need no Spark")


def made(place: Path, options: PipelineOptions | None = None) -> Pipeline:
    return Pipeline(Sqlite(str(place / "x.db")), Delta(refused, place / "lake"), name="p", options=options)


def opened(place: Path) -> tuple[RecordedFile, list[TableState]]:
    """What keeps the file, as a process has it that starts now."""
    root = storage_at(place / "lake/_lakefeed/p")
    return RecordedFile(root, Delta(refused, place / "lake").bind("p")), [*TableStates(root).all().values()]


def another_commit(place: Path, table: str) -> None:
    write_deltalake(place / "lake/main" / table, pa.table({"id": pa.array([3], pa.int64())}), mode="append")


def kept(place: Path) -> list[str]:
    return sorted(table.name for table in load_recorded(storage_at(place / "lake/_lakefeed/p")))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "x.db")) as database:
        for name in NAMES:
            database.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY)")
            database.execute(f"INSERT INTO {name} VALUES (1), (2)")
        database.commit()
    with made(tmp_path) as pipeline:
        assert not pipeline.sync_once().errors
    return tmp_path


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables whose log was read."""
    names, applied = list[str](), DeltaStore.applied

    def noted(self: DeltaStore, generation: int, *, fresh: bool = True) -> object:
        names.append(Path(self.location).name)
        return applied(self, generation, fresh=fresh)

    monkeypatch.setattr(DeltaStore, "applied", noted)
    return names


def asked(place: Path) -> tuple[PipelineStatus, dict[str, int | None]]:
    with made(place) as pipeline:
        found = pipeline.status()
    assert not found.unanswered
    return found, {table.name: one.rows for table, one in found.tables.items()}


def test_no_log_is_read_of_tables_without_a_commit_since(place: Path, read: list[str]) -> None:
    found, rows = asked(place)
    assert rows == dict.fromkeys(NAMES, 2)
    assert {one.state for one in found.tables.values()} == {"live"}
    assert all(one.applied is not None for one in found.tables.values())
    assert read == []


def test_a_commit_of_somebody_else_is_seen(place: Path, read: list[str]) -> None:
    another_commit(place, "b")
    assert asked(place)[1] == {"a": 2, "b": 3, "c": 2}
    assert read == ["b"]


def test_a_table_that_is_gone_or_another_one_is_not_taken_for_what_it_was(place: Path, read: list[str]) -> None:
    shutil.rmtree(place / "lake/main/a")
    version = DeltaTable(place / "lake/main/c").version()
    shutil.rmtree(place / "lake/main/c")
    for _ in range(version + 1):
        another_commit(place, "c")
    assert DeltaTable(place / "lake/main/c").version() == version
    assert asked(place)[1] == {"a": None, "b": 2, "c": None}
    assert sorted(read) == ["a", "c"]


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{}", b'{"sha256": "", "body": {}}'])
def test_without_the_file_the_tables_are_asked(place: Path, read: list[str], content: bytes | None) -> None:
    file = place / "lake/_lakefeed/p/recorded.json"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    assert asked(place)[1] == dict.fromkeys(NAMES, 2)
    assert sorted(read) == [*NAMES]


def test_a_running_pipeline_keeps_the_file(place: Path, read: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "_EVERY_SECONDS", 0.2)
    (place / "lake/_lakefeed/p/recorded.json").unlink()
    with made(place) as pipeline:
        pipeline.run(for_seconds=4)
    read.clear()
    assert asked(place)[1] == dict.fromkeys(NAMES, 2)
    assert read == []


def test_a_file_that_still_says_the_same_is_not_written_again(place: Path) -> None:
    file = place / "lake/_lakefeed/p/recorded.json"
    with made(place) as pipeline:
        pipeline.sync_once()
        before = file.stat().st_mtime_ns, file.stat().st_ino
        pipeline.sync_once()
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == before


@pytest.mark.parametrize("name", ["20261118-backup.json", "9.json", "9" * 19 + ".json", "9" * 20 + ".json.tmp"])
def test_a_foreign_file_in_the_log_hides_no_commit(place: Path, read: list[str], name: str) -> None:
    (place / "lake/main/b/_delta_log" / name).write_text("{}")
    with made(place) as pipeline:
        pipeline.sync_once()
    read.clear()
    another_commit(place, "b")
    assert asked(place)[1] == {"a": 2, "b": 3, "c": 2}
    assert read == ["b"]


@pytest.mark.parametrize(
    "name", ["{:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json", "{0:020d}.{0:020d}.compacted.json"]
)
def test_checkpoints_and_compacted_entries_are_no_commits(place: Path, name: str) -> None:
    file, states = opened(place)
    before = [file._tables.newest_commit(state.route) for state in states]
    assert None not in before
    for state in states:
        (place / "lake/main" / state.table.name / "_delta_log" / name.format(50)).write_text("{}")
    assert [file._tables.newest_commit(state.route) for state in states] == before


def test_a_restart_asks_no_table_that_the_file_has(place: Path, read: list[str]) -> None:
    another_commit(place, "b")
    file, states = opened(place)
    file.update(states, now=True)
    assert read == ["b"]
    read.clear()
    assert asked(place)[1] == {"a": 2, "b": 3, "c": 2}
    assert read == []


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables whose log's directory was read."""
    names, scandir = list[str](), os.scandir

    def noted(path: str) -> Iterator[os.DirEntry[str]]:
        if str(path).endswith("_delta_log"):
            names.append(Path(path).parent.name)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", noted)
    return names


def test_a_log_whose_directory_has_not_changed_is_not_read_again(place: Path, scanned: list[str]) -> None:
    file, states = opened(place)
    changed = time.time() - 60
    for name in NAMES:
        os.utime(place / "lake/main" / name / "_delta_log", (changed, changed))
    scanned.clear()
    for _ in range(3):
        file.update(states, now=True)
    assert sorted(scanned) == [*NAMES]
    another_commit(place, "b")
    scanned.clear()
    file.update(states, now=True)
    assert set(scanned) == {"b"}, "the store that is asked lists it, too"


def test_a_commit_within_the_granularity_of_a_clock_is_seen(place: Path, scanned: list[str]) -> None:
    """The second commit leaves the directory's time as it was: it can, where clocks stand still for a while."""
    file, states = opened(place)
    log = place / "lake/main/b/_delta_log"
    another_commit(place, "b")
    changed = log.stat().st_mtime_ns
    file.update(states, now=True)
    another_commit(place, "b")
    os.utime(log, ns=(changed, changed))
    scanned.clear()
    file.update(states, now=True)
    assert "b" in scanned
    version = DeltaTable(place / "lake/main/b").version()
    entry = load_recorded(storage_at(place / "lake/_lakefeed/p"))[states[1].table]
    assert entry.commit.startswith(f"{version:020d}.json ")


def test_a_table_is_not_asked_while_each_update_finds_another_commit(
    place: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "_EVERY_SECONDS", 0.0)
    file, states = opened(place)
    for _ in range(3):
        another_commit(place, "b")
        file.update(states)
    assert read == []
    file.update(states)
    assert read == ["b"]
    assert asked(place)[1] == {"a": 2, "b": 5, "c": 2}
    assert read == ["b"]


def test_an_update_ends_after_its_time_and_the_next_one_goes_on(
    place: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "lake/_lakefeed/p/recorded.json").unlink()
    monkeypatch.setattr(recorded, "_NOW_SECONDS", 0.0)  # one table is all there is time for
    file, states = opened(place)
    for upto in range(1, 4):
        file.update(states, now=True)
        assert (read, kept(place)) == ([*NAMES[:upto]], [*NAMES[:upto]])
    another_commit(place, "a")
    file.update(states, now=True)
    assert read == [*NAMES, "a"]


def test_an_update_ends_when_the_run_is_over(place: Path, read: list[str]) -> None:
    (place / "lake/_lakefeed/p/recorded.json").unlink()
    file, states = opened(place)
    answers = iter([True, True, False])
    file.update(states, now=True, goes_on=lambda: next(answers))
    assert (read, kept(place)) == (["a", "b"], ["a", "b"])


def test_an_update_holds_up_no_report_no_watchdog_and_no_end(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports, ends, report = list[float](), list[float](), OpenPipeline.report

    def endless(_file: object, _states: object, *, goes_on: Callable[[], bool], **_options: object) -> None:
        reports.clear()
        while goes_on():
            time.sleep(0.01)
        ends.append(time.monotonic())

    def noted(pipeline: OpenPipeline) -> None:
        reports.append(time.monotonic())
        report(pipeline)

    monkeypatch.setattr(RecordedFile, "update", endless)
    monkeypatch.setattr(OpenPipeline, "report", noted)
    with made(place, PipelineOptions(maintenance_seconds=0, hang_seconds=1)) as pipeline:
        pipeline.run(for_seconds=3)
        assert not pipeline.hanging
    assert len(ends) == 1
    assert len(reports) > 10


def test_a_table_that_is_gone_or_cannot_be_asked_leaves_the_file(place: Path) -> None:
    file, states = opened(place)
    (place / f"lake/main/b/_delta_log/{0:020d}.json").write_text("{")
    file.update(states[1:], now=True)
    assert kept(place) == ["c"]
    shutil.rmtree(place / "lake/main/c")
    file.update(states[1:], now=True)
    assert kept(place) == []


def test_the_log_of_a_union_is_looked_at_once_for_all_its_parts(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, newest = list[str](), DeltaFormat.newest_commit

    def noted(self: DeltaFormat, route: Route) -> str | None:
        stored.append(route.stored.name)
        return newest(self, route)

    monkeypatch.setattr(DeltaFormat, "newest_commit", noted)
    file, states = opened(place)
    parts = [replace(state, part=Part(states[0].table, "origin", state.table.name)) for state in states]
    file.update(parts, now=True)
    assert stored == ["a"]


@pytest.mark.parametrize("lost", ["an entry", "a data file"])
def test_damage_behind_an_untouched_entry_is_left_to_verify(place: Path, lost: str) -> None:
    """As docs/operations.md says."""
    file, states = opened(place)
    another_commit(place, "b")
    file.update(states, now=True)
    entry = place / f"lake/main/b/_delta_log/{0:020d}.json"
    assert not [*entry.parent.glob("*.parquet")], "readers begin with the first entry"
    if lost == "an entry":
        entry.write_text("{")
    else:
        next((place / "lake/main/b").glob("*.parquet")).unlink()
    assert asked(place)[1] == {"a": 2, "b": 3, "c": 2}
    config = place / "p.yaml"
    config.write_text("pipeline: p\nsource: {kind: sqlite, path: x.db}\nlake: {path: lake}\n")
    found = build_verification(load_config(config), "lakefeed sync").run(lambda _table: lambda _side, _rows: None)
    (damaged,) = [one for _, one in found.tables if not one.equal]
    assert str(damaged.table) == "main.b"
    assert f"the table at {place}/lake/main/b cannot be read: " in damaged.differences[0]

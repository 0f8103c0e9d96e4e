"""Status knows what unchanged lake tables record without reading their logs, and asks every other one."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.flow.pipeline import Pipeline
from lakefeed.flow.status import PipelineStatus
from lakefeed.lake.delta import Delta
from lakefeed.lake.delta.store import DeltaStore

NAMES = ("a", "b", "c")


def refused() -> SparkSession:
    raise AssertionError("tables this small need no Spark")


def made(place: Path) -> Pipeline:
    return Pipeline(Sqlite(str(place / "x.db")), Delta(refused, place / "lake"), name="p")


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
    write_deltalake(place / "lake/main/b", pa.table({"id": pa.array([3], pa.int64())}), mode="append")
    assert asked(place)[1] == {"a": 2, "b": 3, "c": 2}
    assert read == ["b"]


def test_a_table_that_is_gone_or_another_one_is_not_taken_for_what_it_was(place: Path, read: list[str]) -> None:
    shutil.rmtree(place / "lake/main/a")
    version = DeltaTable(place / "lake/main/c").version()
    shutil.rmtree(place / "lake/main/c")
    for _ in range(version + 1):
        write_deltalake(place / "lake/main/c", pa.table({"id": pa.array([3], pa.int64())}), mode="append")
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


def test_a_running_pipeline_keeps_the_file(place: Path, read: list[str]) -> None:
    (place / "lake/_lakefeed/p/recorded.json").unlink()
    with made(place) as pipeline:
        pipeline.run(for_seconds=2)
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

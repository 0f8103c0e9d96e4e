"""The whole way: polling, the journal, a lake in memory. The watermarks are the journal's positions. A17, A32."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from tests.poll.actors import iso, now_us

from lakefeed import Pipeline, PipelineOptions
from lakefeed.capture.dialect import Query
from lakefeed.capture.poll import capture as poll_capture
from lakefeed.capture.poll.source import Pace, SoftDelete, SqlitePolling, TableRule
from lakefeed.capture.poll.store import FileWatermarkStore
from lakefeed.capture.sqlite.dialect import SqliteSession
from lakefeed.change.table import TableId
from lakefeed.change.watermark import Mark
from lakefeed.errors import CheckpointDamagedError, JournalFullError
from lakefeed.flow.table_state import TableStates
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.testing import memory_lake
from lakefeed.testing.memory_lake import MemoryLake

QUICK = PipelineOptions(interval_seconds=0.01, enrol_seconds=0.05, journal=JournalOptions(fsync=False))
RULES = {"*": TableRule(deletes=SoftDelete("deleted_at"), safety_lag_seconds=0.05)}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    for name in ("t", "u"):
        connection.execute(
            f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, v TEXT, updated_at TEXT NOT NULL, deleted_at TEXT)"
        )
        connection.execute(f"INSERT INTO {name} VALUES (1, 'a', '{at()}', NULL), (2, 'b', '{at()}', NULL)")
    yield connection
    connection.close()


@pytest.fixture
def lake(tmp_path: Path) -> MemoryLake:
    return MemoryLake(str(tmp_path / "lake"))


def at() -> str:
    return iso(now_us())


def pipeline(tmp_path: Path, lake: MemoryLake, tables: Sequence[str] = ("*",)) -> Pipeline:
    source = SqlitePolling(tmp_path / "s.db", tables=tables, rules=RULES, pace=Pace(poll_seconds=0.01))
    return Pipeline(source, lake, name="p", options=QUICK)


def values(lake: MemoryLake, table: str = "main.t") -> dict[int, str]:
    return {row["id"]: row["v"] for row in lake.rows(table)}


def test_a17_a_pipeline_resumes_from_its_journal(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    with pipeline(tmp_path, lake) as first:
        first.sync_once()
        assert values(lake) == {1: "a", 2: "b"}
        database.execute(f"INSERT INTO t VALUES (3, 'c', '{at()}', NULL)")
        database.execute(f"UPDATE t SET deleted_at = '{at()}' WHERE id = 1")
        first.sync_once()
        assert values(lake) == {2: "b", 3: "c"}
    database.execute(f"UPDATE t SET v = 'x', updated_at = '{at()}' WHERE id = 2")
    database.execute("ALTER TABLE u ADD COLUMN w TEXT")
    database.execute(f"UPDATE u SET w = 'w', updated_at = '{at()}' WHERE id = 1")
    with pipeline(tmp_path, lake) as second:
        second.sync_once()
        assert values(lake) == {2: "x", 3: "c"}
        assert {row["id"]: row["w"] for row in lake.rows("main.u")} == {1: "w", 2: None}


def test_a17_a_first_copy_that_is_interrupted_before_the_journal_has_anything_goes_on(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(failpoint: str) -> None:
        if failpoint == "lake.during_load":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pipeline(tmp_path, lake) as first:
        patch.setattr(memory_lake, "hit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            first.sync_once()
        root = first.root
    before = {table: record.generation for table, record in TableStates(root).all().items()}
    assert Journal.read(root).head == 0
    database.execute(f"UPDATE t SET v = 'meanwhile', updated_at = '{at()}' WHERE id = 1")
    with pipeline(tmp_path, lake) as second:
        second.sync_once()
    assert {table: record.generation for table, record in TableStates(root).all().items()} == before
    assert values(lake) == {1: "meanwhile", 2: "b"}
    (root / "watermark.json").write_text("{}")
    with pytest.raises(CheckpointDamagedError):
        pipeline(tmp_path, lake)


def test_a32_a_broken_table_is_in_the_status_and_the_others_go_on(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection
) -> None:
    with pipeline(tmp_path, lake) as running:
        running.sync_once()
        database.execute("INSERT INTO u VALUES (3, 'c', 'whenever', NULL)")
        database.execute(f"INSERT INTO t VALUES (3, 'c', '{at()}', NULL)")
        running.sync_once()
        assert values(lake)[3] == "c"
        status = running.status().tables[TableId("main", "u")]
        assert status.state == "blocked"
        assert "'whenever' is not a time" in str(status.error)
        assert status.remedy
    database.execute(f"UPDATE u SET updated_at = '{at()}' WHERE id = 3")
    with pipeline(tmp_path, lake) as again:
        again.sync_once()
        assert values(lake, "main.u")[3] == "c"


@pytest.mark.parametrize("tables", [["*"], ["t", "u"]], ids=["by a pattern", "by its name"])
def test_a32_a_table_that_cannot_be_polled_any_more_is_blocked_after_a_restart_too(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection, tables: list[str]
) -> None:
    u = TableId("main", "u")
    with pipeline(tmp_path, lake, tables) as running:
        running.sync_once()
        database.execute("ALTER TABLE u RENAME COLUMN updated_at TO touched")
        time.sleep(0.02)  # the catalog is looked at that often
        running.sync_once()
        assert running.status().tables[u].state == "blocked"
    for key in (3, 4):
        database.execute(f"INSERT INTO t VALUES ({key}, 'c', '{at()}', NULL)")
        with pipeline(tmp_path, lake, tables) as again:
            again.sync_once()
            status = again.status().tables[u]
            assert status.state == "blocked"
            assert "no single column looks like the time of the last update" in str(status.error)
            assert "updated_at" in str(status.remedy)
            assert values(lake)[key] == "c", "it does not hold up the others"
    database.execute("ALTER TABLE u RENAME COLUMN touched TO updated_at")
    with pipeline(tmp_path, lake, tables) as repaired:
        repaired.sync_once()
        assert repaired.status().tables[u].state == "live"


def test_a_watermark_that_cannot_be_saved_does_not_stop_the_pipeline(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed confirm takes the poll back to what is confirmed; the journal has more, and capture goes on from it."""
    with pipeline(tmp_path, lake) as running:
        running.sync_once()
        save, refused = FileWatermarkStore.save, list[object]()

        def refuse_once(self: FileWatermarkStore, identity: str, marks: Mapping[str, Mark]) -> None:
            if not refused:
                refused.append(marks)
                raise JournalFullError("no room")
            save(self, identity, marks)

        monkeypatch.setattr(FileWatermarkStore, "save", refuse_once)
        for number in (3, 4, 5):
            database.execute(f"INSERT INTO t VALUES ({number}, 'n', '{at()}', NULL)")
            time.sleep(0.1)  # beyond the safety lag: the mark moves
            running.sync_once()
        assert refused
        assert set(values(lake)) == {1, 2, 3, 4, 5}


def test_a_sync_of_tables_that_are_written_to_all_the_time_ends_with_what_was_there_before_it(
    tmp_path: Path, lake: MemoryLake, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_capture, "BUSY_SECONDS", 0.2)
    read, keys = SqliteSession.read, itertools.count(1_000)

    def write_first(self: SqliteSession, query: Query, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with closing(sqlite3.connect(tmp_path / "s.db", timeout=30)) as writer, writer:
            writer.execute(f"INSERT INTO t VALUES ({next(keys)}, 'later', '{at()}', NULL)")
        return read(self, query, schema)

    with pipeline(tmp_path, lake) as running:
        running.sync_once()
        for table in ("t", "u"):
            database.executemany(
                f"INSERT INTO {table} VALUES (?, 'before', '{at()}', NULL)", [(key,) for key in range(10, 60)]
            )
        monkeypatch.setattr(SqliteSession, "read", write_first)
        began = time.monotonic()
        running.sync_once()
        assert time.monotonic() - began < 20
        for table in ("main.t", "main.u"):
            assert set(range(10, 60)) <= set(values(lake, table))

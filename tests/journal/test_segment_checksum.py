"""Whoever reads a segment checks it: a flipped byte stops its table, and the error names the file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from lakefeed import Pipeline, PipelineOptions, Sqlite
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.segment import Segment
from lakefeed.errors import JournalDamagedError
from lakefeed.journal.commit import Commit
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.journal.segment_file import check_segment
from lakefeed.testing.builders import read_window
from lakefeed.testing.memory_lake import MemoryLake

OPTIONS = PipelineOptions(journal=JournalOptions(fsync=False))
SCRIPT = "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT); CREATE TABLE u (id INTEGER PRIMARY KEY, v TEXT);"


def flip_value(path: Path) -> None:
    """One bit of a byte in the middle: Parquet itself does not notice."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def lake_rows(lake: MemoryLake, table: str) -> dict[int, str]:
    return {row["id"]: row["v"] for row in lake.rows(table)}


def test_a_flipped_byte_stops_its_table_by_name_and_the_others_go_on(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    database.executescript(SCRIPT)
    lake = MemoryLake(str(tmp_path / "lake"))
    damaged: list[Path] = []

    append = Journal.append

    def append_damaged(journal: Journal, change_set: ChangeSet) -> Commit:
        commit = append(journal, change_set)
        for segment in commit.segments:
            if segment.table.name == "t":
                flip_value(Path(segment.path))
                damaged.append(Path(segment.path))
        return commit

    with Pipeline(Sqlite(tmp_path / "s.db"), lake, name="p", options=OPTIONS) as pipeline:
        pipeline.sync_once()
        database.executescript("INSERT INTO t VALUES (1, 'one'); INSERT INTO u VALUES (1, 'one');")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Journal, "append", append_damaged)
            result = pipeline.sync_once()
        found = {str(table): one.error for table, one in result.tables.items()}
        assert found["main.u"] is None
        assert found["main.t"] is not None
        assert str(damaged[0]) in found["main.t"]
        assert (lake_rows(lake, "main.t"), lake_rows(lake, "main.u")) == ({}, {1: "one"})
        assert "main.t" in [str(table) for table, one in pipeline.status().tables.items() if one.error]
    database.close()


def test_a_sound_segment_is_read_for_its_checksum_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []

    def counted(segment: Segment) -> None:
        checked.append(segment.path)
        check_segment(segment)

    monkeypatch.setattr("lakefeed.journal.view.check_segment", counted)
    database = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    database.executescript(SCRIPT)
    lake = MemoryLake(str(tmp_path / "lake"))
    with Pipeline(Sqlite(tmp_path / "s.db"), lake, name="p", options=OPTIONS) as pipeline:
        pipeline.sync_once()
        for number in range(5):
            database.execute(f"INSERT INTO t VALUES ({number}, 'x')")
            pipeline.sync_once()
            pipeline.status()
        assert len(checked) == len(set(checked)) == 5
        journal = Journal.read(pipeline.root)
        window = journal.window(next(iter(journal.schemas.tables())), journal.trimmed, journal.head)
        for _ in range(2):
            journal.check(window)
        assert len(checked) == 5 + len(window.segments)
        assert len(read_window(window)) == 5
        flip_value(Path(window.segments[0].path))
        with pytest.raises(JournalDamagedError, match="fails its checksum"):
            Journal.read(pipeline.root).check(window)
        with pytest.raises(JournalDamagedError, match="fails its checksum"):
            read_window(window)
    database.close()

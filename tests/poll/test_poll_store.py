"""Where watermarks are kept, and what happens when they cannot be. Requirements A15 to A18, A29, A30."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.poll.actors import iso
from tests.poll.world import TABLE, Clock, World, clocked, made

from lakefeed.capture.base import Continuity
from lakefeed.capture.poll.capture import Polling
from lakefeed.capture.poll.store import FileWatermarkStore, MemoryWatermarkStore
from lakefeed.capture.sqlite.dialect import SqliteDialect, SqliteSession
from lakefeed.change.table import TableId
from lakefeed.change.watermark import Mark
from lakefeed.errors import (
    CheckpointDamagedError,
    CheckpointError,
    LakefeedError,
    SourceChangedError,
    SourceUnavailableError,
)
from lakefeed.testing.capture_subject import changes, drain, row_dicts

MARK = Mark(5, (1, "a", b"\x00"), stamp="2024")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return clocked(monkeypatch)


def put(world: World, clock: Clock, *keys: int) -> None:
    for key in keys:
        world.sql(f"INSERT INTO t VALUES ({key}, 'a', '{clock.tick(1)}', '{clock.text}', NULL)")
    clock.tick(60)


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a15_a_store_loads_and_saves_each_table_by_itself(tmp_path: Path, kind: str) -> None:
    store = MemoryWatermarkStore() if kind == "memory" else FileWatermarkStore(tmp_path / "deep" / "w.json")
    assert (store.identity(), store.tables(), store.load("main.t")) == (None, (), None)
    store.save("sqlite:/x", {"main.t": MARK})
    store.save("sqlite:/x", {"main.u": Mark(6, (2,))})
    store.save("sqlite:/x", {"main.u": Mark(7, (3,))})
    for again in [store] if kind == "memory" else [store, FileWatermarkStore(tmp_path / "deep" / "w.json")]:
        assert (again.identity(), again.tables()) == ("sqlite:/x", ("main.t", "main.u"))
        assert (again.load("main.t"), again.load("main.u"), again.load("main.v")) == (MARK, Mark(7, (3,)), None)
    assert store.remove()
    assert (store.identity(), store.load("main.t"), store.remove()) == (None, None, ())


def test_a15_a_confirm_moves_the_watermarks_of_its_tables_and_no_other(tmp_path: Path, clock: Clock) -> None:
    """A table that was prepared after the confirmed change set was cut keeps its watermark."""
    store = FileWatermarkStore(tmp_path / "w.json")
    with made(tmp_path / "s.db", store=store) as world:
        put(world, clock, 1)
        world.seed()
        put(world, clock, 2)
        first = next(world.capture.live(world.position, wait_seconds=0))
        world.sql("CREATE TABLE u (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL)")
        world.sql(f"INSERT INTO u VALUES (1, '{iso(clock.us - 3_600_000_000)}')")
        world.capture.prepare([TableId("main", "u")])
        marks = {table: FileWatermarkStore(tmp_path / "w.json").load(table) for table in ("main.t", "main.u")}
        assert marks["main.u"] is not None
        assert not marks["main.u"].is_start
        world.capture.confirm(first.end)
        again = FileWatermarkStore(tmp_path / "w.json")
        assert again.load("main.u") == marks["main.u"]
        assert again.load("main.t") == dict(first.end.marks)["main.t"] != marks["main.t"]  # type: ignore[attr-defined]  # a Watermark


def test_a15_a_confirm_saves_the_tables_that_have_moved_on_and_no_other(tmp_path: Path, clock: Clock) -> None:
    saved: list[set[str]] = []

    class Noting(MemoryWatermarkStore):
        def save(self, identity: str, marks: Mapping[str, Mark]) -> None:
            saved.append(set(marks))
            super().save(identity, marks)

    other = "CREATE TABLE u (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL)"
    with made(tmp_path / "s.db", TABLE, other, store=Noting()) as world:
        put(world, clock, 1)
        world.seed()
        assert saved == [{"main.t", "main.u"}]
        put(world, clock, 2)
        first = world.sets()[-1].end
        world.capture.confirm(first)
        assert saved[1:] == [{"main.t"}]
        put(world, clock, 3)
        world.capture.confirm(world.sets()[-1].end)
        reached = world.store.load("main.t") if world.store else None
        world.capture.confirm(first)
        assert (saved[2:], world.store and world.store.load("main.t")) == ([{"main.t"}], reached), "none moves back"


def test_temporary_files_of_killed_writers_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    old, young = (tmp_path / f".w.json.{number}-ab.tmp" for number in (1, 2))
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    FileWatermarkStore(tmp_path / "w.json")
    assert (old.exists(), young.exists()) == (False, True)


def test_a17_a_watermark_is_on_disk_before_its_file_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, rename = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        steps.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def replaced(self: Path, target: Path) -> Path:
        steps.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replaced)
    FileWatermarkStore(tmp_path / "w.json").save("sqlite:/x", {"main.t": MARK})
    assert steps[-3:] == ["file", "rename", "directory"]


def test_a16_a29_without_a_store_everything_is_read_again_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db") as world:
        put(world, clock, 1, 2)
        first = drain(world.capture, None)
        world.capture.confirm(first[-1].end)
        world.restart()
        assert world.capture.continuity(None, []) is Continuity.FRESH
        assert changes(drain(world.capture, None)) == changes(first)


def test_a17_a29_a_durable_store_gives_no_old_row_and_every_new_one(tmp_path: Path, clock: Clock) -> None:
    store = FileWatermarkStore(tmp_path / "w.json")
    with made(tmp_path / "s.db", store=store) as world:
        put(world, clock, 1, 2)
        world.capture.confirm(drain(world.capture, None)[-1].end)
        put(world, clock, 3, 4)
        world.restart()
        assert [key for _, key in changes(drain(world.capture, None))] == [3, 4]
        world.restart()
        assert len(changes(drain(world.capture, None))) == 2  # what was not confirmed comes again


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"sha256": "0", "body": {}}', b"\xff\x00", None])
def test_a18_a_store_that_cannot_be_read_is_an_error_at_the_start(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "w.json"
    FileWatermarkStore(path).save("sqlite:/x", {"main.t": MARK})
    path.write_bytes(path.read_bytes().replace(b"main.t", b"main.u") if content is None else content)
    with pytest.raises(CheckpointDamagedError, match=r"w\.json"):
        FileWatermarkStore(path)
    assert path.exists()


def test_a18_a_failing_store_rolls_the_watermark_back_and_the_rows_come_again(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileWatermarkStore(tmp_path / "marks" / "w.json")
    with made(tmp_path / "s.db", store=store) as world:
        world.seed()
        put(world, clock, 1, 2)
        stream = world.capture.live(None, wait_seconds=0)
        first = next(stream)
        (tmp_path / "marks" / "w.json").unlink()
        (tmp_path / "marks" / "w.json").mkdir()  # a rename onto a directory fails, as root too
        with pytest.raises(CheckpointError, match="cannot be written"):
            world.capture.confirm(first.end)
        again = next(stream)
        assert row_dicts(again) == row_dicts(first) != []
        (tmp_path / "marks" / "w.json").rmdir()
        world.capture.confirm(again.end)
        assert next(stream).is_heartbeat


def test_watermarks_of_another_database_are_refused(tmp_path: Path, clock: Clock) -> None:
    store = FileWatermarkStore(tmp_path / "w.json")
    with made(tmp_path / "s.db", store=store) as world:
        world.seed()
    with made(tmp_path / "other.db") as other:
        capture = Polling(SqliteDialect(str(other.path)), store=store)
        with pytest.raises(SourceChangedError, match=r"s\.db.*other\.db"):
            capture.open()
        capture.close()


def test_a_connection_that_leads_to_another_database_is_refused(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name can lead to another server after a failover; its rows are not those of the watermarks."""
    with made(tmp_path / "s.db") as world:
        world.seed()
        stream = world.capture.live(world.position, wait_seconds=0)
        monkeypatch.setattr(SqliteSession, "identity", lambda _: "sqlite:/other.db")
        for call in (world.capture.discover, lambda: next(stream)):
            with pytest.raises(SourceChangedError, match=r"the database is now sqlite:/other\.db"):
                call()


def test_a30_every_error_is_typed_by_whose_it_is(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailableError) as connector:
        Polling(SqliteDialect(str(tmp_path / "none.db"))).open()
    (tmp_path / "w.json").write_text("?")
    with pytest.raises(CheckpointError) as store:
        FileWatermarkStore(tmp_path / "w.json")
    for caught in (connector.value, store.value):
        assert isinstance(caught, LakefeedError)
        assert caught.remedy


def test_e08_lag_is_the_age_of_the_oldest_row_that_is_not_read_and_never_negative(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db") as world:
        put(world, clock, 1)
        world.seed()
        world.sets()
        assert world.capture.lag().seconds == 0.0
        world.sql(f"INSERT INTO t VALUES (2, 'a', '{clock.text}', '{clock.text}', NULL)")
        clock.tick(30)
        assert world.capture.lag().seconds == 30.0
        world.sets()
        clock.tick(60)
        world.sets()
        assert world.capture.lag().seconds == 0.0
        ahead = iso(clock.us + 3_600_000_000)
        world.sql(f"INSERT INTO t VALUES (3, 'a', '{ahead}', '{ahead}', NULL)")
        assert world.capture.lag().seconds == 0.0

"""Where watermarks are kept, and what happens when they cannot be. Requirements A15 to A18, A29, A30."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.poll.world import Clock, World, clocked, made

from lakefeed.capture.base import Continuity
from lakefeed.capture.poll.capture import Polling
from lakefeed.capture.poll.store import FileWatermarkStore, MemoryWatermarkStore, Saved
from lakefeed.capture.sqlite.dialect import SqliteDialect
from lakefeed.change.watermark import Mark, Watermark
from lakefeed.errors import (
    CheckpointDamagedError,
    CheckpointError,
    LakefeedError,
    SourceChangedError,
    SourceUnavailableError,
)
from lakefeed.testing.capture_subject import changes, drain, row_dicts

SAVED = Saved("sqlite:/x", Watermark.of({"main.t": Mark(5, (1, "a", b"\x00"), stamp="2024")}))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return clocked(monkeypatch)


def put(world: World, clock: Clock, *keys: int) -> None:
    for key in keys:
        world.sql(f"INSERT INTO t VALUES ({key}, 'a', '{clock.tick(1)}', '{clock.text}', NULL)")
    clock.tick(60)


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a15_a_store_gives_back_what_was_saved(tmp_path: Path, kind: str) -> None:
    store = MemoryWatermarkStore() if kind == "memory" else FileWatermarkStore(tmp_path / "deep" / "w.json")
    assert store.load() is None
    store.save(SAVED)
    assert store.load() == SAVED
    assert store.remove()
    assert store.load() is None
    assert store.remove() == ()


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
    FileWatermarkStore(path).save(SAVED)
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


def test_a30_every_error_is_typed_by_whose_it_is(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailableError) as connector:
        Polling(SqliteDialect(str(tmp_path / "none.db"))).open()
    (tmp_path / "w.json").write_text("?")
    with pytest.raises(CheckpointError) as store:
        FileWatermarkStore(tmp_path / "w.json")
    for caught in (connector.value, store.value):
        assert isinstance(caught, LakefeedError)
        assert caught.remedy

"""What is SQLite's own: values of any type in any column, large values, and a file that may be replaced."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests.poll.world import QUICK, SECOND, Clock, T, World, clocked, made

from lakefeed.capture.poll import poller
from lakefeed.capture.poll.capture import Polling
from lakefeed.capture.poll.source import NullPolicy, SoftDelete, TableRule
from lakefeed.capture.sqlite import dialect, values
from lakefeed.capture.sqlite.dialect import SqliteDialect
from lakefeed.change.change_set import RecopyNeeded, TableBlocked
from lakefeed.errors import ConfigError, Retry, SourceUnavailableError, TableStoppedError
from lakefeed.testing.capture_subject import drain, row_dicts


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return clocked(monkeypatch)


def test_a_file_that_is_replaced_while_it_is_read_is_opened_anew(tmp_path: Path) -> None:
    path, other = tmp_path / "s.db", tmp_path / "other.db"
    for place, key in ((path, 1), (other, 2)):
        with sqlite3.connect(place) as writer:
            writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL)")
            writer.execute(f"INSERT INTO t VALUES ({key}, '2024-01-0{key} 00:00:00')")
        writer.close()
    capture = Polling(SqliteDialect(str(path)), pace=QUICK)
    capture.open()
    stream = capture.live(None, wait_seconds=0)
    position = next(stream).end
    other.replace(path)
    with pytest.raises(SourceUnavailableError, match="was replaced") as caught:
        next(stream)
    assert caught.value.retry is Retry.BACKOFF
    capture.close()
    capture.open()
    assert [row["id"] for one in drain(capture, position) for row in row_dicts(one)] == [2]
    capture.close()
    path.unlink()
    with pytest.raises(SourceUnavailableError, match="does not exist"):
        capture.open()


DATED = "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, created_at DATETIME, updated_at DATETIME, deleted_at DATETIME)"


@pytest.mark.parametrize("form", ["number", "text"])
@pytest.mark.parametrize(
    "rule",
    [TableRule(null_updated_at=NullPolicy.CREATED_AT), TableRule(deletes=SoftDelete("deleted_at")), TableRule()],
    ids=["created_at", "deleted_at", "plain"],
)
def test_a_time_is_compared_as_it_is_stored(tmp_path: Path, clock: Clock, rule: TableRule, form: str) -> None:
    """SQLite keeps a number in a DATETIME column as a number, and every number comes before every text."""

    def now() -> str:
        clock.tick(10)
        return str(clock.us // SECOND) if form == "number" else f"'{clock.text}'"

    with made(tmp_path / "s.db", DATED, rule=rule) as world:
        world.sql(f"INSERT INTO t VALUES (1, 'a', {now()}, {now()}, NULL)")
        clock.tick(60)
        world.seed()
        for key in (2, 3):
            world.sql(f"INSERT INTO t VALUES ({key}, 'b', {(at := now())}, {at}, NULL)")
            assert world.pull() == [("insert", key)]
        clock.tick(60)
        assert world.pull() == []
        world.sql(f"UPDATE t SET v = 'c', updated_at = {now()} WHERE id = 1")
        assert world.pull() == [("update", 1)]
        clock.tick(60)
        assert world.pull() == []
        world.restart()
        assert world.pull() == []


def test_a_time_that_stands_in_for_another_must_be_stored_as_that_is(tmp_path: Path) -> None:
    table = "CREATE TABLE t (id INTEGER PRIMARY KEY, created_at INTEGER, updated_at TEXT)"
    rule = TableRule(null_updated_at=NullPolicy.CREATED_AT)
    with (
        made(tmp_path / "s.db", table, rule=rule) as world,
        pytest.raises(ConfigError, match="must be stored like 'updated_at'"),
    ):
        world.seed()


@pytest.mark.parametrize("key", ["x'0041'", "CAST(x'ff41' AS TEXT)"])
def test_a_key_that_is_no_text_blocks_its_table_and_is_not_delivered_again_and_again(
    tmp_path: Path, clock: Clock, key: str
) -> None:
    table = "CREATE TABLE t (id TEXT PRIMARY KEY NOT NULL, v TEXT, updated_at TEXT NOT NULL)"
    with made(tmp_path / "s.db", table) as world:
        world.sql(f"INSERT INTO t VALUES ('é', 'a', '{clock.text}')")
        world.seed()
        world.sql(f"INSERT INTO t VALUES ({key}, 'b', '{clock.tick(10)}')")
        clock.tick(60)
        assert world.pull() == []
        (notice,) = world.notices
        assert isinstance(notice, TableBlocked)
        assert "the column id holds values of several types" in notice.reason
        with pytest.raises(TableStoppedError, match="the column id holds") as caught:
            world.seed()
        assert "Correct the values" in caught.value.remedy
        world.sql(f"UPDATE t SET id = 'z', updated_at = '{clock.tick(10)}' WHERE id = {key}")
        world.seed()
        assert world.values() == {"é": "a", "z": "b"}


def test_a_value_that_does_not_fit_is_found_before_the_copy_however_old_its_row_is(
    tmp_path: Path, clock: Clock
) -> None:
    table = "CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER, n INTEGER, updated_at TEXT NOT NULL)"
    with made(tmp_path / "s.db", table) as world:
        world.sql(f"INSERT INTO t VALUES (1, '', 1, '{clock.text}'), (2, 5, 2, '{clock.text}')")
        clock.tick(3600)
        world.seed()
        assert world.values() == {1: "", 2: "5"}
        assert world.values(column="n") == {1: 1, 2: 2}
        world.sql(f"UPDATE t SET v = 6, updated_at = '{clock.tick(10)}' WHERE id = 2")
        assert world.pull() == [("update", 2)]
        assert world.values() == {1: "", 2: "6"}
        assert not any(isinstance(notice, RecopyNeeded) for notice in world.notices)


def large(world: World, clock: Clock) -> None:
    for key in range(60):
        world.sql(f"INSERT INTO t VALUES ({key}, '{'x' * 900}', '{clock.text}', '{clock.text}', NULL)")


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_large_values_are_read_in_batches_that_are_cut_by_bytes(
    tmp_path: Path, clock: Clock, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "PORTION_BYTES", 5_000)
    monkeypatch.setattr(dialect, "MEMORY_BYTES", 5_000)
    monkeypatch.setattr(poller, "BATCH_BYTES", 10_000)
    with sqlite3.connect(tmp_path / "s.db") as setup:
        setup.execute(f"PRAGMA journal_mode = {mode}")
    setup.close()
    with made(tmp_path / "s.db") as world:
        large(world, clock)
        clock.tick(60)
        sets = world.sets()
        assert [row["id"] for one in sets for batch in one.batches for row in batch.data.to_pylist()] == list(range(60))
        assert all(one.rows <= 18 for one in sets)
        world.sql("DELETE FROM t")
        large(world, clock)
        (chunk,) = world.capture.snapshot(T).chunks
        with chunk.open() as reader:
            copied = [batch.num_rows for batch in reader]
        assert sum(copied) == 60
        assert max(copied) <= 12

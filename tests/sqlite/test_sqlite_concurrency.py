"""Real writers in other processes, in both journal modes, while the capture copies, streams and confirms."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.sqlite.world import made, table

from lakefeed.capture.sqlite import drift
from lakefeed.errors import SourceUnavailableError, StateError
from lakefeed.testing.replica import Replica

WRITER = str(Path(__file__).with_name("write_rows.py"))
TABLES = (
    "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INT)",
    "CREATE TABLE note (k TEXT NOT NULL PRIMARY KEY, slot INT UNIQUE)",
)


@contextmanager
def writing(path: Path, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """The writer's process, gone when the block ends, however it ends."""
    command = [sys.executable, WRITER, str(path), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_e12_with_writers_in_other_processes_every_change_set_is_whole_and_nothing_is_lost(
    tmp_path: Path, mode: str
) -> None:
    # Without a write-ahead log SQLite's waiting is unfair: whoever asks again soonest gets the lock, and a writer that
    # never rests can keep everybody else out for seconds.
    with made(tmp_path / "x.db", *TABLES, journal_mode=mode, busy_timeout_seconds=60.0) as world:
        world.writer.executemany("INSERT INTO account VALUES (?, 100)", [(number,) for number in range(50)])
        with writing(world.path, seconds=1.5) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            world.seed(chunk_rows=20)  # while it writes: chunks are read at different times
            caught_up = False
            while writer.poll() is None:
                end = world.pull().end
                world.capture.confirm(end)
                totals = {row["id"]: row["balance"] for row in world.replica.rows(table("account"))}
                assert len(totals) == 50
                caught_up = caught_up or sum(totals.values()) == 5000
                # Once the copy is behind us, half a transfer is never seen.
                assert not caught_up or sum(totals.values()) == 5000
            assert int(writer.stdout.read()) > 10
        world.pull()
        world.assert_equal("account")
        world.assert_equal("note")
        assert world.notices == []


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_chunk_is_exact_at_one_position_although_rows_change_while_it_is_read(tmp_path: Path, mode: str) -> None:
    with made(tmp_path / "x.db", "CREATE TABLE t (id INTEGER PRIMARY KEY, a INT)", journal_mode=mode) as world:
        world.writer.executemany("INSERT INTO t VALUES (?, 0)", [(number,) for number in range(10)])
        capture = world.open()
        start = capture.prepare([table("t")])
        world.sql("UPDATE t SET a = 1 WHERE id = 3")
        (chunk,) = capture.snapshot(table("t")).chunks
        with chunk.open() as reader:
            rows = [row for batch in reader for row in batch.to_pylist()]
            world.sql("UPDATE t SET a = 2 WHERE id = 4")  # not blocked by the open reader, in either mode
            assert reader.low == reader.high > start
            at = reader.high
        assert [row["a"] for row in rows] == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
        (after,) = [
            row["id"] for batch in next(capture.live(at, wait_seconds=0)).batches for row in batch.data.to_pylist()
        ]
        assert after == 4


def test_chunks_cover_every_key_that_exists_or_will_exist_without_overlap(tmp_path: Path) -> None:
    with made(
        tmp_path / "x.db",
        "CREATE TABLE t (x INT NOT NULL, y TEXT NOT NULL COLLATE NOCASE, PRIMARY KEY (y, x)) WITHOUT ROWID",
        "CREATE TABLE b (k BLOB NOT NULL PRIMARY KEY, a)",
        "CREATE TABLE r (a)",
    ) as world:
        rows = [(number % 7, "aAbBcC"[number % 6] + str(number // 42)) for number in range(100)]
        world.writer.executemany("INSERT OR IGNORE INTO t VALUES (?, ?)", rows)
        world.writer.executemany(
            "INSERT INTO b VALUES (?, 1)", [(bytes([number, 255 - number]),) for number in range(40)]
        )
        world.writer.executemany("INSERT INTO r VALUES (?)", [(number,) for number in range(40)])
        capture = world.open()
        capture.prepare([table(name) for name in "tbr"])
        plans = {name: capture.snapshot(table(name), chunk_rows=9) for name in "tbr"}
        world.sql("INSERT INTO t VALUES (-5, 'a'), (99, 'zzz'), (3, 'bb')")
        world.sql("INSERT INTO b VALUES (x'', 1), (x'ffff', 1)", "INSERT INTO r (rowid, a) VALUES (-7, 1), (9999, 1)")
        for name, plan in plans.items():
            assert len(plan.chunks) > 3
            again = [capture.chunk(chunk.to_json()) for chunk in plan.chunks]
            assert again == list(plan.chunks)
            world.replica.copy(plan)
            world.assert_equal(name)


def test_a_row_that_replace_moves_to_a_new_rowid_is_in_one_chunk_only(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", "CREATE TABLE t (k TEXT NOT NULL PRIMARY KEY, a INT)") as world:
        world.writer.executemany("INSERT INTO t VALUES (?, 0)", [(f"{number:03}",) for number in range(30)])
        capture = world.open()
        capture.prepare([table("t")])
        plan = capture.snapshot(table("t"), chunk_rows=10)
        copy, keys = Replica(), []
        for chunk in plan.chunks:
            with chunk.open() as reader:
                keys += [row["k"] for batch in reader for row in batch.to_pylist()]
            world.sql("REPLACE INTO t VALUES ('005', 1)")  # it is the last row by rowid now
        assert len(keys) == len(set(keys)) == 30
        copy.copy(plan)
        assert len(copy.rows(table("t"))) == 30


def test_e07_close_from_another_thread_ends_a_stream_that_waits(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", *TABLES) as world:
        world.seed()
        stream = world.capture.live(world.position, wait_seconds=60)
        began = time.monotonic()
        threading.Timer(0.2, world.capture.close).start()
        assert list(stream) == []
        assert time.monotonic() - began < 40


def test_live_wakes_up_soon_after_a_commit(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", *TABLES) as world:
        world.seed()
        stream = world.capture.live(world.position, wait_seconds=60)
        began = time.monotonic()
        commit = threading.Timer(0.2, world.sql, ("INSERT INTO account VALUES (1, 1)",))
        commit.start()
        assert next(stream).rows == 1
        assert time.monotonic() - began < 40
        commit.join(60)


def test_e15_a_database_that_stays_locked_is_unavailable_and_comes_back(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", *TABLES, journal_mode="delete") as world:
        world.seed()
        world.pull()
        world.sql("BEGIN EXCLUSIVE")
        with pytest.raises(SourceUnavailableError, match="locked"):
            world.pull()
        world.sql("COMMIT", "INSERT INTO account VALUES (1, 1)")
        world.restart()
        assert world.pull().rows == 1


def test_close_returns_within_seconds_while_calls_wait_for_a_lock(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", *TABLES, journal_mode="delete", busy_timeout_seconds=20.0) as world:
        world.seed("account")
        capture, stream = world.capture, world.capture.live(world.position, wait_seconds=60)
        world.sql("BEGIN EXCLUSIVE")
        calls = [lambda: next(stream, None), lambda: capture.prepare([table("note")])]
        with ThreadPoolExecutor(2) as threads:
            waiting = [threads.submit(call) for call in calls]
            time.sleep(0.3)
            began = time.monotonic()
            capture.close()
            assert time.monotonic() - began < 10
            world.sql("COMMIT")
            for one in waiting:
                with suppress(SourceUnavailableError, StateError):
                    one.result(30)


def test_a_changed_schema_is_followed_without_the_write_lock_while_tables_are_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(tmp_path / "x.db", *TABLES) as world:
        world.seed()
        world.sql("PRAGMA busy_timeout = 0")  # this writer waits for nobody
        scans = 0
        scan = drift._scan

        def writing(*given: Any, **named: Any) -> Any:
            nonlocal scans
            scans += 1
            world.sql(f"INSERT INTO account (id, balance) VALUES ({scans}, 1)")
            if scans == 1:
                world.sql("ALTER TABLE account ADD COLUMN late INT DEFAULT 7")  # and the scan counts no more
            return scan(*given, **named)

        monkeypatch.setattr(drift, "_scan", writing)
        world.sql("ALTER TABLE account ADD COLUMN early INT")
        world.pull()
        world.assert_equal("account")
        assert scans == 4  # two tables, twice


def test_the_journal_mode_is_never_changed(tmp_path: Path) -> None:
    for mode in ("wal", "delete", "truncate", "persist"):
        with made(tmp_path / f"{mode}.db", *TABLES, journal_mode=mode) as world:
            world.seed()
            world.sql("INSERT INTO account VALUES (1, 1)")
            world.capture.confirm(world.pull().end)
            world.capture.uninstall()
            assert world.query("PRAGMA journal_mode") == [(mode,)]


def test_a_large_transaction_is_read_in_windows_with_one_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakefeed.capture.sqlite.log.WINDOW_ROWS", 100)
    with made(tmp_path / "x.db", *TABLES) as world:
        world.seed()
        world.sql("BEGIN")
        for number in range(1000):
            world.sql(f"INSERT INTO account VALUES ({number}, 0)", f"INSERT INTO note VALUES ('{number}', {number})")
        world.sql("COMMIT")
        change_set = world.pull()
        assert change_set.rows == 2000
        batches = list(change_set.batches)
        assert len(batches) > 20
        assert max(batch.rows for batch in batches) <= 100
        for name in ("account", "note"):
            own = [batch.data for batch in batches if batch.table == table(name)]
            places = [int(row["_lakefeed_seq"]) for data in own for row in data.select(["_lakefeed_seq"]).to_pylist()]
            assert places == sorted(set(places))
            world.assert_equal(name)

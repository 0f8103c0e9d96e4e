"""The runtime over polling: copies beside the stream are whole, interrupted ones go on, another database is refused."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest
from tests.poll.actors import iso, now_us

from lakefeed import SqlitePolling
from lakefeed.capture.base import ChangeCapture
from lakefeed.capture.poll.capture import Polling
from lakefeed.capture.poll.store import FileWatermarkStore
from lakefeed.capture.sqlite.dialect import SqliteDialect
from lakefeed.change.table import TableId
from lakefeed.change.watermark import Mark
from lakefeed.embed.options import IncrementalSnapshot, RuntimeOptions
from lakefeed.embed.runtime import Runtime
from lakefeed.embed.store import MemoryCheckpointStore
from lakefeed.errors import JournalFullError, SourceChangedError, SourceUnavailableError
from lakefeed.testing.builders import at
from lakefeed.testing.runtime_contract import ids, take_all, transactions
from lakefeed.testing.scripted import CRASH, ScriptedCapture

T = TableId("main", "t")
MINUTE = 60_000_000


class Shop:
    """A table whose rows are an hour old, so that polling has settled them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer = sqlite3.connect(path, isolation_level=None)
        self.writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, updated_at TEXT NOT NULL)")

    def put(self, *keys: int, minutes_ago: int = 60) -> None:
        for key in keys:
            time = iso(now_us() - minutes_ago * MINUTE + key)
            self.writer.execute("INSERT INTO t VALUES (?, 'x', ?)", (key, time))

    def capture(self) -> ChangeCapture:
        return SqlitePolling(self.path).bind("p")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path / "s.db")
    made.put(*range(20))
    return made


def test_a_copy_beside_the_polled_stream_delivers_every_row(shop: Shop) -> None:
    options = RuntimeOptions(incremental=IncrementalSnapshot(tables=(T,)), chunk_rows=3, wait_seconds=0)
    runtime = Runtime(shop.capture(), MemoryCheckpointStore(), key="k", options=options)
    runtime.start()
    taken: list[int] = []
    while delivery := runtime.poll():
        taken += ids(delivery.change_sets)
        runtime.commit(delivery.token)
        if len(taken) < 10:
            shop.put(100 + len(taken), minutes_ago=30 - len(taken))  # the stream moves on between the chunks
    assert set(range(20)) <= set(taken)
    assert {row[0] for row in shop.writer.execute("SELECT id FROM t")} == set(taken)
    runtime.stop()


@pytest.mark.parametrize("committed", [0, 1, 3])
def test_an_interrupted_copy_of_a_polled_table_goes_on_where_it_was(shop: Shop, committed: int) -> None:
    options = RuntimeOptions(snapshot_tables=(T,), chunk_rows=4, wait_seconds=0)
    store, first = MemoryCheckpointStore(), list[int]()
    runtime = Runtime(shop.capture(), store, key="k", options=options)
    runtime.start()
    for _ in range(committed):
        delivery = runtime.poll()
        assert delivery is not None
        first += ids(delivery.change_sets)
        runtime.commit(delivery.token)
    runtime.force_stop()
    again = Runtime(shop.capture(), store, key="k", options=options)
    again.start()
    assert again.handoff_complete is False
    second = take_all(again)
    assert sorted(first + second)[:20] == list(range(20))
    assert again.handoff_complete


def test_a_reconnect_to_another_database_is_refused_and_nothing_of_it_is_delivered() -> None:
    source = ScriptedCapture([*transactions(1), CRASH, *transactions(2)])
    runtime = Runtime(source, MemoryCheckpointStore(), key="k", options=RuntimeOptions(wait_seconds=0, max_events=1))
    runtime.start()
    assert take_until_crash(runtime) == [1]
    source.name = "another server behind the same address"
    for _ in range(2):
        with pytest.raises(SourceChangedError, match="another server"):
            runtime.poll()
    assert source.confirmed == at(1)
    source.name = "scripted"
    assert take_all(runtime) == [2]


def take_until_crash(runtime: Runtime) -> list[int]:
    taken: list[int] = []
    try:
        while delivery := runtime.poll():
            taken += ids(delivery.change_sets)
            runtime.commit(delivery.token)
    except SourceUnavailableError:
        pass
    return taken


def test_a_full_disk_under_the_watermark_store_is_said_and_nothing_is_lost(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store keeps what it had, in memory and on disk; once there is room, the same runtime goes on."""
    path, fsync, full = tmp_path / "marks" / "w.json", os.fsync, list[Path]()

    def no_room(descriptor: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr("lakefeed.durable.os.fsync", no_room)
    store, kept = FileWatermarkStore(path), MemoryCheckpointStore()
    options = RuntimeOptions(tables=(T,), wait_seconds=0)
    runtime = Runtime(Polling(SqliteDialect(str(shop.path)), store=store), kept, key="k", options=options)
    runtime.start()
    shop.put(40, minutes_ago=30)
    assert take_all(runtime) == [40]
    before = path.read_bytes(), store.load("main.t")
    shop.put(50, minutes_ago=20)
    full.append(path)
    with pytest.raises(JournalFullError, match=r"no room left to write .*w\.json"):
        store.save("another", {"main.t": Mark(1, (1,))})
    assert (path.read_bytes(), store.load("main.t")) == before
    assert [one.name for one in path.parent.iterdir()] == ["w.json"], "and leaves no temporary file"
    full.clear()
    assert take_all(runtime) == [50]
    assert store.load("main.t") != before[1]
    runtime.stop()

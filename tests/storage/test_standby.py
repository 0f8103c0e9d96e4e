"""A standby takes over when the process that runs a pipeline is killed, hangs or is cut off; nothing is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.storage.standby_process import FileLake

from lakefeed.change.table import TableId
from lakefeed.journal.journal import Journal
from lakefeed.storage.location import storage_at
from lakefeed.testing.server.object_store import Seaweed
from lakefeed.testing.server.proxy import HttpProxy


class Process:
    """One of the processes; ``said`` counts its lines by their first words."""

    def __init__(self, shop: Shop, options: dict[str, str] | None = None, *, failpoints: str = "") -> None:
        command = [sys.executable, "-m", "tests.storage.standby_process", str(shop.database), str(shop.lake)]
        command += [shop.journal, json.dumps(shop.options if options is None else options)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "LAKEFEED_FAILPOINTS": failpoints},
        )
        self.said: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.said.append(line.strip())  # each is seen at once

    @property
    def captured(self) -> int:
        return self.said.count("captured")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self._listener.join()


class Shop:
    """A source that is written to, a lake, a journal somewhere."""

    def __init__(self, directory: Path, journal: str, options: dict[str, str]) -> None:
        self.database, self.lake = directory / "shop.db", directory / "lake"
        self.journal, self.options = journal, options
        self.lake.mkdir()
        with closing(sqlite3.connect(self.database)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)")

    @contextmanager
    def written_to(self) -> Iterator[None]:
        over, choice = threading.Event(), random.Random(7)

        def write() -> None:
            with closing(sqlite3.connect(self.database, timeout=30, isolation_level=None)) as connection:
                while not over.wait(0.005):
                    key = choice.randrange(300)
                    if choice.random() < 0.2:
                        connection.execute("DELETE FROM account WHERE id = ?", (key,))
                    else:
                        upsert = "INSERT INTO account VALUES (?, 1) ON CONFLICT DO UPDATE SET balance = balance + 1"
                        connection.execute(upsert, (key,))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield
        finally:
            over.set()
            writer.join()

    @contextmanager
    def unused(self) -> Iterator[None]:
        """No process has a lock of the source or of the lake: one that stops then takes none along."""
        with closing(sqlite3.connect(self.database, timeout=30, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            with FileLake(str(self.lake)).alone():
                yield
            connection.execute("ROLLBACK")

    def source_rows(self) -> dict[int, int]:
        with closing(sqlite3.connect(self.database)) as connection:
            return dict(connection.execute("SELECT id, balance FROM account").fetchall())

    def lake_rows(self) -> dict[int, int]:
        lake = FileLake(str(self.lake))
        with lake.alone():
            found = lake.tables.get(TableId("main", "account"))
        return {row["id"]: row["balance"] for row in found.rows.values()} if found is not None else {}

    def require_whole_journal(self) -> None:
        reader = Journal.read(storage_at(self.journal, self.options).below("_lakefeed/shop"))
        reader.verify()
        numbers = [commit.number for commit in reader.commits()]
        assert numbers == list(range(reader.trimmed + 1, reader.head + 1))


def until(holds: Callable[[], bool], seconds: float = 30.0) -> float:
    """Wait for it; how long that took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds
        time.sleep(0.02)
    return time.monotonic() - began


@pytest.fixture(params=[pytest.param("directory", marks=pytest.mark.slow), "store"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, seaweed: Seaweed, address: str) -> Shop:
    if request.param == "directory":
        return Shop(tmp_path, str(tmp_path / "journal"), {})
    return Shop(tmp_path, address, seaweed.options)


@pytest.fixture
def store_shop(tmp_path: Path, seaweed: Seaweed, address: str) -> Shop:
    return Shop(tmp_path, address, seaweed.options)


def take_turns(shop: Shop, kills: int) -> None:
    """Kill the one that runs it, again and again, with another one waiting each time."""
    processes = [Process(shop)]
    try:
        with shop.written_to():
            until(lambda: processes[0].captured > 1)
            for _ in range(kills):
                processes.append(Process(shop))
                until(lambda: "standing by" in processes[-1].said)
                assert processes[-1].captured == 0, "one works at a time"
                processes[-2].process.kill()
                processes[-2].process.wait()
                assert until(lambda: processes[-1].captured > 1) < 15
        until(lambda: shop.lake_rows() == shop.source_rows())
        processes[-1].process.send_signal(signal.SIGTERM)
        assert processes[-1].process.wait(30) == 0
    finally:
        for process in processes:
            process.end()
    assert len(shop.source_rows()) > 50
    assert shop.lake_rows() == shop.source_rows()
    shop.require_whole_journal()


def test_a_standby_takes_over_each_time_the_active_process_is_killed(shop: Shop) -> None:
    take_turns(shop, 3)


@pytest.mark.slow
def test_a_standby_takes_over_fifty_times(shop: Shop) -> None:
    take_turns(shop, 50)


@pytest.mark.slow
def test_a_standby_takes_over_from_a_process_that_hangs_and_that_one_then_stands_by(store_shop: Shop) -> None:
    first = Process(store_shop)
    second = Process(store_shop)
    both = [first, second]
    try:
        with store_shop.written_to():
            until(lambda: max(one.captured for one in both) > 1)
            active, waiting = sorted(both, key=lambda one: -one.captured)
            assert waiting.captured == 0
            with store_shop.unused():
                active.process.send_signal(signal.SIGSTOP)
            took = until(lambda: waiting.captured > 1)
            assert 1 < took < 3 + 1 + 5, "its lease of 3 s and a few more"
            active.process.send_signal(signal.SIGCONT)
            before = active.captured
            until(lambda: "standing by" in active.said)
            waiting.process.kill()
            until(lambda: active.captured > before + 2)
        until(lambda: store_shop.lake_rows() == store_shop.source_rows())
    finally:
        for process in both:
            process.end()
    store_shop.require_whole_journal()


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    [
        pytest.param("capture.before_confirm", id="stream"),
        pytest.param("journal.before_commit", id="append"),
        pytest.param("lake.after_marks", id="lake"),
    ],
)
def test_a_standby_takes_over_from_a_process_with_a_thread_that_hangs(store_shop: Shop, where: str) -> None:
    """The process renews no lease, and writes nothing when its thread comes back."""
    both = [Process(store_shop, failpoints=f"{where}=sleep:40@5")]
    try:
        with store_shop.written_to():
            until(lambda: both[0].captured > 1)
            both.append(Process(store_shop))
            until(lambda: "standing by" in both[1].said)
            until(lambda: any(line.startswith("hung: ") for line in both[0].said))
            assert until(lambda: both[1].captured > 1) < 3 + 1 + 5, "its lease of 3 s and a few more"
            before = both[0].captured
            until(lambda: "came back" in both[0].said, 60)
            assert both[0].captured <= before + 1, "it may report what was durable before it hung"
            assert both[0].process.wait(30) == 0
            now = both[1].captured
            until(lambda: both[1].captured > now + 2)
        until(lambda: store_shop.lake_rows() == store_shop.source_rows())
    finally:
        for process in both:
            process.end()
    store_shop.require_whole_journal()


@pytest.mark.slow
def test_a_standby_takes_over_from_a_process_that_has_lost_the_store(store_shop: Shop, seaweed: Seaweed) -> None:
    with HttpProxy(seaweed.port) as proxy:
        first = Process(store_shop, {**store_shop.options, "endpoint": proxy.endpoint})
        both = [first]
        try:
            with store_shop.written_to():
                until(lambda: first.captured > 1)
                both.append(Process(store_shop))
                until(lambda: "standing by" in both[1].said)
                proxy.cut()
                assert until(lambda: both[1].captured > 1) < 15
                proxy.restore()
                until(lambda: "standing by" in first.said, 60)
                before = first.captured
                time.sleep(0.5)
                assert first.captured == before
            until(lambda: store_shop.lake_rows() == store_shop.source_rows())
        finally:
            for process in both:
                process.end()
    store_shop.require_whole_journal()

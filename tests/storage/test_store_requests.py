"""What a pipeline asks of an object store, counted by a proxy: docs/object-stores.md has the table."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.pipeline import Pipeline
from lakefeed.journal.options import JournalOptions
from lakefeed.testing.memory_lake import MemoryLake
from lakefeed.testing.server.object_store import Seaweed
from lakefeed.testing.server.proxy import HttpProxy

RENEWAL_SECONDS = 1.0
OPTIONS = PipelineOptions(
    interval_seconds=0.1, maintenance_seconds=0, journal=JournalOptions(lease_seconds=3 * RENEWAL_SECONDS)
)


@contextmanager
def running(pipeline: Pipeline) -> Iterator[None]:
    thread = threading.Thread(target=pipeline.run)
    thread.start()
    try:
        yield
    finally:
        while thread.is_alive():
            pipeline.stop()
            thread.join(0.1)


def until_equal(lake: MemoryLake, rows: int) -> None:
    deadline = time.monotonic() + 20
    while not lake.tables or len(lake.rows("main.t")) != rows:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_idle_sends_nothing_but_renewals_and_a_busy_source_is_gathered(
    seaweed: Seaweed, address: str, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None, check_same_thread=False)) as source:
        source.execute("PRAGMA journal_mode = WAL")
        source.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        with HttpProxy(seaweed.port) as proxy:
            lake = MemoryLake(str(tmp_path / "lake"))
            options = {**seaweed.options, "endpoint": proxy.endpoint}
            pipeline = Pipeline(
                Sqlite(tmp_path / "s.db"), lake, name="p", options=OPTIONS, journal=address, storage_options=options
            )
            with running(pipeline):
                source.execute("INSERT INTO t VALUES (0)")
                until_equal(lake, 1)
                time.sleep(2)
                proxy.requests.clear()
                time.sleep(4 * RENEWAL_SECONDS)
                idle = Counter(proxy.requests)
                assert set(idle) == {"PUT"}, idle
                assert 3 <= idle["PUT"] <= 6, "four renewals, one more, and a report"

                proxy.requests.clear()
                began, head = time.monotonic(), pipeline._opened.journal.head if pipeline._opened else 0
                for number in range(1, 101):
                    source.execute("INSERT INTO t VALUES (?)", (number,))
                    time.sleep(0.02)
                until_equal(lake, 101)
                seconds = time.monotonic() - began
                assert pipeline._opened is not None
                change_sets = pipeline._opened.journal.head - head
                busy = Counter(proxy.requests)
                assert set(busy) == {"PUT"}, busy
                assert change_sets <= seconds / 2 + 2, "small change sets gather for two seconds"
                assert busy["PUT"] <= 2 * change_sets + seconds / RENEWAL_SECONDS + 3


@pytest.mark.parametrize("commits", [1, 40])
def test_opening_reads_what_is_there_and_lists_a_few_times(seaweed: Seaweed, address: str, commits: int) -> None:
    from tests.storage.test_store_journal import append

    from lakefeed.journal.journal import Journal
    from lakefeed.storage.location import storage_at

    place = storage_at(address, seaweed.options)
    with Journal.open(place, options=OPTIONS.journal) as journal:
        for number in range(1, commits + 1):
            append(journal, number)
    with HttpProxy(seaweed.port) as proxy:
        again = storage_at(address, {**seaweed.options, "endpoint": proxy.endpoint})
        with Journal.open(again, options=OPTIONS.journal):
            opened = Counter(proxy.requests)
        print(commits, dict(opened))
        assert opened["GET"] <= commits + 6
        assert opened["LIST"] <= 10
        assert opened["PUT"] <= 6

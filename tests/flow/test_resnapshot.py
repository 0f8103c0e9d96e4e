"""Resnapshots beside the stream: chunk by chunk, paused and stopped over restarts, never over a newer change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.flow.test_repair import Shop, T

from lakefeed.errors import ConfigError
from lakefeed.failpoint import FailpointError, armed
from lakefeed.flow.reread import resnapshot
from lakefeed.flow.reread.resnapshot import PAUSE, RESUME, START, STOP, Resnapshot, Resnapshots, ask, load


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(resnapshot, "CHUNK_ROWS", 10)
    made = Shop(tmp_path)
    numbers = "WITH RECURSIVE n(i) AS (SELECT 3 UNION ALL SELECT i + 1 FROM n WHERE i < 45)"
    made.execute(f"{numbers} INSERT INTO t SELECT i, 'r' FROM n")
    made.pipeline.sync_once()
    yield made
    made.pipeline.close()


def record(shop: Shop) -> Resnapshot:
    found = load(shop.pipeline.state, T)
    assert found is not None
    return found


def work(shop: Shop) -> Resnapshots:
    found = shop.opened.capture._resnapshots
    assert found is not None
    return found


def chunk(shop: Shop) -> None:
    """One chunk: begun, read, waited for, appended."""
    before = record(shop).next
    while record(shop).next == before and record(shop).state == "running":
        work(shop).turn(now=True)
        reading = work(shop)._reading
        if reading is not None and reading.thread is not None:
            reading.thread.join(10)
        shop.opened.capture.drain()


def test_a_table_is_read_again_and_the_lake_has_what_the_source_has(shop: Shop) -> None:
    for row in shop.lake.tables[T].rows.values():
        row["a"] = "damaged"
    ask(shop.pipeline.state, T, START)
    shop.pipeline.sync_once()
    done = record(shop)
    assert (done.state, done.generation, done.next, done.rows, done.moved) == ("done", 1, 5, 45, 0)
    assert {row["a"] for row in shop.lake.rows("main.t")} == {"x", "y", "r"}
    ask(shop.pipeline.state, T, START, where="t.id <= 12")
    shop.pipeline.sync_once()
    assert (record(shop).generation, record(shop).rows) == (2, 12)


def test_pause_resume_and_stop_survive_a_restart(shop: Shop) -> None:
    ask(shop.pipeline.state, T, START)
    work(shop).turn(now=True)
    chunk(shop)
    ask(shop.pipeline.state, T, PAUSE)
    work(shop).turn(now=True)
    assert (record(shop).state, record(shop).next) == ("paused", 1)
    shop.pipeline.close()
    shop.pipeline.sync_once()
    assert (record(shop).state, record(shop).next) == ("paused", 1), "another process leaves it paused"
    ask(shop.pipeline.state, T, RESUME)
    work(shop).turn(now=True)
    chunk(shop)
    assert (record(shop).state, record(shop).next) == ("running", 2)
    ask(shop.pipeline.state, T, STOP)
    shop.pipeline.close()
    shop.pipeline.sync_once()
    assert (record(shop).state, record(shop).next) == ("stopped", 2)
    with pytest.raises(ConfigError, match=r"no resnapshot of main\.t is under way"):
        ask(shop.pipeline.state, T, RESUME)


def test_a_row_that_changes_meanwhile_is_never_overwritten(shop: Shop) -> None:
    ask(shop.pipeline.state, T, START)
    while (reading := work(shop)._reading) is None or reading.read is None:
        work(shop).turn(now=True)
        if work(shop)._reading is not None and (thread := work(shop)._reading.thread) is not None:  # type: ignore[union-attr]
            thread.join(10)
    shop.execute("UPDATE t SET a = 'newer' WHERE id = 1", "DELETE FROM t WHERE id = 2")
    shop.pipeline.sync_once()
    assert record(shop).state == "done"
    assert record(shop).moved == 2, "what was read of both is older than what the lake has by their own changes"
    assert shop.rows()[:2] == [(1, "newer"), (3, "r")]


def test_a_chunk_that_was_written_before_a_crash_is_not_written_twice(shop: Shop) -> None:
    ask(shop.pipeline.state, T, START)
    with armed("repair.after_append", "raise@2"), pytest.raises(FailpointError):
        shop.pipeline.sync_once()
    assert record(shop).next == 1
    shop.pipeline.sync_once()
    assert record(shop).state == "done"
    commits = [one for one in shop.opened.journal.commits() if one.start == one.end and one.rows]
    assert [one.rows for one in commits] == [10, 10, 10, 10, 5]

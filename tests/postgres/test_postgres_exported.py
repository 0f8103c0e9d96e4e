"""The snapshot of a copy is kept for as long as the copy needs it, and never longer."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest
from tests.postgres.rows import copied, drain, opened

from lakefeed.capture.postgres import slot
from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.table import TableId

T, U = TableId("public", "t"), TableId("public", "u")


@pytest.fixture
def writer(dsn: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
        yield connection


def held(writer: Any) -> int:
    """Transactions that hold a snapshot, as the server sees them."""
    (count,) = writer.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
    ).fetchone()
    return int(count)


def held_in_the_end(writer: Any, wanted: int) -> bool:
    """The server notices the end of a connection a moment later."""
    until = time.monotonic() + 60
    while held(writer) != wanted and time.monotonic() < until:
        time.sleep(0.01)
    return held(writer) == wanted


def test_a_snapshot_ends_with_the_last_copy_that_needs_it(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn)) as capture:
        capture.prepare([T, U])
        plans = [capture.snapshot(table) for table in (T, U)]
        assert held_in_the_end(writer, 1)
        capture.copied(T)
        capture.copied(T)
        assert held_in_the_end(writer, 1)
        with plans[1].chunks[0].open() as reader:
            assert reader.low == reader.high
        capture.copied(U)
        assert held_in_the_end(writer, 0)


def test_a_later_plan_takes_the_place_of_the_earlier_one(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn)) as capture:
        position: Any = capture.prepare([T])
        for number in range(5):
            writer.execute("INSERT INTO t VALUES (%s)", (number,))
            position = drain(capture, position)[-1].end
            assert len(copied(capture, T)) == number + 1
            assert held_in_the_end(writer, 1)
        temporary = "SELECT count(*) FROM pg_replication_slots WHERE temporary AND database = current_database()"
        assert writer.execute(temporary).fetchone() == (0,)


def test_a_copy_that_was_given_up_is_still_readable_under_snapshots_of_its_own(dsn: str, writer: Any) -> None:
    writer.execute("INSERT INTO t VALUES (1)")
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T])
        chunk = capture.snapshot(T).chunks[0]
        capture.copied(T)
        writer.execute("INSERT INTO t VALUES (2)")
        with chunk.open() as reader:
            assert [row["id"] for batch in reader for row in batch.to_pylist()] == [1, 2]
            assert start < reader.low


def test_a_snapshot_that_nobody_reads_from_is_let_go(dsn: str, writer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot, "CHECK_SECONDS", 0.1)
    with opened(Postgres(dsn)) as capture:
        capture.prepare([T])
        with capture.snapshot(T).chunks[0].open():
            time.sleep(0.5)
            monkeypatch.setattr(slot, "IDLE_SECONDS", 2.0)
            time.sleep(2.5)
            assert held_in_the_end(writer, 2)  # the reader's own transaction, and the snapshot that it was given
        monkeypatch.setattr(slot, "IDLE_SECONDS", 0.2)
        assert held_in_the_end(writer, 0)

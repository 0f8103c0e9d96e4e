"""What takes long: a slot that waits for transactions, a window that the server cancels, and what lag says then."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.postgres.rows import changes, drain, opened

from lakefeed.capture.postgres import catchup, creation
from lakefeed.capture.postgres.slot import head
from lakefeed.capture.postgres.source import Postgres
from lakefeed.capture.postgres.stream import Limits
from lakefeed.change.table import TableId
from lakefeed.errors import SourceUnavailableError

T = TableId("public", "t")

_WAITING = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"


@pytest.fixture
def writer(dsn: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        yield connection


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def slots(writer: Any) -> int:
    query = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    return int(writer.execute(query).fetchone()[0])


def test_a_slot_that_waits_for_a_transaction_says_for_which_and_then_goes_on(
    dsn: str, writer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(creation, "_SAY_SECONDS", 0.2)
    with psycopg.connect(dsn) as slow, opened(Postgres(dsn)) as capture, caplog.at_level(logging.WARNING):
        slow.execute("INSERT INTO t VALUES (1, 'open')")
        said = f"waits for the transaction of process {slow.info.backend_pid} (user postgres, idle in"

        def end() -> None:
            until = time.monotonic() + 60
            while said not in caplog.text and time.monotonic() < until:
                time.sleep(0.05)
            slow.commit()

        ending = threading.Thread(target=end)
        ending.start()
        start = capture.prepare([T])
        ending.join()
        assert said in caplog.text
        writer.execute("INSERT INTO t VALUES (2, 'after')")
        assert [row["id"] for row in changes(drain(capture, start))] == [2]


def test_a_slot_that_waits_too_long_is_given_up_named_and_leaves_nothing(
    dsn: str, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "_SAY_SECONDS", 0.2)
    monkeypatch.setattr(creation, "_GIVE_UP_SECONDS", 0.5)
    with psycopg.connect(dsn) as slow, opened(Postgres(dsn)) as capture:
        slow.execute("INSERT INTO t VALUES (1, 'open')")
        with pytest.raises(SourceUnavailableError, match=f"transaction of process {slow.info.backend_pid}"):
            capture.prepare([T])
        eventually(lambda: slots(writer) == 0)
        slow.commit()
        capture.prepare([T])


def test_a_slot_that_a_dead_process_began_to_make_is_not_taken_for_one(dsn: str, writer: Any) -> None:
    """The server goes on making it until its wait is over, and then drops it."""
    with psycopg.connect(dsn) as slow, opened(Postgres(dsn)) as capture:
        slow.execute("INSERT INTO t VALUES (1, 'open')")
        dead = psycopg.connect(f"{dsn} replication=database", autocommit=True)
        dead.pgconn.send_query(b"CREATE_REPLICATION_SLOT lakefeed_test LOGICAL pgoutput")
        # Only behind the transaction's lock is the server deaf to its client's end; before, it gives up by itself.
        eventually(lambda: writer.execute(_WAITING, (dead.info.backend_pid,)).fetchone() is not None)
        dead.close()
        with pytest.raises(SourceUnavailableError, match="still being made by the server's process"):
            capture.prepare([T])
        slow.commit()
        eventually(lambda: slots(writer) == 0)
        capture.prepare([T])


def test_t23_a_window_that_is_cancelled_is_halved_and_not_tried_again_for_ever(
    dsn: str, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever cancels (a timeout, a person): the same window would be cancelled again."""
    monkeypatch.setattr(catchup, "_LEAST_BYTES", 64 << 10)
    with opened(Postgres(dsn, limits=Limits(catch_up_bytes=1))) as capture:
        start = capture.prepare([T])
        for first in range(1, 20000, 500):
            writer.execute(
                "INSERT INTO t SELECT i, md5(i::text) FROM generate_series(%s::int, %s::int) i", (first, first + 499)
            )
        widths: list[int] = []
        original = catchup.CatchUp._copy

        def cancelled(self: catchup.CatchUp, connection: Any, upto: Any) -> None:
            widths.append(upto.value - self._assembler.position.value)
            assert upto <= head(writer)  # beyond it there is nothing to be read, and a position there would be lost
            if widths[-1] > 1 << 20:
                connection.execute("SET statement_timeout = 1")  # a real one: the server itself gives up
                connection.execute("SELECT pg_sleep(1)")
            original(self, connection, upto)

        monkeypatch.setattr(catchup.CatchUp, "_copy", cancelled)
        found: list[int] = []
        until = time.monotonic() + 60
        stream = capture.live(start, wait_seconds=0.1)
        while len(found) < 20000:
            assert time.monotonic() < until, len(found)
            change_set = next(stream)
            found += [row["id"] for row in changes([change_set])]
            capture.confirm(change_set.end)
        assert found == list(range(1, 20001))
        assert widths[0] > 1 << 20
        assert sum(width > 1 << 20 for width in widths) < 10, widths
        assert min(widths) <= 1 << 20


def test_lag_in_seconds_is_told_by_the_process_that_follows_and_by_the_server(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T])
        stream = capture.live(start, wait_seconds=0.5)
        writer.execute("INSERT INTO t VALUES (1, 'a')")
        until = time.monotonic() + 60
        while not (change_set := next(stream)).rows:
            assert time.monotonic() < until
        capture.confirm(change_set.end)
        time.sleep(0.3)
        writer.execute("INSERT INTO t VALUES (2, 'b')")
        lag = capture.lag()
        assert lag.bytes
        assert lag.seconds is not None
        assert 0.25 < lag.seconds < 30
        assert lag.source["slot"] == "lakefeed_test"
        assert lag.source["active_pid"] is not None
    time.sleep(0.3)
    stopped = Postgres(dsn).bind("test").lag()  # another process, while none follows
    assert stopped.bytes
    if writer.info.server_version >= 170_000:
        assert stopped.seconds is not None
        assert 0.25 < stopped.seconds < 30

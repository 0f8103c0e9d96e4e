"""What takes long: a slot that waits for transactions, timeouts of the role, and what lag says then."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.postgres.rows import changes, drain, opened

from lakefeed.capture.postgres import slot
from lakefeed.capture.postgres.source import Postgres
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
    monkeypatch.setattr(slot, "_REPORT_SECONDS", 0.2)
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
    monkeypatch.setattr(slot, "_REPORT_SECONDS", 0.2)
    monkeypatch.setattr(slot, "SLOT_SECONDS", 0.5)
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
        with pytest.raises(SourceUnavailableError, match="still being created by the server process"):
            capture.prepare([T])
        slow.commit()
        eventually(lambda: slots(writer) == 0)
        capture.prepare([T])


def test_t23_timeouts_of_the_role_neither_end_a_copy_nor_make_the_stream_begin_again_for_ever(
    dsn: str, writer: Any
) -> None:
    """There is no peeking in windows any more, which a timeout could cancel again and again. Every session has its own
    limits, whatever the role's are."""
    writer.execute("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 300000) i")
    names = ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"]
    names += ["transaction_timeout"] if writer.info.server_version >= 170_000 else []
    for name in names:
        writer.execute(f"ALTER ROLE CURRENT_USER IN DATABASE {writer.info.dbname} SET {name} = '20ms'".encode())
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T])
        with capture.snapshot(T, chunk_rows=1_000_000).chunks[0].open() as reader:
            time.sleep(0.1)
            assert sum(batch.num_rows for batch in reader) == 300_000
            assert reader.low == reader.high == start
        writer.execute("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(300001, 400000) i")
        assert len(changes(drain(capture, start))) == 100_000


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

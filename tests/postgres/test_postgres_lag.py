"""E8: lag is the bytes between the slot and the end of the log, asked on a connection that is gone afterwards."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest
from tests.postgres.rows import drain, opened

from lakefeed.capture.postgres import resume
from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId

_BEHIND = """
SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), confirmed_flush_lsn)::int8
  FROM pg_replication_slots WHERE database = current_database()"""
_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"


def test_e08_lag_is_what_the_server_says_in_bytes_and_leaves_no_connection(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(dsn, autocommit=True) as writer, opened(Postgres(dsn)) as capture:

        def one(query: str) -> Any:
            row = writer.execute(query.encode()).fetchone()
            assert row is not None
            return row[0]

        writer.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        start = capture.prepare([TableId("public", "t")])
        writer.execute("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 1000) i")
        sessions, low = one(_SESSIONS), one(_BEHIND)
        lag = capture.lag()
        assert lag.bytes is not None
        assert 1_000_000 < low <= lag.bytes <= one(_BEHIND)
        until = time.monotonic() + 30
        while one(_SESSIONS) > sessions:  # its backend needs a moment to end
            assert time.monotonic() < until
        capture.confirm(drain(capture, start)[-1].end)
        capture.close()
        after = capture.lag()
        assert after.bytes is not None
        assert after.bytes < 100_000
        monkeypatch.setattr(resume, "head", lambda _: PostgresLsn(1))  # read a moment before the slot was
        assert (capture.lag().bytes, capture.lag().seconds) == (0, 0.0)

"""A PostgreSQL replica is polled like its primary, with a transaction held open there. A1, A9."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from lakefeed.capture.poll.capture import Polling
from lakefeed.capture.poll.source import Pace, TableRule
from lakefeed.capture.postgres.dialect import PostgresDialect
from lakefeed.change.position import Position
from lakefeed.change.table import TableId
from lakefeed.testing.capture_subject import drain, row_dicts
from lakefeed.testing.server.base import free_port, is_root
from lakefeed.testing.server.postgres import PostgresServer, dropped

T = TableId("public", "replicated")


@pytest.fixture
def standby(server: PostgresServer) -> Iterator[PostgresServer]:
    directory = Path(tempfile.mkdtemp(prefix="lakefeed-pg-"))
    if is_root():
        subprocess.run(["chown", "nobody", str(directory)], check=True)
    backup = [str(server.binaries / "pg_basebackup"), "-D", str(directory / "data"), "-R", "-c", "fast", "--no-sync"]
    place = ["-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres", "-X", "stream"]
    done = subprocess.run([*backup, *place], capture_output=True, cwd=directory, **dropped())
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    made = PostgresServer(server.binaries, directory, free_port(), server.settings)
    made.resume()
    yield made
    made.close()


def until_replayed(primary: psycopg.Connection[tuple[object, ...]], replica_dsn: str) -> None:
    row = primary.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    deadline = time.monotonic() + 60
    with psycopg.connect(replica_dsn, autocommit=True) as replica:
        while replica.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (row[0],)).fetchone() != (True,):
            assert time.monotonic() < deadline, "the replica does not follow"
            time.sleep(0.02)


def test_a01_a09_a_replica_is_followed_and_a_transaction_open_on_the_primary_is_not_lost(
    server: PostgresServer, standby: PostgresServer
) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as primary, psycopg.connect(server.dsn) as slow:
        primary.execute(
            "CREATE TABLE replicated (id int PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT clock_timestamp())"
        )
        until_replayed(primary, standby.dsn)
        rules = {"replicated": TableRule(safety_lag_seconds=0)}
        pace = Pace(poll_seconds=0, patience_seconds=60)
        capture = Polling(PostgresDialect(standby.dsn), tables=["replicated"], rules=rules, pace=pace)
        capture.open()
        position: Position = capture.prepare([T])
        assert drain(capture, position) == []
        slow.execute("INSERT INTO replicated (id) VALUES (1)")
        found: set[int] = set()
        for key in (2, 3):
            primary.execute("INSERT INTO replicated (id) VALUES (%s)", (key,))
            until_replayed(primary, standby.dsn)
            for one in drain(capture, position):
                found |= {row["id"] for row in row_dicts(one)}
                position = one.end
        assert found == {2, 3}
        slow.commit()
        until_replayed(primary, standby.dsn)
        late = {row["id"] for one in drain(capture, position) for row in row_dicts(one)}
        assert 1 in late
        assert capture.check() is not None
        capture.close()
        primary.execute("DROP TABLE replicated")

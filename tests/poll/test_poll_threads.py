"""Preparing and copying a table beside the stream: no call waits for a poll that is under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.poll.actors import iso, now_us
from tests.poll.world import TABLE, made

from lakefeed.capture.dialect import Query
from lakefeed.capture.poll.capture import Polling
from lakefeed.capture.poll.rule import Pace, TableRule
from lakefeed.capture.postgres.dialect import PostgresDialect
from lakefeed.capture.sqlite.dialect import SqliteDialect, SqliteSession
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.table import TableId
from lakefeed.errors import LakefeedError
from lakefeed.testing.capture_subject import changes
from lakefeed.testing.replica import Replica

T, U = TableId("main", "t"), TableId("main", "u")
ROW = "INSERT INTO {} VALUES ({}, 'a', '{}', '{}', NULL)"


class Gate:
    """Polls of ``t`` wait at it while it is shut; ``reached`` says that one does."""

    def __init__(self) -> None:
        self.open, self.reached = threading.Event(), threading.Event()
        self.open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate, read = Gate(), SqliteSession.read

    def gated(self: SqliteSession, query: Query, schema: object) -> object:
        if threading.current_thread().name.startswith("lakefeed-poll") and 'FROM "t"' in query.sql:
            if not gate.open.is_set():
                gate.reached.set()
            gate.open.wait(60)
        return read(self, query, schema)  # type: ignore[arg-type]  # as it came

    monkeypatch.setattr(SqliteSession, "read", gated)
    yield gate
    gate.open.set()


class Stream:
    """The stream's own thread: it applies what comes to a replica, and confirms it."""

    def __init__(self, capture: Polling, replica: Replica) -> None:
        self.capture, self.replica = capture, replica
        self.failed: list[BaseException] = []
        self.sets: list[ChangeSet] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            for change_set in self.capture.live(None, wait_seconds=0.05):
                self.replica.apply(change_set)
                self.sets.append(change_set)
                self.capture.confirm(change_set.end)
        except LakefeedError as error:
            self.failed.append(error)


def wait_for(condition: object, seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]  # a function of no arguments
        assert time.monotonic() < until
        time.sleep(0.01)


def test_e07_a_table_is_prepared_and_planned_while_another_is_being_polled(tmp_path: Path, gate: Gate) -> None:
    with made(tmp_path / "s.db") as world:
        world.sql("PRAGMA journal_mode = wal")
        pace = Pace(poll_seconds=0.01, patience_seconds=30.0)  # a cycle waits that long for its slowest table
        capture = Polling(SqliteDialect(str(world.path), 1.0), rules={"t": TableRule(safety_lag_seconds=0)}, pace=pace)
        capture.open()
        capture.prepare([T])
        replica = Replica()
        stream = Stream(capture, replica)
        world.sql(ROW.format("t", 1, iso(now_us()), iso(now_us())))
        wait_for(lambda: len(replica.rows(T)) == 1)
        gate.open.clear()
        assert gate.reached.wait(20)  # the stream is in the middle of a poll, and stays there
        world.sql(TABLE.replace("TABLE t", "TABLE u"))
        for key in range(10):
            world.sql(ROW.format("u", key, iso(now_us()), iso(now_us())))
        began = time.monotonic()
        assert {schema.table for schema in capture.discover()} == {T, U}
        capture.prepare([U])
        plan = capture.snapshot(U, chunk_rows=4)
        chunks = [capture.chunk(chunk.to_json()) for chunk in plan.chunks]
        capture.copied(U)
        assert time.monotonic() - began < 5
        assert len(chunks) == 3
        replica.copy(plan)
        assert len(replica.rows(U)) == 10
        gate.open.set()
        world.sql(ROW.format("u", 99, iso(now_us()), iso(now_us())))
        wait_for(lambda: len(replica.rows(U)) == 11)  # the stream has taken the table in
        assert stream.failed == []
        capture.close()
        stream.thread.join(10)
        assert not stream.thread.is_alive()


def test_e07_close_ends_a_prepare_of_another_thread(dsn: str) -> None:
    """Within seconds, although the prepare waits for a lock of somebody else."""
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute("CREATE TABLE t (id int PRIMARY KEY, v int, updated_at timestamptz NOT NULL)")
        writer.execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        capture = Polling(PostgresDialect(dsn), tables=["t"])
        capture.open()
        failed: list[BaseException] = []

        def prepare() -> None:
            try:
                capture.prepare([TableId("public", "t")])
            except LakefeedError as error:
                failed.append(error)

        thread = threading.Thread(target=prepare, daemon=True)
        thread.start()
        time.sleep(0.5)
        assert thread.is_alive()
        began = time.monotonic()
        capture.close()
        thread.join(5)
        assert time.monotonic() - began < 5
        assert failed


def test_prepares_and_confirms_at_the_same_time_lose_no_watermark(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(20)]
    with made(tmp_path / "s.db", *(TABLE.replace("TABLE t", f"TABLE {name}") for name in names)) as world:
        world.sql("PRAGMA journal_mode = wal")
        for name in names:
            world.sql(ROW.format(name, 1, iso(now_us() - 3_600_000_000), iso(now_us() - 3_600_000_000)))
        capture = Polling(SqliteDialect(str(world.path), 1.0), pace=Pace(poll_seconds=0))
        capture.open()
        capture.prepare([TableId("main", "t0")])
        stream = Stream(capture, Replica())
        for key, name in enumerate(names[1:], 2):
            world.sql(ROW.format("t0", key, iso(now_us()), iso(now_us())))
            position = capture.prepare([TableId("main", name)])
            assert f"main.{name}" in dict(position.marks)
        wait_for(lambda: len(changes(list(stream.sets))) >= 19)
        assert {table for table, _ in capture.prepare([]).marks} == {f"main.{name}" for name in names}
        capture.close()
        stream.thread.join(10)
        assert stream.failed == []

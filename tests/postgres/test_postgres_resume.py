"""Continuity: what is there after restarts, cut connections and lost slots. Never a silent fresh start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.postgres.proxy import CuttingProxy
from tests.postgres.rows import PostgresLog, changes, drain, opened, resume_of

from lakefeed.capture.base import Continuity
from lakefeed.capture.builder import Limits
from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.change_set import ChangeSet, RecopyNeeded, TableDropped
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, PositionLostError, SourceSetupError, SourceUnavailableError
from lakefeed.testing.server.postgres import PostgresServer

T = TableId("public", "t")


@pytest.fixture
def writer(dsn: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        yield connection


def fill(writer: Any, first: int, last: int) -> None:
    writer.execute("INSERT INTO t SELECT i, 'v' || i FROM generate_series(%s::int, %s::int) i", (first, last))


def ids(capture: PostgresLog, after: PostgresLsn | None) -> list[int]:
    return [row["id"] for row in changes(drain(capture, after))]


def read_through(dsn: str, start: PostgresLsn, wanted: int, broken: Callable[[], None]) -> tuple[list[int], int]:
    """Follow the stream to ``wanted`` rows, coming back after every error; ``broken`` is called on the way."""
    found: list[int] = []
    position, failures, done = start, 0, False
    until = time.monotonic() + 120
    while len(found) < wanted:
        assert time.monotonic() < until, f"{len(found)} of {wanted}"
        try:
            with opened(Postgres(dsn)) as capture:
                assert capture.continuity(position, [T]) is Continuity.RESUMED
                for change_set in capture.live(position, wait_seconds=0.2):
                    found += [row["id"] for row in changes([change_set])]
                    position = change_set.end if isinstance(change_set.end, PostgresLsn) else position
                    capture.confirm(position)
                    if len(found) >= wanted:
                        break
                    if found and not done:
                        done = True
                        broken()
        except SourceUnavailableError:
            failures += 1
            time.sleep(0.05)
    return found, failures


def test_a_slot_that_is_gone_is_a_lost_position(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn)) as capture:
        position = capture.prepare([T])
    writer.execute("SELECT pg_drop_replication_slot('lakefeed_test')")
    with opened(Postgres(dsn)) as capture:
        with pytest.raises(PositionLostError, match="is gone"):
            capture.continuity(position, [T])
        with pytest.raises(PositionLostError, match="is gone"):
            next(capture.live(position))
        assert capture.continuity(None, [T]) is Continuity.FRESH


def test_a_slot_that_was_made_anew_or_advanced_by_somebody_is_a_lost_position(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn)) as capture:
        position = capture.prepare([T])
        fill(writer, 1, 10)
        writer.execute("SELECT pg_replication_slot_advance('lakefeed_test', pg_current_wal_flush_lsn())")
        with pytest.raises(PositionLostError, match="ahead of the pipeline's"):
            capture.continuity(position, [T])


def test_a_position_that_the_server_has_not_written_yet_is_lost_and_not_up_to_date(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn)) as capture:
        capture.prepare([T])
        with pytest.raises(PositionLostError, match="restored or rewound"):
            capture.continuity(PostgresLsn(1 << 60), [T])


def test_e14_a_slot_that_is_not_ours_is_refused_and_not_touched(dsn: str, writer: Any) -> None:
    writer.execute("SELECT pg_create_physical_replication_slot('lakefeed_test')")
    with opened(Postgres(dsn)) as capture:
        with pytest.raises(SourceSetupError, match="belongs to plugin"):
            capture.prepare([T])
        with pytest.raises(SourceSetupError):
            capture.uninstall()
    assert writer.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'lakefeed_test'").fetchone() == (
        1,
    )
    writer.execute("SELECT pg_drop_replication_slot('lakefeed_test')")


def test_without_provision_nothing_is_made_and_the_statements_are_said(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn, provision=False)) as capture, pytest.raises(ConfigError) as caught:
        capture.prepare([T])
    assert "CREATE PUBLICATION" in caught.value.remedy
    assert "pg_create_logical_replication_slot" in caught.value.remedy
    assert writer.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
    writer.execute("CREATE TABLE late (id int PRIMARY KEY)")
    for statement in caught.value.remedy.removeprefix("Run: ").split(";")[:-1]:
        writer.execute(statement)
    with opened(Postgres(dsn, provision=False)) as capture:
        capture.prepare([T])
        with pytest.raises(SourceSetupError) as refused:  # one table's own: the others go on
            capture.prepare([T, TableId("public", "late")])
        assert refused.value.remedy == 'Run: ALTER PUBLICATION "lakefeed_test" ADD TABLE ONLY "public"."late";'


def test_a_killed_walsender_loses_and_repeats_nothing(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T])
    fill(writer, 1, 100)

    def kill() -> None:
        """What comes next is written when nobody is there to send it."""
        mine = "FROM pg_replication_slots WHERE database = current_database() AND active"
        ((pid, _),) = writer.execute(f"SELECT active_pid, pg_terminate_backend(active_pid) {mine}").fetchall()
        until = time.monotonic() + 60
        while writer.execute("SELECT FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() is not None:
            assert time.monotonic() < until, "the walsender does not end"
            time.sleep(0.01)
        fill(writer, 101, 200)

    found, failures = read_through(dsn, start, 200, kill)
    assert found == list(range(1, 201))
    assert failures >= 1


def test_a_connection_that_is_cut_in_the_middle_of_a_message_loses_and_repeats_nothing(
    server: PostgresServer, dsn: str, writer: Any
) -> None:
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T])
    for first in range(1, 1000, 100):
        fill(writer, first, first + 99)
    with CuttingProxy(server.port) as proxy:
        through = dsn.replace(f"port={server.port}", f"port={proxy.port}")
        proxy.cut_after(20_000)
        found, failures = read_through(through, start, 1000, lambda: None)
    assert found == list(range(1, 1001))
    assert failures >= 1


def test_a_server_that_crashes_and_comes_back_loses_and_repeats_nothing(server: PostgresServer, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        with opened(Postgres(dsn)) as capture:
            start = capture.prepare([T])
            identity = capture.identity()
        fill(writer, 1, 100)

    def crash() -> None:
        server.halt(immediate=True)
        server.resume()
        with psycopg.connect(dsn, autocommit=True) as again:
            fill(again, 101, 200)

    found, failures = read_through(dsn, start, 200, crash)
    assert found == list(range(1, 201))
    assert failures >= 1
    with opened(Postgres(dsn)) as capture:
        assert capture.identity() == identity


def test_t22_an_idle_slot_moves_on_with_a_heartbeat(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE unrelated (id int)")
    with opened(Postgres(dsn, tables=["public.t"], limits=Limits(heartbeat_seconds=0.2))) as capture:
        start = capture.prepare([T])
        writer.execute("INSERT INTO unrelated SELECT generate_series(1, 10000)")
        stream = capture.live(start, wait_seconds=0.1)
        until = time.monotonic() + 60
        while (beat := next(stream)).end == start:
            assert time.monotonic() < until
        assert beat.is_heartbeat
        assert beat.start == start
        assert capture.lag().bytes
        capture.confirm(beat.end)
        assert next(stream).start == beat.end
    with opened(Postgres(dsn)) as capture:
        until = time.monotonic() + 60
        while (reached := resume_of(capture).find()) != beat.end:  # it is told while the stream is left
            assert time.monotonic() < until, reached
            time.sleep(0.02)
        assert reached > start


def test_a_busy_consumer_does_not_lose_its_connection(dsn: str, writer: Any) -> None:
    """Keepalives are answered by the reader thread: the server would give up after so many seconds here.

    Once is enough: on a busy machine this whole process, with that thread, may be held up for longer.
    """
    assert any(outlives_a_pause(dsn, writer, 100 * turn, seconds) for turn, seconds in enumerate((1, 2, 4, 1, 2)))


def outlives_a_pause(dsn: str, writer: Any, first: int, timeout_seconds: int) -> bool:
    active = "SELECT active_pid FROM pg_replication_slots WHERE database = current_database()"
    role_dsn = f"{dsn} options='-c wal_sender_timeout={timeout_seconds}s'"
    with opened(Postgres(role_dsn)) as capture:
        stream = capture.live(capture.prepare([T]), wait_seconds=60)
        try:
            fill(writer, first, first + 9)
            read_to(stream, first + 9)
            pid = writer.execute(active).fetchone()
            time.sleep(3 * timeout_seconds)  # the lake is busy
            fill(writer, first + 10, first + 19)
            read_to(stream, first + 19)
        except SourceUnavailableError:
            return False
        return bool(writer.execute(active).fetchone() == pid)


def read_to(stream: Iterator[ChangeSet], wanted: int) -> None:
    until = time.monotonic() + 60
    while wanted not in [row["id"] for row in changes([next(stream)])]:
        assert time.monotonic() < until, f"no row {wanted}"


def test_a_dropped_table_is_told_after_its_last_row(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE other (id int PRIMARY KEY)")
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T, TableId("public", "other")])
        fill(writer, 1, 3)
        writer.execute("DROP TABLE t")
        capture.discover()
        sets = drain(capture, start)
        assert [row["id"] for row in changes(sets)] == [1, 2, 3]
        sets += drain(capture, sets[-1].end)
        told = [(place, notice) for place, one in enumerate(sets) for notice in one.notices]
        assert [notice for _, notice in told] == [TableDropped(T)]
        assert told[0][0] >= max(place for place, one in enumerate(sets) if one.rows)


def test_a_table_that_is_not_published_any_more_must_be_copied_anew(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T])
    writer.execute("ALTER PUBLICATION lakefeed_test DROP TABLE t")
    with opened(Postgres(dsn)) as capture:
        assert capture.continuity(start, [T]) is Continuity.RESUMED
        first = next(capture.live(start, wait_seconds=0))
        assert [type(notice) for notice in first.notices] == [RecopyNeeded]


def test_t33_a_closed_capture_gives_its_slot_back_before_anybody_waits(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn)) as capture:
        next(capture.live(capture.prepare([T]), wait_seconds=0.0))
        mine = "SELECT active FROM pg_replication_slots WHERE database = current_database()"
        assert writer.execute(mine).fetchall() == [(True,)]
        capture.close()
        until = time.monotonic() + 10
        while writer.execute(mine).fetchall() != [(False,)]:
            assert time.monotonic() < until, "the slot stays with a connection that nobody uses"
            time.sleep(0.01)

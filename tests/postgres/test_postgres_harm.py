"""Lakefeed is a guest: it never blocks the application; one table's trouble is that table's; silence is noticed."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from tests.postgres.rows import changes, copied, drain, opened, reader_of, resume_of

from lakefeed.capture.postgres import database, facts, slot, walsender
from lakefeed.capture.postgres.catalog import CatalogFacts, SourceTable, read_facts, read_tables
from lakefeed.capture.postgres.database import Connection, Database
from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.table import TableId
from lakefeed.errors import SourceSetupError, SourceUnavailableError

T, U = TableId("public", "t"), TableId("public", "u")


@pytest.fixture
def writer(dsn: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY, v text)")
        connection.execute("INSERT INTO t VALUES (1, 'a'); INSERT INTO u VALUES (1, 'a')")
        yield connection


@contextmanager
def in_thread(work: Any) -> Iterator[dict[str, float]]:
    """Runs ``work`` beside the block; afterwards ``seconds`` says how long it took."""
    took: dict[str, float] = {}

    def run() -> None:
        began = time.monotonic()
        work()
        took["seconds"] = time.monotonic() - began

    thread = threading.Thread(target=run)
    thread.start()
    yield took
    thread.join(60)
    assert not thread.is_alive()


def test_every_session_has_limits_on_purpose(dsn: str, writer: Any) -> None:
    """Whatever the role or the server has set."""
    names = ["lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"]
    names += ["transaction_timeout"] if writer.info.server_version >= 170_000 else []
    for name in names:
        writer.execute(f"ALTER ROLE CURRENT_USER IN DATABASE {writer.info.dbname} SET {name} = '7h'".encode())
    kinds = (database.CATALOG, database.READING, database.KEEPING, database.SLOT, database.STREAM)
    for timeouts in kinds:
        with Database(dsn).connection("test", timeouts) as connection:
            limits = dict(
                connection.execute(
                    "SELECT name, setting::int8 FROM pg_settings WHERE name LIKE '%\\_timeout' OR name LIKE 'tcp%'"
                ).fetchall()
            )
        assert 0 < limits["lock_timeout"] == timeouts.lock * 1000
        assert limits["statement_timeout"] == timeouts.statement * 1000
        assert limits["idle_in_transaction_session_timeout"] == timeouts.idle_in_transaction * 1000
        if "transaction_timeout" in limits:
            assert limits["transaction_timeout"] == timeouts.transaction * 1000


def test_the_transaction_that_keeps_a_snapshot_has_no_lock_on_any_table_or_catalog(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn)) as capture:
        capture.prepare([T, U])
        for table in (T, U):
            capture.snapshot(table)
        time.sleep(3 * slot.CHECK_SECONDS)
        keepers = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in trans%'"
        (keeper,) = writer.execute(keepers).fetchone()
        query = "SELECT count(*) FROM pg_locks WHERE pid = %s AND locktype = 'relation'"
        assert writer.execute(query, (keeper,)).fetchone() == (0,)


def test_a_snapshot_is_given_up_at_once_when_the_application_waits_for_it(dsn: str, writer: Any) -> None:
    """CREATE INDEX CONCURRENTLY waits for every older snapshot of the database."""
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T, U])
        (chunk,) = capture.snapshot(T).chunks
        with in_thread(lambda: writer.execute("CREATE INDEX CONCURRENTLY i ON u (v)")) as took:
            pass
        assert took["seconds"] < 10
        with chunk.open() as reader:  # the copy goes on with brackets
            assert [row["id"] for batch in reader for row in batch.to_pylist()] == [1]
            assert start < reader.low <= reader.high


def test_publishing_gives_a_snapshot_up_before_it_waits_for_a_lock_and_never_waits_for_long(
    dsn: str, writer: Any
) -> None:
    """A lock of the application's on one new table is that table's trouble; the others are published."""
    third = TableId("public", "x")
    writer.execute("CREATE TABLE x (id int PRIMARY KEY)")
    with opened(Postgres(dsn)) as capture, psycopg.connect(dsn) as other:
        capture.prepare([T])
        capture.snapshot(T)
        other.execute("LOCK TABLE u IN SHARE UPDATE EXCLUSIVE MODE")
        began = time.monotonic()
        with pytest.raises(SourceSetupError, match=r"public\.u cannot be published now"):
            capture.prepare([third, U])
        assert time.monotonic() - began < 10
        assert not resume_of(capture)._exported._kept
        tables = {row[0] for row in writer.execute("SELECT tablename FROM pg_publication_tables")}
        assert tables == {"t", "x"}
        other.rollback()
        capture.prepare([U])


def test_children_of_an_inherited_table_are_not_published_with_it(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE child (extra int) INHERITS (t); INSERT INTO child VALUES (9, 'c', 1)")
    with opened(Postgres(dsn, tables=["public.t"])) as capture:
        start = capture.prepare([T])
        writer.execute("UPDATE child SET v = 'd'; DELETE FROM child; INSERT INTO child VALUES (10, 'c', 1)")
        writer.execute("UPDATE ONLY t SET v = 'b'")
        assert [row["id"] for row in changes(drain(capture, start))] == [1]
        assert [row["id"] for row in copied(capture, T)] == [1]


def test_a_generated_column_under_a_full_identity_is_refused_where_the_application_would_be(
    dsn: str, writer: Any
) -> None:
    """PostgreSQL 18 refuses UPDATE and DELETE of such a table once it is published."""
    writer.execute("ALTER TABLE u ADD n int GENERATED ALWAYS AS (id * 2) STORED; ALTER TABLE u REPLICA IDENTITY FULL")
    with opened(Postgres(dsn)) as capture:
        refused = writer.info.server_version >= 180_000
        found = [finding for finding in capture.check() if finding.table == U and "generated column" in finding.problem]
        assert len(found) == refused
        if refused:
            assert [schema.table for schema in capture.discover()] == [T]
            with pytest.raises(SourceSetupError, match="generated column"):
                capture.prepare([U])
            writer.execute(found[0].remedy)
        capture.prepare([T, U])
        writer.execute("UPDATE u SET v = 'b'; DELETE FROM u")


def test_a_generated_key_is_that_tables_trouble(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE g (a int, b int GENERATED ALWAYS AS (a + 1) STORED PRIMARY KEY)")
    with opened(Postgres(dsn)) as capture:
        assert [schema.table for schema in capture.discover()] == [T, U]
        assert any("generated" in finding.problem for finding in capture.check())


def test_an_unlogged_partition_is_refused(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    writer.execute("CREATE UNLOGGED TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)")
    with opened(Postgres(dsn)) as capture:
        assert [schema.table for schema in capture.discover()] == [T, U]
        (finding,) = [one for one in capture.check() if one.table == TableId("public", "p")]
        assert "is unlogged" in finding.problem
        writer.execute(finding.remedy)
        assert len(capture.discover()) == 3


def test_an_open_transaction_delays_neither_the_stream_nor_the_copy_of_another_table(
    dsn: str, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "WAIT_SECONDS", 1.0)
    with opened(Postgres(dsn)) as capture, psycopg.connect(dsn) as slow:
        start = capture.prepare([T])
        drain(capture, start)
        slow.execute("INSERT INTO t VALUES (100, 'open')")
        stream = capture.live(start, wait_seconds=0.1)
        plans: list[Any] = []

        def prepare_and_plan() -> None:
            capture.prepare([U])
            plans.append(capture.snapshot(U))

        with in_thread(prepare_and_plan) as took:
            while not plans:
                writer.execute("UPDATE t SET v = v || 'x' WHERE id = 1")
                written = time.monotonic()
                while not next(stream).rows:
                    assert time.monotonic() - written < 5
        assert took["seconds"] < 15
        with plans[0].chunks[0].open() as reader:
            assert [row["id"] for batch in reader for row in batch.to_pylist()] == [1]


def test_a_transaction_that_wrote_to_a_table_before_it_was_published_is_waited_for(
    dsn: str, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream does not have it, so the copy must."""
    monkeypatch.setattr(slot, "WAIT_SECONDS", 0.5)
    monkeypatch.setattr("lakefeed.capture.postgres.resume.WRITERS_SECONDS", 0.5)
    with opened(Postgres(dsn)) as capture, psycopg.connect(dsn) as slow:
        capture.prepare([T])
        slow.execute("INSERT INTO u VALUES (2, 'open')")
        capture.prepare([U])
        with pytest.raises(SourceSetupError, match=f"still open, in the processes {slow.info.backend_pid}"):
            capture.snapshot(U)
        slow.commit()
        assert [row["id"] for row in copied(capture, U)] == [1, 2]


def test_a_column_that_the_catalog_shows_a_moment_later_is_no_reason_for_a_copy(
    dsn: str, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit is in the log before its rows are visible: the catalog is read again once it can show it."""
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T])
        drain(capture, start)
        early: list[CatalogFacts] = []
        seen: list[CatalogFacts] = []

        def late(connection: Any, relations: Any) -> CatalogFacts:
            seen.append(early.pop() if early else read_facts(connection, relations))
            return seen[-1]

        monkeypatch.setattr(walsender, "read_facts", late)
        writer.execute("UPDATE t SET v = 'b'")
        first = drain(capture, start)
        early.append(seen[0])
        writer.execute("ALTER TABLE t ADD c8 int; UPDATE t SET c8 = 5")
        sets = drain(capture, first[-1].end)
        writer.execute("UPDATE t SET c8 = 6")
        sets += drain(capture, sets[-1].end)
        assert not early
        assert [row["c8"] for row in changes(sets)] == [5, 6]
        assert [notice for one in sets for notice in one.notices] == []


def test_a_frozen_server_is_noticed_and_close_returns(dsn: str, writer: Any) -> None:
    """Its sockets stay open and its kernel answers: only the silence tells."""
    query = (
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'lakefeed_test%' AND datname = current_database()"
    )
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T])
        drain(capture, start)
        assert capture._stream is not None
        reader_of(capture)._silence_seconds = 2.0
        stream = capture.live(start, wait_seconds=0.5)
        time.sleep(0.5)  # the server notices the end of short connections a moment later
        frozen = [pid for (pid,) in writer.execute(query)]
        assert len(frozen) >= 3
        try:
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
            began = time.monotonic()
            with pytest.raises(SourceUnavailableError, match="answered nothing"):
                list(itertools.takewhile(lambda _: time.monotonic() - began < 20, stream))
            with in_thread(_refused(lambda: capture.snapshot(T))):
                time.sleep(0.2)
                began = time.monotonic()
                capture.close()
                assert time.monotonic() - began < 10
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        capture.open()
        writer.execute("INSERT INTO t VALUES (2, 'b')")
        assert [row["id"] for row in changes(drain(capture, start))] == [2]


def _refused(call: Callable[[], Any]) -> Callable[[], None]:
    def ask() -> None:
        with pytest.raises(SourceUnavailableError):
            call()

    return ask


def test_close_ends_a_question_to_the_catalog_that_takes_long(
    dsn: str, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(connection: Connection) -> dict[TableId, SourceTable]:
        connection.execute("SELECT pg_sleep(15)")
        return read_tables(connection)

    with opened(Postgres(dsn)) as capture:
        capture.prepare([T])
        monkeypatch.setattr(facts, "read_tables", slow)
        with in_thread(_refused(capture.discover)) as took:
            time.sleep(0.3)
            capture.close()
        assert took["seconds"] < 5

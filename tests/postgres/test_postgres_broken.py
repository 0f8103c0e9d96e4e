"""What breaks on the way is an error that is tried again, and never a wait for ever or a table given up."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.postgres.proxy import CuttingProxy, self_signed
from tests.postgres.rows import changes, drain, opened, reader_of, walsender_of
from tests.postgres.test_postgres_resume import read_through

from lakefeed.capture.builder import Spill
from lakefeed.capture.postgres.database import Database, run
from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.table import TableId
from lakefeed.errors import JournalFullError, Retry, SourceSetupError, SourceUnavailableError
from lakefeed.testing.server.postgres import PostgresServer

T = TableId("public", "t")


@pytest.fixture
def writer(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        yield connection


def test_an_encrypted_connection_that_is_cut_is_tried_again(
    server: PostgresServer, dsn: str, writer: Any, tmp_path: Path
) -> None:
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T])
    for first in range(1, 2001, 200):
        query = "INSERT INTO t SELECT i, md5(i::text) FROM generate_series(%s::int, %s::int) i"
        writer.execute(query, (first, first + 199))
    with CuttingProxy(server.port, tls=self_signed(tmp_path)) as proxy:
        secured = f"{dsn.replace(f'port={server.port}', f'port={proxy.port}')} sslmode=require"
        proxy.cut_after(60_000)
        found, failures = read_through(secured, start, 2000, lambda: None)
    assert found == list(range(1, 2001))
    assert failures >= 1


@pytest.mark.parametrize("text", ["SSL connection has been closed unexpectedly", "SSL SYSCALL error: EOF detected"])
def test_the_loss_of_an_encrypted_connection_is_no_wrong_setup(text: str) -> None:
    mapped = Database("host=x").mapped(psycopg.OperationalError(text))
    assert (type(mapped), mapped.retry) == (SourceUnavailableError, Retry.BACKOFF)
    refused = "server does not support SSL, but SSL was required"
    assert isinstance(Database("host=x").mapped(psycopg.OperationalError(refused)), SourceSetupError)


def test_a_connection_that_is_lost_inside_a_query_is_tried_again(server: PostgresServer, dsn: str) -> None:
    """What libpq itself says of it has no SQLSTATE."""
    with CuttingProxy(server.port) as proxy:
        database = Database(dsn.replace(f"port={server.port}", f"port={proxy.port}"))
        connection = database.connect("test")
        proxy.cut_after(100)
        with pytest.raises(SourceUnavailableError) as caught, database.errors():
            run(connection, "SELECT repeat('x', 100000)")
        connection.close()
    assert isinstance(caught.value.__cause__, psycopg.Error)
    assert caught.value.__cause__.sqlstate is None
    assert isinstance(database.mapped(psycopg.DatabaseError("what libpq says elsewhere")), SourceUnavailableError)


@pytest.mark.parametrize("error", [MemoryError("no more"), ValueError("filedescriptor out of range")])
def test_whatever_ends_the_reading_thread_is_told_and_the_next_connection_goes_on(
    dsn: str, writer: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T])
        drain(capture, start)

        def fail() -> Any:
            raise error

        monkeypatch.setattr(walsender_of(capture)._wire, "read", fail)
        until = time.monotonic() + 60
        with pytest.raises(SourceUnavailableError, match="reading the log failed") as caught:
            next(one for one in capture.live(start, wait_seconds=0.1) if time.monotonic() > until)
        assert caught.value.__cause__ is error
        capture.close()
        capture.open()
        writer.execute("INSERT INTO t VALUES (1, 'a')")
        assert [row["id"] for row in changes(drain(capture, start))] == [1]


def test_after_an_error_in_the_middle_of_a_piece_the_stream_begins_again_behind_the_last_change_set(
    dsn: str, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a full disk for a large transaction: what was taken in of the piece is lost."""
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T])
        drain(capture, start)
        writer.execute("INSERT INTO t VALUES (1, 'a')")

        def full(*_: Any) -> None:
            raise JournalFullError("no room")

        with monkeypatch.context() as patched:
            patched.setattr(Spill, "append", full)
            with pytest.raises(JournalFullError):
                drain(capture, start)
        assert [row["id"] for row in changes(drain(capture, start))] == [1]


def test_many_wishes_do_not_hold_up_whoever_has_them(dsn: str, writer: Any) -> None:
    """The thread has no room and reads nothing: a pipe takes 64 KB, then it blocks."""
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T])
        drain(capture, start)
        assert capture._stream is not None
        reader_of(capture)._room_bytes = -1
        for _ in range(100_000):
            walsender_of(capture).wake()
        reader_of(capture)._room_bytes = 1 << 20
        writer.execute("INSERT INTO t VALUES (1, 'a')")
        assert [row["id"] for row in changes(drain(capture, start))] == [1]


def test_a_process_with_more_than_a_thousand_open_files_can_copy_and_stream(dsn: str, writer: Any) -> None:
    least = 1200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, least + 300), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(least)]
    try:
        assert max(files) >= 1024
        writer.execute("INSERT INTO t VALUES (1, 'a')")
        with opened(Postgres(dsn)) as capture:
            start = capture.prepare([T])
            with capture.snapshot(T).chunks[0].open() as reader:
                assert sum(batch.num_rows for batch in reader) == 1
            writer.execute("INSERT INTO t VALUES (2, 'b')")
            assert [row["id"] for row in changes(drain(capture, start))] == [2]
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_large_transaction_without_room_for_it_is_tried_again_and_the_directory_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Path("/dev/full").open("w+b"))  # noqa: SIM115
    parts = Spill(memory_bytes=0)
    with pytest.raises(JournalFullError, match=tempfile.gettempdir()) as caught:
        parts.append(pa.record_batch({"a": list(range(1000))}))
    assert caught.value.retry is Retry.BACKOFF
    assert "TMPDIR" in caught.value.remedy


def test_a_snapshot_whose_process_is_gone_is_not_imported(server: PostgresServer, dsn: str, writer: Any) -> None:
    """Its file may be there a moment longer; here it is put back."""
    writer.execute("INSERT INTO t VALUES (1, 'a')")
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T])
        chunk = capture.snapshot(T).chunks[0]
        file = server.directory / "data" / "pg_snapshots" / str(chunk.to_json()["origin"]["snapshot"])
        content, owner = file.read_bytes(), file.stat()
        capture.copied(T)
        until = time.monotonic() + 60
        while file.exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        file.write_bytes(content)
        os.chown(file, owner.st_uid, owner.st_gid)
        writer.execute("INSERT INTO t VALUES (2, 'b')")
        try:
            with chunk.open() as reader:
                assert [row["id"] for batch in reader for row in batch.to_pylist()] == [1, 2]
                assert reader.low > start
        finally:
            file.unlink()

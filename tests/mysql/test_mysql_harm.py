"""Lakefeed is a guest: it waits for nothing without an end and keeps nobody waiting; silence is noticed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pymysql
import pytest
from tests.mysql.conftest import FLAVOURS
from tests.mysql.play import Play
from tests.postgres.proxy import CuttingProxy

from lakefeed.capture.mysql import database as databases
from lakefeed.capture.mysql import dialect as dialects
from lakefeed.capture.mysql.database import Database
from lakefeed.capture.mysql.dialect import MysqlDialect
from lakefeed.change.batch import Operation
from lakefeed.errors import LakefeedError, SourceError, SourceUnavailableError
from lakefeed.testing.capture_subject import changes
from lakefeed.testing.server.mysql import Flavour, MysqlServer


@contextmanager
def in_thread(work: Callable[[], Any]) -> Iterator[dict[str, Any]]:
    """Runs ``work`` beside the block; afterwards ``seconds`` says how long it took, and ``error`` how it ended."""
    done: dict[str, Any] = {"error": None}

    def run() -> None:
        began = time.monotonic()
        try:
            work()
        except LakefeedError as error:
            done["error"] = error
        done["seconds"] = time.monotonic() - began

    thread = threading.Thread(target=run)
    thread.start()
    yield done
    thread.join(60)
    assert not thread.is_alive()


def test_every_session_has_limits_on_purpose(server: MysqlServer) -> None:
    """Whatever the server's own are."""
    longest = "max_execution_time" if server.flavour == "mysql" else "max_statement_time"
    with server.connect() as admin, admin.cursor() as cursor:
        cursor.execute(f"SELECT @@GLOBAL.lock_wait_timeout, @@GLOBAL.{longest}")
        kept = cursor.fetchall()[0]
        cursor.execute(f"SET GLOBAL lock_wait_timeout = 31536000, GLOBAL {longest} = 7")
        try:
            for limits in (databases.CATALOG, databases.READING, databases.STREAM):
                with Database(server.dsn, server.flavour).connection(limits) as connection:
                    lock, statement = connection.run(f"SELECT @@lock_wait_timeout, @@{longest}")[0]
                assert 0 < lock == limits.lock <= 10
                assert statement == limits.statement * (1000 if server.flavour == "mysql" else 1)
        finally:
            cursor.execute(f"SET GLOBAL lock_wait_timeout = {kept[0]}, GLOBAL {longest} = {kept[1]}")


def test_a_table_that_somebody_has_locked_is_not_waited_for_without_an_end(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialects, "READING", replace(databases.READING, lock=1))
    play.run("INSERT INTO t VALUES (1, 'a')")
    chunk = play.capture.snapshot(play.table).chunks[0]
    with play.server.connect(database=play.database) as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLES t WRITE")

        def read() -> None:
            with chunk.open() as reader:
                list(reader)

        with in_thread(read) as done:
            pass
        assert isinstance(done["error"], SourceUnavailableError)  # it is tried again
        assert done["seconds"] < 10
        cursor.execute("INSERT INTO t VALUES (2, 'b')")  # the others are not kept waiting by ours
        cursor.execute("UNLOCK TABLES")
    with chunk.open() as reader:
        assert sum(batch.num_rows for batch in reader) == 2


def test_a_chunk_that_was_read_keeps_no_lock_and_no_transaction(play: Play) -> None:
    play.run("INSERT INTO t VALUES (1, 'a')")
    chunk = play.capture.snapshot(play.table).chunks[0]
    with chunk.open() as reader:
        list(reader)
    play.run("SET lock_wait_timeout = 1", "ALTER TABLE t ADD COLUMN b int")
    assert play.run("SELECT count(*) FROM information_schema.INNODB_TRX")[0][0] == 0


def test_a_query_that_runs_is_ended_on_the_server_by_its_own_id(server: MysqlServer) -> None:
    session = MysqlDialect(server.dsn, server.flavour).connect()
    number = session.connection.driver.thread_id()
    query = f"SELECT count(*) FROM information_schema.PROCESSLIST WHERE ID = {number} AND INFO LIKE '%sleep%'"

    def ask() -> None:
        with Database(server.dsn, server.flavour).errors():
            session.connection.run("SELECT sleep(50), sleep(50)")

    with server.connect() as admin, admin.cursor() as cursor, in_thread(ask) as done:

        def running() -> int:
            cursor.execute(query)
            return int(cursor.fetchall()[0][0])

        until = time.monotonic() + 20
        while not running():
            assert time.monotonic() < until
        session.cancel()
        while running():
            assert time.monotonic() < until, "it still runs on the server"
            time.sleep(0.01)
    assert isinstance(done["error"], SourceError) or done["error"] is None
    assert done["seconds"] < 20
    session.close()


@pytest.mark.parametrize("flavour", ["mysql", pytest.param("mariadb", marks=pytest.mark.slow)])
def test_a_frozen_server_is_noticed_and_close_returns(flavour: Flavour, tmp_path: Path) -> None:
    """Its sockets stay open and its kernel answers: only the silence tells."""
    with MysqlServer.start(flavour) as server:
        with server.connect() as admin, admin.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
        play = Play(server, "shop", tmp_path)
        play.drain()
        reader: Any = play.capture._stream.reader  # type: ignore[attr-defined]
        reader._silence_seconds = 2.0
        stream, pid = play.capture.live(play.at, wait_seconds=0.5), server.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(SourceUnavailableError, match="answered nothing"):
                list(takewhile(lambda _: time.monotonic() - began < 20, stream))
            with in_thread(lambda: play.capture.snapshot(play.table)):
                time.sleep(0.2)
                began = time.monotonic()
                play.capture.close()
                assert time.monotonic() - began < 15
        finally:
            os.kill(pid, signal.SIGCONT)
        play.capture.open()
        play.run("INSERT INTO t VALUES (2, 'b')")
        assert changes(play.drain()) == [(Operation.INSERT, 2)]
        play.close()


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_killed_reader_a_cut_connection_and_a_crashed_server_lose_and_repeat_nothing(
    flavour: Flavour, tmp_path: Path
) -> None:
    settings = {"innodb_flush_log_at_trx_commit": "1", "sync_binlog": "1"}
    with MysqlServer.start(flavour, settings) as server, CuttingProxy(server.port) as proxy:
        with server.connect() as admin, admin.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
        through = server.dsn.replace(f":{server.port}/", f":{proxy.port}/")
        play = Play(server, "shop", tmp_path, dsn=through)
        found: list[tuple[Operation, Any]] = []
        failures = 0

        def fill(first: int) -> None:
            for n in range(first, first + 1000, 100):
                play.run("INSERT INTO t VALUES " + ", ".join(f"({k}, '{'x' * 50}')" for k in range(n, n + 100)))

        def read_until(count: int) -> None:
            nonlocal failures
            until = time.monotonic() + 60
            while len(found) < count:
                assert time.monotonic() < until
                try:
                    for one in play.capture.live(play.at, wait_seconds=0.1):
                        found.extend(changes([one]))
                        play.at = one.end
                        if len(found) >= count:
                            break
                except SourceUnavailableError:
                    failures += 1
                    play.capture.close()
                    with suppress(SourceUnavailableError):
                        play.capture.open()

        def kill_readers() -> None:
            with server.connect() as admin, admin.cursor() as cursor:
                cursor.execute("SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'")
                for (number,) in cursor.fetchall():
                    with suppress(pymysql.err.Error):
                        cursor.execute(f"KILL {number}")

        def crash() -> None:
            server.halt(immediate=True)
            server.resume()
            play.connection = server.connect(database="shop")

        fill(0)
        read_until(500)
        for place, harm in enumerate((kill_readers, lambda: proxy.cut_after(20_000), crash), start=1):
            before = failures
            harm()
            fill(1000 * place)
            read_until(1000 * (place + 1))
            assert failures > before
        assert found == [(Operation.INSERT, key) for key in range(4000)]
        play.close()

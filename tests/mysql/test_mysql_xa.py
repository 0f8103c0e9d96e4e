"""Distributed transactions (XA): their rows are delivered with XA COMMIT, also by a process that has not seen them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.mysql.play import Play

from lakefeed.capture.mysql import xa
from lakefeed.change.batch import Operation
from lakefeed.change.change_set import RecopyNeeded
from lakefeed.change.table import TableId
from lakefeed.testing.capture_subject import changes, drain, ordered_rows
from lakefeed.testing.server.mysql import MysqlServer


@pytest.fixture
def server(every_server: MysqlServer) -> MysqlServer:
    return every_server


@pytest.fixture
def play(server: MysqlServer, database: str, tmp_path: Path) -> Iterator[Play]:
    made = Play(server, database, tmp_path)
    yield made
    for form, first, _, name in made.run("XA RECOVER"):  # one that is left would hold the tables
        xid = f"'{name[:first]}', '{name[first:]}', {form}"
        made.run(f"XA ROLLBACK {xid}")
    made.close()


def _prepare(play: Play, xid: str, *statements: str) -> None:
    play.run(f"XA START {xid}", *statements, f"XA END {xid}", f"XA PREPARE {xid}")


def _begin_again(play: Play, *, confirms: bool = True) -> None:
    """Another process goes on with what the first has delivered, and maybe not confirmed."""
    if confirms:
        play.capture.confirm(play.at)
    play.capture.close()
    play.capture = play.source.bind("play")
    play.capture.open()
    play.capture.continuity(play.at, [play.table])


def test_rows_of_a_distributed_transaction_come_with_its_commit_and_not_with_its_rollback(play: Play) -> None:
    _prepare(play, "'x'", "INSERT INTO t VALUES (1, 'a'), (2, 'b')", "UPDATE t SET a = 'c' WHERE id = 1")
    with play.server.connect(database=play.database) as other, other.cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (9, 'z')")
    assert changes(play.drain()) == [(Operation.INSERT, 9)]
    play.run("XA COMMIT 'x'")
    found = play.drain()
    assert changes(found) == [(Operation.INSERT, 1), (Operation.INSERT, 2), (Operation.UPDATE, 1)]
    _prepare(play, "'y', 'branch', 7", "INSERT INTO t VALUES (3, 'a')")
    play.run("XA ROLLBACK 'y', 'branch', 7", "INSERT INTO t VALUES (4, 'a')")
    assert changes(play.drain()) == [(Operation.INSERT, 4)]


def test_a_distributed_transaction_in_one_phase_is_a_plain_one(play: Play) -> None:
    play.run("XA START 'x'", "INSERT INTO t VALUES (1, 'a')", "XA END 'x'", "XA COMMIT 'x' ONE PHASE")
    play.run("XA START 'x'", "SELECT * FROM t", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'")  # nothing to log
    found = play.drain()
    assert changes(found) == [(Operation.INSERT, 1)]
    assert [notice for one in found for notice in one.notices] == []


def test_a_prepared_transaction_survives_a_restart_and_nothing_else_comes_twice(play: Play) -> None:
    _prepare(play, "'x'", "INSERT INTO t VALUES (1, 'a')")
    with play.server.connect(database=play.database) as other, other.cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (2, 'b')")
        assert changes(play.drain()) == [(Operation.INSERT, 2)]
        _begin_again(play, confirms=False)
        assert play.drain() == []
        _begin_again(play)  # confirmed by a process that has not caught up
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("INSERT INTO t VALUES (3, 'c')")
        assert changes(play.drain()) == [(Operation.INSERT, 3)]
        _begin_again(play)
    play.run("XA COMMIT 'x'")
    assert changes(play.drain()) == [(Operation.INSERT, 1)]
    _begin_again(play)
    play.run("INSERT INTO t VALUES (4, 'd')")
    assert changes(play.drain()) == [(Operation.INSERT, 4)]


def test_a_transaction_that_was_prepared_behind_the_confirmed_position_survives_a_crash(play: Play) -> None:
    play.run("INSERT INTO t VALUES (1, 'a')")
    play.drain()
    play.capture.confirm(play.at)
    _prepare(play, "'x'", "INSERT INTO t VALUES (2, 'b')")
    with play.server.connect(database=play.database) as other, other.cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (3, 'c')")
    assert changes(play.drain()) == [(Operation.INSERT, 3)]
    _begin_again(play, confirms=False)
    play.run("XA COMMIT 'x'", "INSERT INTO t VALUES (4, 'd')")
    assert changes(play.drain()) == [(Operation.INSERT, 2), (Operation.INSERT, 4)]


def test_a_large_prepared_transaction_is_spilled(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xa, "MEMORY_BYTES", 1000)
    for base in (0, 3000):  # of two sizes, so that it comes in several pieces
        rows = ", ".join(f"({n}, '{'x' * (n % 300)}')" for n in range(base, base + 3000))
        _prepare(play, f"'x{base}'", f"INSERT INTO t VALUES {rows}", "UPDATE t SET a = 'y' WHERE id % 2 = 0")
        assert play.drain() == []
        play.run(f"XA COMMIT 'x{base}'")
        found = [row for one in play.drain() for row in ordered_rows(one)]
        assert [row["id"] for row in found[:3000]] == list(range(base, base + 3000))
        assert all(len(row["a"]) == row["id"] % 300 for row in found[:3000])
        assert {row["a"] for row in found[3000:]} == {"y"}


def test_a_transaction_that_was_prepared_before_capture_has_its_tables_copied_again(play: Play, tmp_path: Path) -> None:
    other = TableId(play.database, "u")
    play.run("CREATE TABLE u (id int PRIMARY KEY, a text)")
    _prepare(play, "'x'", "INSERT INTO u VALUES (1, 'a')", "INSERT INTO t VALUES (1, 'a')")
    late = replace(play.source, state=tmp_path / "late").bind("late")
    late.open()
    start = late.prepare([play.table])
    assert play.drain() == []
    play.capture.prepare([other])
    play.run("XA COMMIT 'x'")
    assert [type(notice) for one in drain(late, start) for notice in one.notices] == [RecopyNeeded]
    late.close()
    found = play.drain()
    assert changes(found) == [(Operation.INSERT, 1)]
    assert [(type(notice), notice.table) for one in found for notice in one.notices] == [(RecopyNeeded, other)]

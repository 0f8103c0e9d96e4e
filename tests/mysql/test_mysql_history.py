"""Positions and the server's log: by file where MySQL has no GTIDs, a log that was reset, two with one server_id."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.mysql.conftest import FLAVOURS, WITHOUT_GTIDS, new_database
from tests.mysql.play import Play

from lakefeed.capture.base import Level
from lakefeed.capture.mysql.database import Database
from lakefeed.capture.mysql.history import executed
from lakefeed.capture.mysql.resume import server_id
from lakefeed.capture.mysql.stream import BinlogReader, encode_set
from lakefeed.change.batch import Operation
from lakefeed.change.mysql import MysqlBinlog, MysqlGtid
from lakefeed.errors import PositionLostError, SourceChangedError, SourceSetupError
from lakefeed.testing.capture_subject import changes
from lakefeed.testing.server.mysql import Flavour, MysqlServer


@pytest.fixture
def server(without_gtids: MysqlServer) -> MysqlServer:
    return without_gtids


@pytest.fixture
def database(server: MysqlServer) -> Iterator[str]:
    with new_database(server) as name:
        yield name


def test_a_position_by_file_moves_with_the_files_of_an_idle_server(play: Play) -> None:
    play.run("INSERT INTO t VALUES (1, 'a')", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    assert changes(play.drain()) == [(Operation.INSERT, 1)]
    play.drain()
    capture = play.source.bind("play")
    assert capture.end() == play.at
    assert isinstance(play.at, MysqlBinlog)
    play.capture.confirm(play.at)  # a stream begins at the confirmed position
    play.run(f"PURGE BINARY LOGS TO '{play.at.file}'", "INSERT INTO t VALUES (2, 'b')")
    play.capture.close()
    play.capture.open()
    play.capture.continuity(play.at, [play.table])
    assert changes(play.drain()) == [(Operation.INSERT, 2)]


def test_a_purged_file_and_another_server_have_lost_the_position(play: Play, tmp_path: Path) -> None:
    play.run("INSERT INTO t VALUES (1, 'a')", "FLUSH BINARY LOGS")
    newest = play.run("SHOW BINARY LOGS")[-1][0]
    with MysqlServer.start("mysql", WITHOUT_GTIDS) as other:
        foreign = replace(play.source, dsn=other.dsn).bind("play")
        foreign.open()
        with pytest.raises(SourceChangedError, match="another server"):
            foreign.continuity(play.at, [play.table])
        foreign.close()
    play.run(f"PURGE BINARY LOGS TO '{newest}'")
    with pytest.raises(PositionLostError, match="purged"):
        play.capture.continuity(play.at, [play.table])


def test_check_warns_of_a_server_without_gtids_and_names_what_a_copy_needs(play: Play) -> None:
    found = play.capture.check()
    assert [one.level for one in found] == [Level.WARNING]
    assert "gtid_mode = ON" in found[0].remedy
    play.run(
        "CREATE USER guest@localhost",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO guest@localhost",
        f"GRANT SELECT ON {play.database}.* TO guest@localhost",
    )
    try:
        guest = replace(play.source, dsn=play.source.dsn.replace("root@", "guest@")).bind("play")
        errors = [one.remedy for one in guest.check() if one.level is Level.ERROR]
        assert errors == ["GRANT SELECT ON performance_schema.metadata_locks TO 'guest'@'localhost';"]
        play.run(errors[0])
        assert [one.level for one in guest.check()] == [Level.WARNING]
    finally:
        play.run("DROP USER guest@localhost")


@pytest.mark.parametrize("settings", [*FLAVOURS, "by file"])
def test_a_log_that_was_reset_is_noticed_also_when_it_has_grown_again(settings: str, tmp_path: Path) -> None:
    flavour: Flavour = "mariadb" if settings == "mariadb" else "mysql"
    with MysqlServer.start(flavour, WITHOUT_GTIDS if settings == "by file" else {}) as server:
        with server.connect() as admin, admin.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("FLUSH BINARY LOGS")
        play = Play(server, "shop", tmp_path)
        play.run("INSERT INTO t VALUES (1, 'a')")
        play.drain()
        play.capture.confirm(play.at)
        time.sleep(1.1)  # the time of a file is in seconds
        server.reset_log()
        play.run("FLUSH BINARY LOGS")
        play.run(*(f"INSERT INTO t VALUES ({n}, 'a')" for n in range(2, 30)))
        play.run("FLUSH BINARY LOGS", "INSERT INTO t VALUES (99, 'a')")
        with pytest.raises(PositionLostError, match="reset"):
            play.capture.continuity(play.at, [play.table])
        play.close()


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_second_reader_with_the_same_server_id_ends_the_first_with_a_clear_error(
    flavour: Flavour, tmp_path: Path
) -> None:
    with MysqlServer.start(flavour) as server:
        with server.connect() as admin, admin.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
        play = Play(server, "shop", tmp_path)
        stream = play.capture.live(play.at, wait_seconds=0.2)
        next(stream)
        place = Database(server.dsn, flavour)
        with place.connection() as connection:
            now = executed(connection)
        own_id = server_id("play", str(tmp_path / "binlog.resume.json"))
        thief = BinlogReader(place, own_id, now)
        until = time.monotonic() + 20
        with pytest.raises(SourceSetupError, match=str(own_id)) as error:
            next(one for one in stream if time.monotonic() > until)
        assert f"server_id {own_id}, stop it" in str(error.value.remedy)
        thief.close()
        play.close()


def test_pipelines_have_server_ids_of_their_own() -> None:
    assert len({server_id(name, place) for name in "abcdefgh" for place in "xyz"}) == 24
    assert all(1 << 31 <= server_id(name, "x") < 1 << 32 for name in "abcdefgh")


def test_d11_a_set_with_tags_is_sent_in_the_form_with_tags() -> None:
    a = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    plain = encode_set(MysqlGtid(f"{a}:1-5"))
    assert plain == bytes([1, *bytes(7)]) + bytes.fromhex(a.replace("-", "")) + b"".join(
        n.to_bytes(8, "little") for n in (1, 1, 6)
    )
    tagged = encode_set(MysqlGtid(f"{a}:1-5:red:7"))
    assert tagged[:8] == bytes([1, 2, 0, 0, 0, 0, 0, 1])
    assert tagged[8 + 16 : 8 + 17] == b"\x00"  # the first member has no tag
    assert tagged[8 + 17 + 24 + 16 :] == b"\x06red" + b"".join(n.to_bytes(8, "little") for n in (1, 7, 8))

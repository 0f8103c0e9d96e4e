"""``lakefeed check``: each thing that stands in the way has the statement that repairs it, and that statement works."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.mysql.play import Play

from lakefeed.app.command.prepare import sql_script
from lakefeed.capture.base import Finding, Level, Statement
from lakefeed.capture.mysql.source import Mysql
from lakefeed.errors import PositionLostError
from lakefeed.flow.pipeline import Pipeline
from lakefeed.testing.memory_lake import MemoryLake
from lakefeed.testing.server.mysql import Flavour, MysqlServer


def _repaired(play: Play, findings: tuple[Finding, ...]) -> None:
    """Run the statements as they are printed, without what is only advised."""
    for finding in findings:
        assert isinstance(finding.remedy, Statement), finding
        for statement in finding.remedy.split("--")[0].split(";"):
            if statement.strip():
                play.run(statement)


@pytest.mark.parametrize(
    ("setting", "wrong", "problem"),
    [
        ("binlog_format", "'STATEMENT'", "capture needs ROW"),
        ("binlog_row_image", "'MINIMAL'", "capture needs FULL"),
        ("binlog_row_metadata", "'MINIMAL'", "capture needs FULL"),
        ("binlog_expire_logs_seconds", "3600", "kept for 1.0 h"),
    ],
)
def test_a_setting_is_named_with_the_statement_that_sets_it(play: Play, setting: str, wrong: str, problem: str) -> None:
    before = play.run(f"SELECT @@GLOBAL.{setting}")[0][0]
    play.run(f"SET GLOBAL {setting} = {wrong}")
    try:
        found = play.capture.check()
        assert [problem in one.problem for one in found] == [True]
        _repaired(play, found)
        assert play.capture.check() == ()
        assert f"SET GLOBAL {setting}" in sql_script("play", found)
    finally:
        play.run(f"SET GLOBAL {setting} = {before if isinstance(before, int) else repr(before)}")


def test_rights_that_an_account_lacks_are_named_with_the_grant(play: Play) -> None:
    play.run("CREATE USER guest@localhost")
    try:
        guest = replace(play.source, dsn=play.source.dsn.replace("root@", "guest@")).bind("play")
        found = guest.check()
        assert "does not exist, or the account 'guest'@'localhost' has no privileges in it" in found[-1].problem
        _repaired(play, found)
        assert guest.check() == ()
    finally:
        play.run("DROP USER guest@localhost")


def test_tables_without_a_key_and_reserved_names_are_findings_of_their_table(play: Play) -> None:
    play.run("CREATE TABLE k (a int)", "CREATE TABLE n (id int PRIMARY KEY, `_lakefeed_x` int)")
    found = {str(one.table): one for one in play.capture.check()}
    assert found[f"{play.database}.k"].level is Level.WARNING
    assert "no primary key" in found[f"{play.database}.k"].problem
    if play.server.flavour == "mysql" or "RENAME COLUMN" in found[f"{play.database}.n"].remedy:
        _repaired(play, (found[f"{play.database}.n"],))
    assert [str(one.table) for one in play.capture.check()] == [f"{play.database}.k"]


def test_a_pipeline_that_was_away_for_long_is_warned_before_the_log_is_purged_and_told_afterwards(
    play: Play, tmp_path: Path
) -> None:
    before = play.run("SELECT @@GLOBAL.binlog_expire_logs_seconds")[0][0]
    play.run("SET GLOBAL binlog_expire_logs_seconds = 864000", "INSERT INTO t VALUES (1, 'a')")
    try:
        week = time.time() - 7 * 86_400
        os.utime(tmp_path / "binlog.resume.json", (week, week))
        (found,) = play.capture.check()
        assert (found.level, "168.0 h" in found.problem, "240.0 h" in found.problem) == (Level.WARNING, True, True)
        _repaired(play, (found,))
        assert play.capture.check() == ()
        play.run("FLUSH BINARY LOGS")
        newest = play.run("SHOW BINARY LOGS")[-1][0]
        until = time.monotonic() + 20
        while len(play.run("SHOW BINARY LOGS")) > 1 and time.monotonic() < until:
            play.run(f"PURGE BINARY LOGS TO '{newest}'")  # not while one is being sent
        (found,) = play.capture.check()
        assert (found.level, "purged" in found.problem) == (Level.ERROR, True)
    finally:
        play.run(f"SET GLOBAL binlog_expire_logs_seconds = {before}")


def test_a_log_that_is_purged_while_a_pipeline_is_away_stops_it_and_the_remedy_copies_every_table(
    server: MysqlServer, database: str, tmp_path: Path
) -> None:
    lake, root = MemoryLake(str(tmp_path)), tmp_path / "_lakefeed" / "shop"
    source = Mysql(server.dsn, kind=server.flavour, tables=[f"{database}.*"])
    with server.connect(database=database) as writer, writer.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id int PRIMARY KEY)")
        cursor.execute("INSERT INTO t VALUES (1)")
        with Pipeline(source, lake, name="shop") as pipeline:
            pipeline.sync_once()
        cursor.execute("INSERT INTO t VALUES (2)")
        cursor.execute("FLUSH BINARY LOGS")
        until = time.monotonic() + 20
        while cursor.execute("SHOW BINARY LOGS") > 1 and time.monotonic() < until:
            cursor.execute(f"PURGE BINARY LOGS TO '{cursor.fetchall()[-1][0]}'")
        with Pipeline(source, lake, name="shop") as late, pytest.raises(PositionLostError, match="purged") as lost:
            late.sync_once()
        assert "move the pipeline's state directory away" in lost.value.remedy
        root.rename(tmp_path / "away")
        with Pipeline(source, lake, name="shop") as pipeline:
            assert not pipeline.sync_once().errors
    assert sorted(row["id"] for row in lake.rows(f"{database}.t")) == [1, 2]


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_a_server_without_a_binlog_is_told_so(flavour: Flavour, servers: Callable[[Flavour], MysqlServer]) -> None:
    off: dict[str, str] = {"skip_log_bin": "ON", "log_bin": ""}
    if flavour == "mysql":
        off |= {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
    with MysqlServer.start(flavour, off) as server, server.connect() as admin, admin.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE TABLE shop.t (id int PRIMARY KEY)")
        problems = [one.problem for one in Mysql(server.dsn, kind=flavour, tables=["shop.*"]).bind("x").check()]
        assert "the server writes no binlog" in problems

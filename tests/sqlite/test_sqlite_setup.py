"""The Sqlite spec, discover, check and uninstall."""

from __future__ import annotations

import os
import pickle
import sqlite3
from pathlib import Path

import pytest
from tests.sqlite.world import made, table

from lakefeed.capture.base import Level
from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.errors import ConfigError, Retry, SourceSetupError, SourceUnavailableError

PEOPLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)"


def test_a_path_that_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"source\.path.*nowhere\.db"):
        Sqlite(tmp_path / "nowhere.db")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"capture": "log"}, "'log' is not a way to capture SQLite; there is trigger"),
        ({"tables": ()}, "source.tables"),
        ({"tables": "orders"}, "source.tables"),
        ({"busy_timeout_seconds": -1}, "source.busy_timeout_seconds"),
    ],
)
def test_a_wrong_setting_is_named_with_the_choices(tmp_path: Path, setting: dict[str, object], message: str) -> None:
    (tmp_path / "x.db").touch()
    with pytest.raises(ConfigError) as caught:
        Sqlite(tmp_path / "x.db", **setting)  # type: ignore[arg-type]
    assert message in caught.value.message


def test_a_spec_is_a_value(tmp_path: Path) -> None:
    (tmp_path / "x.db").touch()
    spec = Sqlite(tmp_path / "x.db", tables=["a", "b"])
    assert spec == Sqlite(tmp_path / "x.db", tables=("a", "b"))
    assert hash(spec) == hash(pickle.loads(pickle.dumps(spec)))


def test_t24_a_pattern_that_matches_no_table_is_an_error_and_not_an_idle_database(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE) as world:
        capture = world.open(tables=("t", "orders"))
        with pytest.raises(ConfigError, match=r"'orders' matches no table; there are main\.t"):
            capture.discover()
        assert [finding.level for finding in capture.check()] == [Level.ERROR]


def test_t24_patterns_do_not_mind_case_as_sqlite_does_not(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", "CREATE TABLE Orders (id INTEGER PRIMARY KEY)") as world:
        assert [str(schema.table) for schema in world.open(tables=("ORDERS",)).discover()] == ["main.Orders"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("v", "it is a view"),
        ("words", "it is a virtual table"),
        ("words_data", "it is the storage of a virtual table"),
        ("sqlite_sequence", "it belongs to SQLite itself"),
        ("main._lakefeed_shop_log", "it belongs to Lakefeed itself"),
    ],
)
def test_what_is_no_table_is_never_captured_and_refused_with_a_reason_if_named(
    tmp_path: Path, name: str, why: str
) -> None:
    with made(
        tmp_path / "x.db",
        "CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT)",
        "CREATE VIEW v AS SELECT * FROM t",
        "CREATE VIRTUAL TABLE words USING fts5(a)",
    ) as world:
        world.seed()
        assert [schema.table for schema in world.capture.discover()] == [table("t")]
        with pytest.raises(ConfigError, match=why):
            world.open(tables=(name,)).discover()


def test_names_that_need_quoting_are_quoted(tmp_path: Path) -> None:
    name = 'odd "name", (with) it\'s; --'
    quoted = '"' + name.replace('"', '""') + '"'
    with made(
        tmp_path / "x.db", f'CREATE TABLE {quoted} ("a ""b"" c" INTEGER PRIMARY KEY, "select" TEXT UNIQUE)'
    ) as world:
        world.seed()
        world.sql(f"INSERT INTO {quoted} VALUES (1, 'x')", f"REPLACE INTO {quoted} VALUES (2, 'x')")
        world.pull()
        assert world.replica.rows(table(name)) == [{'a "b" c': 2, "select": "x"}]


def test_uninstall_leaves_no_trace(tmp_path: Path) -> None:
    with made(
        tmp_path / "x.db",
        PEOPLE,
        "CREATE TABLE u (id INTEGER PRIMARY KEY, a TEXT UNIQUE, b)",
        "CREATE TABLE _lakefeed_shop_2_log (mine)",
        "CREATE TRIGGER mine AFTER INSERT ON t BEGIN SELECT 1; END",
    ) as world:
        before = list(world.writer.iterdump())
        catalog = world.query("SELECT type, name, tbl_name, sql FROM sqlite_master")
        world.seed()
        removed = world.capture.uninstall()
        assert {"_lakefeed_shop_log", "_lakefeed_shop_meta", "_lakefeed_shop_1_ai"} <= set(removed)
        assert list(world.writer.iterdump()) == before
        assert world.query("SELECT type, name, tbl_name, sql FROM sqlite_master") == catalog
        assert world.capture.uninstall() == ()


def test_e13_check_is_read_only_and_a_sound_database_has_no_findings(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE) as world:
        before = world.query("SELECT * FROM sqlite_master")
        assert world.open().check() == ()
        assert world.query("SELECT * FROM sqlite_master") == before


@pytest.mark.parametrize(
    ("sql", "level", "problem", "remedy"),
    [
        ("CREATE TABLE t (a TEXT PRIMARY KEY)", Level.WARNING, "may be NULL", 'SELECT count(*) FROM "t" WHERE "a" IS'),
        ("CREATE TABLE t (a)", Level.WARNING, "no declared key", "INTEGER PRIMARY KEY"),
        ("CREATE TABLE t (rowid, oid, _rowid_)", Level.ERROR, "hide every name", "Declare a primary key"),
        (
            "CREATE TABLE t (id INTEGER PRIMARY KEY, _lakefeed_op TEXT)",
            Level.ERROR,
            "reserved",
            'ALTER TABLE "t" RENAME COLUMN "_lakefeed_op" TO "lakefeed_op";',
        ),
    ],
)
def test_e13_check_finds_a_problem_and_tells_the_statement_that_repairs_it(
    tmp_path: Path, sql: str, level: Level, problem: str, remedy: str
) -> None:
    with made(tmp_path / "x.db", sql) as world:
        (finding,) = world.open().check()
        assert (finding.level, finding.table) == (level, table("t"))
        assert problem in finding.problem
        assert remedy in finding.remedy


def test_e13_check_warns_of_a_unique_index_on_an_expression(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, "CREATE UNIQUE INDEX low ON t (lower(a))") as world:
        (finding,) = world.open().check()
        assert finding.level is Level.WARNING
        assert "low is on an expression" in finding.problem


def test_e13_check_recommends_wal(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, journal_mode="delete") as world:
        (finding,) = world.open().check()
        assert (finding.level, finding.remedy) == (Level.WARNING, "PRAGMA journal_mode=WAL;")


def test_e13_check_finds_too_many_columns(tmp_path: Path) -> None:
    columns = ", ".join(f"c{number}" for number in range(1995))
    with made(tmp_path / "x.db", f"CREATE TABLE t (id INTEGER PRIMARY KEY, {columns})") as world:
        (finding,) = world.open().check()
        assert "1996 columns" in finding.problem


def test_e13_check_says_that_a_file_is_missing_or_no_database(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_text("this is not a database, however long it gets" * 50)
    capture = Sqlite(path).bind("shop")
    (finding,) = capture.check()
    assert "not a usable SQLite database" in finding.problem
    path.unlink()
    (finding,) = capture.check()
    assert "there is no file" in finding.problem


def test_e15_errors_are_split_by_whether_a_retry_can_help(tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"garbage" * 1000)
    with pytest.raises(SourceSetupError) as fatal:
        Sqlite(broken).bind("shop").open()
    assert fatal.value.retry is Retry.NEVER
    assert isinstance(fatal.value.__cause__, sqlite3.DatabaseError)
    with made(tmp_path / "x.db", PEOPLE) as world:
        capture = Sqlite(tmp_path / "x.db", busy_timeout_seconds=0.05).bind("shop")
        capture.open()
        world.sql("BEGIN IMMEDIATE")
        with pytest.raises(SourceUnavailableError) as passing:
            capture.prepare([table("t")])
        assert passing.value.retry is Retry.BACKOFF
        world.sql("COMMIT")
        capture.prepare([table("t")])
        capture.close()


def test_e13_check_finds_a_file_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with made(tmp_path / "x.db", PEOPLE) as world:
        capture = world.open()
        if os.geteuid() == 0:  # root may write anything, so the answer has to be given for it
            monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
        else:
            (tmp_path / "x.db").chmod(0o400)
        (finding,) = capture.check()
        assert finding.remedy.startswith("chmod u+rw")

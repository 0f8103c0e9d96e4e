"""Before images by triggers: the row as SQLite had it, whatever the statement, the schema and other triggers do."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.sqlite.test_sqlite_histories import INDEXES, TABLES
from tests.sqlite.test_sqlite_values import COLUMNS, EVERY_TYPE, ROWS
from tests.sqlite.world import RememberingReplica, World, made, table

from lakefeed.change.batch import OP, Operation
from lakefeed.testing.capture_subject import ordered_rows

PEOPLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, n INT)"
UNIQUE = "CREATE TABLE u (id INTEGER PRIMARY KEY, a TEXT UNIQUE, n INT UNIQUE)"


@contextmanager
def seeded(path: Path, *statements: str, before_images: bool = True) -> Iterator[World]:
    with made(path, *statements) as world:
        world.before_images = before_images
        world.seed()
        yield world


def told(world: World) -> list[tuple[Any, ...]]:
    """Operation and values of every row of the next change set."""
    return [
        (Operation(row[OP]).name, *(value for name, value in row.items() if not name.startswith("_lakefeed")))
        for row in ordered_rows(world.pull())
    ]


def test_t19_an_old_row_has_the_very_values_that_its_copy_had(tmp_path: Path) -> None:
    insert = f"INSERT INTO v ({', '.join(COLUMNS)}) VALUES ({', '.join('?' for _ in COLUMNS)})"
    with made(tmp_path / "x.db", EVERY_TYPE) as world:
        world.writer.executemany(insert, ROWS)
        world.before_images = True
        world.seed()
        copied = {row["id"]: row for row in world.replica.rows(table("v"))}
        assert len(copied) == len(ROWS)
        world.sql("UPDATE v SET t = 'other'", "DELETE FROM v")
        found = [row for row in ordered_rows(world.pull()) if row[OP] == Operation.BEFORE]
        old = [{name: row[name] for name in copied[1]} for row in found]
        assert world.notices == []
    assert old[: len(ROWS)] == list(copied.values())
    changed = {"t": "other", "g": "other!"}
    assert old[len(ROWS) :] == [row | changed for row in copied.values()]
    assert [type(value) for value in old[1].values()] == [type(value) for value in copied[2].values()]


@pytest.mark.parametrize(
    ("create", "row", "key"),
    [
        ("CREATE TABLE k (x INT, y TEXT COLLATE NOCASE, a, PRIMARY KEY (y, x)) WITHOUT ROWID", "1, 'q', x'00ff'", "y"),
        ("CREATE TABLE k (y TEXT PRIMARY KEY NOT NULL, x INT, a)", "'q', 1, x'00ff'", "y"),
    ],
    ids=["without rowid", "text key"],
)
def test_any_kind_of_key_finds_its_old_row(tmp_path: Path, create: str, row: str, key: str) -> None:
    with seeded(tmp_path / "x.db", create, f"INSERT INTO k VALUES ({row})") as world:
        world.sql("UPDATE k SET x = 2", f"UPDATE k SET {key} = 'Q'", "DELETE FROM k")
        found = [
            (Operation(one[OP]).name, one["x"], one["y"], one["a"])
            for one in ordered_rows(world.pull())
            if one[OP] in (Operation.BEFORE, Operation.DELETE)
        ]
    binary = "X'00FF'"
    assert [one for one in found if one[0] == "BEFORE"] == [
        ("BEFORE", 1, "q", binary), ("BEFORE", 2, "q", binary), ("BEFORE", 2, "Q", binary),
    ]  # fmt: skip


def test_a_table_without_a_key_has_them_by_rowid(tmp_path: Path) -> None:
    with seeded(tmp_path / "x.db", "CREATE TABLE k (a TEXT)", "INSERT INTO k VALUES ('x')") as world:
        world.sql("UPDATE k SET a = 'y'", "UPDATE k SET rowid = 9")
        assert told(world) == [
            ("BEFORE", 1, "x"), ("UPDATE", 1, "y"), ("BEFORE", 1, "y"), ("DELETE", 1, None), ("INSERT", 9, "y"),
        ]  # fmt: skip


def test_rows_that_replace_removes_are_told_as_they_were(tmp_path: Path) -> None:
    with seeded(tmp_path / "x.db", UNIQUE, "INSERT INTO u VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)") as world:
        world.sql("INSERT OR REPLACE INTO u VALUES (9, 'a', 2)")
        assert told(world) == [
            ("BEFORE", 1, "a", 1), ("DELETE", 1, None, None),
            ("BEFORE", 2, "b", 2), ("DELETE", 2, None, None),
            ("INSERT", 9, "a", 2),
        ]  # fmt: skip
        world.sql("UPDATE OR REPLACE u SET a = 'a', n = 2 WHERE id = 3")  # one victim, by two indexes
        assert told(world) == [
            ("BEFORE", 9, "a", 2), ("DELETE", 9, None, None), ("BEFORE", 3, "c", 3), ("UPDATE", 3, "a", 2),
        ]  # fmt: skip


def test_a_statement_that_was_ignored_leaves_none_behind(tmp_path: Path) -> None:
    with seeded(tmp_path / "x.db", UNIQUE, "INSERT INTO u VALUES (1, 'a', 1), (2, 'b', 2)") as world:
        world.sql("UPDATE OR IGNORE u SET a = 'a' WHERE id = 2", "UPDATE u SET n = 5 WHERE id = 2")
        world.sql("UPDATE u SET n = 6 WHERE id = 2")
        assert told(world) == [
            ("BEFORE", 2, "b", 2), ("UPDATE", 2, "b", 5), ("BEFORE", 2, "b", 5), ("UPDATE", 2, "b", 6),
        ]  # fmt: skip


def test_what_happens_between_a_row_and_its_change_does_not_come_between_them(tmp_path: Path) -> None:
    children = "CREATE TABLE kid (id INTEGER PRIMARY KEY, p INT REFERENCES t ON DELETE CASCADE)"
    with seeded(tmp_path / "x.db", PEOPLE, children, "PRAGMA foreign_keys = ON") as world:
        world.sql("INSERT INTO t VALUES (1, 'a', 1)")
        world.writer.executemany("INSERT INTO kid VALUES (?, 1)", [(number,) for number in range(50)])
        world.pull()
        world.sql("DELETE FROM t")
        found = told(world)
    assert found[-2:] == [("BEFORE", 1, "a", 1), ("DELETE", 1, None, None)]
    assert found[:-2] == [
        row for number in range(50) for row in (("BEFORE", number, 1), ("DELETE", number, None))
    ]  # fmt: skip


@pytest.mark.parametrize("theirs_first", [True, False])
def test_a_users_trigger_that_writes_to_the_same_row_is_told_apart(tmp_path: Path, theirs_first: bool) -> None:
    """SQLite runs the trigger that was made last first."""
    touch = "CREATE TRIGGER touch AFTER UPDATE OF a ON t BEGIN UPDATE t SET n = n + 1 WHERE id = NEW.id; END"
    with made(tmp_path / "x.db", PEOPLE, "INSERT INTO t VALUES (1, 'a', 1)") as world:
        world.before_images = True
        if not theirs_first:
            world.sql(touch)
        world.seed()
        if theirs_first:
            world.sql(touch)
            world.pull()
        world.sql("UPDATE t SET a = 'b'")
        found = [row for row in told(world) if row[0] == "BEFORE"]
        world.assert_equal("t")
    assert sorted(found) == [("BEFORE", 1, "a", 1), ("BEFORE", 1, "b", 1)]


def test_columns_can_be_dropped_and_renamed_as_without_before_images(tmp_path: Path) -> None:
    with seeded(tmp_path / "x.db", PEOPLE, UNIQUE) as world:
        world.sql("INSERT INTO t VALUES (1, 'a', 1)", "INSERT INTO u VALUES (1, 'a', 1)")
        world.sql("ALTER TABLE t DROP COLUMN a", "UPDATE t SET n = 2", "ALTER TABLE t RENAME COLUMN n TO m")
        world.sql("ALTER TABLE u RENAME COLUMN a TO b", "UPDATE t SET m = 3", "DELETE FROM t")
        world.sql("INSERT OR REPLACE INTO u VALUES (2, 'a', 5)")
        old = [row for row in told(world) if row[0] == "BEFORE"]
        assert world.notices == []
        world.assert_equal("t")
        world.assert_equal("u")
    assert old == [("BEFORE", 1, 1), ("BEFORE", 1, 2), ("BEFORE", 1, 3), ("BEFORE", 1, "a", 1)]


def test_an_old_row_that_lacks_a_new_column_is_left_out_and_not_told_with_null(tmp_path: Path) -> None:
    with seeded(tmp_path / "x.db", PEOPLE, "INSERT INTO t VALUES (1, 'a', 1)") as world:
        world.sql("ALTER TABLE t ADD COLUMN d TEXT DEFAULT 'dd'", "UPDATE t SET n = 2")
        assert not [row for row in told(world) if row[0] == "BEFORE"]
        world.sql("UPDATE t SET n = 3")
        assert told(world) == [("BEFORE", 1, "a", 2, "dd"), ("UPDATE", 1, "a", 3, "dd")]
        world.assert_equal("t")


@pytest.mark.parametrize("wanted", [True, False], ids=["on", "off"])
def test_the_option_can_be_switched_without_a_new_copy(tmp_path: Path, wanted: bool) -> None:
    with seeded(tmp_path / "x.db", PEOPLE, UNIQUE, before_images=not wanted) as world:
        world.sql("INSERT INTO t VALUES (1, 'a', 1)", "INSERT INTO u VALUES (1, 'a', 1)", "UPDATE t SET n = 2")
        world.before_images = wanted
        world.restart()
        assert any(row[0] == "BEFORE" for row in told(world)) is not wanted  # what was logged until now
        world.sql("UPDATE t SET n = 3", "INSERT OR REPLACE INTO u VALUES (2, 'a', 2)", "DELETE FROM t")
        old = [row for row in told(world) if row[0] == "BEFORE"]
        assert old == ([("BEFORE", 1, "a", 2), ("BEFORE", 1, "a", 1), ("BEFORE", 1, "a", 3)] if wanted else [])
        assert world.notices == []
        world.assert_equal("t")
        world.assert_equal("u")


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_whatever_is_written_every_old_row_is_the_row_that_was_there(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with made(tmp_path / "x.db", *TABLES.values(), *INDEXES) as world:
        world.sql(f"PRAGMA recursive_triggers = {seed % 2}")
        world.before_images = True
        world.replica = replica = RememberingReplica()
        world.seed()
        for _ in range(60):
            for _ in range(8):
                with suppress(sqlite3.IntegrityError):
                    world.writer.execute(*_statement(chance, world))
            world.pull()
            world.recopy()
        for name in TABLES:
            world.assert_equal(name)
    assert replica.before_images > 150


def _statement(chance: random.Random, world: World) -> tuple[str, list[Any]]:
    name = chance.choice(sorted(TABLES))
    columns = [row[1] for row in world.query(f"PRAGMA table_info({name})")]
    conflict = chance.choice(["", "OR REPLACE", "OR IGNORE"])
    values = [chance.choice([0, 1, 2, 3, 4, "a", "A", "b", "c"]) for _ in columns]
    kind = chance.choice(["insert", "update", "update", "update", "delete"])
    if kind == "insert":
        return f"INSERT {conflict} INTO {name} VALUES ({', '.join('?' for _ in columns)})", values
    if kind == "delete":
        return f"DELETE FROM {name} WHERE {chance.choice(columns)} = ?", values[:1]
    return f"UPDATE {conflict} {name} SET {chance.choice(columns)} = ? WHERE {chance.choice(columns)} <> ?", values[:2]


def test_e08_they_are_not_counted_as_changes_that_wait(tmp_path: Path) -> None:
    with seeded(tmp_path / "x.db", PEOPLE, "INSERT INTO t VALUES (1, 'a', 1)") as world:
        waiting = world.capture.lag().rows
        assert waiting is not None
        world.sql("UPDATE t SET n = 2", "UPDATE t SET n = 3", "DELETE FROM t")
        assert world.capture.lag().rows == waiting + 3


def test_uninstall_leaves_nothing_of_them(tmp_path: Path) -> None:
    with seeded(tmp_path / "x.db", UNIQUE) as world:
        names = {name for (name,) in world.query("SELECT name FROM sqlite_master")}
        assert {"_lakefeed_shop_1_bu", "_lakefeed_shop_1_bd"} <= names
        world.capture.uninstall()
        left = {name for (name,) in world.query("SELECT name FROM sqlite_master")}
    assert not {name for name in left if name.startswith("_lakefeed")}

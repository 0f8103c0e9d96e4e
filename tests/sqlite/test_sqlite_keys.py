"""Keys: which columns they are, how they change, and what REPLACE does behind the back of triggers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sqlite.world import World, made, table

from lakefeed.change.batch import OP, Operation
from lakefeed.change.change_set import TableBlocked
from lakefeed.errors import TableStoppedError


def operations(world: World) -> list[tuple[str, dict[str, object]]]:
    """What the next change set does, in order."""
    rows = [row for batch in world.pull().batches for row in batch.data.to_pylist()]
    return [
        (Operation(row[OP]).name, {name: value for name, value in row.items() if not name.startswith("_lakefeed")})
        for row in rows
    ]


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("CREATE TABLE t (id INTEGER PRIMARY KEY, a)", ("id",)),
        ("CREATE TABLE t (id INTEGER PRIMARY KEY DESC, a)", ("id",)),  # not the rowid, by an old quirk of SQLite
        ("CREATE TABLE t (a, k TEXT PRIMARY KEY)", ("k",)),
        ("CREATE TABLE t (a, b, c, PRIMARY KEY (c, a))", ("c", "a")),
        ("CREATE TABLE t (a, b, c, PRIMARY KEY (c, a)) WITHOUT ROWID", ("c", "a")),
        ("CREATE TABLE t (a, b UNIQUE)", ("_rowid",)),
        ("CREATE TABLE t (rowid, _rowid_, a)", ("_rowid",)),
        ("CREATE TABLE t (_rowid, a)", ("_rowid_",)),
    ],
)
def test_the_key_is_the_declared_one_in_its_own_order_or_the_rowid(
    tmp_path: Path, sql: str, key: tuple[str, ...]
) -> None:
    with made(tmp_path / "x.db", sql) as world:
        world.seed()
        assert world.replica.schemas[table("t")].key == key
        columns = len(world.query("PRAGMA table_info(t)"))
        world.sql(f"INSERT INTO t VALUES ({', '.join(str(number) for number in range(1, columns + 1))})")
        (row,) = [row for batch in world.pull().batches for row in batch.data.to_pylist()]
        assert all(row[name] is not None for name in key)


def test_a_table_that_hides_every_name_of_the_rowid_and_has_no_key_is_stopped(tmp_path: Path) -> None:
    with (
        made(tmp_path / "x.db", "CREATE TABLE t (rowid, _rowid_, oid)") as world,
        pytest.raises(TableStoppedError) as e,
    ):
        world.seed()
    assert "primary key" in e.value.remedy


def test_e12_a_change_of_the_key_is_a_delete_and_an_insert(tmp_path: Path) -> None:
    with made(
        tmp_path / "x.db", "CREATE TABLE t (id INTEGER PRIMARY KEY, a)", "INSERT INTO t VALUES (1, 'x')"
    ) as world:
        world.seed()
        world.sql("UPDATE t SET id = 2")
        assert operations(world) == [("DELETE", {"id": 1, "a": None}), ("INSERT", {"id": 2, "a": "x"})]


@pytest.mark.parametrize("suffix", ["", " WITHOUT ROWID"])
def test_e12_part_of_a_composite_key_changes_the_key(tmp_path: Path, suffix: str) -> None:
    sql = f"CREATE TABLE t (x INT, y INT, a, PRIMARY KEY (x, y)){suffix}"
    with made(tmp_path / "x.db", sql, "INSERT INTO t VALUES (1, 2, 'x')") as world:
        world.seed()
        world.sql("UPDATE t SET y = 3", "UPDATE t SET a = 'z'")
        assert [name for name, _ in operations(world)] == ["DELETE", "INSERT", "UPDATE"]
        world.assert_equal("t")


def test_a_key_that_differs_only_in_case_is_another_key(tmp_path: Path) -> None:
    sql = "CREATE TABLE t (k TEXT PRIMARY KEY COLLATE NOCASE NOT NULL, a)"
    with made(tmp_path / "x.db", sql, "INSERT INTO t VALUES ('a', 1)") as world:
        world.seed()
        world.sql("UPDATE t SET k = 'A'")
        assert [name for name, _ in operations(world)] == ["DELETE", "INSERT"]
        world.sql("REPLACE INTO t VALUES ('a', 2)")
        assert [name for name, _ in operations(world)] == ["DELETE", "INSERT"]
        world.assert_equal("t")


@pytest.mark.parametrize("recursive", [0, 1])
@pytest.mark.parametrize("verb", ["INSERT OR REPLACE", "REPLACE"])
def test_rows_that_replace_removes_through_another_unique_index_are_deleted(
    tmp_path: Path, recursive: int, verb: str
) -> None:
    sql = "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT UNIQUE, b INT UNIQUE)"
    with made(tmp_path / "x.db", sql, "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)") as world:
        world.seed()
        world.sql(f"PRAGMA recursive_triggers = {recursive}", f"{verb} INTO t VALUES (9, 'a', 2)")
        found = operations(world)
        assert {row["id"] for name, row in found if name == "DELETE"} == {1, 2}
        assert found[-1] == ("INSERT", {"id": 9, "a": "a", "b": 2})
        world.assert_equal("t")
        world.sql("UPDATE OR REPLACE t SET a = 'c' WHERE id = 9")
        world.pull()
        world.assert_equal("t")


def test_an_ignored_insert_leaves_nothing_to_deliver(tmp_path: Path) -> None:
    sql = "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT UNIQUE)"
    with made(tmp_path / "x.db", sql, "INSERT INTO t VALUES (1, 'a')") as world:
        world.seed()
        for _ in range(50):
            world.sql("INSERT OR IGNORE INTO t VALUES (2, 'a')")
        assert world.pull().is_heartbeat
        world.sql("INSERT INTO t VALUES (3, 'c')")
        assert operations(world) == [("INSERT", {"id": 3, "a": "c"})]
        assert world.query("SELECT count(*) FROM _lakefeed_shop_log WHERE op = 0")[0][0] <= 16


def test_an_ignored_insert_at_the_end_of_the_log_does_not_hide_the_next_change(tmp_path: Path) -> None:
    """Its candidate may be removed again, and its number be given to the next change."""
    sql = "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT UNIQUE)"
    with made(tmp_path / "x.db", sql, "INSERT INTO t VALUES (1, 'a')") as world:
        world.seed()
        world.sql("INSERT OR IGNORE INTO t VALUES (2, 'a')")
        world.pull()
        world.sql("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (5, 'e')")
        world.pull()
        world.sql("INSERT OR IGNORE INTO t VALUES (6, 'e')", "REPLACE INTO t VALUES (7, 'e')")
        world.pull()
        world.assert_equal("t")


BY_EMAIL = "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT UNIQUE, b TEXT UNIQUE)"


@pytest.mark.parametrize("before_images", [False, True])
@pytest.mark.parametrize("recursive", [0, 1])
@pytest.mark.parametrize(
    ("statements", "deleted"),
    [
        (["INSERT OR IGNORE INTO t VALUES (2, 'a', 'x')", "DELETE FROM t WHERE id = 1"], 1),
        (["INSERT INTO t VALUES (2, 'a', 'x') ON CONFLICT DO NOTHING", "DELETE FROM t WHERE id = 1"], 1),
        (["INSERT OR IGNORE INTO t VALUES (2, 'a', 'x')", "UPDATE t SET id = 5"], 1),
        (["INSERT OR IGNORE INTO t VALUES (2, 'a', 'x')", "REPLACE INTO t VALUES (3, 'a', 'x')"], 1),
        (["REPLACE INTO t VALUES (2, 'a', 'b')"], 1),
        (["REPLACE INTO t VALUES (2, 'a', 'b')", "REPLACE INTO t VALUES (3, 'a', 'b')"], 2),
    ],
)
def test_a_row_that_is_gone_is_deleted_once_however_it_went(
    tmp_path: Path, before_images: bool, recursive: int, statements: list[str], deleted: int
) -> None:
    """A table that only grows has each of them: one delete too many is one that never happened."""
    with made(tmp_path / "x.db", BY_EMAIL, "INSERT INTO t VALUES (1, 'a', 'b')") as world:
        world.before_images = before_images
        world.seed()
        world.sql(f"PRAGMA recursive_triggers = {recursive}", *statements, "INSERT INTO t VALUES (9, 'z', 'z')")
        found = operations(world)
        assert len([name for name, _ in found if name == "DELETE"]) == deleted
        world.assert_equal("t")


@pytest.mark.parametrize(
    ("declared", "stored"),
    [
        ("TEXT NOT NULL DEFAULT 'x'", "x"),
        ('TEXT NOT NULL DEFAULT "x"', "x"),
        ("TEXT NOT NULL DEFAULT x", "x"),
        ("TEXT NOT NULL DEFAULT [it's]", "it's"),
        ("TEXT NOT NULL DEFAULT ('x' || 'y')", "xy"),
        ("INT NOT NULL DEFAULT -5", -5),
        ("TEXT COLLATE NOCASE NOT NULL DEFAULT 'X'", "x"),
    ],
)
@pytest.mark.parametrize(
    "verb", ["REPLACE INTO t VALUES (2, NULL, 'b')", "UPDATE OR REPLACE t SET c = NULL WHERE id = 3"]
)
def test_a_row_that_replace_removes_because_null_becomes_the_default_is_deleted(
    tmp_path: Path, declared: str, stored: str | int, verb: str
) -> None:
    with made(tmp_path / "x.db", f"CREATE TABLE t (id INTEGER PRIMARY KEY, c {declared} UNIQUE, v TEXT)") as world:
        world.writer.executemany("INSERT INTO t VALUES (?, ?, 'a')", [(1, stored), (3, "77")])
        world.seed()
        world.sql(verb)
        assert [row["id"] for name, row in operations(world) if name == "DELETE"] == [1]
        world.assert_equal("t")


@pytest.mark.parametrize("before_images", [False, True])
@pytest.mark.parametrize("key", ["id INTEGER PRIMARY KEY, ", ""], ids=["key", "no key"])
def test_a_row_with_the_number_that_stands_for_no_number_yet_is_deleted_too(
    tmp_path: Path, before_images: bool, key: str
) -> None:
    """A rowid that is not given is -1 in a BEFORE trigger."""
    with made(tmp_path / "x.db", f"CREATE TABLE t ({key}c TEXT UNIQUE, v TEXT)") as world:
        world.before_images = before_images
        world.sql("INSERT INTO t (rowid, c, v) VALUES (-1, 'x', 'a')")
        world.seed()
        world.sql("REPLACE INTO t (c, v) VALUES ('x', 'b')", "REPLACE INTO t (rowid, c, v) VALUES (-1, 'y', 'c')")
        world.sql("REPLACE INTO t (rowid, c, v) VALUES (-1, 'y', 'd')")
        assert len([name for name, _ in operations(world) if name == "DELETE"]) == 1
        world.assert_equal("t")


def test_upsert_is_an_update_of_the_row_that_was_there(tmp_path: Path) -> None:
    sql = "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT UNIQUE, n INT)"
    with made(tmp_path / "x.db", sql, "INSERT INTO t VALUES (1, 'a', 0)") as world:
        world.seed()
        world.sql("INSERT INTO t VALUES (7, 'a', 5) ON CONFLICT (a) DO UPDATE SET n = excluded.n")
        assert operations(world) == [("UPDATE", {"id": 1, "a": "a", "n": 5})]


def test_a_partial_index_does_not_make_its_other_rows_candidates(tmp_path: Path) -> None:
    with made(
        tmp_path / "x.db",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, gone INT)",
        "CREATE UNIQUE INDEX i ON t (a) WHERE gone = 0 -- a comment)",
        "INSERT INTO t VALUES (1, 'a', 1), (2, 'a', 1), (3, 'a', 0)",
    ) as world:
        world.seed()
        world.sql("INSERT OR IGNORE INTO t VALUES (4, 'a', 0)")
        assert world.query("SELECT c0 FROM _lakefeed_shop_log WHERE op = 0") == [(3,)]
        world.sql("REPLACE INTO t VALUES (5, 'a', 0)")
        world.pull()
        world.assert_equal("t")


def test_triggers_of_the_user_that_undo_or_change_the_row_are_seen_as_they_end(tmp_path: Path) -> None:
    with made(
        tmp_path / "x.db",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT UNIQUE, n INT)",
        "CREATE TABLE undone (id INTEGER PRIMARY KEY, a TEXT)",
        "CREATE TABLE kept (id INTEGER PRIMARY KEY, a TEXT)",
    ) as world:
        world.seed()
        world.sql(
            "CREATE TRIGGER u1 AFTER INSERT ON t BEGIN UPDATE t SET n = 5 WHERE id = NEW.id; END",
            "CREATE TRIGGER u2 AFTER INSERT ON undone BEGIN DELETE FROM undone WHERE id = NEW.id; END",
            "CREATE TRIGGER u3 AFTER DELETE ON kept BEGIN INSERT INTO kept VALUES (OLD.id, 'back'); END",
            "INSERT INTO t VALUES (1, 'a', 0)",
            "REPLACE INTO t VALUES (2, 'a', 0)",
            "INSERT INTO undone VALUES (1, 'x')",
            "INSERT INTO kept VALUES (1, 'x')",
            "DELETE FROM kept",
        )
        world.pull()
        for name in ("t", "undone", "kept"):
            world.assert_equal(name)
        assert world.query("SELECT count(*) FROM undone") == [(0,)]


def test_cascades_are_captured(tmp_path: Path) -> None:
    with made(
        tmp_path / "x.db",
        "CREATE TABLE p (id INTEGER PRIMARY KEY)",
        "CREATE TABLE c (id INTEGER PRIMARY KEY, p INT REFERENCES p ON DELETE CASCADE)",
        "INSERT INTO p VALUES (1), (2)",
        "INSERT INTO c VALUES (1, 1), (2, 1), (3, 2)",
    ) as world:
        world.seed()
        world.sql("PRAGMA foreign_keys = ON", "DELETE FROM p WHERE id = 1")
        world.pull()
        world.assert_equal("c")


def test_t04_a_null_in_the_key_blocks_only_this_table_until_it_is_prepared_again(tmp_path: Path) -> None:
    with made(
        tmp_path / "x.db",
        "CREATE TABLE t (a TEXT, b TEXT, PRIMARY KEY (a, b))",
        "CREATE TABLE o (id INTEGER PRIMARY KEY)",
    ) as world:
        world.seed()
        world.sql("INSERT INTO t VALUES ('x', NULL)", "INSERT INTO o VALUES (1)")
        (notice,) = world.pull().notices
        assert isinstance(notice, TableBlocked)
        assert notice.table == table("t")
        assert "DELETE FROM" in notice.remedy
        world.assert_equal("o")
        world.restart()
        world.sql("INSERT INTO t VALUES ('x', 'y')", "INSERT INTO o VALUES (2)")
        assert {batch.table for batch in world.pull().batches} == {table("o")}
        with pytest.raises(TableStoppedError, match="NULL"):
            world.seed("t")
        world.sql("DELETE FROM t WHERE b IS NULL")
        world.seed("t")
        world.sql("INSERT INTO t VALUES ('x', 'z')")
        world.pull()
        world.assert_equal("t")
        world.assert_equal("o")


def test_vacuum_renumbers_a_table_without_key_and_it_is_copied_anew(tmp_path: Path) -> None:
    with made(
        tmp_path / "x.db",
        "CREATE TABLE t (a TEXT)",
        "CREATE TABLE indexed (a TEXT)",
        "CREATE INDEX i ON indexed (a)",
        "INSERT INTO t VALUES ('a'), ('b'), ('c')",
        "INSERT INTO indexed SELECT a FROM t",
        "DELETE FROM t WHERE a = 'a'",
        "DELETE FROM indexed WHERE a = 'a'",
    ) as world:
        world.seed()
        world.sql("VACUUM", "UPDATE t SET a = 'changed' WHERE a = 'b'")
        assert world.query("SELECT rowid FROM t") == [(1,), (2,)]
        world.pull()
        assert world.replica.stale == {table("t")}
        world.recopy()
        world.assert_equal("t")
        world.assert_equal("indexed")
        world.sql("CREATE TABLE another (a)")
        assert world.pull().is_heartbeat  # a schema change that is no VACUUM

"""ALTER TABLE and other schema changes while the capture runs, or while it does not."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from tests.sqlite.world import RememberingReplica, World, made, table

from lakefeed.capture.sqlite.table import read_table
from lakefeed.change.batch import OP, Operation
from lakefeed.change.change_set import RecopyNeeded, TableDropped
from lakefeed.change.schema_change import AddColumn, DropColumn, RenameColumn, diff
from lakefeed.errors import TableStoppedError

PEOPLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b REAL, c INT)"
ROW = "INSERT INTO t VALUES (1, 'x', 1.5, 7)"


def recopies(world: World) -> list[str]:
    return [notice.reason for notice in world.notices if isinstance(notice, RecopyNeeded)]


@pytest.mark.parametrize("running", [True, False], ids=["while running", "while stopped"])
def test_an_added_column_is_followed_and_rows_changed_meanwhile_are_complete(tmp_path: Path, running: bool) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        world.seed()
        old = world.replica.schemas[table("t")]
        if not running:
            world.restart()
        world.sql("INSERT INTO t VALUES (2, 'y', 2, 8)")
        world.sql("ALTER TABLE t ADD COLUMN d TEXT DEFAULT 'dd'", "INSERT INTO t VALUES (3, 'z', 3, 9, 'own')")
        world.sql("UPDATE t SET d = 'set' WHERE id = 2")
        (schema,) = world.pull().schemas
        assert [type(change) for change in diff(old, schema)] == [AddColumn]
        assert schema.column("d").default == "dd"
        assert recopies(world) == []
        world.assert_equal("t")
        world.sql("UPDATE t SET d = 'now known'")
        world.pull()
        world.assert_equal("t")


@pytest.mark.parametrize("before_images", [False, True])
def test_what_was_logged_before_a_column_was_added_has_its_default_however_late_it_is_read(
    tmp_path: Path, before_images: bool
) -> None:
    """Taking in another table says that the triggers were right up to here, not that the log was read up to here."""
    with made(tmp_path / "x.db", PEOPLE, ROW, "CREATE TABLE u (id INTEGER PRIMARY KEY)") as world:
        world.before_images = before_images
        world.replica = RememberingReplica()
        world.seed("t")
        world.sql("UPDATE t SET a = 'y'", "INSERT INTO t VALUES (2, 'z', 2, 8)", "DELETE FROM t WHERE id = 2")
        world.seed("u")
        world.sql("ALTER TABLE t ADD COLUMN d TEXT NOT NULL DEFAULT 'dd'", "ALTER TABLE t ADD COLUMN e INT")
        change_set = world.pull()
        images = [row for batch in change_set.batches for row in batch.data.to_pylist() if row[OP] != Operation.DELETE]
        assert [row["d"] for row in images] == ["dd"] * (4 if before_images else 2)
        assert world.replica.before_images == (2 if before_images else 0)
        assert recopies(world) == []
        world.assert_equal("t")


def test_what_existing_rows_read_in_an_added_column_is_what_sqlite_says(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        world.seed()
        world.sql(
            "ALTER TABLE t ADD COLUMN i INT DEFAULT '12'",
            "ALTER TABLE t ADD COLUMN r REAL DEFAULT 3",
            "ALTER TABLE t ADD COLUMN m INT DEFAULT 'twelve'",
            "ALTER TABLE t ADD COLUMN n INT NOT NULL DEFAULT -5",
        )
        world.pull()
        assert recopies(world) == []
        world.assert_equal("t")
        assert world.replica.rows(table("t"))[0]["m"] == "twelve"


@pytest.mark.parametrize("column", ["g TEXT GENERATED ALWAYS AS (a || '!')", "g BLOB DEFAULT x'00'"])
def test_an_added_column_whose_old_rows_cannot_be_told_in_advance_is_copied(tmp_path: Path, column: str) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        world.seed()
        world.sql(f"ALTER TABLE t ADD COLUMN {column}")
        world.pull()
        assert len(recopies(world)) == 1
        world.recopy()
        world.assert_equal("t")


@pytest.mark.parametrize("column", ["a", "b", "c"])
def test_a_dropped_column_is_followed_and_the_application_is_never_refused(tmp_path: Path, column: str) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        world.seed()
        old = world.replica.schemas[table("t")]
        world.sql("UPDATE t SET c = 8", f"ALTER TABLE t DROP COLUMN {column}", "INSERT INTO t VALUES (2, 3, 4)")
        (schema,) = world.pull().schemas
        assert diff(old, schema) == (DropColumn(column),)
        assert recopies(world) == []
        world.assert_equal("t")


def test_a_renamed_column_keeps_its_id_so_that_it_is_not_a_drop_and_an_add(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        world.seed()
        old = world.replica.schemas[table("t")]
        world.sql('ALTER TABLE t RENAME COLUMN a TO "strange "" name"', "INSERT INTO t VALUES (2, 'y', 2, 8)")
        (schema,) = world.pull().schemas
        assert diff(old, schema) == (RenameColumn("a", 'strange " name'),)
        assert {row['strange " name'] for row in world.replica.rows(table("t"))} == {"x", "y"}
        world.sql('ALTER TABLE t DROP COLUMN "strange "" name"')  # its triggers have been made anew
        world.pull()
        world.assert_equal("t")


def test_a_renamed_key_column_is_a_rename_and_not_another_key(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", "CREATE TABLE t (x INT, y INT, a, PRIMARY KEY (y, x)) WITHOUT ROWID") as world:
        world.sql("INSERT INTO t VALUES (1, 2, 3)")
        world.seed()
        world.sql("ALTER TABLE t RENAME COLUMN x TO z", "UPDATE t SET z = 5")
        world.pull()
        assert recopies(world) == []
        assert world.replica.schemas[table("t")].key == ("y", "z")
        world.assert_equal("t")


def test_columns_that_swap_their_names_are_told_apart(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", "CREATE TABLE t (id INTEGER PRIMARY KEY, a INT, b INT)") as world:
        world.sql("INSERT INTO t VALUES (1, 10, 20)")
        world.seed()
        for old, new in (("a", "x"), ("b", "a"), ("x", "b")):
            world.sql(f"ALTER TABLE t RENAME COLUMN {old} TO {new}")
        world.sql("INSERT INTO t VALUES (2, 30, 40)")
        world.pull()
        assert recopies(world) == []
        world.assert_equal("t")


def test_a_column_that_is_dropped_and_added_again_is_another_column(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        world.seed()
        world.sql("ALTER TABLE t DROP COLUMN a", "ALTER TABLE t ADD COLUMN a TEXT DEFAULT 'new'")
        world.pull()
        assert recopies(world) == []
        world.assert_equal("t")


@pytest.mark.parametrize("words", ["c INT", "c  INT", "c INTEGER"])
def test_the_last_column_dropped_and_added_again_is_copied_even_in_the_same_words(tmp_path: Path, words: str) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        world.seed()
        world.sql("ALTER TABLE t DROP COLUMN c", f"ALTER TABLE t ADD COLUMN {words}", "INSERT INTO t (c) VALUES (5)")
        world.pull()
        assert len(recopies(world)) == 1
        world.recopy()
        world.assert_equal("t")


def test_a_last_column_that_has_values_was_not_added_again(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        world.seed()
        world.sql("CREATE INDEX i ON t (a)", "CREATE INDEX j ON t (b)", "CREATE TABLE other (a)")
        assert world.pull().is_heartbeat


def test_a_table_that_a_migration_re_creates_is_copied_anew(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        world.seed()
        world.sql(
            "BEGIN",
            "CREATE TABLE fresh (id INTEGER PRIMARY KEY, c TEXT)",
            "INSERT INTO fresh SELECT id, c FROM t",
            "DROP TABLE t",
            "ALTER TABLE fresh RENAME TO t",
            "COMMIT",
            "INSERT INTO t VALUES (5, 'five')",
        )
        world.pull()
        assert len(recopies(world)) == 1
        world.recopy()
        world.assert_equal("t")
        world.sql("UPDATE t SET c = 'live again'")
        world.pull()
        world.assert_equal("t")


def test_what_is_in_doubt_is_the_new_column_alone_unless_changes_were_missed(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        world.seed()
        world.sql("ALTER TABLE t ADD COLUMN g INT AS (c * 2)", "ALTER TABLE t ADD COLUMN h BLOB DEFAULT x'00'")
        world.pull()
        assert [notice.columns for notice in world.notices if isinstance(notice, RecopyNeeded)] == [("g", "h")]
        world.sql("DROP TABLE t", PEOPLE, ROW)
        world.pull()
        assert [notice.columns for notice in world.notices if isinstance(notice, RecopyNeeded)][1:] == [None]


def test_a_trigger_that_somebody_removed_is_put_back_and_the_table_copied(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        world.seed()
        (name,) = world.query("SELECT name FROM sqlite_master WHERE name LIKE '%_ad'")[0]
        world.sql(f"DROP TRIGGER {name}", "DELETE FROM t")
        world.pull()
        assert len(recopies(world)) == 1
        world.recopy()
        world.assert_equal("t")


def test_another_key_needs_a_new_copy(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", "CREATE TABLE t (a INT NOT NULL PRIMARY KEY, b INT NOT NULL)") as world:
        world.sql("INSERT INTO t VALUES (1, 2)")
        world.seed()
        world.sql("DROP TABLE t", "CREATE TABLE t (a INT NOT NULL, b INT NOT NULL PRIMARY KEY)")
        world.sql("INSERT INTO t VALUES (1, 2), (1, 3)")
        world.pull()
        world.recopy()
        assert world.replica.schemas[table("t")].key == ("b",)
        world.assert_equal("t")


def test_a_dropped_table_is_reported_and_its_last_changes_are_delivered(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW, "CREATE TABLE o (id INTEGER PRIMARY KEY)") as world:
        world.seed()
        world.sql("INSERT INTO t VALUES (2, 'last', 0, 0)", "DROP TABLE t", "INSERT INTO o VALUES (1)")
        change_set = world.pull()
        assert change_set.notices == (TableDropped(table("t")),)
        assert {row["id"] for row in world.replica.rows(table("t"))} == {1, 2}
        world.assert_equal("o")
        assert [schema.table for schema in world.capture.discover()] == [table("o")]


def test_a_renamed_table_is_dropped_under_its_old_name_and_found_under_its_new_one(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        world.seed()
        world.sql("ALTER TABLE t RENAME TO u", "INSERT INTO u VALUES (2, 'y', 2, 2)")
        assert world.pull().notices == (TableDropped(table("t")),)
        assert world.query("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'") == [(0,)]
        world.seed("u")
        world.sql("INSERT INTO u VALUES (3, 'z', 3, 3)")
        world.pull()
        world.assert_equal("u")


def test_a_table_that_is_dropped_and_comes_back_can_be_captured_again(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        world.seed()
        world.sql("DROP TABLE t")
        world.pull()
        world.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, other TEXT)", "INSERT INTO t VALUES (1, 'x')")
        world.pull()
        world.seed("t")
        world.sql("INSERT INTO t VALUES (2, 'y')")
        world.pull()
        world.assert_equal("t")


def test_a_new_table_is_shown_by_discover_and_captured_once_it_is_prepared(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        world.seed()
        world.sql("CREATE TABLE n (id INTEGER PRIMARY KEY, wide TEXT, wider TEXT, widest TEXT, most TEXT)")
        world.sql("INSERT INTO n (id) VALUES (1)", "UPDATE t SET a = 'still live'")
        assert world.pull().rows == 1
        assert table("n") in [schema.table for schema in world.capture.discover()]
        world.seed("n")
        world.sql("INSERT INTO n (id, most) VALUES (2, 'x')")
        world.pull()
        world.assert_equal("n")
        world.assert_equal("t")


def test_a_new_unique_index_is_followed_and_rows_that_may_have_been_replaced_unseen_are_copied(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW, "INSERT INTO t VALUES (2, 'y', 0, 0)") as world:
        world.seed()
        world.sql("CREATE UNIQUE INDEX i ON t (a)", "REPLACE INTO t VALUES (9, 'x', 0, 0)")
        world.pull()
        assert len(recopies(world)) == 1
        world.recopy()
        world.sql("REPLACE INTO t VALUES (10, 'y', 0, 0)")
        world.pull()
        assert len(recopies(world)) == 1
        world.assert_equal("t")
        world.sql("DROP INDEX i")
        world.pull()
        world.sql("ALTER TABLE t DROP COLUMN a")
        world.pull()
        world.assert_equal("t")


def test_a_change_of_schema_that_concerns_nobody_costs_nothing(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        world.seed()
        installed = world.query("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        world.sql("CREATE INDEX i ON t (b)", "CREATE VIEW v AS SELECT * FROM t")
        assert world.pull().is_heartbeat
        assert world.query("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'") == installed


def test_a_schema_change_is_announced_again_if_it_was_not_confirmed(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        world.seed()
        before = world.position
        world.sql("ALTER TABLE t RENAME COLUMN a TO z")
        first = world.pull()
        world.position = before
        world.restart()
        assert world.pull().schemas == first.schemas != ()


def test_a_chunk_that_was_planned_before_a_column_was_renamed_is_not_read_wrongly(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        capture = world.open()
        capture.prepare([table("t")])
        (chunk,) = capture.snapshot(table("t")).chunks
        world.sql("ALTER TABLE t RENAME COLUMN a TO z")
        with chunk.open() as reader, pytest.raises(TableStoppedError, match="definition changed"):
            list(reader)
        world.seed("t")
        world.assert_equal("t")


def test_a_renamed_last_column_that_was_dropped_and_added_under_its_new_name_is_copied(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        world.seed()
        world.sql("ALTER TABLE t RENAME COLUMN c TO z")
        try:
            world.sql("ALTER TABLE t DROP COLUMN z")
        except sqlite3.OperationalError:  # a SQLite that reads "z" only as a name, never as text
            world.pull()
            world.sql("ALTER TABLE t DROP COLUMN z")
        world.sql("ALTER TABLE t ADD COLUMN z INT")
        world.pull()
        world.recopy()
        world.assert_equal("t")


def test_a_column_that_is_renamed_and_dropped_before_the_capture_looks_is_followed(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, ROW) as world:
        world.seed()
        world.sql("ALTER TABLE t RENAME COLUMN a TO z")
        try:
            world.sql("ALTER TABLE t DROP COLUMN z")
        except sqlite3.OperationalError:  # a SQLite that reads "z" only as a name, never as text
            world.pull()
            world.sql("ALTER TABLE t DROP COLUMN z")
        world.sql("INSERT INTO t VALUES (2, 2.5, 3)")
        world.pull()
        world.assert_equal("t")
        assert recopies(world) == []


@pytest.mark.parametrize("nth", range(1, 9))
def test_a_table_that_is_dropped_while_its_catalog_is_read_is_seen_whole_or_not_at_all(
    tmp_path: Path, nth: int
) -> None:
    """Dropped by another connection, just before the n-th statement of the reading."""
    path, statements = tmp_path / "x.db", list[str]()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as owner:
        owner.executescript("PRAGMA journal_mode=WAL; CREATE TABLE t (id INT PRIMARY KEY, a, b UNIQUE) WITHOUT ROWID;")
        owner.execute("CREATE UNIQUE INDEX some ON t (a) WHERE b > 1")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
            whole = read_table(reader, "t")

            def note(sql: str) -> None:
                statements.append(sql)
                if len(statements) == nth:
                    owner.execute("DROP TABLE t")

            reader.set_trace_callback(note)
            found = read_table(reader, "t")
            reader.set_trace_callback(None)
            assert found in (whole, None)
            assert len(statements) >= nth
            assert read_table(reader, "t") is None

"""Positions: continuity, what makes one lost, confirm and pruning."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from tests.sqlite.world import World, made, table

from lakefeed.capture.base import Continuity
from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.change.position import Position, SqliteSequence
from lakefeed.errors import (
    PositionLostError,
    Retry,
    SourceChangedError,
    SourceSetupError,
    SourceUnavailableError,
    StateError,
)

PEOPLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)"


def sequence(position: Position | None) -> int:
    assert isinstance(position, SqliteSequence)
    return position.sequence


def log_size(world: World) -> int:
    return int(world.query("SELECT count(*) FROM _lakefeed_shop_log")[0][0])


def test_e11_a_database_behind_the_position_is_not_up_to_date(tmp_path: Path) -> None:
    """An older copy was restored: the log ends before the position (acceptance 3)."""
    with made(tmp_path / "x.db", PEOPLE, journal_mode="delete") as world:
        world.seed()
        shutil.copy(tmp_path / "x.db", tmp_path / "backup.db")
        world.sql("INSERT INTO t VALUES (1, 'x')")
        world.pull()
        position = world.position
    capture = Sqlite(tmp_path / "backup.db").bind("shop")
    capture.open()
    with pytest.raises(PositionLostError, match="is behind") as caught:
        capture.continuity(position, [])
    assert caught.value.retry is Retry.NEVER
    with pytest.raises(PositionLostError, match="is behind"):
        capture.live(position)
    capture.close()


def replaced(world: World, *statements: str) -> None:
    """Another file in the place of the database, by a rename, as a restore or a compaction does it."""
    other = world.path.with_name("other.db")
    world.sql(f"VACUUM INTO '{other}'")
    world.writer.close()
    other.replace(world.path)
    world.writer = sqlite3.connect(world.path, isolation_level=None)
    world.sql(*statements)


def test_e15_a_file_that_is_replaced_while_it_is_read_is_opened_anew(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, journal_mode="delete") as world:
        world.seed()
        world.sql("INSERT INTO t VALUES (1, 'x')")
        world.pull()
        replaced(world, "INSERT INTO t VALUES (2, 'y')")
        with pytest.raises(SourceUnavailableError, match="was replaced") as caught:
            world.pull()
        assert caught.value.retry is Retry.BACKOFF
        world.restart()
        world.pull()
        world.assert_equal("t")


def test_e11_an_older_file_in_the_place_of_the_one_that_is_read_has_lost_the_position(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, journal_mode="delete") as world:
        world.seed()
        shutil.copy(tmp_path / "x.db", tmp_path / "backup.db")
        world.sql("INSERT INTO t VALUES (1, 'x')")
        change_set = world.pull()
        (tmp_path / "backup.db").replace(tmp_path / "x.db")
        assert [batch.rows for batch in change_set.batches] == [1]  # it needs the file no more
        with pytest.raises(SourceUnavailableError, match="was replaced"):
            world.capture.confirm(change_set.end)
        world.capture.close()
        world.open()
        with pytest.raises(PositionLostError, match="is behind"):
            world.capture.continuity(world.position, [])


def test_e15_a_file_that_is_gone_is_waited_for(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, journal_mode="delete") as world:
        world.seed()
        capture = world.capture
        (tmp_path / "x.db").rename(tmp_path / "y.db")
        with pytest.raises(SourceUnavailableError, match="removed"):
            world.pull()
        capture.close()
        with pytest.raises(SourceUnavailableError, match="does not exist"):
            capture.open()
        (tmp_path / "y.db").rename(tmp_path / "x.db")
        world.restart()
        assert world.pull().is_heartbeat


def test_e11_a_restored_copy_that_has_counted_on_is_found_out(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE, journal_mode="delete") as world:
        world.seed()
        shutil.copy(tmp_path / "x.db", tmp_path / "backup.db")
        world.sql("INSERT INTO t VALUES (1, 'x')")
        world.pull()
        position = world.position
    with made(tmp_path / "backup.db") as restored:
        restored.writer.execute("SELECT 1")
        for number in range(5):
            restored.sql(f"INSERT INTO t VALUES ({number}, 'other')")
        restored.sql("UPDATE _lakefeed_shop_log SET ts = ts + 5000 WHERE tab IS NOT NULL")  # time went on, too
        capture = restored.open()
        with pytest.raises(PositionLostError, match="older copy was restored"):
            capture.continuity(position, [])


def test_e11_a_log_that_was_pruned_beyond_the_position_has_lost_it(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE) as world:
        world.seed()
        start = world.position
        for number in range(3):
            world.sql(f"INSERT INTO t VALUES ({number}, 'x')")
        world.pull()
        assert world.position is not None
        world.capture.confirm(world.position)
        world.restart()
        with pytest.raises(PositionLostError, match="were pruned"):
            world.capture.continuity(start, [])
        assert world.capture.continuity(world.position, []) is Continuity.RESUMED


def test_e11_a_log_with_a_hole_has_lost_its_position(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE) as world:
        world.seed()
        world.sql("INSERT INTO t VALUES (1, 'x')")
        world.pull()
        world.sql("INSERT INTO t VALUES (2, 'x')")
        world.sql(f"DELETE FROM _lakefeed_shop_log WHERE seq = {sequence(world.position)}")
        with pytest.raises(PositionLostError, match="is missing"):
            world.capture.continuity(world.position, [])


def test_e14_a_position_of_another_kind_of_source_is_refused(tmp_path: Path) -> None:
    class Other(Position):
        kind = "other"

        def text(self) -> str:
            return "1"

        @classmethod
        def parse(cls, text: str) -> Other:
            return cls()

        def _compare(self, other: Position) -> int | None:
            return 0

    with made(tmp_path / "x.db", PEOPLE) as world:
        world.seed()
        with pytest.raises(SourceChangedError, match="another kind of source"):
            world.capture.continuity(Other(), [])


def test_e14_two_databases_never_have_the_same_identity(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE) as one, made(tmp_path / "y.db", PEOPLE) as two:
        one.seed()
        two.seed()
        assert one.capture.identity() != two.capture.identity()


def test_e14_a_meta_table_of_another_format_is_not_touched(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE) as world:
        world.seed()
        world.sql("UPDATE _lakefeed_shop_meta SET value = 99 WHERE key = 'format'")
        with pytest.raises(SourceSetupError, match="format 99"):
            world.capture.prepare([table("t")])


def test_a_log_that_is_gone_is_a_setup_error_and_not_a_fresh_start(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE) as world:
        world.seed()
        world.sql("DROP TABLE _lakefeed_shop_log")
        with pytest.raises(SourceSetupError, match="is missing"):
            world.capture.continuity(world.position, [])


def test_e05_the_log_is_pruned_only_up_to_what_was_confirmed(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE) as world:
        world.seed()
        for number in range(10):
            world.sql(f"INSERT INTO t VALUES ({number}, 'x')")
        half = world.pull().end
        world.sql("INSERT INTO t VALUES (100, 'y'), (101, 'y')")
        world.pull()
        assert log_size(world) == 14
        world.capture.confirm(half)
        world.restart()
        assert log_size(world) == 3  # the confirmed row itself, so that numbers only grow, and two more
        world.position = half
        assert world.pull().rows == 2


def test_e05_numbers_only_grow_even_when_everything_is_confirmed(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE) as world:
        world.seed()
        last = 0
        for number in range(3):
            world.sql(f"INSERT INTO t VALUES ({number}, 'x')")
            world.pull()
            assert world.position is not None
            assert sequence(world.position) > last
            last = sequence(world.position)
            world.capture.confirm(world.position)
            world.restart()
        assert log_size(world) == 1


def test_e10_confirm_never_waits_for_a_locked_database(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE) as world:
        world.seed()
        world.sql("INSERT INTO t VALUES (1, 'x')")
        end = world.pull().end
        world.sql("BEGIN IMMEDIATE")
        world.capture.confirm(end)  # cannot be written now, and is no error
        world.sql("COMMIT")
        assert log_size(world) > 1
        world.capture.confirm(end)
        world.restart()
        assert log_size(world) == 1


def test_e10_confirm_ahead_of_the_log_is_refused_because_it_would_prune_all_of_it(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE) as world:
        world.seed()
        with pytest.raises(StateError, match="head"):
            world.capture.confirm(SqliteSequence(10_000))
        world.capture.confirm(SqliteSequence(sequence(world.position)))


def test_confirms_in_quick_succession_write_to_the_source_once(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE) as world:
        world.seed()
        writes = []
        for number in range(5):
            world.sql(f"INSERT INTO t VALUES ({number}, 'x')")
            world.capture.confirm(world.pull().end)
            writes.append(world.query("SELECT value FROM _lakefeed_shop_meta WHERE key = 'confirmed'")[0][0])
        assert len(set(writes)) == 1
        world.restart()  # close writes what was put off
        confirmed = world.query("SELECT value FROM _lakefeed_shop_meta WHERE key = 'confirmed'")[0][0]
        assert confirmed == (world.position.text() if world.position else "")


def test_e08_lag_counts_rows_and_the_age_of_the_oldest(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE) as world:
        capture = world.open()
        assert capture.lag().rows is None  # nothing is prepared
        world.seed()
        assert capture.lag().bytes is None
        world.sql("INSERT INTO t VALUES (1, 'x'), (2, 'y')")
        world.sql("UPDATE _lakefeed_shop_log SET ts = ts - 60000")
        lag = capture.lag()
        assert lag.rows is not None
        assert lag.rows >= 2
        assert lag.seconds is not None
        assert 60 <= lag.seconds < 120
        world.sql("UPDATE _lakefeed_shop_log SET ts = ts + 3600000")  # written by a clock that was ahead
        assert capture.lag().seconds == 0.0
        world.sql("UPDATE _lakefeed_shop_meta SET value = '999@0' WHERE key = 'confirmed'")
        assert capture.lag().rows == 0


def test_two_pipelines_live_in_one_database(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE) as world:
        world.seed()
        second = Sqlite(tmp_path / "x.db").bind("shop_1")
        second.open()
        start = second.prepare([table("t")])
        world.sql("INSERT INTO t VALUES (1, 'x')")
        assert world.pull().rows == 1
        assert next(second.live(start, wait_seconds=0)).rows == 1
        second.uninstall()
        second.close()
        world.sql("INSERT INTO t VALUES (2, 'x')")
        assert world.pull().rows == 1
        world.assert_equal("t")


def test_a_writer_that_rolls_back_leaves_nothing(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE) as world:
        world.seed()
        world.sql("BEGIN", "INSERT INTO t VALUES (1, 'x')", "SAVEPOINT s", "INSERT INTO t VALUES (2, 'y')")
        world.sql("ROLLBACK TO s", "COMMIT", "BEGIN", "DELETE FROM t", "ROLLBACK")
        assert world.pull().rows == 1
        world.assert_equal("t")
        with pytest.raises(sqlite3.IntegrityError):
            world.sql("INSERT INTO t VALUES (5, 'x'), (1, 'y')")
        assert world.pull().rows == 0


def test_a_change_set_has_all_its_rows_after_its_confirm_and_the_log_was_pruned(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", PEOPLE) as world:
        world.seed()
        world.sql("BEGIN", *(f"INSERT INTO t VALUES ({number}, 'x')" for number in range(300)), "COMMIT")
        change_set = world.pull()
        world.capture.confirm(change_set.end)
        assert log_size(world) == 1
        assert sum(batch.rows for batch in change_set.batches) == change_set.rows == 300

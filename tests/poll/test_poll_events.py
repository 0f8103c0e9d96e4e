"""Which operation an event is: insert or update, soft delete, un-delete. Requirements A19 to A24."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.poll.world import TABLE, Clock, clocked, made

from lakefeed.capture.base import Level
from lakefeed.capture.poll.poller import unchanged
from lakefeed.capture.poll.source import SoftDelete, TableRule
from lakefeed.capture.poll.table import instants
from lakefeed.change.batch import OP, Operation
from lakefeed.errors import ConfigError

SOFT = TableRule(deletes=SoftDelete("deleted_at"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return clocked(monkeypatch)


@pytest.mark.parametrize(
    ("created", "updated", "expected"),
    [
        ("2024-01-01 12:00:00", "2024-01-01 12:00:00", Operation.INSERT),
        ("2024-01-01 12:00:00", "2024-01-01T12:00:00.000000Z", Operation.INSERT),
        ("2024-01-01 14:00:00+02:00", "2024-01-01 12:00:00", Operation.INSERT),
        ("2024-01-01 06:30:00-0530", "2024-01-01 12:00", Operation.INSERT),
        ("2024-01-01 12:00:00.000001", "2024-01-01 12:00:00", Operation.UPDATE),
        (None, "2024-01-01 12:00:00", Operation.UPDATE),
    ],
)
def test_a19_created_and_updated_at_the_same_instant_is_an_insert_however_it_is_written(
    tmp_path: Path, clock: Clock, created: str | None, updated: str, expected: Operation
) -> None:
    with made(tmp_path / "s.db") as world:
        world.writer.execute("INSERT INTO t VALUES (1, 'v', ?, ?, NULL)", (created, updated))
        (row,) = world.rows()
        assert Operation(row[OP]) is expected


def test_a20_a_row_inserted_and_updated_between_polls_is_an_update_that_the_lake_takes(
    tmp_path: Path, clock: Clock
) -> None:
    with made(tmp_path / "s.db") as world:
        world.sql(f"INSERT INTO t VALUES (1, 'a', '{clock.tick(1)}', '{clock.tick(1)}', NULL)")
        assert world.pull() == [("update", 1)]
        assert world.values() == {1: "a"}


def test_a21_hard_deletes_are_not_seen_without_a_rule_and_check_says_so(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db") as world:
        world.sql(f"INSERT INTO t VALUES (1, 'a', '{clock.text}', '{clock.text}', NULL)")
        world.seed()
        world.sql("DELETE FROM t")
        assert world.pull() == []
        assert world.values() == {1: "a"}
        assert not world.capture.capabilities.deletes
        said = [finding for finding in world.capture.check() if "does not see deletes" in finding.problem]
        assert [finding.level for finding in said] == [Level.WARNING]


def test_a22_soft_deletes_of_one_time_are_found_over_batches_without_a_touch_of_updated_at(
    tmp_path: Path, clock: Clock
) -> None:
    rule = TableRule(deletes=SoftDelete("deleted_at"), batch_rows=3)
    with made(tmp_path / "s.db", rule=rule) as world:
        for key in range(10):
            world.sql(f"INSERT INTO t VALUES ({key}, 'a', '{clock.text}', '{clock.text}', NULL)")
        clock.tick(60)
        world.seed()
        assert world.pull() == []
        world.sql(f"UPDATE t SET deleted_at = '{clock.tick(60)}' WHERE id < 8")
        clock.tick(60)
        assert world.pull() == [("delete", key) for key in range(8)]
        assert set(world.values()) == {8, 9}
        assert world.pull() == []


def test_a22_a_copy_leaves_out_what_is_softly_deleted(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db", rule=SOFT) as world:
        world.sql(f"INSERT INTO t VALUES (1, 'a', '{clock.text}', '{clock.text}', '{clock.text}')")
        world.sql(f"INSERT INTO t VALUES (2, 'b', '{clock.text}', '{clock.text}', NULL)")
        world.seed()
        assert world.values() == {2: "b"}


@pytest.mark.parametrize("updated_first", [0.0, 0.5, -0.5])
def test_a23_a_soft_delete_that_also_moves_updated_at_is_one_delete(
    tmp_path: Path, clock: Clock, updated_first: float
) -> None:
    with made(tmp_path / "s.db", rule=SOFT) as world:
        world.sql(f"INSERT INTO t VALUES (1, 'a', '{clock.text}', '{clock.text}', NULL)")
        world.seed()
        world.pull()
        deleted, updated = clock.tick(30), clock.tick(updated_first)
        clock.tick(1)
        world.sql(f"UPDATE t SET deleted_at = '{deleted}', updated_at = '{updated}'")
        assert world.pull() == [("delete", 1)]
        clock.tick(60)
        assert world.pull() == []
        assert world.values() == {}


def test_a24_an_undelete_brings_the_row_back_once(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db", rule=SOFT) as world:
        world.sql(f"INSERT INTO t VALUES (1, 'a', '{clock.text}', '{clock.text}', NULL)")
        world.seed()
        world.sql(f"UPDATE t SET deleted_at = '{clock.tick(10)}'")
        assert world.pull() == [("delete", 1)]
        world.sql(f"UPDATE t SET deleted_at = NULL, v = 'back', updated_at = '{clock.tick(10)}'")
        assert world.pull() == [("update", 1)]
        assert world.values() == {1: "back"}
        world.sql(f"UPDATE t SET deleted_at = '{clock.tick(10)}'")
        assert world.pull() == [("delete", 1)]


def test_a24_deleted_and_undeleted_between_two_polls_is_only_an_update(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db", rule=SOFT) as world:
        world.sql(f"INSERT INTO t VALUES (1, 'a', '{clock.text}', '{clock.text}', NULL)")
        world.seed()
        world.sql(f"UPDATE t SET deleted_at = '{clock.tick(10)}'")
        world.sql(f"UPDATE t SET deleted_at = NULL, v = 'b', updated_at = '{clock.tick(10)}'")
        assert world.pull() == [("update", 1)]


def test_a_flag_marks_deleted_rows_too(tmp_path: Path, clock: Clock) -> None:
    table = "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, updated_at TEXT NOT NULL, is_deleted BOOLEAN)"
    with made(tmp_path / "s.db", table, rule=TableRule(deletes=SoftDelete("is_deleted"))) as world:
        world.sql(f"INSERT INTO t VALUES (1, 'a', '{clock.text}', 0), (2, 'b', '{clock.text}', 1)")
        world.seed()
        assert world.values() == {1: "a"}
        world.sql(f"UPDATE t SET is_deleted = 1 - is_deleted, updated_at = '{clock.tick(10)}'")
        assert world.pull() == [("delete", 1), ("update", 2)]


def test_a_soft_delete_column_that_is_stored_otherwise_is_refused(tmp_path: Path, clock: Clock) -> None:
    table = "CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at INTEGER NOT NULL, deleted_at TEXT)"
    with made(tmp_path / "s.db", table, rule=SOFT) as world, pytest.raises(ConfigError, match="must be stored like"):
        world.capture.discover()


def test_the_columns_of_a_delete_are_null_but_for_its_key(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db", TABLE, rule=SOFT) as world:
        world.sql(f"INSERT INTO t VALUES (1, 'a', '{clock.text}', '{clock.text}', '{clock.text}')")
        (row,) = world.rows()
        assert (row["id"], row["v"], row["updated_at"]) == (1, None, None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-02", 86_400),
        ("1970-01-01 01:02", 3_720),
        ("1970-01-01T01:02:03,5", 3_723.5),
        ("1970-01-01T01:02:03.000001 z", 3_723.000001),
        ("1970-01-01T06:30+05:30", 3_600),
        ("1970-01-01T00:30:00-0030", 3_600),
        ("1970-01-01 00:00:00-01", 3_600),
    ],
)
def test_every_way_to_write_a_time_is_read_to_the_microsecond(text: str, seconds: float) -> None:
    assert instants(pa.array([text, None])).to_pylist() == [round(seconds * 1e6), None]


@pytest.mark.parametrize("text", ["1970-13-01", "1970-01-01 25:00", "yesterday", "1970-01-01T00:00:00.1234567"])
def test_a_text_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=text[:7]):
        instants(pa.array(["1970-01-01", text]))


def test_rows_with_arrays_are_told_from_those_that_were_delivered_before() -> None:
    def rows(*tags: list[object] | None) -> pa.RecordBatch:
        columns = [pa.array(range(len(tags)), pa.int64()), pa.array(tags, pa.list_(pa.float64()))]
        return pa.RecordBatch.from_arrays(columns, names=["id", "tags"])

    before = rows([1.0, None], [float("nan")], None, [2.0], [])
    now = rows([1.0, None], [float("nan")], None, [3.0], None)
    assert unchanged(now, before, ["id"]).to_pylist() == [True, True, True, False, False]

"""What a full comparison found goes through the capture: looked up first, in order, once, over crashes. A25."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.poll.actors import iso
from tests.poll.world import Clock, T, World, clocked, made

from lakefeed.capture.poll import poller
from lakefeed.capture.poll.capture import Polling
from lakefeed.capture.poll.source import FullDiff, SoftDelete, TableRule
from lakefeed.capture.postgres.dialect import PostgresDialect
from lakefeed.change.batch import CHANGED, DELETED, FOUND, SEQ, Operation
from lakefeed.change.table import TableId
from lakefeed.testing.capture_subject import drain, row_dicts


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return clocked(monkeypatch)


def put(world: World, clock: Clock, *keys: int, value: str = "a") -> None:
    for key in keys:
        world.sql(f"INSERT OR REPLACE INTO t VALUES ({key}, '{value}', '{clock.tick(1)}', '{clock.text}', NULL)")


def publish(world: World, number: int, found: dict[int, str]) -> Path:
    place = world.capture.differences(T)
    assert place is not None
    (place / str(number)).mkdir(parents=True)
    table = pa.table({"id": pa.array(list(found), pa.int64()), FOUND: pa.array(list(found.values()))})
    pq.write_table(table, place / str(number) / "part-0.parquet")
    return place / str(number)


def test_a25_missing_rows_are_deleted_and_those_that_came_back_are_not(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db", rule=TableRule(deletes=FullDiff()), differences=tmp_path / "f") as world:
        put(world, clock, 1, 2, 3)
        world.seed()
        world.pull()
        world.sql("DELETE FROM t WHERE id IN (1, 2)")
        publish(world, 1, {1: DELETED, 2: DELETED})
        put(world, clock, 2, value="again")  # after the comparison, before the delivery
        assert sorted(world.pull()) == [("delete", 1), ("insert", 2)]
        assert world.values() == {2: "again", 3: "a"}


def test_a25_a_key_that_is_used_again_right_after_its_delete_is_delivered(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db", differences=tmp_path / "f") as world:
        put(world, clock, 1)
        world.pull()  # still unsettled: remembered as delivered
        (row,) = world.writer.execute("SELECT * FROM t").fetchall()
        world.sql("DELETE FROM t")
        publish(world, 1, {1: DELETED})
        assert world.pull() == [("delete", 1)]
        world.writer.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?)", row)  # the very same row
        assert world.pull() == [("insert", 1)]
        assert world.values() == {1: "a"}


def test_a25_changed_rows_are_delivered_as_they_are_now_and_soft_deleted_ones_as_deletes(
    tmp_path: Path, clock: Clock
) -> None:
    rule = TableRule(deletes=SoftDelete("deleted_at"))
    with made(tmp_path / "s.db", rule=rule, differences=tmp_path / "f") as world:
        put(world, clock, 1, 2)
        clock.tick(60)
        world.seed()
        world.sql("UPDATE t SET v = 'silent' WHERE id = 1")  # updated_at stays as it was
        world.sql("UPDATE t SET deleted_at = '2000-01-01 00:00:00' WHERE id = 2")
        assert world.pull() == []
        publish(world, 1, {1: CHANGED, 2: DELETED, 3: CHANGED})
        assert sorted(world.pull()) == [("delete", 2), ("delete", 3), ("insert", 1)]
        assert world.values() == {1: "silent"}


def test_a25_differences_are_delivered_in_pieces_to_the_end_over_restarts_and_then_removed(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "SLICE_ROWS", 3)
    with made(tmp_path / "s.db", differences=tmp_path / "f") as world:
        put(world, clock, *range(10))
        clock.tick(60)
        world.seed()
        world.sql("DELETE FROM t")
        place = publish(world, 5, dict.fromkeys(range(10), DELETED))
        deleted = 0
        for _ in range(4):
            one = next(world.capture.live(world.position, wait_seconds=0))
            world.replica.apply(one)
            world.position = one.end
            deleted += one.rows
            assert place.exists()  # not before all of it is durable elsewhere
            world.restart()
        assert deleted == 10
        assert world.values() == {}
        assert world.pull() == []
        assert world.position is not None
        world.capture.confirm(world.position)
        assert not place.exists()
        publish(world, 6, {3: DELETED})
        assert world.pull() == [("delete", 3)]


def test_a25_what_was_looked_up_comes_after_what_the_same_poll_has_read(tmp_path: Path, clock: Clock) -> None:
    """Times of the rows do not decide: a row may be stamped later than the lookup that found it gone."""
    with made(tmp_path / "s.db", differences=tmp_path / "f") as world:
        put(world, clock, 1, 2, 3)
        clock.tick(60)
        world.seed()
        world.sql("UPDATE t SET v = 'silent' WHERE id = 1")
        world.sql("DELETE FROM t WHERE id = 2")
        future = iso(clock.us + 3_000_000)
        world.sql(f"UPDATE t SET v = 'ahead', updated_at = '{future}' WHERE id = 3")
        publish(world, 1, {1: CHANGED, 2: DELETED})
        (one,) = world.sets()
        rows = [row for batch in one.batches for row in batch.data.to_pylist()]
        assert [row["id"] for row in rows] == [3, 2, 1]
        assert [row[SEQ] for row in rows] == [0, 1, 2]
        assert world.values() == {1: "silent", 3: "ahead"}


def test_a25_keys_are_looked_up_by_their_own_equality(dsn: str, tmp_path: Path) -> None:
    """The operators of ltree are not in the search path; those of citext must not be taken for text's."""
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute("CREATE EXTENSION ltree; CREATE EXTENSION citext")
        writer.execute("CREATE TABLE t (a ltree, b citext, updated_at timestamptz NOT NULL, PRIMARY KEY (a, b))")
        writer.execute("INSERT INTO t VALUES ('x.y', 'Key', '2024-01-01'), ('x.z', 'Key', '2024-01-01')")
        table = TableId("public", "t")
        capture = Polling(PostgresDialect(dsn), tables=["t"], differences=tmp_path / "f")
        capture.open()
        position = capture.prepare([table])
        writer.execute("DELETE FROM t WHERE a = 'x.z'")
        directory = capture.differences(table)
        assert directory is not None
        (directory / "1").mkdir(parents=True)
        found = pa.table({"a": ["x.y", "x.z"], "b": ["Key", "Key"], FOUND: [DELETED, DELETED]})
        pq.write_table(found, directory / "1" / "part-0.parquet")
        rows = [row for one in drain(capture, position) for row in row_dicts(one)]
        capture.close()
    assert [(row["a"], row["b"], row["_lakefeed_op"]) for row in rows] == [("x.z", "Key", int(Operation.DELETE))]

"""How far polling has read: ties, batches, restarts, late commits, clocks. Requirements A3 to A14."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.poll.actors import iso
from tests.poll.world import SECOND, TABLE, Clock, T, clocked, made

from lakefeed.capture.dialect import Horizon
from lakefeed.capture.poll.capture import Polling
from lakefeed.capture.poll.source import NullPolicy, TableRule
from lakefeed.capture.postgres.dialect import PostgresDialect
from lakefeed.capture.sqlite.dialect import SqliteSession
from lakefeed.change.batch import OP, TXN, Operation
from lakefeed.change.change_set import RecopyNeeded, TableBlocked
from lakefeed.change.position import Position
from lakefeed.change.table import TableId
from lakefeed.change.watermark import Watermark
from lakefeed.errors import TableStoppedError
from lakefeed.testing.capture_subject import drain, row_dicts


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return clocked(monkeypatch)


def insert(rows: list[tuple[Any, str]]) -> str:
    values = ", ".join(f"({key!r}, 'v', '{at}', '{at}', NULL)" for key, at in rows)
    return f"INSERT INTO t VALUES {values}"


def test_a03_each_row_is_one_event_and_an_idle_table_none(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db") as world:
        world.sql(insert([(1, clock.tick(1)), (2, clock.tick(1))]))
        assert world.pull() == [("insert", 1), ("insert", 2)]
        assert world.pull() == []
        clock.tick(60)
        assert world.pull() == []


def test_a04_events_come_in_the_order_of_time_and_then_of_the_key(tmp_path: Path, clock: Clock) -> None:
    early, late = clock.tick(1), clock.tick(1)
    with made(tmp_path / "s.db") as world:
        world.sql(insert([(1, late), (4, early), (3, early), (2, late)]))
        assert [key for _, key in world.pull()] == [3, 4, 1, 2]


def test_a05_without_a_watermark_everything_is_read(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db") as world:
        world.sql(insert([(key, clock.text) for key in range(5)]))
        assert len(world.pull()) == 5
        assert isinstance(world.position, Watermark)


def test_a06_ten_thousand_rows_of_one_time_are_read_once_each_in_batches(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db", rule=TableRule(batch_rows=500)) as world:
        world.sql(insert([(key, clock.text) for key in range(10_000)]))
        clock.tick(10)
        sets = world.sets()
        assert [one.rows for one in sets] == [500] * 20
        assert len(world.values()) == 10_000


def test_a07_composite_keys_are_compared_as_a_whole_within_a_tie(tmp_path: Path, clock: Clock) -> None:
    table = "CREATE TABLE t (tenant INT, id INT, updated_at TEXT NOT NULL, PRIMARY KEY (tenant, id)) WITHOUT ROWID"
    with made(tmp_path / "s.db", table, rule=TableRule(batch_rows=2)) as world:
        wanted = [(tenant, key) for tenant in (1, 2, 3) for key in (9, 10, 11)]
        for tenant, key in wanted:
            world.sql(f"INSERT INTO t VALUES ({tenant}, {key}, '{clock.text}')")
        clock.tick(10)
        assert [(row["tenant"], row["id"]) for row in world.rows()] == wanted


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 7])
def test_a08_ties_hold_over_batches_and_restarts(tmp_path: Path, clock: Clock, batch_rows: int) -> None:
    with made(tmp_path / "s.db", rule=TableRule(batch_rows=batch_rows)) as world:
        world.sql(insert([(key, clock.text) for key in range(10)]))
        clock.tick(10)
        found = []
        for _ in range(10):
            stream = world.capture.live(world.position, wait_seconds=0)
            one = next(stream)
            world.position = one.end
            found += [row["id"] for row in row_dicts(one)]
            world.restart()
        assert found == list(range(10))


def test_a08_positions_within_a_tie_are_ordered_though_the_keys_are_texts(tmp_path: Path, clock: Clock) -> None:
    """A checkpoint store takes only positions that do not move back, and of texts nobody knows the order."""
    table = "CREATE TABLE t (id TEXT PRIMARY KEY NOT NULL, updated_at TEXT NOT NULL)"
    with made(tmp_path / "s.db", table, rule=TableRule(batch_rows=2)) as world:
        for key in ("b", "A", "c", "B", "a"):
            world.sql(f"INSERT INTO t VALUES ('{key}', '{clock.text}')")
        clock.tick(10)
        ends = [one.end for one in world.sets()]
        assert len(ends) == 3
        assert ends[0] < ends[1] < ends[2]
        assert Watermark.parse(ends[2].text()) == ends[2]


def test_a09_what_is_committed_late_within_the_safety_lag_is_not_lost(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db", rule=TableRule(safety_lag_seconds=10)) as world:
        stamp = clock.tick(1)  # taken before the row could be written
        world.sql(insert([(2, clock.tick(2))]))
        assert world.pull() == [("insert", 2)]
        clock.tick(3)
        world.sql(insert([(1, stamp)]))
        assert world.pull() == [("insert", 1)]  # and row 2 is not delivered again
        clock.tick(60)
        assert world.pull() == []


def test_a09_rows_are_delivered_at_once_and_once_though_the_lag_is_long(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db", rule=TableRule(safety_lag_seconds=3600)) as world:
        for key in range(5):
            world.sql(insert([(key, clock.tick(1))]))
            assert world.pull() == [("insert", key)]


def test_a09_a_row_that_changes_twice_within_one_time_stamp_is_delivered_twice(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db") as world:
        world.sql(insert([(1, clock.tick(1))]))
        world.pull()
        world.sql("UPDATE t SET v = 'other'")
        world.pull()
        assert world.values() == {1: "other"}


@pytest.mark.parametrize("sees_activity", [True, False])
def test_a09_a_postgres_transaction_held_open_across_polls_is_not_lost(dsn: str, sees_activity: bool) -> None:
    """Exactly: the transaction is open for longer than any lag, which is 0 here."""
    with psycopg.connect(dsn, autocommit=True) as admin, psycopg.connect(dsn) as slow:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT now())")
        reader = "reader_sees" if sees_activity else "reader_blind"
        admin.execute(
            f"DROP ROLE IF EXISTS {reader}; CREATE ROLE {reader} LOGIN; GRANT SELECT ON t TO {reader}".encode()
        )
        if sees_activity:
            admin.execute(f"GRANT pg_read_all_stats TO {reader}".encode())
        connector = PostgresDialect(dsn.replace("user=postgres", f"user={reader}"))
        capture = Polling(connector, tables=["t"], rules={"t": TableRule(safety_lag_seconds=0)})
        capture.open()
        try:
            position: Position = capture.prepare([TableId("public", "t")])
            assert drain(capture, position) == []
            slow.execute("INSERT INTO t (id) VALUES (1)")
            for key in (2, 3):  # younger, committed first, and polled
                admin.execute("INSERT INTO t (id) VALUES (%s)", (key,))
                stream = capture.live(position, wait_seconds=0)
                sets = [next(stream), next(stream)]
                assert {row["id"] for one in sets for row in row_dicts(one)} >= {key}
                position = sets[-1].end
            slow.commit()
            found = drain(capture, position)
            assert 1 in {row["id"] for one in found for row in row_dicts(one)}
            assert drain(capture, found[-1].end) == []
        finally:
            capture.close()
            admin.execute(f"DROP OWNED BY {reader}; DROP ROLE {reader}".encode())


def test_a09_more_rows_than_one_batch_are_delivered_at_once_though_nothing_is_settled(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a transaction is open. What has been delivered does not fill the batches of the next polls."""
    monkeypatch.setattr(SqliteSession, "horizon", lambda _: Horizon(clock.us, None))
    with made(tmp_path / "s.db", rule=TableRule(batch_rows=3)) as world:
        for turn in range(4):
            world.sql(insert([(turn * 10 + key, clock.tick(1)) for key in range(5)]))
            assert [key for _, key in world.pull()] == [turn * 10 + key for key in range(5)]
        world.sql("UPDATE t SET v = 'x' WHERE id IN (1, 12, 33)")
        assert [key for _, key in world.pull()] == [1, 12, 33]
        assert len(world.values()) == 20


@pytest.mark.parametrize("value", ["NaN", "Infinity", None])
def test_a09_a_row_with_values_that_equal_nothing_is_delivered_once_all_the_same(dsn: str, value: str | None) -> None:
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute("CREATE TABLE t (id int PRIMARY KEY, f float8, updated_at timestamptz NOT NULL)")
        writer.execute("INSERT INTO t VALUES (1, %s, now())", (value,))
    capture = Polling(PostgresDialect(dsn), tables=["t"], rules={"t": TableRule(safety_lag_seconds=3600)})
    capture.open()
    assert [one.rows for one in drain(capture, None) if one.rows] == [1]
    capture.close()


def test_a10_only_the_latest_image_is_seen_and_the_event_says_that_it_is_a_poll(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db") as world:
        world.sql(insert([(1, clock.tick(1))]))
        for value in ("a", "b", "c"):
            world.sql(f"UPDATE t SET v = '{value}', updated_at = '{clock.tick(1)}'")
        (row,) = world.rows()
        assert (row["v"], Operation(row[OP])) == ("c", Operation.UPDATE)
        assert row[TXN].startswith("poll 2")
        assert not world.capture.capabilities.every_change


NULLABLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, created_at TEXT, updated_at TEXT)"


def test_a11_rows_without_a_time_stop_the_table_and_are_counted(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db", NULLABLE) as world:
        world.sql("INSERT INTO t (id) VALUES (1), (2), (3)")
        with pytest.raises(TableStoppedError, match="3 rows have NULL in updated_at"):
            world.seed()
        assert any("3 rows have no updated_at" in finding.problem for finding in world.capture.check())
        world.pull()
        assert [type(notice) for notice in world.notices] == [TableBlocked]


def test_a11_created_at_can_stand_in_for_a_missing_time(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db", NULLABLE, rule=TableRule(null_updated_at=NullPolicy.CREATED_AT)) as world:
        world.sql(f"INSERT INTO t VALUES (1, 'a', '{clock.tick(1)}', NULL)")
        world.seed()
        world.sql(f"INSERT INTO t VALUES (2, 'b', '{clock.tick(1)}', NULL)")
        world.pull()
        world.sql(f"UPDATE t SET v = 'c', updated_at = '{clock.tick(1)}' WHERE id = 1")
        world.pull()
        assert world.values() == {1: "c", 2: "b"}


def test_a11_rows_without_a_time_can_be_ignored_with_a_count(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with made(tmp_path / "s.db", NULLABLE, rule=TableRule(null_updated_at=NullPolicy.IGNORE)) as world:
        world.sql("INSERT INTO t (id) VALUES (1), (2)", f"INSERT INTO t VALUES (3, 'c', NULL, '{clock.text}')")
        world.seed()
        assert set(world.values()) == {1, 2, 3}  # the copy has them
        assert world.notices == []
        assert "2 rows have no updated_at" in caplog.text


def test_a12_a_clock_that_goes_back_is_noticed_and_the_table_is_copied_anew(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db") as world:
        world.sql(insert([(1, clock.tick(1))]))
        clock.tick(60)
        world.pull()
        before = world.position
        clock.tick(-3600)
        world.sql(insert([(2, clock.tick(1))]))
        world.pull()
        (notice,) = world.notices
        assert isinstance(notice, RecopyNeeded)
        assert "clock went back" in notice.reason
        assert world.position is not None
        assert before is not None
        assert world.position > before  # a position never moves back, though the time does
        assert set(world.values()) == {1, 2}
        world.sql(insert([(3, clock.tick(1))]))
        assert world.pull() == [("insert", 3)]


def test_a12_a_time_in_the_future_does_not_hide_what_comes_after(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db") as world:
        world.sql(insert([(1, iso(clock.us + 10**9 * 3600))]))
        assert world.pull() == [("insert", 1)]
        for key in (2, 3):
            world.sql(insert([(key, clock.tick(100))]))
            assert world.pull() == [("insert", key)]
        world.sql(f"UPDATE t SET v = 'back', updated_at = '{clock.tick(100)}' WHERE id = 1")
        assert world.pull() == [("update", 1)]


@pytest.mark.parametrize(
    ("declared", "keys"),
    [
        ("INTEGER", [-10, -9, 0, 9, 10, 100]),
        ("TEXT", ["10", "9", "B", "a", "é"]),
        ("TEXT COLLATE NOCASE", ["a", "B", "c"]),
        ("VARCHAR(36)", [str(uuid.UUID(int=value)) for value in (1, 2**64, 2**127)]),
        ("REAL", [-1.5, 0.1, 2.0, 10.25]),
    ],
)
def test_a13_keys_are_in_the_databases_own_order(tmp_path: Path, clock: Clock, declared: str, keys: list[Any]) -> None:
    table = f"CREATE TABLE t (id {declared} NOT NULL PRIMARY KEY, updated_at TEXT NOT NULL)"
    with made(tmp_path / "s.db", table, rule=TableRule(batch_rows=1)) as world:
        for key in reversed(keys):
            world.writer.execute("INSERT INTO t VALUES (?, ?)", (key, clock.text))
        clock.tick(10)
        assert [row["id"] for row in world.rows()] == keys


POSTGRES_KEYS = {
    "int8": ["-3", "9", "10"],
    "uuid": ["00000000-0000-0000-0000-000000000001", "10000000-0000-0000-0000-000000000000"],
    "bytea": ["\\x00", "\\x01", "\\x0100", "\\xff"],
    "numeric(30,2)": ["-1.50", "9.00", "10.00", "12345678901234567890.12"],
    'text COLLATE "C"': ["10", "9", "Z", "a"],
    "date": ["1999-12-31", "2024-01-01"],
    "timestamptz": ["2024-01-01 00:00:00.000001+00", "2024-01-01 00:00:00.000002+00"],
    "boolean": ["f", "t"],
    "citext": ["a", "B", "c", "D"],  # operators of an extension, which are not in the search path
    "ltree": ["a", "a.b", "a.b.c", "b"],
}


def test_a13_postgres_keys_are_in_the_databases_own_order(dsn: str) -> None:
    """One database for all types: making one takes longer than the test."""
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute("CREATE EXTENSION citext; CREATE EXTENSION ltree")
        for number, (kind, keys) in enumerate(POSTGRES_KEYS.items()):
            columns = f"id {kind} PRIMARY KEY, n int, updated_at timestamptz NOT NULL"
            writer.execute(f"CREATE TABLE t{number} ({columns})".encode())
            for place, key in reversed(list(enumerate(keys))):
                writer.execute(f"INSERT INTO t{number} VALUES ('{key}', {place}, '2024-01-01')".encode())
    for number, (kind, keys) in enumerate(POSTGRES_KEYS.items()):
        name = f"t{number}"
        capture = Polling(PostgresDialect(dsn), tables=[name], rules={name: TableRule(batch_rows=1)})
        capture.open()
        sets = drain(capture, None)
        capture.close()
        assert [row["n"] for one in sets for row in row_dicts(one)] == list(range(len(keys))), kind
        assert [one.rows for one in sets] == [1] * len(keys), kind


def test_a14_microseconds_are_not_cut_off(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db", rule=TableRule(batch_rows=1)) as world:
        base = clock.us
        world.sql(insert([(key, iso(base + us)) for key, us in ((1, 3), (2, 1), (3, 2))]))
        clock.tick(10)
        sets = world.sets()
        assert [one.rows for one in sets] == [1, 1, 1]
        assert [row["id"] for one in sets for row in row_dicts(one)] == [2, 3, 1]
        assert world.position is not None
        assert json.loads(world.position.text())["main.t"]["us"] == base + 3


def test_a14_postgres_microseconds_are_not_cut_off(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute("CREATE TABLE t (id int PRIMARY KEY, updated_at timestamp NOT NULL)")
        writer.execute(
            "INSERT INTO t SELECT n, timestamp '2024-01-01' + (4 - n) * interval '1 us' FROM generate_series(1, 3) n"
        )
    capture = Polling(PostgresDialect(dsn), tables=["t"], rules={"t": TableRule(batch_rows=1)})
    capture.open()
    sets = drain(capture, None)
    capture.close()
    assert [row["id"] for one in sets for row in row_dicts(one)] == [3, 2, 1]


@pytest.mark.parametrize("scale", [1, 1_000, SECOND])
def test_numbers_since_1970_are_times_too(tmp_path: Path, clock: Clock, scale: int) -> None:
    table = "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, updated_at INTEGER NOT NULL)"
    with made(tmp_path / "s.db", table, rule=TableRule(batch_rows=2)) as world:
        world.seed()
        for key in range(5):
            clock.tick(7)
            world.sql(f"INSERT INTO t VALUES ({key}, 'a', {clock.us * scale // SECOND})")
            assert world.pull() == [("update", key)]


def test_times_that_are_not_written_in_one_form_stop_the_table(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db", TABLE) as world:
        world.sql(insert([(1, "2024-01-01 12:00:00"), (2, "2024-01-01T11:00:00")]))
        world.pull()
        (notice,) = world.notices
        assert isinstance(notice, TableBlocked)
        assert notice.table == T
        assert "do not all have the same format" in notice.reason

"""What polling needs of a source, and what it says when something is missing.

Requirements A1, A26 to A28, A31, A32, T19, T24, T34.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.poll.delta_connector import DeltaConnector
from tests.poll.world import QUICK, TABLE, Clock, T, clocked, made

from lakefeed.capture.base import Level
from lakefeed.capture.poll.capture import Polling
from lakefeed.capture.poll.rule import FullDiff, Pace, SoftDelete, TableRule
from lakefeed.capture.poll.source import PollingSource, PostgresPolling, SqlitePolling
from lakefeed.capture.postgres.dialect import PostgresDialect
from lakefeed.capture.sqlite.dialect import SqliteDialect
from lakefeed.change.batch import METADATA
from lakefeed.change.change_set import RecopyNeeded, TableBlocked, TableDropped
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, LakefeedError
from lakefeed.testing.capture_subject import changes, drain, row_dicts
from lakefeed.testing.replica import Replica


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return clocked(monkeypatch)


def fill(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as writer:
        writer.execute("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, v TEXT, updated_at TEXT NOT NULL)")
        for statement in statements:
            writer.execute(statement)
    writer.close()


def states(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


@pytest.mark.parametrize("immutable", [True, False])
def test_a01_a_file_that_is_only_read_is_followed_and_nothing_is_made(tmp_path: Path, immutable: bool) -> None:
    place = tmp_path / "source"
    place.mkdir()
    fill(place / "s.db", "INSERT INTO t VALUES (1, 'a', '2024-01-01 00:00:00')")
    (place / "s.db").chmod(0o444)
    place.chmod(0o555)
    before = states(place)
    capture = SqlitePolling(place / "s.db", immutable=immutable, pace=QUICK).bind("p")
    capture.open()
    position = capture.prepare([T])
    copy = Replica()
    copy.copy(capture.snapshot(T))
    assert [row["v"] for row in copy.rows(T)] == ["a"]
    assert drain(capture, position) == []
    assert len(changes(drain(capture, None))) == 0
    capture.close()
    place.chmod(0o755)
    assert states(place) == before


def test_a01_a_postgres_role_needs_nothing_but_select(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY, v text, updated_at timestamptz NOT NULL)")
        admin.execute("INSERT INTO t VALUES (1, 'a', '2024-01-01')")
        admin.execute("CREATE ROLE only_select LOGIN; GRANT SELECT ON t TO only_select")
        objects = "SELECT (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_replication_slots)"
        before = admin.execute(objects.encode()).fetchall()
        capture = PostgresPolling(dsn.replace("user=postgres", "user=only_select"), pace=QUICK).bind("p")
        capture.open()
        position = capture.prepare([TableId("public", "t")])
        copy = Replica()
        copy.copy(capture.snapshot(TableId("public", "t")))
        assert len(copy.rows(TableId("public", "t"))) == 1
        admin.execute("INSERT INTO t VALUES (2, 'b', now())")
        assert [key for _, key in changes(drain(capture, position))] == [2]
        assert [finding for finding in capture.check() if finding.level is Level.ERROR] == []
        assert admin.execute(objects.encode()).fetchall() == before
        capture.close()
        admin.execute("DROP OWNED BY only_select; DROP ROLE only_select")


def delta_rows(*rows: tuple[int, str, int]) -> pa.Table:
    """Key, value, and how many seconds ago."""
    now = datetime.now(UTC)
    stamps = [now - timedelta(seconds=ago) for _, _, ago in rows]
    return pa.table(
        {
            "id": pa.array([row[0] for row in rows], pa.int64()),
            "v": pa.array([row[1] for row in rows]),
            "updated_at": pa.array(stamps, pa.timestamp("us", tz="UTC")),
        }
    )


def test_a26_a_third_database_takes_nothing_but_a_connector(tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    write_deltalake(place / "t", delta_rows(*[(key, "a", 1000 - key // 4) for key in range(20)]))
    table = TableId("lake", "t")
    source = PollingSource(DeltaConnector(str(place)), rules={"t": TableRule(batch_rows=3)}, pace=QUICK)
    capture = source.bind("p")
    capture.open()
    position = capture.prepare([table])
    copy = Replica()
    copy.copy(capture.snapshot(table, chunk_rows=7))
    assert len(copy.rows(table)) == 20
    assert changes(drain(capture, position)) == []
    write_deltalake(place / "t", delta_rows((3, "changed", 100), (99, "new", 90)), mode="append")
    found: list[tuple[Any, int]] = []
    reader = threading.Thread(target=lambda: found.extend(changes(drain(capture, position))))  # another thread
    reader.start()
    reader.join(60)
    assert [key for _, key in found] == [3, 99]
    capture.close()


def test_a27_the_key_and_the_times_are_read_though_they_are_not_listed(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db", rule=TableRule(columns=["v"])) as world:
        (schema,) = world.capture.discover()
        assert schema.names == ("id", "v")
        world.sql(f"INSERT INTO t VALUES (1, 'a', '{clock.text}', '{clock.text}', NULL)")
        (row,) = world.rows()
        assert {name for name in row if name not in METADATA.names} == {"id", "v"}
        assert world.pull() == []


def test_a27_a_table_without_a_key_needs_one_from_the_rule(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute("CREATE TABLE t (code text NOT NULL, updated_at timestamptz NOT NULL)")
    for rule, expected in ((TableRule(), None), (TableRule(key=["code"]), ("code",))):
        capture = PostgresPolling(dsn, rules={"t": rule}).bind("p")
        capture.open()
        if expected is None:
            with pytest.raises(ConfigError, match=r"public\.t has no primary key"):
                capture.discover()
        else:
            assert [schema.key for schema in capture.discover()] == [expected]
        capture.close()


def test_a28_batch_size_and_delete_detection_are_each_tables_own(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db", TABLE, TABLE.replace("TABLE t", "TABLE u")) as world:
        rules = {"t": TableRule(batch_rows=2, deletes=SoftDelete("deleted_at")), "u": TableRule(deletes=FullDiff())}
        capture = Polling(SqliteDialect(str(world.path)), rules=rules, pace=QUICK)
        capture.open()
        for name in ("t", "u"):
            for key in range(5):
                world.sql(f"INSERT INTO {name} VALUES ({key}, 'a', '{clock.text}', '{clock.text}', '{clock.text}')")
        clock.tick(60)
        first = next(capture.live(None, wait_seconds=0))
        assert {batch.table.name: batch.rows for batch in first.batches} == {"t": 2, "u": 5}
        kinds = {batch.table.name: set(batch.data.column("_lakefeed_op").to_pylist()) for batch in first.batches}
        assert kinds == {"t": {3}, "u": {1}}
        capture.close()


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (TableRule(updated_at="changed"), r"main\.t has no column 'changed'"),
        (TableRule(created_at="born"), r"main\.t has no column 'born'"),
        (TableRule(key=["nr"]), r"main\.t has no column 'nr'"),
        (TableRule(columns=["v", "w"]), r"main\.t has no column 'w'"),
        (TableRule(deletes=SoftDelete("gone")), r"main\.t has no column 'gone'"),
    ],
)
def test_a31_what_is_not_there_is_said_at_the_start_with_table_and_column(
    tmp_path: Path, rule: TableRule, said: str
) -> None:
    with made(tmp_path / "s.db", rule=rule) as world:
        with pytest.raises(ConfigError, match=said):
            world.capture.discover()
        assert [finding.level for finding in world.capture.check()] == [Level.ERROR]


def test_a31_a_guess_is_said_and_made_only_if_it_is_unmistakable(tmp_path: Path) -> None:
    two = "CREATE TABLE two (id INTEGER PRIMARY KEY, updated_at TEXT, modified_at TEXT)"
    with made(tmp_path / "s.db", TABLE, two) as world:
        capture = SqlitePolling(world.path).bind("p")
        capture.open()
        assert [schema.table.name for schema in capture.discover()] == ["t"]  # a wildcard leaves the other out …
        problems = [finding.problem for finding in capture.check()]
        assert any("'updated_at' is taken for the time" in problem for problem in problems)
        assert any("left out" in problem and "main.two" in problem for problem in problems)
        capture.close()
        named = SqlitePolling(world.path, tables=["two"]).bind("p")  # … but a name is an error
        named.open()
        with pytest.raises(ConfigError, match=r"main\.two"):
            named.discover()
        named.close()


class SlowConnector(SqliteDialect):
    """Reads of the table ``slow`` wait until they are let go."""

    gate = threading.Event()

    def quoted(self, name: str) -> str:
        if name == "lags" and threading.current_thread().name.startswith("lakefeed-poll"):
            self.gate.wait(60)
        return super().quoted(name)


def test_a32_a_slow_table_does_not_hold_up_the_others(tmp_path: Path, clock: Clock) -> None:
    slow = "CREATE TABLE slow (id INTEGER PRIMARY KEY, lags TEXT, updated_at TEXT NOT NULL)"
    with made(tmp_path / "s.db", TABLE, slow) as world:
        SlowConnector.gate.clear()
        pace = Pace(poll_seconds=0, patience_seconds=0.1)
        capture = Polling(SlowConnector(str(world.path)), pace=pace)
        capture.open()
        world.sql(f"INSERT INTO slow VALUES (7, 'x', '{clock.text}')")
        stream = capture.live(None, wait_seconds=0)
        began = time.monotonic()
        for key in range(3):
            world.sql(f"INSERT INTO t VALUES ({key}, 'a', '{clock.tick(1)}', '{clock.text}', NULL)")
            assert changes([next(stream)])[0][1] == key
        assert time.monotonic() - began < 40
        SlowConnector.gate.set()
        rest = [one for _, one in zip(range(5), stream, strict=False)]
        assert 7 in [key for _, key in changes(rest)]
        capture.close()


def test_a32_without_a_wait_nothing_means_that_the_slow_table_has_been_read_too(tmp_path: Path, clock: Clock) -> None:
    slow = "CREATE TABLE slow (id INTEGER PRIMARY KEY, lags TEXT, updated_at TEXT NOT NULL)"
    with made(tmp_path / "s.db", TABLE, slow) as world:
        SlowConnector.gate.clear()
        capture = Polling(SlowConnector(str(world.path)), pace=Pace(poll_seconds=0, patience_seconds=0.1))
        capture.open()
        world.sql(f"INSERT INTO slow VALUES (7, 'x', '{clock.text}')")
        stream = capture.live(None, wait_seconds=0)
        threading.Timer(0.5, SlowConnector.gate.set).start()
        found = []
        while (change_set := next(stream)).rows or change_set.end != change_set.start:
            found += [key for _, key in changes([change_set])]
        capture.close()
    assert found == [7]


def test_a32_a_broken_table_is_blocked_with_its_reason_and_the_others_go_on(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db", TABLE, TABLE.replace("TABLE t", "TABLE u")) as world:
        world.seed()
        world.sql(f"INSERT INTO u VALUES (1, 'a', '{clock.text}', 'yesterday', NULL)")
        world.sql(f"INSERT INTO t VALUES (1, 'a', '{clock.text}', '{clock.text}', NULL)")
        assert world.pull() == [("insert", 1)]
        (notice,) = world.notices
        assert isinstance(notice, TableBlocked)
        assert notice.table.name == "u"
        assert "'yesterday' is not a time" in notice.reason
        world.sql(f"UPDATE u SET updated_at = '{clock.tick(60)}'")
        world.sql(f"INSERT INTO t VALUES (2, 'b', '{clock.text}', '{clock.text}', NULL)")
        assert [key for _, key in world.pull()] == [2]  # until it is prepared again
        world.capture.prepare([TableId("main", "u")])
        world.replica.copy(world.capture.snapshot(TableId("main", "u")))
        world.sql(f"UPDATE u SET v = 'b', updated_at = '{clock.tick(60)}'")
        world.pull()
        assert world.values(TableId("main", "u")) == {1: "b"}


def test_t19_copy_and_poll_give_the_same_types_and_values(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute(
            "CREATE TABLE t (id int8 PRIMARY KEY, b bool, n numeric(12,3), x numeric, j jsonb, d date, f float8,"
            " r bytea, u uuid, a int[], updated_at timestamptz NOT NULL, local timestamp)"
        )
        writer.execute(
            "INSERT INTO t VALUES (1, true, 1.5, 1e-20, '{\"a\": 1.0}', '2024-02-29', 0.1, '\\x00ff',"
            " '00000000-0000-0000-0000-000000000001', '{1,2}', '2024-01-01 00:00:00.000001Z', '2024-01-01'),"
            " (2, NULL, NULL, NULL, NULL, NULL, 'NaN', NULL, NULL, NULL, '2024-01-01', NULL)"
        )
    capture = PostgresPolling(dsn).bind("p")
    capture.open()
    copy = Replica()
    copy.copy(capture.snapshot(TableId("public", "t")))
    (polled,) = drain(capture, None)
    (batch,) = polled.batches
    own = [{name: value for name, value in row.items() if name not in METADATA.names} for row in row_dicts(polled)]
    assert [repr(row) for row in sorted(own, key=lambda row: int(row["id"]))] == [
        repr(row) for row in copy.rows(TableId("public", "t"))
    ]
    assert batch.schema.same_shape(copy.schemas[TableId("public", "t")])
    capture.close()


def test_t24_patterns_and_rules_that_match_nothing_are_errors(tmp_path: Path) -> None:
    fill(tmp_path / "s.db")
    for options in ({"tables": ["orders*"]}, {"rules": {"orders": TableRule()}}):
        capture = SqlitePolling(tmp_path / "s.db", **options).bind("p")
        capture.open()
        with pytest.raises(ConfigError, match="orders"):
            capture.discover()
        capture.close()


def test_t34_a_condition_stands_in_parentheses_on_every_path(tmp_path: Path, clock: Clock) -> None:
    rule = TableRule(where="v = 'yes' OR v = 'also'", batch_rows=1, deletes=SoftDelete("deleted_at"))
    with made(tmp_path / "s.db", rule=rule) as world:
        rows = [(key, ("yes", "no", "also")[key % 3]) for key in range(9)]
        for key, value in rows:
            world.sql(f"INSERT INTO t VALUES ({key}, '{value}', '{clock.text}', '{clock.text}', NULL)")
        clock.tick(60)
        world.seed()
        wanted = {key: value for key, value in rows if value != "no"}
        assert world.values() == wanted
        assert world.pull() == []
        world.sql(f"UPDATE t SET updated_at = '{clock.tick(60)}'")
        clock.tick(60)
        assert [key for _, key in world.pull()] == sorted(wanted)
        chunks = world.capture.keys(T, chunk_rows=2).chunks
        found = []
        for chunk in chunks:
            with chunk.open() as reader:
                found += [row["id"] for batch in reader for row in batch.to_pylist()]
        assert found == sorted(wanted)


def test_a_schema_change_is_announced_and_a_filled_column_is_copied_anew(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db") as world:
        world.sql(f"INSERT INTO t VALUES (1, 'a', '{clock.text}', '{clock.text}', NULL)")
        clock.tick(60)
        world.seed()
        world.sql("ALTER TABLE t ADD COLUMN w TEXT")
        (change_set,) = world.sets()
        assert "w" in change_set.schemas[0].names
        assert world.notices == []  # nobody has a value in it
        world.sql("ALTER TABLE t ADD COLUMN x INTEGER DEFAULT 5")
        world.sets()
        assert world.notices == [RecopyNeeded(T, "rows have values in the new column x", ("x",))]
        world.sql("DROP TABLE t")
        world.sets()
        assert isinstance(world.notices[-1], TableDropped)


def test_what_changed_while_no_process_ran_is_noticed_by_what_was_delivered_last(tmp_path: Path, clock: Clock) -> None:
    with made(tmp_path / "s.db") as world:
        world.sql(f"INSERT INTO t VALUES (1, 'a', '{clock.text}', '{clock.text}', NULL)")
        clock.tick(60)
        world.seed()
        delivered = world.replica.schemas[T]
        world.restart()
        world.sql("ALTER TABLE t ADD COLUMN x INTEGER DEFAULT 5")
        world.capture.recall([delivered])
        world.sets()
        assert [type(notice) for notice in world.notices] == [RecopyNeeded]


def test_a_table_made_anew_with_another_key_while_no_process_ran_is_read_from_its_beginning(
    tmp_path: Path, clock: Clock
) -> None:
    with made(tmp_path / "s.db") as world:
        world.sql(f"INSERT INTO t VALUES (1, 'a', '{clock.text}', '{clock.text}', NULL)")
        clock.tick(60)
        world.seed()
        before = world.position
        world.restart()
        two = "id INTEGER, v TEXT, n INTEGER, updated_at TEXT NOT NULL, PRIMARY KEY (id, n)"
        world.sql("DROP TABLE t", f"CREATE TABLE t ({two})", f"INSERT INTO t VALUES (1, 'b', 2, '{clock.text}')")
        world.capture.recall([world.replica.schemas[T]])
        world.replica = Replica()
        world.pull()
        assert [type(notice) for notice in world.notices] == [RecopyNeeded]
        assert world.values() == {1: "b"}
        assert before is not None
        assert world.position is not None
        assert world.position > before


def test_a_column_with_values_of_several_types_becomes_text(tmp_path: Path, clock: Clock) -> None:
    table = "CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER, updated_at TEXT NOT NULL)"
    with made(tmp_path / "s.db", table) as world:
        world.sql(f"INSERT INTO t VALUES (1, 5, '{clock.text}')")
        world.seed()
        world.sql(f"INSERT INTO t VALUES (2, 'many', '{clock.tick(10)}')")
        world.pull()
        assert [notice.columns for notice in world.notices if isinstance(notice, RecopyNeeded)] == [("v",)]
        world.capture.prepare([T])
        world.replica.copy(world.capture.snapshot(T))
        assert world.values() == {1: "5", 2: "many"}
        world.restart()
        world.capture.recall([world.replica.schemas[T]])
        world.sql(f"INSERT INTO t VALUES (3, 6, '{clock.tick(10)}')")
        world.pull()
        assert world.values()[3] == "6"


def test_a_lost_connection_is_an_error_that_is_retried_and_not_a_blocked_table(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY, updated_at timestamptz NOT NULL)")
        capture = Polling(PostgresDialect(dsn), tables=["t"], pace=QUICK)
        capture.open()
        stream = capture.live(None, wait_seconds=0)
        assert next(stream).notices == ()
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lakefeed_poll'")
        with pytest.raises(LakefeedError) as caught:
            next(stream)
        assert caught.value.retry.value == "backoff"
        capture.close()

"""What is special to the binlog: statements in it, whole transactions, positions that are lost, other servers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.mysql.conftest import FLAVOURS, version_of
from tests.mysql.play import Play

from lakefeed.capture.builder import Limits
from lakefeed.capture.mysql import facts
from lakefeed.capture.mysql.database import Connection
from lakefeed.capture.mysql.dialect import read_columns
from lakefeed.capture.mysql.packets import PacketReader, Packets
from lakefeed.capture.mysql.source import Mysql
from lakefeed.change.batch import OP, TIME, Operation
from lakefeed.change.change_set import ChangeSet, RecopyNeeded, TableBlocked, TableDropped
from lakefeed.change.mysql import MariadbGtid, MysqlGtid
from lakefeed.change.table import TableId
from lakefeed.errors import DecodeError, LakefeedError, PositionLostError, SourceChangedError, SourceSetupError
from lakefeed.storage.location import storage_at
from lakefeed.testing.capture_subject import changes, drain, ordered_rows
from lakefeed.testing.server.mysql import Flavour, MysqlServer


def _notices(found: list[ChangeSet]) -> list[tuple[type, TableId]]:
    return [(type(notice), notice.table) for one in found for notice in one.notices]


def test_e12_a_changed_key_is_a_delete_and_an_insert_and_a_truncate_is_one_row(play: Play) -> None:
    play.run(
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "UPDATE t SET id = id + 10 ORDER BY id DESC",
        "DELETE FROM t WHERE id = 11",
    )
    assert changes(play.drain()) == [
        (Operation.INSERT, 1), (Operation.INSERT, 2), (Operation.DELETE, 2), (Operation.INSERT, 12),
        (Operation.DELETE, 1), (Operation.INSERT, 11), (Operation.DELETE, 11),
    ]  # fmt: skip
    play.run("TRUNCATE TABLE t", "INSERT INTO t VALUES (5, 'x')")
    assert changes(play.drain()) == [(Operation.TRUNCATE, None), (Operation.INSERT, 5)]


def test_rows_of_a_table_without_a_key_are_told_as_a_whole(server: MysqlServer, database: str, tmp_path: Path) -> None:
    play = Play(server, database, tmp_path, "a int, b text")
    play.run("INSERT INTO t VALUES (1, 'x')", "UPDATE t SET b = 'y'", "DELETE FROM t")
    rows = [(row[OP], row["a"], row["b"]) for one in play.drain() for row in ordered_rows(one)]
    assert rows == [(1, 1, "x"), (3, 1, "x"), (1, 1, "y"), (3, 1, "y")]
    play.close()


def test_a_large_transaction_of_many_rows_passes_whole_and_in_order(play: Play) -> None:
    play.run(
        "INSERT INTO t VALUES " + ", ".join(f"({n}, '{'x' * (n % 300)}')" for n in range(30_000)),
        "UPDATE t SET a = 'y'",
    )
    rows = [row for one in play.drain() for row in ordered_rows(one)]
    assert [row["id"] for row in rows[:30_000]] == list(range(30_000))
    assert all(len(row["a"]) == row["id"] % 300 for row in rows[:30_000])
    assert {row["a"] for row in rows[30_000:]} == {"y"}
    assert len(rows) == 60_000


def test_what_is_rolled_back_to_a_savepoint_is_not_delivered(play: Play) -> None:
    play.run(
        "BEGIN",
        "INSERT INTO t VALUES (1, 'a')",
        "SAVEPOINT s",
        "INSERT INTO t VALUES (2, 'b')",
        "ROLLBACK TO s",
        "COMMIT",
    )
    play.run("BEGIN", "INSERT INTO t VALUES (3, 'a')", "ROLLBACK")
    assert changes(play.drain()) == [(Operation.INSERT, 1)]


def test_columns_that_come_and_go_are_told_with_their_rows(play: Play) -> None:
    play.run("INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t ADD COLUMN b int", "INSERT INTO t VALUES (2, 'b', 3)")
    play.run("ALTER TABLE t DROP COLUMN a", "INSERT INTO t VALUES (4, 5)")
    found = play.drain()
    assert [schema.names for one in found for schema in one.schemas] == [("id", "a", "b"), ("id", "b")]
    assert _notices(found) == []
    assert [row.get("b") for one in found for row in ordered_rows(one)] == [None, 3, 5]


def test_a_column_with_a_default_or_a_new_name_has_to_be_read_again(play: Play) -> None:
    play.run(
        "INSERT INTO t VALUES (1, 'a')",
        "ALTER TABLE t ADD COLUMN b int NOT NULL DEFAULT 7",
        "INSERT INTO t VALUES (2, 'b', 3)",
    )
    assert _notices(play.drain()) == [(RecopyNeeded, play.table)]
    play.run("ALTER TABLE t CHANGE a c text", "INSERT INTO t VALUES (3, 'x', 1)")
    assert _notices(play.drain()) == [(RecopyNeeded, play.table)]
    play.run("ALTER TABLE t DROP COLUMN b, ADD COLUMN b int NOT NULL DEFAULT 7")
    assert _notices(play.drain()) == [(RecopyNeeded, play.table)]


def test_a_change_without_rows_is_found_in_the_catalog(play: Play) -> None:
    play.run("ALTER TABLE t ADD COLUMN b int")
    play.capture.discover()
    assert [schema.names for one in play.drain() for schema in one.schemas] == [("id", "a", "b")]


def test_a_truncate_after_a_new_column_does_not_take_the_column_away(play: Play) -> None:
    play.run("INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t ADD COLUMN b int", "INSERT INTO t VALUES (2, 'b', 5)")
    play.run("TRUNCATE TABLE t")
    found = play.drain()
    assert changes(found) == [(Operation.INSERT, 1), (Operation.INSERT, 2), (Operation.TRUNCATE, None)]
    assert [batch.schema.names for one in found for batch in one.batches][-1] == ("id", "a", "b")


def test_a_reading_of_the_catalog_that_rows_have_overtaken_changes_nothing(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered, is_first = list[ChangeSet](), iter([True])

    def overtaken(connection: Connection, tables: Sequence[TableId]) -> Any:
        found = read_columns(connection, tables)
        if next(is_first, False):
            play.run("ALTER TABLE t ADD COLUMN b int", "INSERT INTO t VALUES (1, 'a', 5)")
            delivered.extend(play.drain())
        return found

    monkeypatch.setattr(facts, "read_columns", overtaken)
    play.capture.discover()
    assert [schema.names for one in delivered for schema in one.schemas] == [("id", "a", "b")]
    play.run("FLUSH TABLES")  # the position of the reading is passed
    assert [schema.names for one in play.drain() for schema in one.schemas] == [], "not back to the older schema"


def test_a_dropped_table_is_told_once_and_its_successor_is_another_table(play: Play) -> None:
    play.run(
        "INSERT INTO t VALUES (1, 'a')",
        "DROP TABLE t",
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "INSERT INTO t VALUES (2, 'b')",
    )
    found = play.drain()
    assert _notices(found) == [(TableDropped, play.table)]
    assert changes(found) == [(Operation.INSERT, 1)]
    play.capture.discover()
    assert play.drain() == []


@pytest.mark.parametrize(("ghost", "old"), [("_t_gho", "_t_del"), ("_t_new", "_t_old"), ("__t_new", "__t_old")])
def test_the_swap_of_an_online_schema_change_is_followed_without_a_copy(play: Play, ghost: str, old: str) -> None:
    play.run("INSERT INTO t VALUES (1, 'a')", f"CREATE TABLE {ghost} LIKE t", f"ALTER TABLE {ghost} ADD COLUMN b int")
    play.run(
        f"INSERT INTO {ghost} SELECT id, a, NULL FROM t",
        f"RENAME TABLE t TO {old}, {ghost} TO t",
        "INSERT INTO t VALUES (2, 'b', 5)",
    )
    play.capture.discover()
    found = play.drain()
    assert _notices(found) == []
    assert changes(found) == [(Operation.INSERT, 1), (Operation.INSERT, 2)]


@pytest.mark.parametrize("change", ["ADD COLUMN b int DEFAULT 7", "MODIFY a varchar(3)", "DROP PRIMARY KEY"])
def test_a_swap_whose_columns_or_key_do_not_allow_it_has_the_table_copied_again(play: Play, change: str) -> None:
    play.run("SET sql_mode = ''", "INSERT INTO t VALUES (1, 'abcdef')", "CREATE TABLE _t_gho LIKE t")
    play.run(f"ALTER TABLE _t_gho {change}", "INSERT INTO _t_gho (id, a) SELECT id, a FROM t")
    play.run("RENAME TABLE t TO _t_del, _t_gho TO t")
    if "DEFAULT" in change:  # and when the rows are decoded, the catalog does not have it any more
        play.run("ALTER TABLE t ALTER b DROP DEFAULT")
    play.run("INSERT INTO t (id, a) VALUES (2, 'b')")
    assert _notices(play.drain()) == [(RecopyNeeded, play.table)]


def test_columns_that_change_in_a_backlog_are_decoded_as_they_were_also_by_another_process(play: Play) -> None:
    """The catalog has the last of the shapes from the beginning on."""
    first = play.capture.discover()
    play.run(
        "INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t ADD COLUMN b int FIRST", "INSERT INTO t VALUES (5, 2, 'b')"
    )
    play.run("ALTER TABLE t MODIFY b int AFTER a", "INSERT INTO t VALUES (3, 'c', 6)", "ALTER TABLE t DROP COLUMN a")
    play.run("INSERT INTO t VALUES (4, 7)")
    play.restart(first)
    play.capture.discover()
    found = play.drain()
    assert _notices(found) == []
    rows = [(row["id"], row.get("a"), row.get("b")) for one in found for row in ordered_rows(one)]
    assert rows == [(1, "a", None), (2, "b", 5), (3, "c", 6), (4, None, 7)]


def test_a_type_that_was_changed_and_changed_back_between_two_rows_is_noticed(play: Play) -> None:
    play.run("SET sql_mode = ''", "ALTER TABLE t MODIFY a varchar(20)", "INSERT INTO t VALUES (1, 'abcdef')")
    play.drain()
    play.run("ALTER TABLE t MODIFY a varchar(3)", "ALTER TABLE t CHANGE a a varchar(20)")
    play.run("INSERT INTO t VALUES (2, 'b')")
    assert _notices(play.drain()) == [(RecopyNeeded, play.table)]
    play.run("ALTER TABLE t MODIFY a varchar(20) COMMENT 'x'", "INSERT INTO t VALUES (3, 'b')")
    play.run("ALTER TABLE t MODIFY a varchar(20) COMMENT 'y'", "INSERT INTO t VALUES (4, 'b')")
    assert _notices(play.drain()) == []
    play.run("ALTER TABLE t CONVERT TO CHARACTER SET latin1", "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4")
    assert _notices(play.drain()) == [(RecopyNeeded, play.table)]


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_type_that_is_changed_back_after_the_process_ended_is_noticed(play: Play, is_confirmed: bool) -> None:
    """Rows of another table move the position past the first statement. The process ends before or after it confirms
    that position."""
    play.run("SET sql_mode = ''", "CREATE TABLE o (id int PRIMARY KEY)", "ALTER TABLE t MODIFY a varchar(20)")
    play.capture.prepare([TableId(play.database, "o")])
    play.run("INSERT INTO t VALUES (1, 'abcdef')")
    play.drain()
    play.capture.confirm(play.at)
    shapes = play.capture.discover()
    play.run("ALTER TABLE t MODIFY a varchar(3)", "INSERT INTO o VALUES (1)")
    assert len(play.drain()) == 1
    if is_confirmed:
        play.capture.confirm(play.at)
    play.run("ALTER TABLE t MODIFY a varchar(20)", "INSERT INTO o VALUES (2)")
    play.restart(shapes)
    assert _notices(play.drain()) == [(RecopyNeeded, play.table)]
    play.capture.confirm(play.at)
    play.run("INSERT INTO t VALUES (2, 'b')", "ALTER TABLE t MODIFY a varchar(20) COMMENT 'x'")
    play.drain()
    play.run("INSERT INTO t VALUES (3, 'b')")
    play.drain()
    if is_confirmed:
        play.capture.confirm(play.at)
    play.run("ALTER TABLE t MODIFY a varchar(20) COMMENT 'y'", "INSERT INTO o VALUES (3)")
    play.restart(shapes)
    assert _notices(play.drain()) == []  # a row came in between


def test_invisible_columns_are_copied_and_streamed_as_others_are(
    server: MysqlServer, database: str, tmp_path: Path
) -> None:
    if server.flavour == "mysql" and version_of(server) < (8, 0, 23):
        return  # it has none
    play = Play(server, database, tmp_path, "id int PRIMARY KEY, a int INVISIBLE DEFAULT 5, b int")
    play.run("INSERT INTO t (id, b) VALUES (1, 2)", "INSERT INTO t (id, a) VALUES (2, 3)")
    streamed = [(row["id"], row["a"], row["b"]) for one in play.drain() for row in ordered_rows(one)]
    with play.capture.snapshot(play.table).chunks[0].open() as reader:
        copied = [tuple(row.values()) for batch in reader for row in batch.to_pylist()]
    assert streamed == copied == [(1, 5, 2), (2, 3, None)]
    play.close()


def test_t29_a_commit_has_its_time_in_microseconds_where_the_server_has_it(play: Play) -> None:
    """MariaDB tells seconds, so that lag may be a second too large there."""
    began = time.time()
    play.run("INSERT INTO t VALUES (1, 'a')")
    ended = time.time()
    (found,) = [row[TIME] for one in play.drain() for row in ordered_rows(one)]
    if play.server.flavour == "mysql":
        assert began - 0.001 <= found.timestamp() <= ended + 0.001
        assert found.microsecond
    else:
        assert int(began) <= found.timestamp() <= ended
        assert found.microsecond == 0
    lag = play.capture.lag().seconds
    assert lag is None or lag < 2


def test_e08_lag_is_told_in_bytes_of_the_log_and_is_nothing_when_all_is_confirmed(play: Play, tmp_path: Path) -> None:
    for first in (0, 1000):
        rows = ", ".join(f"({n}, '{'x' * 1000}')" for n in range(first, first + 1000))
        play.run(f"INSERT INTO t VALUES {rows}", "FLUSH BINARY LOGS")
    assert 2_000_000 < (play.capture.lag().bytes or 0) < 5_000_000  # MariaDB logs the statements, too
    play.drain()
    assert 2_000_000 < (play.capture.lag().bytes or 0) < 5_000_000  # delivered, and not confirmed
    play.capture.confirm(play.at)
    assert play.capture.lag().bytes == 0
    play.run("INSERT INTO t VALUES " + ", ".join(f"({n}, '{'x' * 50_000}')" for n in range(5000, 5010)))
    other = play.source.bind("play")  # another process, such as `lakefeed status`
    other.keep_state(storage_at(tmp_path))
    assert 500_000 < (other.lag().bytes or 0) < 1_200_000


def test_t22_the_position_of_an_idle_table_moves_with_the_others_of_its_server(play: Play) -> None:
    play.run("CREATE TABLE elsewhere_t (id int PRIMARY KEY)", f"CREATE DATABASE {play.database}_b")
    try:
        source = replace(play.source, tables=[str(play.table)], limits=Limits(heartbeat_seconds=0.2))
        play.capture.close()
        play.capture = source.bind("play")
        play.capture.open()
        play.run("INSERT INTO elsewhere_t VALUES (1)", f"CREATE TABLE {play.database}_b.x (id int)")
        until = time.monotonic() + 20
        for one in play.capture.live(play.at, wait_seconds=0.3):
            play.capture.confirm(one.end)
            assert changes([one]) == []
            if (end := source.bind("end").end()) is None or one.end >= end or time.monotonic() > until:
                break
        assert play.capture.lag().bytes == 0
    finally:
        play.run(f"DROP DATABASE {play.database}_b")


def test_another_table_under_the_name_has_to_be_copied_and_a_renamed_one_is_gone(play: Play) -> None:
    play.run("CREATE TABLE n (id int PRIMARY KEY, a text)", "RENAME TABLE t TO o, n TO t")
    assert _notices(play.drain()) == [(RecopyNeeded, play.table)]
    play.run("RENAME TABLE t TO p")
    assert _notices(play.drain()) == [(TableDropped, play.table)]


def test_a_statement_event_that_changes_a_captured_table_blocks_it(play: Play) -> None:
    play.run("SET SESSION binlog_format = 'STATEMENT'", "INSERT INTO t VALUES (1, 'a')")
    assert _notices(play.drain()) == [(TableBlocked, play.table)]


def test_a_table_that_is_prepared_beside_the_stream_is_delivered_from_there_on(play: Play) -> None:
    play.run(
        "CREATE TABLE u (id int PRIMARY KEY, a text)", "INSERT INTO u VALUES (1, 'a')", "INSERT INTO t VALUES (1, 'a')"
    )
    assert changes(play.drain()) == [(Operation.INSERT, 1)]
    play.capture.prepare([TableId(play.database, "u")])
    play.run("INSERT INTO u VALUES (2, 'b')")
    assert changes(play.drain()) == [(Operation.INSERT, 2)]


def test_rows_with_columns_left_out_block_their_table(play: Play) -> None:
    play.run("INSERT INTO t VALUES (1, 'a')", "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE t SET a = 'b'")
    found = play.drain()
    assert _notices(found) == [(TableBlocked, play.table)]
    assert changes(found) == [(Operation.INSERT, 1)]


def test_partial_json_blocks_its_table_until_its_remedy_and_check_names_the_statement(
    servers: Callable[[Flavour], MysqlServer], tmp_path: Path
) -> None:
    server = servers("mysql")
    with _database(server, "partial") as database:
        play = Play(server, database, tmp_path, "id int PRIMARY KEY, a json")
        play.run("CREATE TABLE u (id int PRIMARY KEY)")
        play.capture.prepare([TableId(database, "u")])
        play.run(
            """INSERT INTO t VALUES (1, '{"a": 1, "b": "a text that is long enough to be worth it"}')""",
            "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'",
            "UPDATE t SET a = JSON_SET(a, '$.a', 2)",
            "INSERT INTO u VALUES (2)",
        )
        found = play.drain()
        assert _notices(found) == [(TableBlocked, play.table)]
        assert changes(found) == [(Operation.INSERT, 1), (Operation.INSERT, 2)]
        play.run("SET SESSION binlog_row_value_options = ''")  # the remedy; `rebuild` prepares the table again
        play.capture.prepare([play.table])
        play.run("UPDATE t SET a = JSON_SET(a, '$.a', 3)")
        assert changes(play.drain()) == [(Operation.UPDATE, 1)]
        play.run("SET GLOBAL binlog_row_value_options = 'PARTIAL_JSON'")
        try:
            remedies = [finding.remedy for finding in play.capture.check()]
            assert remedies == [
                "SET GLOBAL binlog_row_value_options = ''; -- and set the same in the server's option file"
            ]
        finally:
            play.run("SET GLOBAL binlog_row_value_options = ''")
            play.close()


def test_tagged_gtids_are_followed_and_resumed_from(servers: Callable[[Flavour], MysqlServer], tmp_path: Path) -> None:
    """On the servers of the version matrix that have them."""
    server = servers("mysql")
    if version_of(server) < (8, 3):
        return
    with _database(server, "tagged") as database:
        play = Play(server, database, tmp_path)
        for key, tag in enumerate(("", ":red", ":red", ":blue", "")):
            play.run(f"SET gtid_next = 'AUTOMATIC{tag}'", f"INSERT INTO t VALUES ({key}, 'a')")
        assert changes(play.drain()) == [(Operation.INSERT, key) for key in range(5)]
        assert play.at == MysqlGtid(str(play.run("SELECT @@GLOBAL.gtid_executed")[0][0]))
        play.capture.close()
        play.capture.open()
        play.run("SET gtid_next = 'AUTOMATIC:red'", "INSERT INTO t VALUES (9, 'a')", "SET gtid_next = 'AUTOMATIC'")
        assert changes(play.drain()) == [(Operation.INSERT, 9)]
        play.close()


def test_t16_the_stream_goes_through_rotated_files_and_restarts(play: Play) -> None:
    for key in range(3):
        play.run(f"INSERT INTO t VALUES ({key}, 'a')", "FLUSH BINARY LOGS")
    assert changes(play.drain()) == [(Operation.INSERT, key) for key in range(3)]
    play.run("FLUSH BINARY LOGS", "INSERT INTO t VALUES (9, 'z')")
    assert changes(play.drain()) == [(Operation.INSERT, 9)]


def test_an_event_with_a_wrong_checksum_stops_the_stream_with_file_and_position(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = PacketReader.take

    def flipped(self: PacketReader, wait_seconds: float | None = None) -> Packets | None:
        found = take(self, wait_seconds)
        return None if found is None else replace(found, data=found.data.replace(b"needle", b"noodle"))

    play.run("INSERT INTO t VALUES (1, 'needle')")
    monkeypatch.setattr(PacketReader, "take", flipped)
    with pytest.raises(DecodeError, match=r"checksum mismatch in the binlog event after \S+\.\d{6}:\d+"):
        play.drain()
    monkeypatch.undo()
    assert changes(play.drain()) == [(Operation.INSERT, 1)]


def test_a_log_without_checksums_is_read_and_one_that_changes_between(play: Play) -> None:
    kept = play.run("SELECT @@GLOBAL.binlog_checksum")[0][0]
    play.run("INSERT INTO t VALUES (1, 'a')")
    for key, kind in ((2, "NONE"), (3, "CRC32"), (4, kept)):
        play.run(f"SET GLOBAL binlog_checksum = {kind}", f"INSERT INTO t VALUES ({key}, 'a')")
    assert changes(play.drain()) == [(Operation.INSERT, key) for key in range(1, 5)]


@pytest.mark.parametrize(
    ("old", "new", "is_rewritten"),
    [
        ("varchar(20)", "varchar(3)", True),
        ("varchar(20)", "varchar(30)", False),
        ("text", "tinytext", True),
        ("varbinary(9)", "varbinary(3)", True),
        ("decimal(10,3)", "decimal(10,1)", True),
        ("decimal(60,3)", "decimal(60,1)", True),
        ("datetime(6)", "datetime(0)", True),
        ("datetime(0)", "datetime(6)", False),
        ("time(3)", "time(6)", True),
        ("enum('1','2')", "enum('2','1')", True),
        ("enum('1','2')", "enum('1','2','3')", False),
    ],
)
@pytest.mark.parametrize("has_rows", [True, False])
def test_a_type_that_may_have_rewritten_values_has_its_column_read_again(
    server: MysqlServer, database: str, tmp_path: Path, old: str, new: str, is_rewritten: bool, has_rows: bool
) -> None:
    play = Play(server, database, tmp_path, f"id int PRIMARY KEY, a {old}")
    play.run("SET SESSION sql_mode = ''", "INSERT INTO t VALUES (1, NULL)", f"ALTER TABLE t MODIFY a {new}")
    if has_rows:
        play.run("INSERT INTO t VALUES (2, NULL)")
    else:
        play.drain()
        play.capture.discover()
    notices = [notice for one in play.drain() for notice in one.notices]
    assert [(type(one), getattr(one, "columns", ())) for one in notices] == [(RecopyNeeded, ("a",))] * is_rewritten
    play.close()


def test_compressed_rows_of_mariadb_arrive(servers: Callable[[Flavour], MysqlServer], tmp_path: Path) -> None:
    server = servers("mariadb")
    with _database(server, "packed") as database:
        play = Play(server, database, tmp_path)
        play.run("SET GLOBAL log_bin_compress = ON, log_bin_compress_min_len = 10")
        try:
            with server.connect(database=database) as other, other.cursor() as cursor:
                cursor.execute(f"INSERT INTO t VALUES (1, '{'x' * 1000}'), (2, 'y')")
                cursor.execute("ALTER TABLE t ADD COLUMN a_rather_long_name_that_is_worth_compressing int")
                cursor.execute(f"UPDATE t SET a = '{'z' * 500}'")
            found = play.drain()
            assert [len(row["a"]) for one in found for row in ordered_rows(one)] == [1000, 1, 500, 500]
        finally:
            play.run("SET GLOBAL log_bin_compress = OFF")
            play.close()


@contextlib.contextmanager
def _database(server: MysqlServer, name: str) -> Iterator[str]:
    with server.connect() as admin, admin.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        yield name
        cursor.execute(f"DROP DATABASE {name}")


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_purged_a_reset_and_a_foreign_log_have_lost_the_position(flavour: Flavour, tmp_path: Path) -> None:
    with MysqlServer.start(flavour) as server, _database(server, "shop"):
        play = Play(server, "shop", tmp_path)
        play.run("INSERT INTO t VALUES (1, 'a')")
        start = play.at
        play.drain()
        play.run("FLUSH BINARY LOGS", "INSERT INTO t VALUES (2, 'b')", "FLUSH BINARY LOGS")
        newest = play.run("SHOW BINARY LOGS")[-1][0]
        time.sleep(0.1)
        play.capture.close()
        until = time.monotonic() + 20
        while len(play.run("SHOW BINARY LOGS")) > 1 and time.monotonic() < until:
            play.run(f"PURGE BINARY LOGS TO '{newest}'")
        play.capture.open()
        with pytest.raises(PositionLostError, match="purged"):
            play.capture.continuity(start, [play.table])
        server.reset_log()
        with pytest.raises(PositionLostError):
            play.capture.continuity(play.at, [play.table])
        play.close()


def test_a_server_of_another_history_is_refused_though_its_numbers_cover_the_position(
    server: MysqlServer, tmp_path: Path
) -> None:
    """MariaDB's GTIDs name a server by its server_id alone, and both servers have 1."""
    with MysqlServer.start(server.flavour) as first, _database(first, "shop"), _database(server, "elsewhere") as other:
        play = Play(first, "shop", tmp_path)
        play.run("INSERT INTO t VALUES (1, 'a')")
        play.drain()
        with server.connect(database=other) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE t (id int PRIMARY KEY)")
            for number in range(20):
                cursor.execute(f"INSERT INTO t VALUES ({number})")
        foreign = replace(play.source, dsn=server.dsn).bind("play")
        foreign.open()
        kind: type[LakefeedError] = PositionLostError if server.flavour == "mysql" else SourceChangedError
        reason = f"it lacks {play.at} and has" if server.flavour == "mysql" else "do not prove a common history"
        with pytest.raises(kind, match=reason):
            foreign.continuity(play.at, [play.table])
        foreign.close()
        play.close()


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_promoted_replica_goes_on_without_a_copy(flavour: Flavour, tmp_path: Path) -> None:
    own = {"server_id": "2", "log_slave_updates": "ON"}
    with MysqlServer.start(flavour) as old, MysqlServer.start(flavour, own) as new, _database(old, "shop"):
        play = Play(old, "shop", tmp_path)
        new.follow(old)
        with new.connect() as replica, replica.cursor() as cursor:
            play.run("INSERT INTO t VALUES (1, 'a')")
            assert changes(play.drain()) == [(Operation.INSERT, 1)]
            play.run("INSERT INTO t VALUES (2, 'b')")
            until = time.monotonic() + 30
            count = 0
            while count < 2 and time.monotonic() < until:
                with contextlib.suppress(Exception):
                    cursor.execute("SELECT count(*) FROM shop.t")
                    count = cursor.fetchone()[0]
                time.sleep(0.05)
            assert count == 2
            new.promote()
            cursor.execute("INSERT INTO shop.t VALUES (3, 'c')")
        play.capture.close()
        promoted = Mysql(new.dsn, kind=flavour, tables=["shop.*"], state=tmp_path).bind("play")
        promoted.open()
        promoted.continuity(play.at, [play.table])
        assert changes(drain(promoted, play.at)) == [(Operation.INSERT, 2), (Operation.INSERT, 3)]
        promoted.close()
        # Back to the old server, which lacks what the new one has written.
        back = Mysql(old.dsn, kind=flavour, tables=["shop.*"], state=tmp_path).bind("play")
        back.open()
        end = promoted_end(new)
        with pytest.raises(PositionLostError, match=f"it lacks {end.without(back.end())} and has"):
            back.continuity(end, [play.table])
        back.close()
        play.connection.close()


def promoted_end(server: MysqlServer) -> Any:
    capture = Mysql(server.dsn, kind=server.flavour, tables=["shop.*"]).bind("end")
    return capture.end()


def test_a_server_of_the_other_kind_is_refused_with_the_word_to_write(server: MysqlServer) -> None:
    other: Flavour = "mysql" if server.flavour == "mariadb" else "mariadb"
    capture = Mysql(server.dsn, kind=other).bind("x")
    with pytest.raises(SourceSetupError, match=f"is a {server.flavour} server"):
        capture.open()


def test_t27_tls_means_tls(server: MysqlServer) -> None:
    dsn = server.dsn.replace("DISABLED", "VERIFY_IDENTITY")
    with pytest.raises(LakefeedError):
        Mysql(dsn, kind=server.flavour).bind("x").open()


def test_d11_gtid_sets_have_a_union_and_a_difference() -> None:
    a, b = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"
    one, other = MysqlGtid(f"{a}:1-5:9"), MysqlGtid(f"{a}:4-7,{b}:1")
    assert one.union(other) == MysqlGtid(f"{a}:1-7:9,{b}:1")
    assert one.union(other).text() == f"{a}:1-7:9,{b}:1"
    assert one.without(other) == MysqlGtid(f"{a}:1-3:9")
    assert other.without(one) == MysqlGtid(f"{a}:6-7,{b}:1")
    assert one.without(one.union(other)) == MysqlGtid("")
    assert MariadbGtid("0-1-5,1-1-9").without(MariadbGtid("0-2-6,1-1-8,7-7-7")) == MariadbGtid("1-1-9")
    assert MariadbGtid("0-1-5").without(MariadbGtid("0-2-5")) == MariadbGtid("0-1-5")

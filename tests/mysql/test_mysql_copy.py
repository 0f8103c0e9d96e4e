"""Copies beside writers: which commits a chunk has, keys of any collation in ranges, and tables without a key."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.mysql.conftest import new_database, version_of
from tests.mysql.play import Play

from lakefeed.capture.mysql import dialect as dialects
from lakefeed.capture.mysql.dialect import MysqlDialect, MysqlVerifyReader
from lakefeed.capture.mysql.source import Mysql
from lakefeed.capture.snapshot import TableChunk, plan_chunks
from lakefeed.change.batch import POSITION
from lakefeed.change.position import decode_position
from lakefeed.change.table import TableId
from lakefeed.errors import SourceUnavailableError
from lakefeed.flow.pipeline import Pipeline
from lakefeed.flow.report.listener import Listener
from lakefeed.lake.delta import Delta
from lakefeed.lake.mode import Mirror
from lakefeed.testing.capture_subject import changes, ordered_rows, row_dicts
from lakefeed.testing.server.mysql import Flavour, MysqlServer
from lakefeed.verify.compare import compare_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


OTHERS = ("mariadb", "without GTIDs")


@pytest.fixture
def server(every_server: MysqlServer) -> MysqlServer:
    return every_server


@contextmanager
def writers(
    server: MysqlServer, database: str, sql: str, count: int = 3, pause_seconds: float = 0.002
) -> Iterator[list[int]]:
    """So many sessions that run ``sql`` with another number each time, one transaction each, until the block ends."""
    over, done = threading.Event(), list[int]()

    def work(first: int) -> None:
        with server.connect(database=database) as connection, connection.cursor() as cursor:
            for number in range(first, 1_000_000, count):
                if over.is_set():
                    return
                cursor.execute(sql.format(n=number))
                done.append(number)
                time.sleep(pause_seconds)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        over.set()
        for thread in threads:
            thread.join(30)


def _rows(chunk: Any) -> tuple[Any, Any, list[dict[str, Any]]]:
    with chunk.open() as reader:
        rows = [row for batch in reader for row in batch.to_pylist()]
        return reader.low, reader.high, rows


def test_t05_a_copy_has_what_was_delivered_though_its_commit_is_not_over(play: Play) -> None:
    """MySQL sends a transaction to its readers before the rows are visible; here, a second before."""
    is_delayed = play.server.flavour == "mysql"
    if is_delayed:
        play.run("INSERT INTO t VALUES (1, 'a')", "SET GLOBAL binlog_group_commit_sync_delay = 1000000")
    writer = threading.Thread(target=play.run, args=("INSERT INTO t VALUES (2, 'b')",))
    try:
        play.drain()
        writer.start()
        until = time.monotonic() + 20
        while (2 not in [key for _, key in changes(play.drain())]) and time.monotonic() < until:
            pass
        low, high, rows = _rows(play.capture.snapshot(play.table).chunks[0])
        assert low <= high
        assert sorted(row["id"] for row in rows) == [1, 2][not is_delayed :]
    finally:
        writer.join(20)
        if is_delayed:
            play.run("SET GLOBAL binlog_group_commit_sync_delay = 0")


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_t05_a_chunk_has_every_commit_up_to_low_and_none_after_high(
    server: MysqlServer, database: str, tmp_path: Path, key: str
) -> None:
    """Of a table without a key there is no commit between the two."""
    play = Play(server, database, tmp_path, f"id int {key}, a text")
    plan = play.capture.snapshot(play.table)
    assert plan.is_exact == (not key)
    with writers(play.server, play.database, "INSERT INTO t VALUES ({n}, 'x')"):
        time.sleep(0.2)
        found = [_rows(plan.chunks[0]) for _ in range(15)]
    ends = [(row["id"], decode_position(row[POSITION])) for one in play.drain() for row in ordered_rows(one)]
    assert len(ends) > 50
    for low, high, rows in found:
        seen = {row["id"] for row in rows}
        assert key or low == high
        assert [one for one, end in ends if end <= low and one not in seen] == []
        assert [one for one, end in ends if one in seen and not end <= high] == []
    play.close()


COLLATIONS: list[tuple[str, list[object]]] = [
    ("varchar(20) COLLATE utf8mb4_general_ci", ["a", "B", "c", "ü", "Z", "é", "_", "10", "9", "ß"]),
    ("varchar(20) COLLATE utf8mb4_0900_ai_ci", ["a", "B", "c", "ü", "Z", "ê", "_", "10", "9", "ß", "😀", "ﬀ"]),
    ("varchar(20) COLLATE utf8mb4_bin", ["a", "A", "ä", "Ä", "ab", "😀"]),
    ("varchar(20) CHARACTER SET latin1 COLLATE latin1_german2_ci", ["a", "ö", "of", "od", "Z", "ÿ"]),
    ("char(4) CHARACTER SET ucs2", ["a", "b", "中", "文"]),
    ("varbinary(8)", [b"\x00", b"a", b"B", b"\xff", b"a\x00", b""]),
    ("binary(3)", [b"\x00\x00\x00", b"a\x00\x00", b"a\x00b", b"\xff\xfe\xfd"]),
    ("enum('z','a','m')", ["z", "a", "m"]),
    ("decimal(20,5)", ["-1.5", "0", "1.00001", "99999999999.99999"]),
    ("double", ["-1e300", "0.1", "0.30000000000000004", "5e-324"]),
    ("float", ["-1.5", "0.1", "16777216", "3.4e38"]),
    ("date", ["1000-01-01", "2020-02-29", "9999-12-31"]),
    ("datetime(6)", ["2020-01-01 00:00:00.000001", "2020-01-01 00:00:00.000002", "1999-12-31 23:59:59"]),
    ("timestamp(3)", ["2020-01-01 00:00:00.001", "2020-01-01 00:00:00.002", "1999-12-31 23:59:59"]),
    ("time(2)", ["-838:59:59", "-00:00:00.01", "00:00:00", "25:00:00.5"]),
    ("year", ["1901", "2026", "2155"]),
    ("bit(9)", ["1", "2", "257", "511"]),
    ("bigint unsigned", ["0", "9", "10", "18446744073709551615"]),
    ("uuid", ["123e4567-e89b-12d3-a456-426614174000", "018f4b1c-7b1a-7c3a-9d2e-0123456789ab",
              "ffffffff-ffff-4fff-bfff-ffffffffffff"]),
    ("inet6", ["::1", "2001:db8::ff00:42:8329", "::ffff:1.2.3.4"]),
]  # fmt: skip


def test_a13_keys_are_cut_in_the_servers_own_order_without_gap_or_overlap(server: MysqlServer, database: str) -> None:
    only_mysql, only_mariadb = ("0900",), ("uuid", "inet6")
    dialect = MysqlDialect(server.dsn, server.flavour)
    left_out = only_mariadb if server.flavour == "mysql" else only_mysql
    chosen = [(kind, values) for kind, values in COLLATIONS if not any(one in kind for one in left_out)]
    with server.connect(sql_mode="") as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        for number, (kind, values) in enumerate(chosen):
            table = TableId(database, f"t{number}")
            given: list[object] = [int(str(one)) for one in values] if kind.startswith("bit") else values
            cursor.execute(f"CREATE TABLE {table} (k {kind}, n int, PRIMARY KEY (k, n)) CHARACTER SET utf8mb4")
            cursor.executemany(f"INSERT INTO {table} VALUES (%s, %s)", [(one, n) for one in given for n in (1, 2)])
            session = dialect.connect()
            described = session.describe([table])[table]
            for size in (1, 3):
                chunks, rows = plan_chunks(session, TableChunk(dialect, described, described.schema), size)
                found = [(row["k"], row["n"]) for chunk in chunks for row in _plain_rows(chunk)]
                assert rows == len(found) == len(set(found)) == 2 * len(values), (kind, size, found)
                assert len(chunks) == -(-rows // size), kind
            session.close()


def _plain_rows(chunk: Any) -> list[dict[str, Any]]:
    """Of a chunk that nobody asked for its bracket."""
    with chunk.open() as reader:
        return [row for batch in reader for row in batch.to_pylist()]


class Copies(Listener):
    def __init__(self) -> None:
        self.begun: list[TableId] = []

    def snapshot_started(self, table: TableId, rows_estimate: int) -> None:
        self.begun.append(table)


@pytest.mark.spark
@pytest.mark.parametrize(
    "every_server", ["mysql", *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)], indirect=True
)
def test_a_table_without_a_key_under_constant_writes_is_copied_once(
    server: MysqlServer, database: str, spark: SparkSession, tmp_path: Path
) -> None:
    table, copies = TableId(database, "k"), Copies()
    source = Mysql(server.dsn, kind=server.flavour, tables=[f"{database}.*"], state=tmp_path / "state")
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE k (n int, v varchar(50))")
        cursor.execute("INSERT INTO k VALUES " + ", ".join(f"({n % 7}, 'old')" for n in range(500)))
    change = "INSERT INTO k VALUES ({n} % 7, 'new'), (1, 'b'), (1, 'b')"
    with Pipeline(source, Delta(spark, str(tmp_path / "lake")), name="shop", listener=copies) as pipeline:
        with (
            writers(server, database, change, 2, 0.02) as done,
            writers(
                server, database, "UPDATE k SET v = concat(left(v, 20), {n} % 3) WHERE n = {n} % 7 LIMIT 2", 1, 0.02
            ),
            writers(server, database, "DELETE FROM k WHERE n = {n} % 7 LIMIT 2", 1, 0.02),
        ):
            assert not pipeline.sync_once().errors
        assert not pipeline.sync_once().errors
    assert len(done) > 20
    assert copies.begun.count(table) == 1
    reader = MysqlVerifyReader(MysqlDialect(server.dsn, server.flavour), table)
    compared = compare_at(table, reader, tmp_path / "lake" / database / "k", Mirror())
    assert compared.equal, compared


def test_a_copy_that_must_be_exact_says_so_where_commits_never_pause(
    servers: Callable[[Flavour], MysqlServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers("mysql")
    monkeypatch.setattr(dialects, "VISIBLE_SECONDS", 0.5)
    with new_database(server) as database:
        play = Play(server, database, tmp_path, "a int, b text")
        plan = play.capture.snapshot(play.table)
        assert plan.is_exact
        low, high, _ = _rows(plan.chunks[0])
        assert low == high
        bracket = dialects.MysqlSession._bracket

        def between(session: dialects.MysqlSession, low: Any) -> Any:
            play.run("INSERT INTO t VALUES (1, 'a')")
            return bracket(session, low)

        monkeypatch.setattr(dialects.MysqlSession, "_bracket", between)
        with pytest.raises(SourceUnavailableError, match="no moment between two commits"):
            _rows(plan.chunks[0])
        play.close()


def test_vectors_are_the_same_by_copy_and_stream_where_a_server_has_them(
    servers: Callable[[Flavour], MysqlServer], tmp_path: Path
) -> None:
    for flavour, least, text in (("mysql", (9,), "STRING_TO_VECTOR"), ("mariadb", (11, 7), "Vec_FromText")):
        server = servers("mysql" if flavour == "mysql" else "mariadb")
        if version_of(server) < least:
            continue
        with new_database(server) as database:
            play = Play(server, database, tmp_path / flavour, "id int PRIMARY KEY, v vector(3)")
            play.run(f"INSERT INTO t VALUES (1, {text}('[1,-2.5,3]')), (2, NULL)")
            streamed = {row["id"]: row["v"] for one in play.drain() for row in row_dicts(one)}
            _, _, rows = _rows(play.capture.snapshot(play.table).chunks[0])
            assert {row["id"]: row["v"] for row in rows} == streamed
            assert len(streamed[1]) == 12
            play.close()

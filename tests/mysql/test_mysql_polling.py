"""Polling of MySQL and MariaDB keeps the contract of every capture; keys of any collation are cut without a gap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.mysql.actor import MysqlActor
from tests.mysql.conftest import FLAVOURS, new_database

from lakefeed.capture.mysql.dialect import MysqlDialect
from lakefeed.capture.poll.capture import Polling
from lakefeed.capture.poll.source import Pace, TableRule
from lakefeed.capture.poll.store import FileWatermarkStore
from lakefeed.capture.snapshot import TableChunk, plan_chunks
from lakefeed.change.table import TableId
from lakefeed.testing.capture_contract import CaptureContract
from lakefeed.testing.capture_subject import Subject
from lakefeed.testing.server.mysql import Flavour, MysqlServer


class TestMysqlPolling(CaptureContract):
    @pytest.fixture(autouse=True, params=FLAVOURS)
    def _place(self, request: pytest.FixtureRequest, servers: Callable[[Flavour], MysqlServer]) -> Iterator[None]:
        self._server = servers(request.param)
        with new_database(self._server) as self._database:
            self._actor = MysqlActor(self._server, self._database, timed=True)
            yield
            self._actor.close()

    def make_subject(self, place: Path) -> Subject:
        rules = {"*.*": TableRule(columns=["name"], safety_lag_seconds=0)}
        dialect = MysqlDialect(self._server.dsn, self._server.flavour)

        def capture() -> Polling:
            store = FileWatermarkStore(place / "marks.json")
            tables = [f"{self._database}.*"]
            return Polling(dialect, tables=tables, rules=rules, store=store, pace=Pace(poll_seconds=0.05))

        return Subject(capture=capture, actor=self._actor, sees_deletes=False)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("varchar(20) COLLATE utf8mb4_general_ci", ["a", "B", "c", "ü", "Z", "é", "_", "10", "9", "ß"]),
        ("varbinary(8)", [b"\x00", b"a", b"B", b"\xff", b"a\x00", b""]),
        ("enum('z','a','m')", ["z", "a", "m"]),
        ("decimal(20,5)", ["-1.5", "0", "1.00001", "99999999999.99999"]),
        ("datetime(6)", ["2020-01-01 00:00:00.000001", "2020-01-01 00:00:00.000002", "1999-12-31 23:59:59"]),
        ("bigint unsigned", ["0", "9", "10", "18446744073709551615"]),
    ],
)
def test_a13_keys_are_cut_in_the_servers_own_order_without_gap_or_overlap(
    server: MysqlServer, database: str, kind: str, values: list[object]
) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {database}.t (k {kind}, n int, PRIMARY KEY (k, n))")
        cursor.executemany(f"INSERT INTO {database}.t VALUES (%s, %s)", [(one, n) for one in values for n in (1, 2)])
    dialect, table = MysqlDialect(server.dsn, server.flavour), TableId(database, "t")
    session = dialect.connect()
    described = session.describe([table])[table]
    chunks, rows = plan_chunks(session, TableChunk(dialect, described, described.schema), 1)
    session.close()
    found = []
    for chunk in chunks:
        with chunk.open() as reader:
            found += [(row["k"], row["n"]) for batch in reader for row in batch.to_pylist()]
    assert rows == len(found) == len(set(found)) == 2 * len(values) == len(chunks)

"""PostgreSQL under a whole pipeline, with a lake in memory: what happens between two runs is made good by the next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres.proxy import CuttingProxy
from tests.postgres.test_postgres_exported import held_in_the_end

from lakefeed.capture.postgres.source import Postgres
from lakefeed.errors import PositionLostError
from lakefeed.flow.pipeline import Pipeline
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.result import CycleResult
from lakefeed.flow.status import PipelineStatus
from lakefeed.testing.memory_lake import MemoryLake
from lakefeed.testing.server.postgres import PostgresServer


@pytest.fixture
def writer(dsn: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)")
        connection.execute("INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 100) i")
        yield connection


class Place:
    """A pipeline whose process comes and goes."""

    def __init__(self, dsn: str, directory: Path) -> None:
        self.dsn = dsn
        self.lake = MemoryLake(str(directory))
        self.tables = ["public.*"]
        self.status = PipelineStatus(verdict="", reason="")

    def sync(self) -> CycleResult:
        with Pipeline(Postgres(self.dsn, tables=self.tables), self.lake, name="shop") as pipeline:
            result = pipeline.sync_once()
            self.status = pipeline.status()
            return result

    def assert_equal(self, writer: Any, table: str = "t") -> None:
        cursor = writer.execute(f"SELECT * FROM {table} ORDER BY id")
        names = [column.name for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor]
        assert sorted(self.lake.rows(f"public.{table}"), key=lambda row: int(row["id"])) == rows


@pytest.fixture
def place(dsn: str, writer: Any, tmp_path: Path) -> Place:
    place = Place(dsn, tmp_path)
    place.sync()
    place.assert_equal(writer)
    return place


def test_a_table_that_is_copied_with_an_older_slot_is_live_when_the_sync_ends(
    place: Place, writer: Any, tmp_path: Path
) -> None:
    """``lake.path`` was changed: the log has nothing for the lake between the slot's position and the copy's."""
    writer.execute("CREATE SCHEMA o; CREATE TABLE o.e (id int); INSERT INTO o.e SELECT generate_series(1, 5000)")
    again = Place(place.dsn, tmp_path / "other")
    again.sync()
    again.assert_equal(writer)
    assert {str(table): one.state for table, one in again.status.tables.items()}["public.t"] == "live"


@pytest.mark.parametrize("row", [None, "INSERT INTO t (id) VALUES (1000)"], ids=["no row", "a row"])
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD n int",
        "ALTER TABLE t ADD n int NOT NULL DEFAULT 7",
        "ALTER TABLE t ADD n float8 DEFAULT random()",
        "ALTER TABLE t ADD n int GENERATED ALWAYS AS IDENTITY",
        "ALTER TABLE t DROP v",
        "ALTER TABLE t RENAME v TO w; ALTER TABLE t ADD v int DEFAULT 5",
        "ALTER TABLE t DROP v; ALTER TABLE t ADD v text",
        "ALTER TABLE t ALTER v TYPE bytea USING v::bytea",
        "DROP TABLE t; CREATE TABLE t (id bigint PRIMARY KEY, x text); INSERT INTO t VALUES (7, 'new')",
        "ALTER TABLE t RENAME TO old; CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (8, 'new')",
    ],
)
def test_a_schema_change_while_no_process_runs_is_in_the_lake_after_the_next_sync(
    place: Place, writer: Any, statement: str, row: str | None
) -> None:
    writer.execute(statement)
    if row is not None:
        writer.execute(row)
    assert not place.sync().errors
    place.assert_equal(writer)
    again = place.sync()
    assert (again.counts.total, again.tables) == (0, {})


def test_a_slot_that_is_dropped_while_no_process_runs_is_said_again_and_again(place: Place, writer: Any) -> None:
    writer.execute("SELECT pg_drop_replication_slot('lakefeed_shop')")
    writer.execute("DELETE FROM t WHERE id = 1")
    for _ in range(2):
        with pytest.raises(PositionLostError, match="lakefeed_shop is gone") as caught:
            place.sync()
        assert "lakefeed uninstall FILE, then lakefeed sync FILE" in caught.value.remedy
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    assert writer.execute(slots).fetchone() == (0,)


def test_nothing_is_held_in_the_source_once_the_copies_are_in_the_lake(dsn: str, writer: Any, tmp_path: Path) -> None:
    with Pipeline(Postgres(dsn), MemoryLake(str(tmp_path)), name="shop") as pipeline:
        pipeline.sync_once()
        assert held_in_the_end(writer, 0)
        writer.execute("CREATE TABLE late (id int PRIMARY KEY)")
        pipeline.sync_once()
        assert held_in_the_end(writer, 0)


@pytest.mark.parametrize("tables", [["public.*"], ["t", "u"]], ids=["by a pattern", "by its name"])
def test_a_table_that_lost_its_key_is_blocked_and_comes_back_after_the_remedy(
    place: Place, writer: Any, tables: list[str]
) -> None:
    place.tables = tables
    place.sync()
    rows = place.lake.rows("public.t")
    writer.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    for start in range(3):  # each in a process of its own, the first of which finds it
        writer.execute(f"INSERT INTO u VALUES ({start})")
        ((table, failed),) = place.sync().errors.items()
        assert str(table) == "public.t"
        assert failed.remedy == 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL;'
        found = place.status.tables[table]
        assert (found.state, found.error, found.remedy) == ("blocked", failed.error, failed.remedy)
        assert "it has no primary key" in (failed.error or "")
        place.assert_equal(writer, "u")
    assert place.lake.rows("public.t") == rows
    writer.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    writer.execute("UPDATE t SET v = 'after'")
    place.sync()
    place.assert_equal(writer)


def test_a_running_pipeline_goes_on_after_killed_backends_cut_connections_and_a_crashed_server(
    server: PostgresServer, dsn: str, writer: Any, tmp_path: Path
) -> None:
    lake = MemoryLake(str(tmp_path))
    troubles = Troubles()
    with CuttingProxy(server.port) as proxy:
        through = dsn.replace(f"port={server.port}", f"port={proxy.port}")
        pipeline = Pipeline(Postgres(through), lake, name="shop", listener=troubles)
        thread = threading.Thread(target=pipeline.run)
        thread.start()
        try:
            harms = (lambda: kill_backends(dsn), lambda: proxy.cut_after(5_000), server_crash(server))
            for place, harm in enumerate(harms):
                wait_for_rows(lake, 100 + 1000 * place)
                harm()
                with psycopg.connect(dsn, autocommit=True) as again:
                    first = 1000 * (place + 1)
                    query = "INSERT INTO t SELECT i, 'n' FROM generate_series(%s::int, %s::int) i"
                    again.execute(query, (first, first + 999))
                troubles.wait_for(place + 1)
            wait_for_rows(lake, 3100)
        finally:
            pipeline.stop()
            thread.join(60)
            pipeline.close()
        assert not thread.is_alive()
    with psycopg.connect(dsn, autocommit=True) as again:
        rows = again.execute("SELECT id, v FROM t").fetchall()
    assert sorted((row["id"], row["v"]) for row in lake.rows("public.t")) == sorted(rows)


class Troubles(Listener):
    """Counts how often the pipeline had to begin again."""

    def __init__(self) -> None:
        self.count = 0

    def retrying(self, error: Exception, seconds: float) -> None:
        self.count += 1

    def wait_for(self, count: int) -> None:
        until = time.monotonic() + 120
        while self.count < count:
            assert time.monotonic() < until, f"{self.count} of {count} troubles"
            time.sleep(0.05)


def kill_backends(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        query = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()"
        until = time.monotonic() + 120
        while admin.execute(f"{query} AND active".encode()).fetchall() != [(True,)]:
            assert time.monotonic() < until, "nobody reads from the slot"
            time.sleep(0.05)


def server_crash(server: PostgresServer) -> Callable[[], None]:
    def crash() -> None:
        server.halt(immediate=True)
        server.resume()

    return crash


def wait_for_rows(lake: MemoryLake, count: int) -> None:
    until = time.monotonic() + 120
    while (have := rows_in(lake)) < count:
        assert time.monotonic() < until, f"{have} of {count} rows"
        time.sleep(0.05)


def rows_in(lake: MemoryLake) -> int:
    try:
        return len(lake.rows("public.t"))
    except KeyError:
        return 0  # it is not there yet

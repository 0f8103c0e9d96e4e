"""A publication that somebody else changes: what the stream then leaves out is copied again, or said loudly."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres.rows import drain, facts_of, head, opened

from lakefeed import Pipeline, PipelineOptions, Postgres
from lakefeed.change.change_set import RecopyNeeded, TableDropped, TableNotice
from lakefeed.change.position import Position
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, PositionLostError
from lakefeed.testing.memory_lake import MemoryLake

T, U = TableId("public", "t"), TableId("public", "u")
OPTIONS = PipelineOptions(interval_seconds=0.05, enrol_seconds=0.2)
NAME = "lakefeed_shop"


@pytest.fixture
def writer(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY, v text)")
        connection.execute("INSERT INTO t VALUES (1, 'a'); INSERT INTO u VALUES (1, 'a')")
        yield connection


@pytest.fixture
def lake(tmp_path: Path) -> MemoryLake:
    return MemoryLake(str(tmp_path))


def pipeline_of(dsn: str, lake: MemoryLake) -> Pipeline:
    return Pipeline(Postgres(dsn), lake, name="shop", options=OPTIONS)


@contextmanager
def running(pipeline: Pipeline) -> Iterator[list[BaseException]]:
    """A pipeline at work; what ends it is in the list."""
    ended: list[BaseException] = []

    def run() -> None:
        try:
            pipeline.run()
        except BaseException as error:  # noqa: BLE001  # for the test to look at
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ended
    finally:
        pipeline.stop()
        thread.join(60)
        pipeline.close()
    assert not thread.is_alive()


def wait_until_equal(writer: Any, lake: MemoryLake, table: str = "t") -> None:
    until = time.monotonic() + 60
    while (have := rows_in(lake, table)) != rows_of(writer, table):
        assert time.monotonic() < until, have
        time.sleep(0.05)


def sync_until_equal(pipeline: Pipeline, writer: Any, lake: MemoryLake) -> None:
    """Mostly one sync does. What the catalog says is told once the stream has passed the moment of the look."""
    until = time.monotonic() + 60
    pipeline.sync_once()
    while any(rows_in(lake, table) != rows_of(writer, table) for table in ("t", "u")):
        assert time.monotonic() < until
        pipeline.sync_once()


def rows_in(lake: MemoryLake, table: str) -> dict[int, str]:
    if TableId("public", table) not in lake.tables:
        return {}
    return {row["id"]: row["v"] for row in lake.rows(f"public.{table}")}


def rows_of(writer: Any, table: str) -> dict[int, str]:
    return dict(writer.execute(f"SELECT id, v FROM {table}").fetchall())


def told(dsn: str, writer: Any, *statements: str) -> list[TableNotice]:
    """What a process that runs says once it has looked."""
    with opened(Postgres(dsn), "shop") as capture:
        position: Position = capture.prepare([T, U])
        drain(capture, position)
        for statement in statements:
            writer.execute(statement)
        capture.discover()
        capture.discover()
        sets = drain(capture, position)
        sets += drain(capture, sets[-1].end if sets else position)
        capture.discover()
        again = drain(capture, sets[-1].end if sets else position)
        assert not [notice for one in again for notice in one.notices]
        return [notice for one in sets for notice in one.notices]


def test_a_table_that_is_taken_out_while_no_process_runs_is_copied_anew(
    dsn: str, writer: Any, lake: MemoryLake
) -> None:
    with pipeline_of(dsn, lake) as pipeline:
        pipeline.sync_once()
    writer.execute(f"ALTER PUBLICATION {NAME} DROP TABLE t; DELETE FROM t; INSERT INTO t VALUES (2, 'b')")
    writer.execute("INSERT INTO u VALUES (2, 'b')")
    with pipeline_of(dsn, lake) as pipeline:
        sync_until_equal(pipeline, writer, lake)
        writer.execute("INSERT INTO t VALUES (3, 'c')")
        pipeline.sync_once()
        assert rows_in(lake, "t") == rows_of(writer, "t")


@pytest.mark.parametrize("stopped", [False, True])
def test_a_dropped_table_is_in_the_status(dsn: str, writer: Any, lake: MemoryLake, stopped: bool) -> None:
    with pipeline_of(dsn, lake) as pipeline:
        pipeline.sync_once()
        if stopped:
            pipeline.close()
        writer.execute("DROP TABLE t")
        with running(pipeline):
            until = time.monotonic() + 60
            while pipeline.status().tables[T].state != "dropped":
                assert time.monotonic() < until
                time.sleep(0.05)
    assert rows_in(lake, "t") == {1: "a"}


def test_a_table_that_is_taken_out_while_it_runs_is_copied_anew(dsn: str, writer: Any, lake: MemoryLake) -> None:
    with running(pipeline_of(dsn, lake)):
        wait_until_equal(writer, lake)
        writer.execute(f"ALTER PUBLICATION {NAME} DROP TABLE t; DELETE FROM t; INSERT INTO t VALUES (2, 'b')")
        wait_until_equal(writer, lake)
        writer.execute("INSERT INTO t VALUES (3, 'c')")
        wait_until_equal(writer, lake)


def test_a_dropped_publication_is_made_again_and_everything_copied_anew_or_it_is_a_lost_position(
    dsn: str, writer: Any, lake: MemoryLake
) -> None:
    """PostgreSQL 18 sends nothing without a publication and says so in its own log only; older ones refuse to go on."""
    with running(pipeline_of(dsn, lake)) as ended:
        wait_until_equal(writer, lake)
        wait_until_equal(writer, lake, "u")
        writer.execute(f"DROP PUBLICATION {NAME}; DELETE FROM t; INSERT INTO t VALUES (2, 'b')")
        writer.execute("INSERT INTO u VALUES (2, 'b')")
        if writer.info.server_version >= 180_000:
            wait_until_equal(writer, lake)
            wait_until_equal(writer, lake, "u")
            return
        until = time.monotonic() + 60
        while not ended:
            assert time.monotonic() < until
            time.sleep(0.05)
    assert isinstance(ended[0], PositionLostError)


def test_preflight_names_a_dropped_publication(dsn: str, writer: Any, lake: MemoryLake) -> None:
    with pipeline_of(dsn, lake) as pipeline:
        pipeline.sync_once()
        assert not [finding for finding in pipeline.check() if "dropped" in finding.problem]
        writer.execute(f"DROP PUBLICATION {NAME}")
        (finding,) = [finding for finding in pipeline.check() if "dropped" in finding.problem]
        assert NAME in finding.problem
        assert "every table is copied again" in finding.remedy


@pytest.mark.parametrize(
    ("statement", "repair"),
    [
        (f"ALTER PUBLICATION {NAME} SET (publish = 'insert')", "insert, update, delete, truncate"),
        (f"ALTER PUBLICATION {NAME} SET TABLE t WHERE (id > 5), u", "DROP TABLE"),
    ],
)
def test_a_publication_that_leaves_changes_out_stops_the_pipeline_and_they_are_not_lost_after_the_remedy(
    dsn: str, writer: Any, lake: MemoryLake, statement: str, repair: str
) -> None:
    with pipeline_of(dsn, lake) as pipeline:
        pipeline.sync_once()
        writer.execute(statement)
        writer.execute("DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (2, 'b'); UPDATE u SET v = 'b'")
        for _ in range(2):
            with pytest.raises(ConfigError, match="changes would be missing") as caught:
                pipeline.sync_once()
            assert repair in caught.value.remedy
            writer.execute("INSERT INTO t VALUES (3, 'c') ON CONFLICT DO NOTHING")
        for remedy in caught.value.remedy.split(";")[:-1]:
            writer.execute(f"{remedy};")
        sync_until_equal(pipeline, writer, lake)


def test_what_the_publication_leaves_out_while_it_runs_is_said_of_each_table_once(dsn: str, writer: Any) -> None:
    reason = f'publication "{NAME}" has a column list or a row filter for public.t'
    assert told(dsn, writer, f"ALTER PUBLICATION {NAME} SET TABLE t (id, v), u") == [RecopyNeeded(T, reason)]


def test_a_table_that_was_taken_out_and_put_back_between_two_looks_is_copied_anew(dsn: str, writer: Any) -> None:
    found = told(dsn, writer, f"ALTER PUBLICATION {NAME} DROP TABLE t; ALTER PUBLICATION {NAME} ADD TABLE t")
    assert found == [RecopyNeeded(T, "it was removed from the publication and added again")]


def test_a_publication_that_was_made_anew_between_two_looks_is_noticed(dsn: str, writer: Any) -> None:
    made = f"DROP PUBLICATION {NAME}; CREATE PUBLICATION {NAME} FOR TABLE t, u WITH (publish_via_partition_root)"
    assert {notice.table for notice in told(dsn, writer, made)} == {T, U}


def test_partitions_under_their_own_names_do_not_concern_other_tables(dsn: str, writer: Any) -> None:
    assert told(dsn, writer, f"ALTER PUBLICATION {NAME} SET (publish_via_partition_root = false)") == []


def test_published_generated_columns_are_refused_where_a_table_has_some(dsn: str, writer: Any) -> None:
    if writer.info.server_version < 180_000:
        return  # there is no such option
    options = "publish_via_partition_root, publish_generated_columns = stored"
    writer.execute(f"CREATE PUBLICATION {NAME} FOR TABLE t WITH ({options})")
    with opened(Postgres(dsn), "shop") as capture:
        capture.prepare([T])
        writer.execute("ALTER TABLE t ADD n int GENERATED ALWAYS AS (id * 2) STORED")
        with pytest.raises(ConfigError, match=r"publishes generated columns of public\.t") as caught:
            capture.prepare([T])
        writer.execute(caught.value.remedy.split(";")[0])
        capture.prepare([T])


def test_what_was_due_when_the_connection_broke_is_said_by_the_next_one(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn), "shop") as capture:
        start = capture.prepare([T, U])
        drain(capture, start)
        writer.execute("DROP TABLE t")
        capture.discover()
        assert facts_of(capture).due(head(writer))  # and before it is handed out, the connection breaks
        capture.close()
        capture.open()
        capture.continuity(start, [])
        sets = drain(capture, start)
        sets += drain(capture, sets[-1].end if sets else start)
        assert [notice for one in sets for notice in one.notices] == [TableDropped(T)]


def test_a_schema_that_waits_for_the_end_of_its_transaction_is_told_after_a_break(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn), "shop") as capture:
        start = capture.prepare([T])
        drain(capture, start)
        writer.execute("ALTER TABLE t ADD n int")
        capture.discover()
        stream = capture._stream
        assert stream is not None
        stream.builder.reached = head(writer)
        stream.builder.in_transaction = True  # a large one, of which a part has come
        assert next(capture.live(start, wait_seconds=0.1)).is_heartbeat
        assert not stream.builder.is_empty
        capture.close()
        capture.open()
        capture.continuity(start, [])
        drain(capture, start)
        capture.discover()
        sets = drain(capture, start)
        sets += drain(capture, sets[-1].end if sets else start)
        assert [schema.names for one in sets for schema in one.schemas] == [("id", "v", "n")]

"""Partitioned tables are one table: identities of partitions, and what is done to partitions as a whole."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres.rows import PostgresLog, changes, copied, drain, opened

from lakefeed import Pipeline, Postgres
from lakefeed.change.change_set import RecopyNeeded
from lakefeed.change.position import Position
from lakefeed.change.table import TableId
from lakefeed.errors import SourceSetupError
from lakefeed.testing.memory_lake import MemoryLake

T = TableId("public", "t")
LOW, HIGH = 'its partition "public"."low" was', 'the table "public"."high" was attached to it as a partition, with rows'


@pytest.fixture
def writer(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def table(writer: Any) -> None:
    writer.execute("CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    writer.execute("CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    writer.execute("CREATE TABLE middle PARTITION OF t FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)")
    writer.execute("CREATE TABLE inside PARTITION OF middle FOR VALUES FROM (10) TO (20)")
    writer.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(0, 19) i")


def reasons(capture: PostgresLog, position: Position) -> list[str]:
    """Of the copies that are asked for after a look, in two rounds: what the catalog says comes behind the stream."""
    capture.discover()
    sets = drain(capture, position)
    sets += drain(capture, sets[-1].end if sets else position)
    notices = [notice for one in sets for notice in one.notices]
    assert all(isinstance(notice, RecopyNeeded) and notice.columns is None for notice in notices)
    return [notice.reason for notice in notices if isinstance(notice, RecopyNeeded)]


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("DROP TABLE low", f"{LOW} dropped or detached"),
        ("ALTER TABLE t DETACH PARTITION low", f"{LOW} dropped or detached"),
        ("ALTER TABLE t DETACH PARTITION middle", 'its partition "public"."inside" was dropped or detached'),
        ("TRUNCATE low", f"{LOW} truncated"),
        ("TRUNCATE low; INSERT INTO t VALUES (1, 'again'); ANALYZE low", f"{LOW} truncated"),
        ("VACUUM FULL low", None),
        ("VACUUM FREEZE low; CLUSTER low USING low_pkey", None),
        ("CREATE TABLE high AS SELECT 20 AS id, 'x' AS v; ALTER TABLE high ALTER id SET NOT NULL", None),
        ("CREATE TABLE high PARTITION OF t FOR VALUES FROM (20) TO (30); INSERT INTO t VALUES (20, 'x')", None),
        ("TRUNCATE t", 'its partition "public"."inside" was truncated'),  # one copy too many: the stream tells it
        ("ALTER TABLE low RENAME TO lowest", None),
    ],
)
def test_what_is_done_to_partitions_as_a_whole_asks_for_a_new_copy_once(
    dsn: str, writer: Any, statement: str, reason: str | None
) -> None:
    with opened(Postgres(dsn, tables=["t"])) as capture:
        position: Position = capture.prepare([T])
        drain(capture, position)
        for part in statement.split("; "):
            writer.execute(part)
        expected = [reason] if reason is not None else []
        assert reasons(capture, position) == expected
        later = drain(capture, position)
        assert reasons(capture, later[-1].end if later else position) == []


@pytest.mark.usefixtures("table")
def test_a_table_that_is_attached_with_rows_asks_for_a_new_copy_and_an_empty_one_does_not(
    dsn: str, writer: Any
) -> None:
    with opened(Postgres(dsn, tables=["t"])) as capture:
        position: Position = capture.prepare([T])
        for name, first in (("empty", 30), ("high", 20)):
            writer.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
            if name == "high":
                writer.execute("INSERT INTO high VALUES (20, 'x')")
                writer.execute("ALTER TABLE high RENAME TO higher; ALTER TABLE higher RENAME TO high")
            attached = f"ALTER TABLE t ATTACH PARTITION {name} FOR VALUES FROM ({first}) TO ({first + 10})"
            writer.execute(attached)
            assert reasons(capture, position) == ([HIGH] if name == "high" else [])
        capture.prepare([T])
        assert 20 in [row["id"] for row in copied(capture, T)]


@pytest.mark.usefixtures("table")
def test_what_was_attached_since_a_snapshot_is_copied_from_a_newer_one(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn, tables=["t"])) as capture:
        capture.prepare([T])
        assert len(copied(capture, T)) == 20
        writer.execute("CREATE TABLE high (id int PRIMARY KEY, v text); INSERT INTO high VALUES (20, 'x')")
        writer.execute("ALTER TABLE t ATTACH PARTITION high FOR VALUES FROM (20) TO (30)")
        capture.prepare([T])  # for whatever reason, before the stream has come to the attachment
        assert len(copied(capture, T)) == 21


@pytest.mark.usefixtures("table")
def test_what_happened_while_the_connection_was_lost_is_said_until_it_is_durable(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn, tables=["t"])) as capture:
        position: Position = capture.prepare([T])
        drain(capture, position)
        capture.close()
        writer.execute("TRUNCATE low")
        capture.open()
        for place in range(3):
            capture.continuity(position, [T])
            capture.recall([])
            assert reasons(capture, position) == ([f"{LOW} truncated"] if place < 2 else [])
            capture.close()
            capture.open()
            if place == 1:  # what was told is in the journal now, and more that came behind it
                writer.execute("INSERT INTO t VALUES (1, 'a')")
                position = drain(capture, position)[-1].end


def lake_rows(lake: MemoryLake) -> list[tuple[int, str]]:
    return sorted((row["id"], row["v"]) for row in lake.rows("public.t"))


@pytest.mark.usefixtures("table")
def test_a_pipeline_follows_partitions_that_come_and_go(dsn: str, writer: Any, tmp_path: Path) -> None:
    lake = MemoryLake(str(tmp_path))
    with Pipeline(Postgres(dsn, tables=["t"]), lake, name="shop") as pipeline:
        for statement in (
            "INSERT INTO t VALUES (9, 'w') ON CONFLICT DO NOTHING",
            "TRUNCATE low",
            "INSERT INTO low VALUES (1, 'again')",
            "ALTER TABLE t DETACH PARTITION low",
            "UPDATE t SET v = 'x'",
            "ALTER TABLE t ATTACH PARTITION low FOR VALUES FROM (0) TO (10)",
            "DROP TABLE middle",
            "INSERT INTO t VALUES (2, 'y')",
        ):
            writer.execute(statement)
            until = time.monotonic() + 60
            pipeline.sync_once()
            while (rows := lake_rows(lake)) != sorted(writer.execute("SELECT id, v FROM t").fetchall()):
                assert time.monotonic() < until, (statement, rows)
                pipeline.sync_once()  # partitions are told once the stream has passed the moment of the look


def test_a_deferrable_key_is_no_identity_and_is_never_published(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    with opened(Postgres(dsn)) as capture:
        assert [schema.table for schema in capture.discover()] == []
        with pytest.raises(SourceSetupError, match="deferrable") as caught:
            capture.prepare([T])
        writer.execute("UPDATE t SET v = 'c' WHERE id = 1")  # the application goes on
        writer.execute(caught.value.remedy)
        (schema,) = capture.discover()
        assert schema.key == ()  # inside a transaction it may be there twice
        start = capture.prepare([T])
        writer.execute("UPDATE t SET id = 3 - id")
        rows = [(row["_lakefeed_op"], row["id"], row["v"]) for row in changes(drain(capture, start))]
        assert rows == [(3, 2, "b"), (1, 1, "b"), (3, 1, "c"), (1, 2, "c")]


def test_partitions_have_identities_of_their_own_which_the_remedy_changes_too(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE t (id int, v text) PARTITION BY RANGE (id)")
    writer.execute("CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    writer.execute("INSERT INTO t VALUES (1, 'a')")
    with opened(Postgres(dsn)) as capture:
        with pytest.raises(SourceSetupError, match="no primary key") as caught:
            capture.prepare([T])
        assert '"low" REPLICA IDENTITY FULL; ALTER TABLE "public"."t" REPLICA' in caught.value.remedy
        writer.execute("ALTER TABLE t REPLICA IDENTITY FULL")
        with pytest.raises(SourceSetupError, match="partition") as caught:
            capture.prepare([T])
        assert caught.value.remedy == 'ALTER TABLE "public"."low" REPLICA IDENTITY FULL;'
        writer.execute(caught.value.remedy)
        start = capture.prepare([T])
        writer.execute("UPDATE t SET v = 'b'")  # which would fail if the partition had no identity
        assert [(row["_lakefeed_op"], row["v"]) for row in changes(drain(capture, start))] == [(3, "a"), (1, "b")]


def test_an_identity_index_that_the_partitions_do_not_have_is_refused(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL, UNIQUE (id, n)) PARTITION BY RANGE (id)")
    writer.execute("CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    writer.execute("INSERT INTO t VALUES (1, 1); ALTER TABLE t REPLICA IDENTITY USING INDEX t_id_n_key")
    with opened(Postgres(dsn)) as capture:
        with pytest.raises(SourceSetupError, match=r'partition "public"\."low" has another replica identity') as caught:
            capture.prepare([T])
        writer.execute(caught.value.remedy)
        start = capture.prepare([T])
        writer.execute("DELETE FROM t")
        assert [(row["id"], row["n"]) for row in changes(drain(capture, start))] == [(1, 1)]

"""What an application does to its tables while Lakefeed follows: its statements go on, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres.rows import changes, drain, facts_of, opened

from lakefeed import Pipeline, Postgres
from lakefeed.capture.postgres import walsender
from lakefeed.capture.postgres.catalog import CatalogFacts, read_facts
from lakefeed.capture.postgres.database import Database
from lakefeed.change.change_set import RecopyNeeded, TableBlocked
from lakefeed.change.table import TableId
from lakefeed.errors import PositionLostError
from lakefeed.testing.memory_lake import MemoryLake
from lakefeed.testing.server.postgres import PostgresServer, find_binaries

T, U = TableId("public", "t"), TableId("public", "u")


@pytest.fixture
def writer(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY, v text)")
        connection.execute("INSERT INTO t VALUES (1, 'a'); INSERT INTO u VALUES (1, 'a')")
        yield connection


@pytest.mark.parametrize(
    ("statement", "repair"),
    [
        ("ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (id)"),
        ("ALTER TABLE t REPLICA IDENTITY NOTHING", "ALTER TABLE t REPLICA IDENTITY DEFAULT"),
    ],
)
def test_a_table_that_loses_its_identity_leaves_the_publication_and_is_blocked(
    dsn: str, writer: Any, tmp_path: Path, statement: str, repair: str
) -> None:
    lake = MemoryLake(str(tmp_path))
    with Pipeline(Postgres(dsn), lake, name="p") as pipeline:
        pipeline.sync_once()
        writer.execute(statement)
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            writer.execute("UPDATE t SET v = 'b'")
        findings = [one for one in Postgres(dsn).bind("p").check() if one.table == T]
        assert any("is published all the same" in one.problem for one in findings)
        pipeline.sync_once()
        writer.execute("UPDATE t SET v = 'b'")  # as the next reading of the catalog has ended that
        pipeline.sync_once()
        assert pipeline.status().tables[T].state == "blocked"
        writer.execute("UPDATE u SET v = 'b'")
        pipeline.sync_once()
        assert lake.rows("public.u") == [{"id": 1, "v": "b"}]
        writer.execute(repair)
    with Pipeline(Postgres(dsn), lake, name="p") as pipeline:
        pipeline.sync_once()
        assert lake.rows("public.t") == [{"id": 1, "v": "b"}]
        writer.execute("UPDATE t SET v = 'c'")
        pipeline.sync_once()
        assert pipeline.status().tables[T].state == "live"
    assert lake.rows("public.t") == [{"id": 1, "v": "c"}]


def test_the_statement_that_check_prints_ends_what_a_published_table_without_identity_suffers(
    dsn: str, writer: Any
) -> None:
    with opened(Postgres(dsn), "p") as capture:
        capture.prepare([T, U])
    writer.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    (finding,) = [one for one in Postgres(dsn).bind("p").check() if "published all the same" in one.problem]
    writer.execute(finding.remedy)
    writer.execute("UPDATE t SET v = 'b'")


@pytest.mark.parametrize("stopped", [False, True])
def test_a_partitioned_table_that_is_renamed_ends_up_right(
    dsn: str, writer: Any, tmp_path: Path, stopped: bool
) -> None:
    writer.execute("CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    writer.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100); INSERT INTO p VALUES (1, 'a')")
    lake = MemoryLake(str(tmp_path))
    renames = "UPDATE p SET v = 'b'; ALTER TABLE p RENAME TO q; INSERT INTO q VALUES (2, 'c')"
    with Pipeline(Postgres(dsn), lake, name="p") as pipeline:
        pipeline.sync_once()
        writer.execute("UPDATE p SET v = 'x'")
        pipeline.sync_once()
        if not stopped:
            writer.execute(renames)
            for number in range(3, 6):
                pipeline.sync_once()
                writer.execute(f"INSERT INTO q VALUES ({number}, 'd')")
    if stopped:
        writer.execute(renames)
    with Pipeline(Postgres(dsn), lake, name="p") as pipeline:
        for number in range(6, 9):
            pipeline.sync_once()
            writer.execute(f"INSERT INTO q VALUES ({number}, 'd')")
        pipeline.sync_once()
        pipeline.sync_once()
        assert pipeline.status().tables[TableId("public", "p")].state == "dropped"
    wanted = writer.execute("SELECT id, v FROM q ORDER BY id").fetchall()
    assert sorted((row["id"], row["v"]) for row in lake.rows("public.q")) == wanted


@pytest.mark.parametrize(
    ("statements", "names"),
    [
        ("ALTER TABLE t ADD c8 int; UPDATE t SET c8 = 5", ("id", "v", "c8")),
        ("ALTER TABLE t DROP v; UPDATE t SET id = id", ("id",)),
        ("ALTER TABLE t RENAME v TO w; UPDATE t SET id = id", ("id", "w")),
    ],
)
def test_a_change_of_columns_that_the_catalog_shows_much_later_costs_no_copy(
    dsn: str, writer: Any, monkeypatch: pytest.MonkeyPatch, statements: str, names: tuple[str, ...]
) -> None:
    """A commit is in the log before anybody sees it. However long that takes, the next number is the new column's."""
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T])
        drain(capture, start)
        seen: list[CatalogFacts] = []

        def early(connection: Any, relations: Any) -> CatalogFacts:
            """The reading from before the ALTER, again and again."""
            if not seen:
                seen.append(read_facts(connection, relations))
            return seen[0]

        monkeypatch.setattr(walsender, "read_facts", early)
        writer.execute("UPDATE t SET v = 'b'")
        sets = drain(capture, start)
        assert seen
        for one in statements.split("; "):
            writer.execute(one)
        sets += drain(capture, sets[-1].end)
        monkeypatch.undo()
        capture.discover()
        for _ in range(2):
            writer.execute("UPDATE t SET id = id")
            sets += drain(capture, sets[-1].end)
        assert [notice for one in sets for notice in one.notices] == []
        known = facts_of(capture).known(T)
        assert known is not None
        assert known.schema.names == names
        oid = known.life
        (numbers,) = writer.execute(
            "SELECT array_agg(attnum::int ORDER BY attnum) FROM pg_attribute WHERE attrelid = %s AND attnum > 0"
            " AND NOT attisdropped AND attgenerated = ''", (oid,)
        ).fetchone()  # fmt: skip
        assert [one.id for one in known.schema.columns] == [f"{oid}.{number}" for number in numbers]


def test_rows_of_an_older_shape_before_a_copy_are_no_change_of_type(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T])
        drain(capture, start)
        writer.execute("UPDATE t SET v = '7'")
        writer.execute("ALTER TABLE t ALTER v TYPE int USING v::int")
        writer.execute("UPDATE t SET v = 8")
        capture.prepare([T])  # as a rebuild from the source does, while the stream is behind
        capture.snapshot(T)
        sets = drain(capture, start)
        notices = [notice for one in sets for notice in one.notices]
        assert notices == [RecopyNeeded(T, "its columns changed while it was being copied")]
        assert [row["v"] for row in changes(sets)] == ["7", 8]


def test_a_table_that_is_dropped_while_the_catalog_is_read_stops_nobody(
    dsn: str, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reading has a table whole or not at all, on one connection."""
    connects: list[str] = []
    with opened(Postgres(dsn)) as capture:
        real, connect = capture.choose, Database.connect

        def and_drop(there: Any) -> Any:
            found = real(there)
            writer.execute("DROP TABLE IF EXISTS t")
            return found

        def counted(database: Database, name: str, *more: Any, **options: Any) -> Any:
            connects.append(name)
            return connect(database, name, *more, **options)

        monkeypatch.setattr(capture, "choose", and_drop)
        monkeypatch.setattr(Database, "connect", counted)
        assert [schema.table for schema in capture.discover()] == [T, U]
        assert [schema.table for schema in capture.discover()] == [U]
        assert len(connects) == 2


def test_a_generated_key_blocks_that_table_alone_also_if_it_comes_later(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T, U])
        writer.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD g int GENERATED ALWAYS AS (id + 1) STORED")
        writer.execute("ALTER TABLE t ADD PRIMARY KEY (g); INSERT INTO u VALUES (2, 'b')")
        assert [schema.table for schema in capture.discover()] == [U]
        sets = drain(capture, start)
        sets += drain(capture, sets[-1].end)
        (notice,) = [notice for one in sets for notice in one.notices]
        assert isinstance(notice, TableBlocked)
        assert notice.table == T
        assert [row["id"] for row in changes(sets)] == [2]


def test_the_remedy_for_an_invalidated_slot_works_as_printed(tmp_path: Path) -> None:
    """Uninstall, then sync: every table is copied again."""
    binaries = find_binaries()
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with (
        PostgresServer.start(binaries[max(binaries)], settings) as server,
        psycopg.connect(server.dsn, autocommit=True) as writer,
    ):
        writer.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
        lake = MemoryLake(str(tmp_path))
        with Pipeline(Postgres(server.dsn), lake, name="p") as pipeline:
            pipeline.sync_once()
        for number in range(2, 6):
            writer.execute(f"INSERT INTO t VALUES ({number})")
            writer.execute("SELECT pg_switch_wal()")
        writer.execute("CHECKPOINT")
        with (
            pytest.raises(PositionLostError, match="invalidated") as caught,
            Pipeline(Postgres(server.dsn), lake, name="p") as pipeline,
        ):
            pipeline.sync_once()
        assert "lakefeed uninstall FILE, then lakefeed sync FILE" in caught.value.remedy
        Pipeline(Postgres(server.dsn), lake, name="p").uninstall()
        with Pipeline(Postgres(server.dsn), lake, name="p") as pipeline:
            pipeline.sync_once()
            writer.execute("INSERT INTO t VALUES (6)")
            pipeline.sync_once()
        assert sorted(row["id"] for row in lake.rows("public.t")) == [1, 2, 3, 4, 5, 6]

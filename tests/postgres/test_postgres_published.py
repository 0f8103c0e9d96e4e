"""A table that comes to a publication that is there already: its copy and the stream leave nothing out between them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.postgres.rows import PostgresLog, drain, opened
from tests.postgres.test_postgres_exported import held_in_the_end

from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.position import Position
from lakefeed.change.table import TableId
from lakefeed.errors import SourceSetupError
from lakefeed.testing.replica import Replica

A, B, C = (TableId("public", name) for name in "abc")


@pytest.fixture
def writer(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table in (A, B, C):
            connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)".encode())
        yield connection


def put(writer: Any, table: TableId, key: int) -> None:
    writer.execute(f"INSERT INTO {table} VALUES ({key})")


def ids(capture: PostgresLog, copy: Replica, table: TableId, after: Position) -> list[int]:
    """The rows of a copy and of what comes after it."""
    for change_set in drain(capture, after):
        copy.apply(change_set)
    return sorted(row["id"] for row in copy.rows(table))


def test_a_table_that_is_published_after_the_slot_was_made_has_a_copy_from_after_that(dsn: str, writer: Any) -> None:
    """Row 1 is in no stream: the table is not published yet. Nothing ever touches it again."""
    with opened(Postgres(dsn)) as capture:
        capture.prepare([A])
        first = capture.snapshot(A)
        put(writer, B, 1)
        low = capture.prepare([B])
        put(writer, B, 2)
        copy = Replica()
        copy.copy(capture.snapshot(B))
        put(writer, B, 3)
        assert ids(capture, copy, B, low) == [1, 2, 3]
        with first.chunks[0].open() as reader:  # the other copy goes on as it was planned
            assert reader.low == reader.high == low


def test_a_new_table_is_not_copied_from_the_snapshot_of_another_one_while_the_stream_is_behind(
    dsn: str, writer: Any
) -> None:
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([A])
        capture.copied(A)
        put(writer, A, 1)
        position = drain(capture, start)[-1].end
        capture.snapshot(A)  # anew, and the stream does not go on meanwhile
        put(writer, B, 1)
        low = capture.prepare([B])
        copy = Replica()
        copy.copy(capture.snapshot(B))
        assert low <= position
        assert ids(capture, copy, B, position) == [1]


def test_a_table_that_was_rewritten_since_is_not_copied_from_the_snapshot_of_before(dsn: str, writer: Any) -> None:
    """All its rows are of the transaction that rewrote it, so that the snapshot shows none."""
    put(writer, B, 1)
    with opened(Postgres(dsn)) as capture:
        low = capture.prepare([A, B])
        writer.execute("ALTER TABLE b ALTER id TYPE bigint")
        copy = Replica()
        copy.copy(capture.snapshot(B))
        assert ids(capture, copy, B, low) == [1]


def test_a_transaction_that_began_before_the_table_was_published_is_in_its_copy(dsn: str, writer: Any) -> None:
    """The stream has no change that was written before; making the snapshot waits for the end of whoever wrote it."""
    with opened(Postgres(dsn)) as capture, psycopg.connect(dsn) as slow:
        capture.prepare([A])
        capture.snapshot(A)
        slow.execute("INSERT INTO b VALUES (1)")
        low = capture.prepare([B])
        slow.execute("INSERT INTO b VALUES (2)")
        ending = threading.Timer(1.0, slow.commit)
        ending.start()
        copy = Replica()
        copy.copy(capture.snapshot(B))
        ending.join()
        assert ids(capture, copy, B, low) == [1, 2]


def test_a_table_that_somebody_else_published_is_copied_from_after_that_too(dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn)) as capture:
        capture.prepare([A])
    with opened(Postgres(dsn, provision=False)) as capture:
        low = capture.prepare([A])
        capture.snapshot(A)
        with pytest.raises(SourceSetupError) as caught:
            capture.prepare([B])
        put(writer, B, 1)
        writer.execute(caught.value.remedy.removeprefix("Run: "))
        capture.prepare([B])
        copy = Replica()
        copy.copy(capture.snapshot(B))
        assert ids(capture, copy, B, low) == [1]


def test_tables_that_may_be_published_are_before_the_slot_is_made_and_share_its_snapshot(dsn: str, writer: Any) -> None:
    """The flow prepares one by one if it cannot all at once, and plans each copy in between."""
    name = writer.info.dbname
    writer.execute(f"CREATE ROLE owner_{name} LOGIN REPLICATION; GRANT CREATE ON DATABASE {name} TO owner_{name}")
    try:
        writer.execute(f"ALTER TABLE a OWNER TO owner_{name}; ALTER TABLE b OWNER TO owner_{name}")
        with opened(Postgres(dsn.replace("user=postgres", f"user=owner_{name}"))) as capture:
            with pytest.raises(SourceSetupError, match="may not prepare the source"):
                capture.prepare([A, B, C])
            put(writer, B, 1)
            low = capture.prepare([A])
            capture.snapshot(A)
            put(writer, B, 2)
            assert capture.prepare([B]) == low
            copy = Replica()
            copy.copy(capture.snapshot(B))
            assert held_in_the_end(writer, 1)
            put(writer, B, 3)
            assert ids(capture, copy, B, low) == [1, 2, 3]
            with pytest.raises(SourceSetupError, match="owner"):
                capture.prepare([C])
    finally:
        writer.execute(f"DROP OWNED BY owner_{name}; DROP ROLE owner_{name}")

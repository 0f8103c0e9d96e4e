"""A row that PostgreSQL cannot send, or that is not UTF-8, is its table's trouble: the others go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres.rows import changes, copied, drain, opened

from lakefeed.capture.postgres import pgoutput, walsender
from lakefeed.capture.postgres.source import Postgres
from lakefeed.capture.postgres.wire import SocketWire
from lakefeed.change.change_set import RecopyNeeded, TableBlocked
from lakefeed.change.table import TableId
from lakefeed.errors import SourceError, TableStoppedError
from lakefeed.flow.pipeline import Pipeline
from lakefeed.testing.memory_lake import MemoryLake
from lakefeed.testing.server.postgres import PostgresServer

T, U = TableId("public", "t"), TableId("public", "u")
# Its values can be read and sent in binary form, but not printed: as those are whose text would have more than 1 GB.
ODD = """
CREATE TYPE odd;
CREATE FUNCTION odd_in(cstring) RETURNS odd LANGUAGE internal IMMUTABLE STRICT AS 'byteain';
CREATE FUNCTION odd_out(odd) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'shell_out';
CREATE FUNCTION odd_send(odd) RETURNS bytea LANGUAGE internal IMMUTABLE STRICT AS 'byteasend';
CREATE TYPE odd (input = odd_in, output = odd_out, send = odd_send, storage = extended);
CREATE TABLE t (id int PRIMARY KEY, v odd);
CREATE TABLE u (id int PRIMARY KEY, v text)
"""


@pytest.fixture
def ascii_dsn(server: PostgresServer) -> Iterator[str]:
    name = "test_without_encoding"
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'".encode())
        yield server.dsn.replace("dbname=postgres", f"dbname={name}")
        admin.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", (name,)
        )
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def seen(change_sets: list[Any]) -> tuple[list[int], list[Any]]:
    """The keys of the rows, and the notices."""
    return [row["id"] for row in changes(change_sets)], [notice for one in change_sets for notice in one.notices]


def test_a_text_that_is_not_utf8_blocks_its_table_and_the_remedy_corrects_it(ascii_dsn: str) -> None:
    odd = TableId("public", 't"t')
    with psycopg.connect(ascii_dsn, autocommit=True) as writer, opened(Postgres(ascii_dsn)) as capture:
        writer.execute('CREATE TABLE "t""t" (id int PRIMARY KEY, "v""v" text); CREATE TABLE u (id int PRIMARY KEY)')
        position = capture.prepare([odd, U])
        writer.execute("INSERT INTO u VALUES (1)")
        writer.execute(
            b'INSERT INTO "t""t" VALUES'
            b" (2, E'caf\\xe9'), (3, E'caf\\xc3\\xa9 \\xe2\\x98\\x83 \\xf0\\x9d\\x84\\x9e')"
        )
        writer.execute("INSERT INTO u VALUES (4)")
        keys, (notice,) = seen(drain(capture, position))
        assert keys == [1, 4]
        assert isinstance(notice, TableBlocked)
        assert notice.table == odd
        with pytest.raises(TableStoppedError, match="not UTF-8"):
            copied(capture, odd)
        assert [row["id"] for row in copied(capture, U)] == [1, 4]  # on the same connection
        writer.execute(notice.remedy[notice.remedy.index("UPDATE") :].encode())
        capture.close()  # the snapshot of before goes
        capture.open()
        assert {row["id"]: row['v"v'] for row in copied(capture, odd)} == {2: "café", 3: "café ☃ 𝄞"}


@pytest.mark.parametrize("large", [False, True])
def test_a_row_that_cannot_be_printed_is_its_tables_trouble(
    dsn: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgoutput, "LARGE_BYTES", 10 if large else pgoutput.LARGE_BYTES)
    with psycopg.connect(dsn, autocommit=True) as writer, opened(Postgres(dsn)) as capture:
        writer.execute(ODD)
        position = capture.prepare([T, U])
        writer.execute("INSERT INTO u VALUES (1, 'a')")
        writer.execute("INSERT INTO t VALUES (2, 'abc')")
        writer.execute("INSERT INTO u VALUES (3, 'b')")
        keys, (notice,) = seen(drain(capture, position))
        assert keys == [1, 3]
        assert (type(notice), notice.table) == (TableBlocked if large else RecopyNeeded, T)
        with pytest.raises(TableStoppedError, match="cannot send it"):
            copied(capture, T)
        writer.execute("DELETE FROM t; INSERT INTO u VALUES (4, 'c')")
        assert 4 in seen(drain(capture, capture._stream.builder.position if capture._stream else position))[0]


def test_what_was_given_of_the_transaction_before_its_unprintable_row_is_not_given_again(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The beginning is large enough to be decoded before its commit has come."""
    monkeypatch.setattr(pgoutput, "PIECE_BYTES", 1_000)
    with psycopg.connect(dsn, autocommit=True) as writer, opened(Postgres(dsn)) as capture:
        writer.execute(ODD)
        position = capture.prepare([T, U])
        with writer.transaction():
            writer.execute("INSERT INTO u SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i")
            writer.execute("INSERT INTO t VALUES (1, 'abc')")
            writer.execute("INSERT INTO u VALUES (0, 'last')")
        writer.execute("INSERT INTO u VALUES (-1, 'next')")
        keys, notices = seen(drain(capture, position))
        assert len(keys) == len(set(keys))
        assert {notice.table for notice in notices} == {T, U}  # the last row of u came in binary form, too
        assert keys[-1] == -1


def test_an_internal_error_of_the_catalog_is_told_and_loses_no_row(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """XX000 is also what a lookup says of a table that was dropped a moment ago: no reason to read binary rows."""

    def fail(*_: Any) -> Any:
        raise psycopg.errors.InternalError_("cache lookup failed")

    with psycopg.connect(dsn, autocommit=True) as writer, opened(Postgres(dsn)) as capture:
        writer.execute("CREATE TABLE u (id int PRIMARY KEY, v text)")
        position = capture.prepare([U])
        writer.execute("INSERT INTO u VALUES (1, 'a')")
        with monkeypatch.context() as patched:
            patched.setattr(walsender, "read_facts", fail)
            with pytest.raises(SourceError, match="cache lookup failed"):
                drain(capture, position)
        assert seen(drain(capture, position)) == ([1], [])


def test_a_fault_that_is_no_row_is_told_after_one_reading_in_binary_form(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms = list[bool]()

    def fail(self: Any, command: str) -> None:
        forms.append("binary 'true'" in command)
        monkeypatch.setattr(self, "read", lambda *_: raised(psycopg.errors.InternalError_("out of order")))

    def raised(error: Exception) -> Any:
        raise error

    with psycopg.connect(dsn, autocommit=True) as writer, opened(Postgres(dsn)) as capture:
        writer.execute("CREATE TABLE u (id int PRIMARY KEY, v text)")
        position = capture.prepare([U])
        with monkeypatch.context() as patched:
            patched.setattr(SocketWire, "start", fail)
            with pytest.raises(SourceError, match="out of order"):
                drain(capture, position)
        assert forms == [False, True]
        writer.execute("INSERT INTO u VALUES (1, 'a')")
        assert seen(drain(capture, position)) == ([1], [])


def test_a_row_that_can_be_sent_in_no_form_is_named_and_the_remedy_works_as_printed(dsn: str, tmp_path: Path) -> None:
    """As one of more than 1 GB in both forms."""
    lake = MemoryLake(str(tmp_path))
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute(ODD.replace("byteasend", "shell_out"))
        with Pipeline(Postgres(dsn), lake, name="p") as pipeline:
            pipeline.sync_once()
            writer.execute("INSERT INTO t VALUES (2, 'abc')")
            with pytest.raises(
                SourceError, match=r"cannot send the transaction after .*, perhaps a row of public\.t"
            ) as caught:
                pipeline.sync_once()
        assert "or delete it" in caught.value.remedy
        assert "run `lakefeed uninstall`, which drops the slot, then `lakefeed sync`" in caught.value.remedy
        writer.execute("DELETE FROM t")
        assert Pipeline(Postgres(dsn), lake, name="p").uninstall()
        with Pipeline(Postgres(dsn), lake, name="p") as pipeline:
            assert not pipeline.sync_once().errors
            writer.execute("INSERT INTO u VALUES (3, 'b')")
            assert not pipeline.sync_once().errors
    assert [row["id"] for row in lake.rows("public.u")] == [3]


@pytest.mark.slow
def test_a_bytea_whose_text_has_more_than_a_gigabyte_blocks_its_table(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as writer, opened(Postgres(dsn)) as capture:
        writer.execute("CREATE TABLE t (id int PRIMARY KEY, v bytea); CREATE TABLE u (id int PRIMARY KEY)")
        writer.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
        position = capture.prepare([T, U])
        writer.execute("INSERT INTO u VALUES (1)")
        writer.execute("INSERT INTO t SELECT 2, convert_to(repeat('x', 600000000), 'SQL_ASCII')")
        writer.execute("INSERT INTO u VALUES (3)")
        keys, (notice,) = seen(drain(capture, position))
        assert keys == [1, 3]
        assert isinstance(notice, TableBlocked)
        assert notice.table == T
        assert "1 GB" in notice.remedy

"""Copies: exact at one place in the log while the plan's process lives, bracketed by visibility after that."""

from __future__ import annotations

import pickle
import threading
import time
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.postgres.rows import PostgresLog, changes, copied, drain, opened

from lakefeed.capture.postgres import dialect
from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.table import TableId
from lakefeed.errors import SourceError, SourceSetupError
from lakefeed.testing.replica import Replica

T = TableId("public", "t")


@pytest.fixture
def writer(dsn: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def prepared(capture: PostgresLog, *tables: TableId) -> Any:
    return capture.prepare(tables or [T])


def test_every_chunk_is_exact_at_the_position_of_the_plan(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    writer.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i")
    with opened(Postgres(dsn)) as capture:
        start = prepared(capture)
        plan = capture.snapshot(T, chunk_rows=100)
        assert len(plan.chunks) == 10
        for place, chunk in enumerate(plan.chunks):
            writer.execute("UPDATE t SET v = v + 1")  # while the copy runs
            with pickle.loads(pickle.dumps(chunk)).open() as reader:
                rows = [row for batch in reader for row in batch.to_pylist()]
                assert (reader.low, reader.high) == (start, start)
            assert rows == [{"id": key, "v": 0} for key in range(place * 100 + 1, place * 100 + 101)]


def test_t05_after_a_restart_a_chunk_has_a_bracket_and_the_copy_converges(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    writer.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i")
    with opened(Postgres(dsn)) as capture:
        start = prepared(capture)
        plan = capture.snapshot(T, chunk_rows=30)
        saved = [chunk.to_json() for chunk in plan.chunks]
    writer.execute("UPDATE t SET v = 1 WHERE id <= 50")
    with opened(Postgres(dsn)) as capture:
        chunks = [capture.chunk(data) for data in saved]
        assert chunks == list(plan.chunks)
        with chunks[0].open() as reader:
            assert {row["v"] for batch in reader for row in batch.to_pylist()} == {1}
            assert start < reader.low <= reader.high
        copy = Replica()
        copy.copy(plan)
        writer.execute("DELETE FROM t WHERE id % 2 = 0")
        for change_set in drain(capture, start):
            copy.apply(change_set)
        assert {row["id"]: row["v"] for row in copy.rows(T)} == dict(writer.execute("SELECT id, v FROM t").fetchall())


def test_t05_the_low_mark_waits_for_transactions_that_may_be_committing(dsn: str, writer: Any) -> None:
    """An active statement of an open transaction may be its commit; one whose client is idle is none."""
    writer.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with opened(Postgres(dsn)) as capture:
        prepared(capture)
        saved = capture.snapshot(T).chunks[0].to_json()
    with opened(Postgres(dsn)) as capture, psycopg.connect(dsn) as slow:
        slow.execute("INSERT INTO t VALUES (1)")
        began = time.monotonic()
        with capture.chunk(saved).open():  # idle in transaction
            assert time.monotonic() - began < 20
        state = "SELECT state FROM pg_stat_activity WHERE pid = %s"
        busy = threading.Thread(target=lambda: slow.execute("SELECT pg_sleep(1)"), daemon=True)
        busy.start()
        until = time.monotonic() + 60
        while busy.is_alive() and writer.execute(state, (slow.info.backend_pid,)).fetchone() != ("active",):
            assert time.monotonic() < until
        with capture.chunk(saved).open():
            assert writer.execute(state, (slow.info.backend_pid,)).fetchone() == ("idle in transaction",)
        busy.join(60)
        assert not busy.is_alive()


def test_a_later_copy_has_everything_that_was_delivered_before(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with opened(Postgres(dsn)) as capture:
        start = prepared(capture)
        writer.execute("INSERT INTO t VALUES (1)")
        end = drain(capture, start)[-1].end
        plan = capture.snapshot(T)
        with plan.chunks[0].open() as reader:
            assert [row["id"] for batch in reader for row in batch.to_pylist()] == [1]
            assert reader.low == reader.high >= end


def test_a_new_table_is_added_without_a_gap_while_others_stream(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with opened(Postgres(dsn)) as capture:
        start = prepared(capture)
        drain(capture, start)
        writer.execute("CREATE TABLE u (id int PRIMARY KEY, v text)")
        writer.execute("INSERT INTO u VALUES (1, 'before'), (3, 'before, and never again')")
        new = TableId("public", "u")
        assert new in [schema.table for schema in capture.discover()]
        prepared(capture, new)
        writer.execute("INSERT INTO u VALUES (2, 'between')")
        copy = Replica()
        copy.copy(capture.snapshot(new))
        writer.execute("UPDATE u SET v = 'after' WHERE id = 1")
        for change_set in drain(capture, start):
            copy.apply(change_set)
        assert {row["id"]: row["v"] for row in copy.rows(new)} == {
            1: "after",
            2: "between",
            3: "before, and never again",
        }


def test_keys_of_any_type_split_into_ranges(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TYPE mood AS ENUM ('z', 'a')")
    writer.execute("CREATE TABLE t (m mood, n numeric, s text, d timestamptz, v int, PRIMARY KEY (m, n, s, d))")
    writer.execute(
        "INSERT INTO t SELECT (ARRAY['z','a'])[1 + i % 2]::mood, i / 7.0, 'it''s ' || chr(65 + i % 26),"
        " now() + i * interval '1 us', i FROM generate_series(1, 200) i"
    )
    with opened(Postgres(dsn)) as capture:
        prepared(capture)
        plan = capture.snapshot(T, chunk_rows=17)
        assert len(plan.chunks) == 12
        assert sorted(row["v"] for row in copied(capture, T, 17)) == list(range(1, 201))
        assert plan.rows_estimate == 200


def test_a_partitioned_table_is_one_table(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE t (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)")
    writer.execute("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM ('2024-01-01') TO ('2024-02-01')")
    writer.execute("CREATE TABLE t2 PARTITION OF t FOR VALUES FROM ('2024-02-01') TO ('2024-03-01')")
    writer.execute("INSERT INTO t SELECT i, date '2024-01-01' + i % 59 FROM generate_series(1, 100) i")
    with opened(Postgres(dsn)) as capture:
        assert [schema.table for schema in capture.discover()] == [T]
        start = prepared(capture)
        assert sorted(row["id"] for row in copied(capture, T, 30)) == list(range(1, 101))
        writer.execute("UPDATE t SET day = '2024-02-10' WHERE id = 1")
        writer.execute("INSERT INTO t VALUES (500, '2024-01-05')")
        assert {row["id"] for row in changes(drain(capture, start))} == {1, 500}


def test_a_table_without_a_key_is_copied_and_streamed_as_whole_rows(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE t (a int, b text); ALTER TABLE t REPLICA IDENTITY FULL")
    writer.execute("INSERT INTO t VALUES (1, 'x'), (1, 'x'), (NULL, NULL)")
    with opened(Postgres(dsn)) as capture:
        (schema,) = capture.discover()
        assert schema.key == ()
        start = prepared(capture)
        assert len(copied(capture, T, 1)) == 3
        writer.execute("UPDATE t SET b = 'y' WHERE a IS NULL")
        delete, insert = changes(drain(capture, start))
        assert (delete["_lakefeed_op"], delete["b"], insert["_lakefeed_op"], insert["b"]) == (3, None, 1, "y")


def test_a_table_without_identity_is_never_published_and_always_named(dsn: str, writer: Any) -> None:
    """A published table without identity would refuse the application's own updates."""
    writer.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE keyless (a int); CREATE UNLOGGED TABLE fast (a int)"
    )
    keyless = TableId("public", "keyless")
    with opened(Postgres(dsn)) as capture:
        assert [schema.table for schema in capture.discover()] == [T]
        with pytest.raises(SourceSetupError, match="no primary key") as caught:
            capture.prepare([keyless])
        assert caught.value.remedy == 'ALTER TABLE "public"."keyless" REPLICA IDENTITY FULL;'
        prepared(capture)
        writer.execute("INSERT INTO keyless VALUES (1); UPDATE keyless SET a = 2")
        named = {finding.table for finding in capture.check()}
        assert {keyless, TableId("public", "fast")} <= named


def test_empty_tables_and_tables_of_no_columns_are_copied(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE void (); ALTER TABLE void REPLICA IDENTITY FULL")
    writer.execute("INSERT INTO void DEFAULT VALUES; INSERT INTO void DEFAULT VALUES")
    void = TableId("public", "void")
    with opened(Postgres(dsn)) as capture:
        prepared(capture, T, void)
        assert copied(capture, T) == []
        with capture.snapshot(void).chunks[0].open() as reader:
            assert sum(batch.num_rows for batch in reader) == 2


def test_rows_that_a_policy_hides_are_an_error_and_not_a_shorter_copy(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    with opened(Postgres(dsn)) as capture:
        prepared(capture)
        saved = capture.snapshot(T).chunks[0]
    writer.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON t USING (id = 1)")
    writer.execute("DO $$ BEGIN CREATE ROLE limited LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    writer.execute("GRANT SELECT ON t TO limited")
    limited = Postgres(dsn.replace("user=postgres", "user=limited")).bind("test").chunk(saved.to_json())
    with limited.open() as reader, pytest.raises(SourceError, match="row-level security"):
        list(reader)


def test_a_chunk_has_the_layout_of_its_schema(dsn: str, writer: Any) -> None:
    writer.execute('CREATE TABLE t (id int PRIMARY KEY, "Odd Name" text NOT NULL, "odd name" numeric(5,2))')
    writer.execute("INSERT INTO t VALUES (1, '', NULL)")
    with opened(Postgres(dsn)) as capture:
        prepared(capture)
        plan = capture.snapshot(T)
        with plan.chunks[0].open() as reader:
            (batch,) = list(reader)
        assert batch.schema == plan.schema.arrow
        assert batch.schema.field("odd name").type == pa.decimal128(5, 2)
        assert batch.to_pylist() == [{"id": 1, "Odd Name": "", "odd name": None}]


def test_large_tables_are_split_by_a_sample(dsn: str, writer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "COUNTED_BYTES", 0)
    writer.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    writer.execute("INSERT INTO t SELECT i * 1000, 'v' FROM generate_series(1, 20000) i")
    writer.execute("ANALYZE t")
    with opened(Postgres(dsn)) as capture:
        prepared(capture)
        plan = capture.snapshot(T, chunk_rows=1000)
        chunks = plan.chunks
        assert plan.rows_estimate == 20000
        assert 10 <= len(chunks) <= 20
        sizes = []
        for chunk in chunks:
            with chunk.open() as reader:
                sizes.append(sum(batch.num_rows for batch in reader))
        assert sum(sizes) == 20000
        assert max(sizes) < 6000

"""A standby is promoted: the pipeline goes on without a copy where the timeline shows that it can, and stops with the
reason where it cannot. Real servers, real base backups; the lake is in memory, so that nothing but the source counts.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import pytest

from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.batch import OP, Operation
from lakefeed.change.table import TableId
from lakefeed.errors import PositionLostError, SourceChangedError, SourceUnavailableError
from lakefeed.flow import run_loop
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.pipeline import Pipeline
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.testing.memory_lake import MemoryLake
from lakefeed.testing.server.base import free_port
from lakefeed.testing.server.postgres import PostgresServer, dropped, find_binaries

T = TableId("public", "t")
SLOT = "lakefeed_shop"
OPTIONS = PipelineOptions(
    interval_seconds=0.05, journal=JournalOptions(fsync=False, keep_seconds=0, keep_change_sets=100_000)
)

pytestmark = pytest.mark.timeout(600)


class Pair:
    """Two addresses, a primary at one of them, and most of the time its standby at the other. Of the newest version,
    or the one that LAKEFEED_POSTGRES_VERSION names."""

    def __init__(self) -> None:
        found = find_binaries()
        version = int(os.environ.get("LAKEFEED_POSTGRES_VERSION", max(found)))
        self.primary = PostgresServer.start(found[version], {"wal_keep_size": "256MB", "wal_log_hints": "on"})
        self.standby: PostgresServer | None = None
        self.ports = (self.primary.port, free_port())
        with self.connect() as connection:
            connection.execute("CREATE TABLE t (id bigint PRIMARY KEY, v int)")

    @property
    def dsn(self) -> str:
        """Whichever of the two is the primary: nothing but the hosts is said."""
        ports = ",".join(map(str, self.ports))
        return f"host=127.0.0.1,127.0.0.1 port={ports} user=postgres dbname=postgres connect_timeout=3"

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.primary.dsn, autocommit=True)

    def add_standby(self, settings: dict[str, str] | None = None) -> PostgresServer:
        other = next(port for port in self.ports if port != self.primary.port)
        self.standby = self.primary.standby(settings, port=other)
        return self.standby

    def wait_for_slot(self) -> None:
        """Until the standby has the pipeline's slot for good. It gets there while the pipeline goes on."""
        assert self.standby is not None
        kept = f"SELECT FROM pg_replication_slots WHERE slot_name = '{SLOT}' AND synced AND NOT temporary"
        until = time.monotonic() + 60
        with psycopg.connect(self.standby.dsn, autocommit=True) as connection:
            while connection.execute(kept.encode()).fetchone() is None:
                assert time.monotonic() < until, self.standby.log()[-3000:]
                time.sleep(0.05)

    def fail_over(self) -> None:
        """The primary dies, and its standby takes over."""
        assert self.standby is not None
        old, self.primary, self.standby = self.primary, self.standby, None
        old.close()
        self.primary.promote()

    def close(self) -> None:
        for server in (self.primary, self.standby):
            if server is not None:
                server.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


class Writer(threading.Thread):
    """Inserts ever new rows and updates old ones, wherever the primary is. What the database has counts, not this."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(daemon=True)
        self._dsn, self._ended, self.number = f"{pair.dsn} target_session_attrs=primary", threading.Event(), 0

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                with psycopg.connect(self._dsn, autocommit=True) as connection:
                    while not self._ended.is_set():
                        self.number += 1  # one that is refused is not tried again: its number stays free
                        connection.execute("INSERT INTO t VALUES (%s, 0)", (self.number,))
                        connection.execute("UPDATE t SET v = v + 1 WHERE id = %s", (self.number // 2,))
                        time.sleep(0.004)
            except psycopg.Error:
                time.sleep(0.05)

    def end(self) -> None:
        self._ended.set()
        self.join(30)


@contextmanager
def writing(pair: Pair) -> Iterator[Writer]:
    writer = Writer(pair)
    writer.start()
    try:
        yield writer
    finally:
        writer.end()


def pipeline_of(pair: Pair, lake: MemoryLake, dsn: str | None = None, **options: str) -> Pipeline:
    return Pipeline(Postgres(dsn or pair.dsn, **options), lake, name="shop", options=OPTIONS)  # type: ignore[arg-type]


def rows_of(pair: Pair) -> list[tuple[object, ...]]:
    with pair.connect() as connection:
        return connection.execute("SELECT id, v FROM t ORDER BY id").fetchall()


def lake_rows(lake: MemoryLake) -> list[tuple[object, ...]]:
    return sorted((row["id"], row["v"]) for row in lake.rows("public.t"))


def inserts(lake: MemoryLake) -> Counter[int]:
    """How often each row was inserted, by every change set that was ever journaled."""
    journal, found = Journal.read(Path(lake.path) / "_lakefeed" / "shop"), Counter[int]()
    for segment in journal.window(T, 0, journal.head).segments:
        table = pq.read_table(segment.path, columns=[OP, "id"])
        for operation, number in zip(table[OP].to_pylist(), table["id"].to_pylist(), strict=True):
            found[int(number or 0)] += operation == Operation.INSERT
    return found


def promoted_under_load(pair: Pair, lake: MemoryLake, promotions: int) -> None:
    """One process follows through all of them. Nothing is lost, nothing comes twice, nothing is copied again."""
    with pair.connect() as connection:
        connection.execute("INSERT INTO t SELECT -n, 0 FROM generate_series(1, 1000) n")
    pipeline = pipeline_of(pair, lake)
    pipeline.sync_once()
    generation = lake.tables[T].generation
    failed: list[BaseException] = []

    def follow() -> None:
        try:
            pipeline.run()
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=follow, daemon=True)
    with pipeline, writing(pair) as writer:
        thread.start()
        for turn in range(promotions):
            pair.add_standby()
            pair.wait_for_slot()
            pair.fail_over()
            reached, until = writer.number, time.monotonic() + 60
            while max(key for (key,) in list(lake.tables[T].rows)) <= reached:
                assert time.monotonic() < until, f"promotion {turn + 1}: {failed or pipeline.status()}"
                assert not failed
                time.sleep(0.2)
            print(f"promotion {turn + 1} survived", flush=True)
        writer.end()
        pipeline.stop()
        thread.join(30)
    with pipeline_of(pair, lake) as pipeline:
        pipeline.sync_once()
    assert lake_rows(lake) == rows_of(pair)
    assert max(inserts(lake).values()) == 1
    assert lake.tables[T].generation == generation
    journal = Journal.read(Path(lake.path) / "_lakefeed" / "shop")
    assert [one.identity.split(", ")[1] for one in journal.predecessors] == [
        f"timeline {number}" for number in range(1, promotions + 1)
    ]
    assert f"timeline {promotions + 1}," in str(journal.identity)


def test_a_promoted_standby_with_the_slot_goes_on_under_load_without_a_copy(pair: Pair, tmp_path: Path) -> None:
    """The connection string names both servers."""
    promoted_under_load(pair, MemoryLake(str(tmp_path)), promotions=1)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_twenty_promotions_under_load_lose_nothing_and_repeat_nothing(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A promotion follows the last one within seconds, so pauses would double up to half a minute each time.
    monkeypatch.setattr(run_loop, "_LONGEST_PAUSE_SECONDS", 2.0)
    lake = MemoryLake(str(tmp_path))
    promoted_under_load(pair, lake, promotions=20)
    print(f"20 promotions: {len(rows_of(pair))} rows, {sum(inserts(lake).values())} inserts journaled, 1 copy")


def test_what_is_no_continuation_is_refused_and_says_what_is_missing(pair: Pair, tmp_path: Path) -> None:
    """One pair, in this order: a standby in recovery, a standby without the slot, one that is behind the pipeline, and
    the old primary once the pipeline has gone on with the new one."""
    lake = MemoryLake(str(tmp_path))
    with pipeline_of(pair, lake) as pipeline:
        pipeline.sync_once()
    # Asked directly, a standby is waited for and never an end of the pipeline.
    without = pair.primary.standby({"sync_replication_slots": "off"})
    with pipeline_of(pair, lake, without.dsn) as pipeline, pytest.raises(SourceUnavailableError, match="is a standby"):
        pipeline.sync_once()
    # A physical standby that does not keep slots, and a restored base backup, have no slot.
    with without:
        without.promote()
        with pipeline_of(pair, lake, without.dsn) as pipeline, pytest.raises(PositionLostError) as lost:
            pipeline.sync_once()
        assert f"the replication slot {SLOT} is gone" in lost.value.message
        assert "timeline 2" in lost.value.message
        assert "sync_replication_slots" in lost.value.message
        # Somebody makes a new slot there: it does not have what came before.
        with psycopg.connect(without.dsn, autocommit=True) as connection:
            connection.execute("INSERT INTO t VALUES (1, 1)")
            connection.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')".encode())
        with pipeline_of(pair, lake, without.dsn) as pipeline, pytest.raises(PositionLostError, match="ahead of"):
            pipeline.sync_once()
    # A standby that keeps the slot and is behind the pipeline: it was cut off, and nobody waited for it.
    pair.add_standby()
    with pair.connect() as connection:
        connection.execute("INSERT INTO t VALUES (2, 2)")
    with pipeline_of(pair, lake) as pipeline:
        pipeline.sync_once()
        pair.wait_for_slot()
    assert pair.standby is not None
    behind, pair.standby = pair.standby, None
    with behind:
        with psycopg.connect(behind.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_wal_replay_pause()")
            connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
        behind.halt()
        behind.settings = {**behind.settings, "primary_conninfo": ""}
        behind.resume()
        with pair.connect() as connection:
            connection.execute("ALTER SYSTEM RESET synchronized_standby_slots")
            connection.execute("SELECT pg_reload_conf()")
            connection.execute("INSERT INTO t VALUES (3, 3)")
        with pipeline_of(pair, lake, pair.primary.dsn) as pipeline:
            pipeline.sync_once()
        behind.promote()
        with pipeline_of(pair, lake, behind.dsn) as pipeline, pytest.raises(PositionLostError) as lost:
            pipeline.sync_once()
        assert "which left timeline 1 at " in lost.value.message
        assert "bytes of log that it has read were never on this server" in lost.value.message
        assert "lakefeed uninstall FILE, then lakefeed sync FILE" in lost.value.remedy
        with pipeline_of(pair, lake, behind.dsn) as pipeline:  # and that works
            pipeline.uninstall()
            pipeline.sync_once()
            assert [row["id"] for row in lake.rows("public.t")] == [2]
        # The pipeline is on timeline 2 now, and the old primary is still running.
        with pipeline_of(pair, lake, pair.primary.dsn) as pipeline, pytest.raises(PositionLostError) as lost:
            pipeline.sync_once()
        assert "does not descend from timeline 2" in lost.value.message
        assert "it is a primary from before a fail-over" in lost.value.message


def test_a_slot_from_before_failover_slots_becomes_one(pair: Pair, tmp_path: Path) -> None:
    lake = MemoryLake(str(tmp_path))
    with pair.connect() as connection:
        connection.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')".encode())
        with pipeline_of(pair, lake) as pipeline:
            assert any("does not survive a fail-over" in one.problem for one in pipeline.check())
            pipeline.sync_once()
        assert connection.execute("SELECT failover FROM pg_replication_slots").fetchone() == (True,)


@pytest.mark.slow
def test_a_cluster_that_pg_upgrade_made_is_refused_until_the_operator_says_so(pair: Pair, tmp_path: Path) -> None:
    """It has another system identifier and its log goes on elsewhere; the slot was taken along. To the newest version,
    from itself, which pg_upgrade does, too, or from the one that LAKEFEED_POSTGRES_VERSION names."""
    lake = MemoryLake(str(tmp_path))
    with pair.connect() as connection:
        connection.execute("INSERT INTO t VALUES (1, 1)")
    with pipeline_of(pair, lake, pair.primary.dsn) as pipeline:
        pipeline.sync_once()
        generation = lake.tables[T].generation
        thread = threading.Thread(target=pipeline.run, daemon=True)  # pg_upgrade wants all of the log to be consumed
        thread.start()
        time.sleep(1.0)
        pair.primary.halt()
        pipeline.stop()
        thread.join(30)
    old = pair.primary
    binaries = find_binaries()
    plain = [] if old.binaries == binaries[max(binaries)] else ["--no-data-checksums"]  # the default of 18 is another
    with PostgresServer.start(binaries[max(binaries)], initdb=plain) as new:
        new.halt()
        options = ["--no-sync", "-p", str(old.port), "-P", str(new.port), "-U", "postgres", "-s", str(new.directory)]
        where = ["-b", old.binaries, "-B", new.binaries, "-d", old.directory / "data", "-D", new.directory / "data"]
        for directory in (old.directory, new.directory):
            (directory / "data" / "postgresql.auto.conf").write_text(
                "wal_level = logical\nmax_replication_slots = 20\n"
            )
        command = [str(new.binaries / "pg_upgrade"), *options, *map(str, where)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=new.directory, **dropped())
        assert done.returncode == 0, done.stdout + done.stderr
        new.resume()
        with psycopg.connect(new.dsn, autocommit=True) as connection:
            connection.execute("INSERT INTO t VALUES (2, 2)")
        with pipeline_of(pair, lake, new.dsn) as pipeline, pytest.raises(SourceChangedError) as changed:
            pipeline.sync_once()
        assert "another cluster" in changed.value.message
        system = changed.value.remedy.partition('upgraded_from: "')[2].partition('"')[0]
        with pipeline_of(pair, lake, new.dsn, upgraded_from="1") as pipeline, pytest.raises(SourceChangedError):
            pipeline.sync_once()
        with pipeline_of(pair, lake, new.dsn, upgraded_from=system) as pipeline:
            pipeline.sync_once()
        assert lake_rows(lake) == [(1, 1), (2, 2)]
        assert lake.tables[T].generation == generation
        with pipeline_of(pair, lake, new.dsn) as pipeline:  # the line may go again
            pipeline.sync_once()


@pytest.mark.slow
def test_a_rewound_server_is_refused(pair: Pair, tmp_path: Path) -> None:
    """pg_rewind makes the old primary a copy of the new one, and takes its slots away."""
    lake = MemoryLake(str(tmp_path))
    with pipeline_of(pair, lake, pair.primary.dsn) as pipeline:
        pipeline.sync_once()
    standby = pair.add_standby({"sync_replication_slots": "off"})
    standby.promote()
    with psycopg.connect(standby.dsn, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        connection.execute("INSERT INTO t VALUES (7, 7)")
    old = pair.primary
    old.halt()
    program, source = old.binaries / "pg_rewind", f"host=127.0.0.1 port={standby.port} user=postgres dbname=postgres"
    command = [str(program), "-D", str(old.directory / "data"), f"--source-server={source}", "--no-sync"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=old.directory, **dropped())
    assert done.returncode == 0, done.stdout + done.stderr
    standby.halt()
    old.resume()
    with pipeline_of(pair, lake, old.dsn) as pipeline, pytest.raises(PositionLostError, match="is gone"):
        pipeline.sync_once()

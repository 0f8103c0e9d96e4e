"""Another server, or the same one from another time: the pipeline stops, and says which it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.postgres.rows import opened

from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.table import TableId
from lakefeed.errors import PositionLostError, SourceChangedError
from lakefeed.flow.pipeline import Pipeline
from lakefeed.testing.memory_lake import MemoryLake
from lakefeed.testing.server.postgres import PostgresServer, find_binaries

T = TableId("public", "t")


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    binaries = find_binaries()
    with PostgresServer.start(binaries[max(binaries)]) as server:
        with psycopg.connect(server.dsn, autocommit=True) as writer:
            writer.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
        yield server


def begin_new_timeline(server: PostgresServer) -> None:
    """What a failover does, and a restore to a point in time: recovery ends, and history forks. Slots are kept."""
    server.halt()
    (server.directory / "data" / "recovery.signal").touch()
    server.settings = {**server.settings, "restore_command": "false", "recovery_target_action": "promote"}
    server.resume()
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        until = time.monotonic() + 120
        while connection.execute("SELECT pg_is_in_recovery()").fetchone() != (False,):
            assert time.monotonic() < until, "it stays in recovery"
            time.sleep(0.02)


def test_a_server_on_a_new_timeline_stops_the_pipeline_and_both_are_named(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    lake = MemoryLake(str(tmp_path))
    with Pipeline(Postgres(own_server.dsn), lake, name="shop") as pipeline:
        pipeline.sync_once()
    begin_new_timeline(own_server)
    with psycopg.connect(own_server.dsn, autocommit=True) as writer:
        writer.execute("INSERT INTO t VALUES (2)")
        before = writer.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots").fetchone()
        with Pipeline(Postgres(own_server.dsn), lake, name="shop") as pipeline:
            with pytest.raises(SourceChangedError, match=r"timeline 1, .* not to system \d+, timeline 2, ") as caught:
                pipeline.sync_once()
            assert "new pipeline name" in caught.value.remedy
        assert writer.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots").fetchone() == before
    assert [row["id"] for row in lake.rows("public.t")] == [1]


def test_another_server_of_the_same_name_is_not_taken_for_the_pipelines_own(
    own_server: PostgresServer, server: PostgresServer, tmp_path: Path
) -> None:
    lake = MemoryLake(str(tmp_path))
    with Pipeline(Postgres(own_server.dsn), lake, name="shop") as pipeline:
        pipeline.sync_once()
    binaries = find_binaries()
    with PostgresServer.start(binaries[max(binaries)]) as other:
        with psycopg.connect(other.dsn, autocommit=True) as writer:
            writer.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with Pipeline(Postgres(other.dsn), lake, name="shop") as pipeline, pytest.raises(PositionLostError):
            pipeline.sync_once()
        with opened(Postgres(other.dsn), "shop") as capture:
            capture.prepare([T])
        with Pipeline(Postgres(other.dsn), lake, name="shop") as pipeline, pytest.raises(SourceChangedError):
            pipeline.sync_once()

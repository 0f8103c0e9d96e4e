"""Several source tables into one lake table: killed with SIGKILL at every failpoint, under a writer, then compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.test_kill import ONE_LIFE
from tests.crash.union_shop import UnionShop

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(2400)]

UNION_LIFE = [one for one in ONE_LIFE if not one.startswith("lake.after_marks")]
"""The parts of a union are merged by Spark, which marks no rows."""


def test_one_union_killed_at_every_failpoint_in_turn_ends_with_a_lake_equal_to_the_source(tmp_path: Path) -> None:
    shop = UnionShop(tmp_path)
    with shop.writer(seed=1):
        for failpoint in UNION_LIFE:
            shop.run_until_killed(failpoint)
    shop.lakefeed("sync")
    shop.assert_lake_equals_source()
    assert shop.lakefeed("sync")["change_sets"] == 0


@pytest.mark.parametrize("failpoint", UNION_LIFE)
def test_a_union_killed_at_one_failpoint_and_verified_at_once(tmp_path: Path, failpoint: str) -> None:
    shop = UnionShop(tmp_path)
    with shop.writer(seed=2):
        shop.run_until_killed(failpoint)
    shop.lakefeed("sync")
    shop.assert_lake_equals_source()

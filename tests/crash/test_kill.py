"""A running pipeline is killed with SIGKILL at every failpoint, under a writer; then the lake must equal the source."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.compare import assert_lake_equals_source
from tests.crash.shop import Shop

from lakefeed.failpoint import NAMES

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(1500)]

# In the order in which one life of a pipeline meets them; "@2" lets the first pass, so that there is work to lose.
ONE_LIFE = [
    "lake.before_load=kill@2",
    "lake.during_load=kill@2",
    "lake.after_load=kill@1",
    "journal.after_segments=kill@2",
    "journal.before_commit=kill@2",
    "journal.after_commit=kill@2",
    "capture.before_confirm=kill@2",
    "capture.after_confirm=kill@2",
    "lake.before_commit=kill@2",
    "lake.during_commit=kill@2",
    "lake.after_marks=kill@2",
    "lake.after_commit=kill@2",
    "journal.during_trim=kill@1",
]


def test_every_failpoint_is_in_the_chain() -> None:
    assert {item.partition("=")[0] for item in ONE_LIFE} == NAMES


def test_one_pipeline_killed_at_every_failpoint_in_turn_ends_with_a_lake_equal_to_the_source(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.writer(seed=1):
        for failpoint in ONE_LIFE:
            shop.run_until_killed(failpoint)
    shop.lakefeed("sync")
    assert_lake_equals_source(shop)
    assert shop.lakefeed("sync")["change_sets"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", ONE_LIFE)
def test_killed_at_one_failpoint_and_verified_at_once(tmp_path: Path, failpoint: str) -> None:
    shop = Shop(tmp_path)
    with shop.writer(seed=2):
        shop.run_until_killed(failpoint)
    shop.lakefeed("sync")
    assert_lake_equals_source(shop)

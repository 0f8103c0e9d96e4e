"""A running pipeline is killed with SIGKILL at every failpoint, under a writer; then the lake must equal the source."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.compare import assert_lake_equals_source
from tests.crash.shop import Shop

from lakefeed.app.config import load_config
from lakefeed.failpoint import NAMES
from lakefeed.flow.reread.repair import answer, ask
from lakefeed.flow.table_state import Phase, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.storage.location import storage_at

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


IN_A_REPAIR = {"repair.before_append", "repair.after_append"}
"""A life without a repair does not meet them."""


def test_every_failpoint_is_in_the_chain() -> None:
    assert {item.partition("=")[0] for item in ONE_LIFE} == NAMES - IN_A_REPAIR


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


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", sorted(IN_A_REPAIR))
def test_killed_in_a_repair_which_is_then_carried_out_once(tmp_path: Path, failpoint: str) -> None:
    shop = Shop(tmp_path)
    shop.lakefeed("sync")
    state = storage_at(load_config(shop.config).state())
    source = min(one.source for one in TableStates(state).all().values() if one.phase is Phase.LIVE)
    with shop.writer(seed=3):
        name = ask(state, source, [(number,) for number in range(1, 20)], Journal.read(state).head)
        shop.run_until_killed(f"{failpoint}=kill")
    shop.lakefeed("sync")
    done = answer(state, name)
    assert done is not None
    assert done.error is None
    own = [one.number for one in Journal.read(state).commits() if one.start == one.end and one.rows]
    assert set(own) <= set(done.change_sets), "written once"
    assert_lake_equals_source(shop)

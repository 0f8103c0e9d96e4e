"""The short forms of `make faults` and `make soak`. docs/reliability.md has what the long ones survived."""

from __future__ import annotations

import random
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.faults.fault import KINDS, raised
from tests.faults.harness import ALONE_SECONDS, Deck, Result, run, short_pauses
from tests.faults.kind import Kind
from tests.faults.soak import Sample, growth
from tests.faults.world import WORLDS, SqliteWorld, World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

QUICK = [
    "connection cut", "connection half-open", "answer lost", "journal disk full", "state file torn",
    "bit of a state file flipped", "failed at lake.after_commit", "failed at journal.after_commit",
]  # fmt: skip


def survive(source: str, lake: str, names: list[str], seed: int, most: int, spark: SparkSession, path: Path) -> Result:
    result, kinds = Result(), [kind for kind in KINDS if kind.name in names]
    world = WORLDS[source](path, lake, spark)
    try:
        with short_pauses():
            run(world, kinds, seed, result, most=most)
    finally:
        world.close()
    print(result)
    assert not result.findings, str(result)
    return result


def test_some_faults_in_a_row_leave_the_lake_equal_and_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    assert survive("postgres", "delta", QUICK, 3, 8, spark, tmp_path / "world").survived.total() >= 6


@pytest.mark.slow
@pytest.mark.parametrize("lake", ["delta", "iceberg"])
@pytest.mark.parametrize("source", sorted(WORLDS))
def test_the_same_for_every_source_and_format(source: str, lake: str, spark: SparkSession, tmp_path: Path) -> None:
    names = [kind.name for kind in KINDS if "killed" not in kind.name]
    survive(source, lake, names, 5, 25, spark, tmp_path / "world")


def test_an_error_that_no_fault_may_cause_is_a_finding(spark: SparkSession, tmp_path: Path) -> None:
    result, kind = Result(), Kind("journal.before_commit", raised("journal.before_commit"), lane="steps")
    world = SqliteWorld(tmp_path / "world", "delta", spark)
    try:
        with short_pauses():
            run(world, [kind], 1, result, most=3)
    finally:
        world.close()
    assert "failpoint journal.before_commit" in result.findings[0]
    assert not result.survived


def test_those_that_stand_alone_take_turns_and_a_seed_draws_the_others_of_each_lane() -> None:
    world: Any = SimpleNamespace(source="sqlite", format="delta")
    in_lanes = [Kind(f"{lane} {number}", _never, lane=lane) for lane in "ab" for number in range(9)]
    alone = [Kind(f"alone {number}", _never, seconds=3) for number in range(4)]

    def deck() -> Deck:
        return Deck(world, [*in_lanes, *alone], 7, Result())

    one, other = deck(), deck()
    [one.draw("b") for _ in range(5)]  # what another lane has had does not matter
    drawn = [one.draw("a")[0].name for _ in range(20)]
    assert drawn == [other.draw("a")[0].name for _ in range(20)]
    assert len(set(drawn[:9])) > 5  # new ones come first
    assert one.alone() is None
    turns = []
    for _ in range(400):
        one.had(1)
        turns += [kind.name for kind in [one.alone()] if kind]
    assert len(turns) == 400 * ALONE_SECONDS // 3
    assert all(sorted(turns[at : at + 4]) == [kind.name for kind in alone] for at in range(0, 16, 4))


def _never(_world: World, _chance: random.Random) -> bool:
    return False


def test_a_sample_that_grows_is_told_from_one_that_does_not() -> None:
    def sample(seconds: float, **other: float) -> Sample:
        usual: dict[str, Any] = {field.name: 60 for field in fields(Sample)} | {"seconds": seconds}
        return Sample(**usual | other)

    def samples(step: float) -> list[Sample]:
        return [sample(at, python_mb=300 + step * at) for at in range(40)]

    assert growth(samples(0.1)) is None
    assert growth(samples(10)) == "python_mb has grown from 445.0 to 645.0"
    assert growth([*samples(0), *samples(0), sample(80, file_readers=600)]) is not None
    assert growth([*samples(0), *samples(0), sample(80, file_readers=500)]) is None

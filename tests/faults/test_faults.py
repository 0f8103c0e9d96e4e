"""The short forms of `make faults` and `make soak`. docs/reliability.md has what the long ones survived."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.faults.fault import KINDS
from tests.faults.harness import Result, run, short_pauses
from tests.faults.soak import Sample, growth
from tests.faults.world import WORLDS

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

"""The short forms of `make storm`: the mild profile, one kill, one seed. docs/reliability.md has the long ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.storm.storm import Settings, Storm

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(600)]

# The bounds are generous: beside other tests on two cores a fresh JVM needs a minute. `make storm` has 60 and 120 s.
SETTINGS = Settings(seconds=30, kills=1, restarts=0, fresh_seconds=240, drain_seconds=300)


def test_a_mild_storm_with_a_kill_harms_nobody_and_leaves_every_table_equal(tmp_path: Path) -> None:
    result = Storm(replace(SETTINGS, directory=tmp_path)).run()
    print(result)
    assert not result.findings, str(result)
    assert result.kills == 1
    assert result.statements > 100
    assert result.equal > 5


@pytest.mark.slow
@pytest.mark.parametrize("source", ["sqlite", "mysql", "mariadb"])
def test_the_same_for_the_other_sources_with_a_kill_and_a_crash(source: str, tmp_path: Path) -> None:
    result = Storm(replace(SETTINGS, source=source, restarts=1, directory=tmp_path)).run()
    print(result)
    assert not result.findings, str(result)
    assert (result.kills, result.restarts) == (1, 1)
    assert result.statements > 100
    assert result.equal > 5

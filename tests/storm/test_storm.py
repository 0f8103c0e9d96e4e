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


def test_a_mild_storm_over_sqlite_with_a_writer_that_crashes_leaves_every_table_equal(tmp_path: Path) -> None:
    """Without a kill: one start of a JVM fits into half a minute, two do not."""
    settings = replace(SETTINGS, source="sqlite", seconds=8, kills=0, restarts=1)
    result = Storm(replace(settings, directory=tmp_path)).run()
    print(result)
    assert not result.findings, str(result)
    assert result.restarts == 1
    assert result.statements > 40
    assert result.equal > 5

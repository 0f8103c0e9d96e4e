"""What ``lakefeed init`` writes names what there is."""

from __future__ import annotations

import pytest

from lakefeed.app.command.prepare import template
from lakefeed.capture.registry import SOURCES
from lakefeed.lake.mode import MODES


@pytest.mark.parametrize("source", SOURCES)
def test_the_comment_beside_the_mode_names_every_mode_as_there(source: str) -> None:
    (line,) = [line for line in template(source, "shop.yaml").splitlines() if line.startswith("  mode:")]
    assert all(mode in line for mode in MODES)
    assert "docs/" not in template(source, "shop.yaml"), "an installed package has no such directory"
    assert "later" not in line

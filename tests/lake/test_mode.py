"""Modes by name."""

from __future__ import annotations

import pytest

from lakefeed.errors import ConfigError
from lakefeed.lake.mode import mode_named


def test_b10_temporal_mode_is_refused_with_the_choices_until_it_exists() -> None:
    with pytest.raises(ConfigError, match="'temporal' is not a mode that this version has") as refused:
        mode_named("temporal")
    assert refused.value.remedy == "Choose one of: mirror."

"""Modes by name."""

from __future__ import annotations

import pytest

from lakefeed.errors import ConfigError
from lakefeed.lake.mode import (
    Append,
    Mirror,
    Mode,
    Temporal,
    checked_mode,
    described,
    mode_from_json,
    mode_named,
    mode_to_json,
)

EVERY: list[Mode] = [
    Mirror(),
    Mirror(soft_delete="deleted_at", metadata=("operation", "position"), keyless="append"),
    Temporal(),
    Temporal(valid_from="since", track=("price", "name")),
    Append(),
]


def test_an_unknown_mode_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="'cube' is not a mode that this version has") as refused:
        mode_named("cube")
    assert refused.value.remedy == "Choose one of: append, mirror, temporal."
    with pytest.raises(ConfigError, match="7 is not a mode"):
        checked_mode(7)


def test_an_unknown_option_is_refused_with_the_options_there_are() -> None:
    with pytest.raises(ConfigError, match="mode mirror has no option 'track'") as refused:
        mode_named("mirror", {"track": ["a"]})
    assert "soft_delete" in refused.value.remedy
    with pytest.raises(ConfigError, match="'when' is not a choice for metadata"):
        Mirror(metadata=("when",))
    with pytest.raises(ConfigError, match="not both"):
        Temporal(track=("a",), track_except=("b",))
    with pytest.raises(ConfigError, match="different names"):
        Temporal(valid_from="at", valid_to="AT")


@pytest.mark.parametrize("mode", EVERY, ids=described)
def test_a_mode_survives_being_written_down(mode: Mode) -> None:
    assert mode_from_json(mode_to_json(mode)) == mode


def test_a_mode_is_described_by_what_differs_from_its_defaults() -> None:
    assert described(Mirror()) == "mirror"
    assert described(Temporal(valid_from="since")) == "temporal(valid_from='since')"

"""Modes by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lakefeed.errors import ConfigError
from lakefeed.lake.mode import (
    Append,
    Mirror,
    Mode,
    Temporal,
    checked_mode,
    mode_from_json,
    mode_named,
)

EVERY: list[Mode] = [
    Mirror(),
    Mirror(soft_delete="deleted_at", metadata=("operation", "position"), keyless="append"),
    Temporal(),
    Temporal(valid_from="since", track=("price", "name")),
    Append(),
]


def test_an_unknown_mode_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="this version has no mode 'cube'") as refused:
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


WRONG: list[tuple[str, str, object, str, str]] = [
    ("temporal", "track_except", "seen_at", "is a list of names, not 'seen_at'", '["seen_at"]'),
    ("temporal", "track", "status", "is a list of names, not 'status'", '("status",)'),
    ("temporal", "track", ["status", True], "is a list of names", '["a"]'),
    ("temporal", "track", {"status": 1}, "is a list of names", '["a"]'),
    ("temporal", "track_except", None, "is a list of names, not None", '["a"]'),
    ("temporal", "valid_from", 7, "is the name of a column, not 7", '"valid_from"'),
    ("temporal", "is_current", ["now"], "is the name of a column", '"is_current"'),
    ("mirror", "soft_delete", True, "is the name of a column, not True", 'soft_delete: "deleted_at"'),
    ("mirror", "soft_delete", "", "is the name of a column, not ''", 'soft_delete: "deleted_at"'),
    ("mirror", "metadata", "position", "is a list of names, not 'position'", '["position"]'),
    ("mirror", "keyless", True, "'True' is not a choice for keyless", "match, append"),
]


@pytest.mark.parametrize(("mode", "option", "given", "problem", "form"), WRONG)
def test_an_option_of_a_wrong_type_is_refused_with_the_right_form(
    mode: str, option: str, given: object, problem: str, form: str
) -> None:
    made: dict[str, Callable[..., Any]] = {"mirror": Mirror, "temporal": Temporal}
    for make in (lambda: mode_named(mode, {option: given}), lambda: made[mode](**{option: given})):
        with pytest.raises(ConfigError) as refused:
            make()
        assert option in refused.value.message
        assert problem in refused.value.message
        assert form in refused.value.remedy


def test_a_list_of_names_is_the_same_as_a_tuple_of_them() -> None:
    listed: Any = ["note", "seen_at"]
    assert Temporal(track_except=listed) == mode_named("temporal", {"track_except": listed})
    assert Temporal(track=listed).describe() == Temporal(track=("note", "seen_at")).describe()
    assert hash(Mirror(metadata=listed[:0])) == hash(Mirror())


@pytest.mark.parametrize("mode", EVERY, ids=Mode.describe)
def test_a_mode_survives_being_written_down(mode: Mode) -> None:
    assert mode_from_json(mode.to_json()) == mode


def test_a_mode_is_described_by_what_differs_from_its_defaults() -> None:
    assert Mirror().describe() == "mirror"
    assert Temporal(valid_from="since").describe() == "temporal(valid_from='since')"

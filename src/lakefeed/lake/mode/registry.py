"""The modes by their names in the configuration. To add one, add a file beside this one and a line in ``MODES``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lakefeed.errors import ConfigError
from lakefeed.lake.mode.append import Append
from lakefeed.lake.mode.base import Mode
from lakefeed.lake.mode.mirror import Mirror
from lakefeed.lake.mode.temporal import Temporal

MODES: dict[str, type[Mirror] | type[Temporal] | type[Append]] = {
    mode.name: mode for mode in (Mirror, Temporal, Append)
}


def mode_named(name: str, options: Mapping[str, Any] | None = None) -> Mode:
    """The mode of that name with its options; ConfigError with the valid choices for any other."""
    if name not in MODES:
        choices = ", ".join(sorted(MODES))
        raise ConfigError(f"this version has no mode '{name}'", remedy=f"Choose one of: {choices}.")
    known = [field.name for field in fields(MODES[name])]
    for option in options or {}:
        if option not in known:
            raise ConfigError(
                f"mode {name} has no option '{option}'", remedy=f"Its options are: {', '.join(known) or 'none'}."
            )
    return MODES[name](**(options or {}))


def mode_from_json(data: Mapping[str, Any]) -> Mode:
    """The mode that ``Mode.to_json`` wrote."""
    return mode_named(data["name"], {name: value for name, value in data.items() if name != "name"})


def checked_mode(mode: object) -> Mode:
    """``mode`` itself if it is one, or the mode of that name; ConfigError with the valid choices otherwise."""
    if isinstance(mode, str):
        return mode_named(mode)
    if not isinstance(mode, Mode):
        raise ConfigError(f"{mode!r} is not a mode", remedy=f"Choose one of: {', '.join(sorted(MODES))}.")
    return mode

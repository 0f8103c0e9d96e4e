"""What a lake table is: the modes a user can choose. Only the mirror exists so far."""

from __future__ import annotations

from dataclasses import dataclass

from lakefeed.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Mirror:
    """The lake table equals the source table: current rows, no extra columns."""


Mode = Mirror

MODES: dict[str, type[Mode]] = {"mirror": Mirror}
"""By the name in the configuration."""


def mode_named(name: str) -> Mode:
    """The mode of that name; ConfigError with the valid choices for any other."""
    if name not in MODES:
        choices = ", ".join(sorted(MODES))
        raise ConfigError(f"'{name}' is not a mode that this version has", remedy=f"Choose one of: {choices}.")
    return MODES[name]()


def checked_mode(mode: object) -> Mode:
    """``mode`` itself if it is one; ConfigError with the valid choices otherwise."""
    if isinstance(mode, str):
        return mode_named(mode)
    if not isinstance(mode, Mode):
        raise ConfigError(f"{mode!r} is not a mode", remedy=f"Choose one of: {', '.join(sorted(MODES))}.")
    return mode

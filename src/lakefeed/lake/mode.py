"""What a lake table is: the modes a user can choose, per pipeline and per table. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from lakefeed.errors import ConfigError

METADATA_CHOICES = ("operation", "position", "committed_at")
"""What a mirror can tell of each row's last change, as columns ``_lakefeed_<choice>``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """The lake table equals the source table: current rows.

    ``soft_delete`` names a timestamp column: deleted rows stay, with the time of their deletion in it; NULL in all
    others. ``metadata`` adds columns that tell of each row's last change. ``keyless``: a table without a key is
    matched by whole rows, counted (``match``), or its inserts are appended and any other change stops it (``append``).
    """

    soft_delete: str | None = None
    metadata: tuple[str, ...] = ()
    keyless: str = "match"

    def __post_init__(self) -> None:
        if self.soft_delete is not None:
            _check_name("mirror", "soft_delete", self.soft_delete, such_as="deleted_at")
        object.__setattr__(self, "metadata", _names("mirror", "metadata", self.metadata))
        _among("metadata", self.metadata, METADATA_CHOICES)
        _among("keyless", (self.keyless,), ("match", "append"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Temporal:
    """Full history (SCD type 2): a row per version, valid in [valid_from, valid_to).

    A version is opened only by a change to a tracked column: those of ``track``, all if it is None, without those of
    ``track_except``. Changes to other columns are written into the current version.
    """

    valid_from: str = "valid_from"
    valid_to: str = "valid_to"
    is_current: str = "is_current"
    track: tuple[str, ...] | None = None
    track_except: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = (self.valid_from, self.valid_to, self.is_current)
        for option, name in zip(("valid_from", "valid_to", "is_current"), names, strict=True):
            _check_name("temporal", option, name, such_as=option)
        if self.track is not None:
            object.__setattr__(self, "track", _names("temporal", "track", self.track))
        object.__setattr__(self, "track_except", _names("temporal", "track_except", self.track_except))
        if len({name.lower() for name in names}) < len(names):
            raise ConfigError(f"mode temporal: its columns need different names, not {', '.join(names)}")
        if self.track is not None and self.track_except:
            raise ConfigError("mode temporal: give track or track_except, not both")


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """The change log: every change as a row, in order, with what the source tells of it. Nothing is ever updated."""


Mode = Mirror | Temporal | Append

MODES: dict[str, type[Mirror] | type[Temporal] | type[Append]] = {
    "mirror": Mirror,
    "temporal": Temporal,
    "append": Append,
}
"""By the name in the configuration."""


def mode_named(name: str, options: Mapping[str, Any] | None = None) -> Mode:
    """The mode of that name with its options; ConfigError with the valid choices for any other."""
    if name not in MODES:
        choices = ", ".join(sorted(MODES))
        raise ConfigError(f"'{name}' is not a mode that this version has", remedy=f"Choose one of: {choices}.")
    known = [field.name for field in fields(MODES[name])]
    for option in options or {}:
        if option not in known:
            raise ConfigError(
                f"mode {name} has no option '{option}'", remedy=f"Its options are: {', '.join(known) or 'none'}."
            )
    return MODES[name](**(options or {}))


def mode_name(mode: Mode) -> str:
    return next(name for name, kind in MODES.items() if isinstance(mode, kind))


def described(mode: Mode) -> str:
    """The mode and the options that differ from its defaults: equal texts, equal tables. Kept with each table."""
    plain = asdict(type(mode)())
    options = {name: value for name, value in asdict(mode).items() if value != plain[name]}
    told = ", ".join(f"{name}={value!r}" for name, value in sorted(options.items()))
    return f"{mode_name(mode)}({told})" if told else mode_name(mode)


def mode_to_json(mode: Mode) -> dict[str, Any]:
    return {"name": mode_name(mode), **asdict(mode)}


def mode_from_json(data: Mapping[str, Any]) -> Mode:
    return mode_named(data["name"], {name: value for name, value in data.items() if name != "name"})


def checked_mode(mode: object) -> Mode:
    """``mode`` itself if it is one; ConfigError with the valid choices otherwise."""
    if isinstance(mode, str):
        return mode_named(mode)
    if not isinstance(mode, Mode):
        raise ConfigError(f"{mode!r} is not a mode", remedy=f"Choose one of: {', '.join(sorted(MODES))}.")
    return mode


def _check_name(mode: str, option: str, given: object, *, such_as: str) -> None:
    if not isinstance(given, str) or not given:
        raise ConfigError(
            f"mode {mode}: {option} is the name of a column, not {given!r}",
            remedy=f'Write a name, in quotes if need be: {option}: "{such_as}".',
        )


def _names(mode: str, option: str, given: object) -> tuple[str, ...]:
    """A list is fine, too. A text is not: its letters would be taken for names, or its parts."""
    if isinstance(given, list | tuple) and all(isinstance(name, str) and name for name in given):
        return tuple(given)
    example = given if isinstance(given, str) and given else "a"
    raise ConfigError(
        f"mode {mode}: {option} is a list of names, not {given!r}",
        remedy=f'Write {option}: ["{example}"], or from Python {option}=("{example}",).',
    )


def _among(option: str, given: tuple[str, ...], choices: tuple[str, ...]) -> None:
    for value in given:
        if value not in choices:
            raise ConfigError(
                f"mode mirror: '{value}' is not a choice for {option}", remedy=f"Choose from: {', '.join(choices)}."
            )

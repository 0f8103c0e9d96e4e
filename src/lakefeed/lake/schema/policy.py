"""Evolution: what a lake table does when its source table's schema changes, by kind of change. Pure values.

A choice ``stop`` stops the table, and ``lakefeed status`` shows the remedy. ``ignore`` and ``keep`` let the table go on
without a column or its values, and the log says so when it happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError
from lakefeed.lake.mode.base import Mode

CHOICES: dict[str, tuple[str, ...]] = {
    "add_column": ("evolve", "ignore", "stop"),
    "drop_column": ("evolve", "keep", "stop"),
    "rename_column": ("evolve", "stop"),
    "widen_type": ("evolve", "stop"),
    "change_type": ("stop", "new_column", "rebuild"),
    "change_key": ("rebuild", "stop"),
}
"""The choices for each kind of change, the default first."""

_BY_MODE = ("drop_column",)
"""Kinds of change with another default in some modes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """One choice per kind of change; docs/evolution.md says what each does. None is the mode's default: see
    ``for_mode``.

    A change of type is ``widen_type`` if the new type holds every value of the old one (see ``widening``), else
    ``change_type``. Nullability has no choice: lake columns may always be NULL. A table that the source drops always
    stays in the lake.
    """

    add_column: str = "evolve"
    drop_column: str | None = None
    rename_column: str = "evolve"
    widen_type: str = "evolve"
    change_type: str = "stop"
    change_key: str = "rebuild"

    def __post_init__(self) -> None:
        for kind, choice in asdict(self).items():
            if choice not in CHOICES[kind] and not (kind in _BY_MODE and choice is None):
                raise ConfigError(
                    f"evolution: '{choice}' is not a choice for {kind}",
                    remedy=f"Choose one of: {', '.join(CHOICES[kind])}.",
                )

    def for_mode(self, mode: Mode) -> Evolution:
        """The same with the mode's defaults filled in."""
        return self if self.drop_column is not None else replace(self, drop_column=mode.drop_column)

    def with_choices(self, choices: Mapping[str, Any]) -> Evolution:
        """The same with some choices replaced. ConfigError for a kind that does not exist, with those that do."""
        known = [one.name for one in fields(self)]
        for kind in choices:
            if kind not in known:
                raise ConfigError(
                    f"evolution: there is no kind of schema change '{kind}'",
                    remedy=f"The kinds are: {', '.join(known)}.",
                )
        return replace(self, **choices)


@dataclass(frozen=True, slots=True)
class Policy:
    """What one lake table does when the source's schema changes. ``table`` is its name in the lake."""

    table: TableId
    mode: Mode
    evolution: Evolution = field(default_factory=Evolution)

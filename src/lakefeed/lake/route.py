"""Routes: which lake tables a source table has, under which names and in which modes.

Every source table that the pipeline captures has one lake table of its own name in the lake's mode. A rule without a
name says what is different for the tables it matches; a rule with a name adds a lake table beside it. Of several rules
that say something, one that names the table counts before one with a pattern, and a later one before an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError
from lakefeed.lake.mode import Mirror, Mode
from lakefeed.lake.schema.policy import Evolution, Policy


@dataclass(frozen=True, slots=True)
class Route:
    """One lake table: ``table`` is its name in the lake, ``source`` the table that its rows come from."""

    table: TableId
    source: TableId
    mode: Mode

    @classmethod
    def same(cls, table: TableId, mode: Mode = Mirror()) -> Route:  # noqa: B008  # immutable
        """A lake table of the source table's own name."""
        return cls(table, table, mode)


@dataclass(frozen=True, slots=True)
class Rule:
    """``match`` is a pattern of ``schema.table`` or ``table``. In ``name``, ``{table}`` is the source table's name.

    ``mode`` and ``evolution`` are the lake's if they are None. ``columns`` are globs of the columns that the pipeline
    takes of the source table, see ``flow.shape``; without any it takes all. They are the source table's, not one lake
    table's, so a rule with a name has none.
    """

    match: str
    mode: Mode | None = None
    name: str | None = None
    evolution: Evolution | None = None
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name is not None and self.columns:
            raise ConfigError(
                f"the rule for {self.match} has a name and columns; the lake table {self.name} has what the pipeline "
                "takes of its source table",
                remedy="Write the columns into a rule without a name.",
            )

    @property
    def is_literal(self) -> bool:
        return not any(mark in self.match for mark in "*?[")

    def matches(self, table: TableId) -> bool:
        return fnmatchcase(str(table) if "." in self.match else table.name, self.match)


@dataclass(frozen=True, slots=True)
class Clash:
    """A lake table that has its rows by one route (``first``) and is to have others by another: ``second`` is blocked.

    Mostly the two are of different source tables. ``is_left``: the first one feeds it no more. Its rows stay until a
    person says that they may go.
    """

    first: Route
    second: Route
    is_left: bool = False

    @property
    def problem(self) -> str:
        table, one, other = self.first.table, self.second.source, self.first.source
        if one == other:
            modes = f"{self.first.mode.describe()} and {self.second.mode.describe()}"
            return f"two rules make the lake table {table} of {one}, as {modes}; it is {self.first.mode.describe()}"
        if self.is_left:
            return f"source table {one} is to feed the lake table {table}, which has the rows of {other}"
        return f"source tables {one} and {other} are both to feed the lake table {table}, which {other} feeds"

    @property
    def remedy(self) -> str:
        mine = next((one for one in (self.second, self.first) if one.table != one.source), self.second)
        example = f"name: '{{table}}_{mine.mode.name}'"
        by = f"{mine.table} of {mine.source} as {mine.mode.describe()}"
        other = f"In the rule that makes {by}, write a name of its own: {example}."
        if not self.is_left:
            return other
        replaced = f"Have them replaced: lakefeed rebuild FILE {mine.table} --from-source."
        return f"{replaced} Or have them kept. {other}" if mine is self.second else replaced


def settled(routes: Iterable[Route], fed: Mapping[TableId, Route]) -> tuple[dict[TableId, Route], tuple[Clash, ...]]:
    """One route for each lake table, and what is left out.

    The source table that a lake table has its rows of (``fed``) goes on, or comes back; no other one takes the lake
    table over by itself. Of those that are new, the one of the same name feeds it; else the first.
    """
    chosen: dict[TableId, Route] = {}
    clashes = []

    def rank(one: Route) -> tuple[bool, bool, bool, TableId]:
        before = fed.get(one.table)
        is_other = before is None or before.source != one.source
        return is_other, before is not None and before.mode != one.mode, one.table != one.source, one.source

    for route in sorted(routes, key=rank):
        before = fed.get(route.table)
        if route.table not in chosen and before is not None and before.source != route.source:
            clashes.append(Clash(before, route, is_left=True))
            continue
        first = chosen.setdefault(route.table, route)
        if first is not route:
            clashes.append(Clash(first, route))
    return chosen, tuple(clashes)


class Routes:
    """The rules of one lake. ``of`` is pure: the same source table always has the same routes."""

    def __init__(self, mode: Mode, rules: Sequence[Rule] = (), evolution: Evolution = Evolution()) -> None:  # noqa: B008  # immutable
        self._mode = mode
        self._rules = tuple(rules)
        self.leaves_out = any(rule.columns for rule in self._rules)
        self._evolution = evolution

    def of(self, source: TableId) -> tuple[Route, ...]:
        """The lake tables of one source table, its own name first. Two rules may make the same one: see ``settled``."""
        matching = [rule for rule in self._rules if rule.matches(source)]
        own = [rule.mode for rule in self._own(source) if rule.mode is not None]
        named = [(TableId(source.schema, rule.name.replace("{table}", source.name)), rule.mode or self._mode)
                 for rule in matching if rule.name is not None]  # fmt: skip
        return Route.same(source, own[-1] if own else self._mode), *(Route(name, source, mode) for name, mode in named)

    def columns(self, source: TableId) -> tuple[str, ...]:
        """The globs of the columns that are taken of a source table; none: all of them."""
        found = [rule.columns for rule in self._own(source) if rule.columns]
        return found[-1] if found else ()

    def _own(self, source: TableId) -> list[Rule]:
        """The rules for the lake table of the source table's own name; what a later one says counts."""
        found = [rule for rule in self._rules if rule.name is None and rule.matches(source)]
        return sorted(found, key=lambda rule: rule.is_literal)

    def policy(self, route: Route) -> Policy:
        """How the lake table of a route evolves. No part of the route: it may change in a table's life."""
        own: Evolution | None = None
        for rule in sorted(self._rules, key=lambda rule: rule.is_literal):
            name = route.source.name if rule.name is None else rule.name.replace("{table}", route.source.name)
            is_own = route.table == route.source if rule.name is None else route.table.name == name
            if rule.matches(route.source) and is_own:
                own = rule.evolution or own
        return Policy(route.table, route.mode, own or self._evolution)

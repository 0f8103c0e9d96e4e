"""Routes: which lake tables a source table has, under which names and in which modes.

Every source table that the pipeline captures has one lake table of its own name in the lake's mode. A rule without a
name changes that for the tables it matches; a rule with a name adds another lake table. If several rules make the same
choice, one that names the table counts before one with a pattern, and a later one before an earlier one.

Several source tables may feed one lake table (``union``): each has a *part* of it, the rows with its value in the
origin column. To everything above the formats, a part is a lake table, called ``table@value``, with a state, a
generation, an applied number and a rule of its own. The formats store all parts of a lake table as one table
(``Route.stored``), and the commits of a part touch its own rows alone (docs/decisions/0014-union.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from lakefeed.change.choice import Choices, TableChoice, checked_rule, checked_type, is_literal, matches
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import ConfigError
from lakefeed.lake.layout import Layout
from lakefeed.lake.mode import Mirror, Mode
from lakefeed.lake.rule.rows import RowOptions, RowRule
from lakefeed.lake.schema.policy import Evolution, Policy


@dataclass(frozen=True, slots=True)
class Origin:
    """The column of a union that says which source table a row comes from, and its value."""

    column: str = "origin"
    value: str = "{schema}.{table}"


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one source table in the lake table ``table``, which several feed: ``column`` is ``value``."""

    table: TableId
    column: str
    value: str

    def to_json(self) -> dict[str, str]:
        return {"table": str(self.table), "column": self.column, "value": self.value}

    @classmethod
    def from_json(cls, data: Mapping[str, str]) -> Part:
        return cls(TableId.parse(data["table"]), data["column"], data["value"])


@dataclass(frozen=True, slots=True)
class Route:
    """One lake table: ``table`` is its name in the lake, ``source`` the table that its rows come from.

    ``part``: it is a part of a lake table that several source tables feed.
    """

    table: TableId
    source: TableId
    mode: Mode
    part: Part | None = None

    @property
    def stored(self) -> TableId:
        """The lake table in which readers find the rows."""
        return self.part.table if self.part is not None else self.table

    @classmethod
    def same(cls, table: TableId, mode: Mode = Mirror()) -> Route:  # noqa: B008  # immutable
        """A lake table of the source table's own name."""
        return cls(table, table, mode)


@dataclass(frozen=True, slots=True)
class Rule:
    """``match`` is a pattern of ``schema.table`` or ``table``. In ``name`` and ``namespace``, ``{table}`` and
    ``{schema}`` are the source table's.

    ``mode`` and ``evolution`` are the lake's if they are None. ``name`` adds a lake table beside the one of the source
    table's own name; with ``only`` it replaces that one. ``namespace`` is the schema of lake tables.

    ``columns`` are globs of the columns that the pipeline captures of the source table, see ``flow.shape``; without any
    it captures all. ``types``, ``out_of_range`` (for all columns, or by column) and ``keyless`` (``inserts``) say how
    to read the source table: see ``change.choice``. All these, and masks that are ``sensitive``, concern the source
    table and not one lake table, so a rule with a name has none.

    ``rows`` says how rows change, ``layout`` how the table is stored; where a rule with a name makes no choice, those
    of the rules without one hold. ``union``: all source tables that the rule matches feed the lake table of its name.
    """

    match: str
    mode: Mode | None = None
    name: str | None = None
    evolution: Evolution | None = None
    columns: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    out_of_range: str | Mapping[str, str] | None = None
    keyless: str | None = None
    namespace: str | None = None
    only: bool = False
    rows: RowOptions = field(default_factory=RowOptions)
    layout: Layout = field(default_factory=Layout)
    union: Origin | None = None

    def __post_init__(self) -> None:
        of_source = {
            "columns": self.columns, "types": self.types, "out_of_range": self.out_of_range, "keyless": self.keyless,
            "sensitive masks": self.rows.sensitive,
        }  # fmt: skip
        given = [key for key, value in of_source.items() if value]
        if self.name is not None and given:
            raise ConfigError(
                f"the rule for {self.match} has a name and {given[0]}; but {given[0]} concerns the source table, and "
                f"not the lake table {self.name} alone",
                remedy=f"Write {given[0]} into a rule without a name.",
            )
        if self.only and self.name is None:
            raise ConfigError(f"the rule for {self.match} has only, and no name", remedy="Add name, or remove only.")
        if self.union is not None and self.name is None:
            raise ConfigError(
                f"the rule for {self.match} has union, and no name",
                remedy="Add name: the lake table that all these source tables feed.",
            )
        both = set(self.rows.mask or ()) & set(self.rows.transform or ())
        if both:
            raise ConfigError(
                f"the rule for {self.match} has a mask and an expression for {', '.join(sorted(both))}",
                remedy="Remove one of them.",
            )
        if self.rows.sensitive and not self.rows.mask:
            raise ConfigError(
                f"the rule for {self.match} is sensitive, but has no mask to apply before the journal",
                remedy="Add mask, or leave the columns out of the journal with columns.",
            )
        for chosen in self.types.values():
            checked_type(chosen)

    @property
    def is_literal(self) -> bool:
        return is_literal(self.match)

    def matches(self, table: TableId) -> bool:
        return matches(self.match, table)

    @property
    def choice(self) -> TableChoice:
        """What the rule chooses about reading the source table."""
        rules = {"*": self.out_of_range} if isinstance(self.out_of_range, str) else self.out_of_range or {}
        by_column = {glob: checked_rule(rule) for glob, rule in rules.items()}
        return TableChoice(self.columns, dict(self.types), by_column, self.keyless == "inserts")


@dataclass(frozen=True, slots=True)
class Clash:
    """Two routes for one lake table: ``first`` feeds it, so ``second`` is blocked.

    Mostly the two have different source tables. ``is_left``: ``first`` feeds the table no more; its rows stay until a
    person replaces them.
    """

    first: Route
    second: Route
    is_left: bool = False

    @property
    def problem(self) -> str:
        table, one, other = self.first.stored, self.second.source, self.first.source
        if self.is_of_union:
            what = f"{self.first.mode.describe()}, {self._parted(self.first)}"
            what = f"{what}, and as {self.second.mode.describe()}, {self._parted(self.second)}"
            return f"source tables {other} and {one} would both feed the lake table {table}, as {what}"
        if one == other:
            modes = f"{self.first.mode.describe()} and {self.second.mode.describe()}"
            return f"two rules make the lake table {table} of {one}, as {modes}; it is {self.first.mode.describe()}"
        if self.is_left:
            return f"source table {one} would feed the lake table {table}, which has the rows of {other}"
        return f"source tables {one} and {other} would both feed the lake table {table}, which {other} feeds"

    @property
    def is_of_union(self) -> bool:
        """Is one of the two a part of the lake table, and the other none, or one of another kind?"""
        return self.first.stored == self.second.stored and (self.first.part or self.second.part) is not None

    @staticmethod
    def _parted(route: Route) -> str:
        return f"with {route.part.column} = '{route.part.value}'" if route.part is not None else "without union"

    @property
    def remedy(self) -> str:
        if self.is_of_union:
            return (
                "Give all of them union, the same mode and the same column, and each a value of its own, such as "
                "union: {column: origin, value: '{schema}.{table}'}; or give them different names."
            )
        mine = next((one for one in (self.second, self.first) if one.table != one.source), self.second)
        example = f"name: '{{table}}_{mine.mode.name}'"
        by = f"{mine.table} of {mine.source} as {mine.mode.describe()}"
        other = f"In the rule that makes {by}, write a name of its own: {example}."
        if not self.is_left:
            return other
        replaced = f"To replace its rows: lakefeed rebuild FILE {mine.table} --from-source."
        return f"{replaced} Or to keep them: {other}" if mine is self.second else replaced


def settled(routes: Iterable[Route], fed: Mapping[TableId, Route]) -> tuple[dict[TableId, Route], tuple[Clash, ...]]:
    """One route for each lake table, and the clashes: the routes that are left out.

    The source table that has fed a lake table so far (``fed``) goes on, or comes back; no other one takes the lake
    table over by itself. Of new source tables the one of the same name feeds it, else the first.
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
    first_of: dict[TableId, Route] = {}  # for each stored table the route that decides its mode and column
    for route in list(chosen.values()):
        first = first_of.setdefault(route.stored, route)
        if _kind(first) != _kind(route):
            clashes.append(Clash(first, chosen.pop(route.table)))
    return chosen, tuple(clashes)


def _kind(route: Route) -> tuple[Mode, str | None]:
    """What all parts of one lake table must have in common."""
    return route.mode, route.part.column if route.part is not None else None


class Routes:
    """The rules of one lake. ``of`` is pure: the same source table always has the same routes.

    ``salt`` goes into the hashes of masks.
    """

    def __init__(
        self,
        mode: Mode,
        rules: Sequence[Rule] = (),
        evolution: Evolution = Evolution(),  # noqa: B008  # immutable
        out_of_range: str | None = None,
        *,
        salt: str = "",
        naming: str = "as_is",
    ) -> None:
        self._mode = mode
        self._rules = tuple(rules)
        self.choices = Choices(
            tuple((rule.match, rule.choice) for rule in self._rules if rule.name is None),
            checked_rule(out_of_range) if out_of_range is not None else None,
        )
        """What the rules choose about reading the source's tables."""
        self._evolution = evolution
        self._plain = RowRule(salt=salt, naming=naming)
        self.leaves_out = any(rule.columns for rule in self._rules)
        self.masks_early = any(rule.rows.sensitive for rule in self._rules)
        for rule in self._rules:  # check each rule now, whatever tables exist
            rule.rows.onto(self._plain, is_literal=rule.is_literal)

    def of(self, source: TableId) -> tuple[Route, ...]:
        """The lake tables of one source table, its own name first. Two rules may make the same one: see ``settled``."""
        own = self._own(source)
        modes = [rule.mode for rule in own if rule.mode is not None]
        named = [rule for rule in self._rules if rule.name is not None and rule.matches(source)]
        routes = [_routed(source, rule, rule.mode or self._mode) for rule in named]
        if any(rule.only for rule in named):
            return tuple(routes)
        spaces = [rule for rule in own if rule.namespace is not None]
        table = _placed(source, spaces[-1]) if spaces else source
        return Route(table, source, modes[-1] if modes else self._mode), *routes

    def columns(self, source: TableId) -> tuple[str, ...]:
        """The globs of the columns that the pipeline captures of a source table; none: all columns."""
        found = [rule.columns for rule in self._own(source) if rule.columns]
        return found[-1] if found else ()

    def sensitive(self, source: TableId) -> RowRule:
        """The masks to apply to a source table's rows before the journal, as a rule with nothing else."""
        rule = self._plain
        for one in self._own(source):
            if one.rows.sensitive:
                rule = RowOptions(mask=one.rows.mask).onto(rule, is_literal=one.is_literal)
        return rule

    def rows(self, route: Route) -> RowRule:
        """The rule for the rows of a route's lake table, without the masks that are applied before the journal."""
        rule = self._plain
        for one in self._for(route):
            rule = one.rows.onto(rule, is_literal=one.is_literal)
        early = self.sensitive(route.source).mask
        origin = (route.part.column, route.part.value) if route.part is not None else None
        masks = tuple(one for one in rule.mask if one[0] not in dict(early))
        return replace(rule, mask=masks, early=early, origin=origin)

    def layout(self, route: Route) -> Layout:
        """The layout of a route's lake table."""
        layout = Layout()
        for one in self._for(route):
            layout = one.layout.onto(layout)
        if route.part is not None:  # first, so that each part has files of its own
            others = [one for one in layout.partition_by or () if one != route.part.column]
            layout = replace(layout, partition_by=(route.part.column, *others))
        return layout

    def policy(self, route: Route) -> Policy:
        """How the lake table of a route evolves. It may change during a table's life, so it is no part of the route."""
        found = [rule.evolution for rule in self._named(route) or self._own(route.source) if rule.evolution is not None]
        return Policy(route.table, route.mode, found[-1] if found else self._evolution)

    def unused(self, schemas: Iterable[TableSchema]) -> tuple[str, ...]:
        """One sentence for each part of the rules that matches none of these tables, or none of their columns.

        Without them, a mask that matches nothing would look like one that works.
        """
        there, found = tuple(schemas), list[str]()
        for rule in self._rules:
            mine = [schema for schema in there if rule.matches(schema.table)]
            if not mine:
                found.append(f"the rule for {rule.match} in lake.tables matches no table")
                continue
            names = {name for schema in mine for name in schema.names}
            for option, given in (("mask", rule.rows.mask), ("rename", rule.rows.rename)):
                found += [
                    f"{option} in the rule for {rule.match} names the column {name}, which no table that it matches has"
                    for name in given or ()
                    if name not in names
                ]
            if rule.is_literal:  # choices that do not fit stop that table alone: see ``TableChoice.unfit``
                continue
            for option, globs in (
                ("columns", rule.columns),
                ("types", rule.types),
                ("out_of_range", rule.choice.out_of_range),
            ):
                found += [
                    f"{option} in the rule for {rule.match} has '{glob}', which matches no column of these tables"
                    for glob in globs
                    if not any(fnmatchcase(name, glob.removeprefix("!")) for name in names)
                ]
        return tuple(found)

    def _own(self, source: TableId) -> list[Rule]:
        """The rules for the lake table of the source table's own name; a later one counts before an earlier one."""
        found = [rule for rule in self._rules if rule.name is None and rule.matches(source)]
        return sorted(found, key=lambda rule: rule.is_literal)

    def matching(self, source: TableId) -> tuple[str, ...]:
        """The patterns of rules that match a source table."""
        return tuple(dict.fromkeys(rule.match for rule in self._rules if rule.matches(source)))

    def _named(self, route: Route) -> list[Rule]:
        """The rules with a name that make the lake table of a route."""
        named = [one for one in self._rules if one.name is not None and one.matches(route.source)]
        mine = [one for one in named if _routed(route.source, one, route.mode).table == route.table]
        return sorted(mine, key=lambda rule: rule.is_literal)

    def _for(self, route: Route) -> list[Rule]:
        """All rules for a lake table; a later one counts before an earlier one."""
        return [*self._own(route.source), *self._named(route)]


class RoutedFormat:
    """The methods of ``lake.base.TableFormat`` that need the rules alone."""

    _routes: Routes

    def routes(self, source: TableId) -> tuple[Route, ...]:
        return self._routes.of(source)

    @property
    def columns(self) -> Callable[[TableId], tuple[str, ...]] | None:
        return self._routes.columns if self._routes.leaves_out else None

    @property
    def sensitive(self) -> Callable[[TableId], RowRule] | None:
        return self._routes.sensitive if self._routes.masks_early else None

    @property
    def choices(self) -> Choices:
        return self._routes.choices

    def progress(self) -> object:
        return None

    def newest_commit(self, route: Route) -> str | None:  # noqa: ARG002  # the seam's
        return None

    def matching(self, source: TableId) -> tuple[str, ...]:
        return self._routes.matching(source)

    def unused(self, schemas: Iterable[TableSchema]) -> tuple[str, ...]:
        return self._routes.unused(schemas)

    def evolution(self, route: Route) -> Evolution:
        return self._routes.policy(route).evolution


def _placed(source: TableId, rule: Rule) -> TableId:
    """The name of the lake table that a rule makes of a source table."""

    def filled(text: str) -> str:
        return text.replace("{table}", source.name).replace("{schema}", source.schema)

    return TableId(filled(rule.namespace or "{schema}"), filled(rule.name or "{table}"))


def _routed(source: TableId, rule: Rule, mode: Mode) -> Route:
    """The route of a rule with a name."""
    table = _placed(source, rule)
    if rule.union is None:
        return Route(table, source, mode)
    value = rule.union.value.replace("{table}", source.name).replace("{schema}", source.schema)
    return Route(TableId(table.schema, f"{table.name}@{value}"), source, mode, Part(table, rule.union.column, value))

"""What a lake wants from the tables of a source: which columns, which types, and what to do with a value that its
column cannot hold. Pure, picklable values: copies carry them to other processes.

The rules stand in ``lake.tables``. Where several apply to a table, one that names the table overrides one with a
pattern, and a later one overrides an earlier one; inside a rule a column's name overrides a glob. A capture is given
the rules once (``ChangeCapture.represent``) and follows them in copies, in the stream and in polling alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TypeVar

import pyarrow as pa

from lakefeed.change.table import Column, OutOfRange, TableId, TableSchema, type_from_text
from lakefeed.errors import ConfigError

STRING, LIST, VARIANT, MICROSECONDS = "string", "list", "variant", "microseconds"
_V = TypeVar("_V")
_RULE = b"lakefeed.out_of_range"


@dataclass(frozen=True, slots=True)
class TableChoice:
    """The combined rules for one table. ``columns`` are globs (see ``takes``). ``types`` and ``out_of_range`` map a
    column's name or a glob to a rule. Entries listed in ``optional`` come from rules for many tables, so this table
    need not have such a column. ``inserts_only``: capture only the inserts of a table without a key."""

    columns: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    out_of_range: Mapping[str, OutOfRange] = field(default_factory=dict)
    inserts_only: bool = False
    optional: frozenset[str] = frozenset()

    def takes(self, name: str) -> bool:
        """Whether the globs select a column: one matches it and none with ``!`` does. If all globs have a ``!``, every
        other column is selected. Key columns are always taken; callers add them."""
        wanted = [glob for glob in self.columns if not glob.startswith("!")]
        unwanted = [glob.removeprefix("!") for glob in self.columns if glob.startswith("!")]
        is_wanted = not wanted or any(fnmatchcase(name, glob) for glob in wanted)
        return is_wanted and not any(fnmatchcase(name, glob) for glob in unwanted)

    def type_of(self, name: str) -> str | None:
        """The type that a rule gives to a column; None where no rule does, so that the source decides."""
        return _of_column(self.types, name)

    def rule_of(self, name: str) -> OutOfRange | None:
        return _of_column(self.out_of_range, name)

    def decimal_of(self, name: str) -> pa.Decimal128Type | None:
        """The decimal type that a rule gives to a column, or None."""
        chosen = self.type_of(name)
        kind = type_from_text(decimal_text(chosen)) if chosen is not None and chosen.startswith("decimal") else None
        return kind if isinstance(kind, pa.Decimal128Type) else None

    def unfit_type(self, schema: TableSchema) -> tuple[str, str] | None:
        """The first entry of ``types`` that does not suit the table, as (problem, remedy), or None. ``schema`` is the
        schema that the source built under these rules."""
        for glob, chosen in self.types.items():
            columns = [one for one in schema.columns if fnmatchcase(one.name, glob)]
            if not columns:
                if glob in self.optional:
                    continue
                names = ", ".join(schema.names)
                return f"types has '{glob}', which matches no column", f"The columns are {names}."
            if chosen == VARIANT:
                why = "readers other than Spark, which verify needs, cannot read it: pyiceberg and deltalake among them"
                return f"types gives {columns[0].name} the type variant, which Lakefeed does not have: {why}", _VARIANT
            for one in columns:
                if self.type_of(one.name) == chosen and not _has_type(one, chosen):
                    is_key = " and is part of the key" if one.name in schema.key else ""
                    problem = f"types gives {one.name} the type {chosen}, but it is {one.source_type}{is_key}"
                    return problem, "Choose string, which every column can be, or take the column out of types."
        return None

    def unfit(self, schema: TableSchema) -> tuple[str, str] | None:
        """The first entry of ``types`` or ``out_of_range`` that does not suit the table, as (problem, remedy)."""
        if (found := self.unfit_type(schema)) is not None:
            return found
        for glob, rule in self.out_of_range.items():
            columns = [one for one in schema.columns if fnmatchcase(one.name, glob)]
            if not columns:
                if glob in self.optional:
                    continue
                names = ", ".join(schema.names)
                return f"out_of_range has '{glob}', which matches no column", f"The columns are {names}."
            is_taken = rule in (OutOfRange.STOP, OutOfRange.TEXT) or columns[0].out_of_range is rule
            if is_literal(glob) and not is_taken:
                problem = f"out_of_range of {glob} is {rule}, but it is {columns[0].source_type}"
                is_key = " and is part of the key" if glob in schema.key else ""
                return f"{problem}{is_key}, which has no such rule", "Take the column out of out_of_range."
        return None


_VARIANT = "Choose string, and read it through a view with parse_json (Spark), or with json functions."


@dataclass(frozen=True, slots=True)
class Choices:
    """The rules of one lake. ``default`` applies to columns that no rule names; None leaves it to the source.
    ``text_columns`` are patterns over ``schema.table.column``: these columns are text, whatever else applies. ``kept``
    has the columns that were delivered last: a column that an older default made text stays text until its table is
    rebuilt."""

    rules: tuple[tuple[str, TableChoice], ...] = ()
    default: OutOfRange | None = None
    text_columns: tuple[str, ...] = ()
    kept: Mapping[TableId, tuple[Column, ...]] = field(default_factory=dict)
    _made: dict[TableId, TableChoice] = field(default_factory=dict, init=False, compare=False, repr=False)

    def of(self, table: TableId) -> TableChoice:
        """The combined rules for a table. Cached, because it is asked for every column."""
        if (known := self._made.get(table)) is not None:
            return known
        matching = sorted((one for one in self.rules if matches(one[0], table)), key=lambda one: is_literal(one[0]))
        made = TableChoice()
        for pattern, rule in matching:
            stated = {*rule.types, *rule.out_of_range, *rule.columns}
            made = TableChoice(
                rule.columns or made.columns,
                {**made.types, **rule.types},
                {**made.out_of_range, **rule.out_of_range},
                made.inserts_only or rule.inserts_only,
                made.optional - stated if is_literal(pattern) else made.optional | stated,
            )
        self._made[table] = made
        return made

    def is_text(self, table: TableId, column: str) -> bool:
        """Whether the configuration makes a column text."""
        if self.text_columns and any(fnmatchcase(f"{table}.{column}", pattern) for pattern in self.text_columns):
            return True
        return self.of(table).type_of(column) == STRING

    def rule(self, table: TableId, column: str, otherwise: OutOfRange = OutOfRange.STOP) -> OutOfRange:
        return self.of(table).rule_of(column) or self.default or otherwise

    def was_text(self, table: TableId, id_: str, source_type: str) -> bool:
        """Whether the column with this stable id and declared type was delivered as text before."""
        was = [one for one in self.kept.get(table, ()) if (one.id, one.source_type) == (id_, source_type)]
        return any(pa.types.is_string(one.type) for one in was)

    def keeping(self, schemas: Sequence[TableSchema]) -> Choices:
        return replace(self, kept={schema.table: schema.columns for schema in schemas})


NOTHING_CHOSEN = Choices()


def field_of(column: Column, *, exact: bool = False) -> pa.Field[pa.DataType]:
    """A column as a Session is asked for it, with its type and out_of_range rule. ``exact``: rows are ordered by the
    column, so its values must not be replaced."""
    is_free = column.out_of_range is not OutOfRange.STOP and not exact
    return pa.field(column.name, column.type, metadata={_RULE: str(column.out_of_range)} if is_free else None)


def rule_of(field: pa.Field[pa.DataType]) -> OutOfRange:
    """The rule that ``field_of`` attached to a field."""
    return OutOfRange((field.metadata or {}).get(_RULE, b"stop").decode())


def matches(pattern: str, table: TableId) -> bool:
    """Whether a rule's pattern, over ``schema.table`` or ``table``, matches a table."""
    return fnmatchcase(str(table) if "." in pattern else table.name, pattern)


def is_literal(pattern: str) -> bool:
    """Whether a pattern names exactly one thing. The user wrote that name on purpose, so its absence is an error."""
    return not any(mark in pattern for mark in "*?[")


def checked_type(text: str) -> str:
    """``text`` if a configuration may choose this type; otherwise ConfigError."""
    if text in (STRING, LIST, VARIANT, MICROSECONDS):
        return text
    try:
        kind = type_from_text(decimal_text(text))
    except (ConfigError, ValueError):
        kind = None
    if not isinstance(kind, pa.Decimal128Type) or not 0 <= kind.scale <= kind.precision:
        raise ConfigError(
            f"types: '{text}' is not a type that a column can be given",
            remedy="Choose one of: string, list, microseconds, decimal(p,s) with at most 38 digits, variant.",
        )
    return text


def checked_rule(text: str) -> OutOfRange:
    """The rule with this name; ConfigError if there is none."""
    if text not in set(OutOfRange):
        raise ConfigError(f"out_of_range: '{text}' is not a rule", remedy=f"Choose one of: {', '.join(OutOfRange)}.")
    return OutOfRange(text)


def decimal_text(text: str) -> str:
    """``decimal(10,2)`` in Arrow's spelling."""
    return text.replace(" ", "").replace("decimal(", "decimal128(").replace(",", ", ")


def _of_column(given: Mapping[str, _V], name: str) -> _V | None:
    if not given or name in given:
        return given.get(name)
    found = [value for glob, value in given.items() if fnmatchcase(name, glob)]
    return found[-1] if found else None


def _has_type(column: Column, chosen: str) -> bool:
    """Whether the source gave a column the chosen type."""
    if chosen == STRING:
        return pa.types.is_string(column.type)
    if chosen == LIST:
        return pa.types.is_list(column.type)
    if chosen == MICROSECONDS:
        return pa.types.is_int64(column.type) and column.source_type.startswith("time")
    return str(column.type) == decimal_text(chosen)

"""Table patterns: which tables a pipeline captures. The only place where table names are matched.

- A pattern is a glob (``*``, ``?``, ``[abc]``) over ``schema.table``. Without a dot it means a table of the source's
  default schema; for SQLite, ``orders`` and ``main.orders`` are the same.
- Case is ignored where the dialect says so (``Dialect.folds_case``): in SQLite, not in PostgreSQL or MySQL.
- A pattern that begins with ``!`` excludes tables: ``public.*``, ``!public.audit_*``.
- Order and repetition do not matter; a table that two patterns match is taken once.
- A pattern that matches nothing is an error, because it would look like an idle database. One that excludes may match
  nothing: it may be meant for future tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import translate

from lakefeed.change.choice import is_literal
from lakefeed.change.table import TableId
from lakefeed.errors import IN_CONFIGURATION, ConfigError

_SHOWN = 20


class TablePatterns:
    """See the module. Callers pass the tables in; it asks no database."""

    def __init__(self, patterns: Iterable[str], *, default_schema: str, folds_case: bool) -> None:
        flags = re.IGNORECASE if folds_case else 0
        names = {pattern: pattern.removeprefix("!") for pattern in patterns}
        whole = {pattern: name if "." in name else f"{default_schema}.{name}" for pattern, name in names.items()}
        self._matchers = {pattern: re.compile(translate(text), flags) for pattern, text in whole.items()}
        if names and all(pattern.startswith("!") for pattern in names):
            remedy = f'Add a pattern that includes tables: ["{default_schema}.*", "{next(iter(names))}"].'
            raise ConfigError("every table pattern excludes tables, and none includes any", remedy=remedy)

    def matching(self, table: TableId) -> list[str]:
        """The patterns that match a table, existing or not, literal ones first; none if a pattern excludes it."""
        found = [pattern for pattern, matcher in self._matchers.items() if matcher.match(str(table))]
        is_excluded = any(pattern.startswith("!") for pattern in found)
        return [] if is_excluded else sorted(found, key=lambda pattern: not is_literal(pattern))

    def choose(self, tables: Iterable[TableId], seen: Iterable[TableId] = ()) -> tuple[TableId, ...]:
        """The tables that at least one pattern matches, sorted. ConfigError for a pattern that matches neither one of
        them nor one that was ``seen`` before: a table seen before was dropped, which concerns that table only."""
        there = sorted(set(tables))
        matched = {table: self.matching(table) for table in {*there, *seen}}
        used = {pattern for patterns in matched.values() for pattern in patterns}
        for pattern in (one for one in self._matchers if one not in used and not one.startswith("!")):
            more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
            listed = f"there are {', '.join(map(str, there[:_SHOWN]))}{more}"
            choices = listed if there else "there are no tables that can be captured"
            remedy = f"Correct source.tables {IN_CONFIGURATION}, or create the table."
            if not there:  # some databases do not show what an account may not read
                remedy += " If the table is there, run `lakefeed check`: a right may be missing."
            raise ConfigError(f"the table pattern '{pattern}' matches no table; {choices}", remedy=remedy)
        return tuple(table for table in there if matched[table])


def refused_names(columns: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """The column names that the journal reserves, each with the reason and a name that could replace it."""
    for column in columns:
        if column.lower().startswith("_lakefeed"):
            yield column, f"the column name '{column}' is reserved", column.lstrip("_")

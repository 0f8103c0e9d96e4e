"""Table patterns: which tables a pipeline captures. The one place where names are matched.

- A pattern is a glob (``*``, ``?``, ``[abc]``) over ``schema.table``. Without a dot it means a table of the source's
  default schema; ``orders`` and ``main.orders`` are the same for SQLite.
- Case folds exactly where the database folds it: in SQLite, in MySQL on a folding file system, not in PostgreSQL.
- Order and repetition do not matter; a table that two patterns match is taken once.
- A pattern that matches nothing is an error: a list that matches nothing looks like an idle database."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate

from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError

_SHOWN = 20
_REFUSED = re.compile(r"[ ,;{}()\n\t=]")


def match_tables(
    patterns: Sequence[str], tables: Iterable[TableId], *, default_schema: str, folds_case: bool,
    seen: Iterable[TableId] = (),
) -> tuple[TableId, ...]:  # fmt: skip
    """The tables that at least one pattern matches, sorted. ConfigError for a pattern that matches none, and none that
    was ``seen`` before: one of those was dropped, which is that table's matter alone."""
    there, found = sorted(tables), set[TableId]()
    for pattern in patterns:
        matcher = _matcher(pattern, default_schema, folds_case)
        matched = [table for table in there if matcher.match(str(table))]
        if not matched and not any(matcher.match(str(table)) for table in seen):
            choices = "there are no tables that can be captured"
            if there:
                more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
                choices = f"there are {', '.join(map(str, there[:_SHOWN]))}{more}"
            raise ConfigError(f"the table pattern '{pattern}' matches no table; {choices}")
        found.update(matched)
    return tuple(sorted(found))


def is_wanted(patterns: Sequence[str], table: TableId, *, default_schema: str, folds_case: bool) -> bool:
    """Does one of the patterns match the table, whether there is such a table or not?"""
    return any(_matcher(pattern, default_schema, folds_case).match(str(table)) for pattern in patterns)


def is_literal(pattern: str) -> bool:
    """Whether a pattern names one table and no other: it was written on purpose, so its absence needs a reason."""
    return not any(mark in pattern for mark in "*?[")


def refused_name(column: str) -> tuple[str, str] | None:
    """Why lake tables refuse a column's name, and a name that they accept; None if they accept it."""
    fixed = _REFUSED.sub("_", column)
    if column.lower().startswith("_lakefeed"):
        return f"the column name '{column}' is reserved", fixed.lstrip("_")
    return None if fixed == column else (f"lake tables refuse the column name '{column}'", fixed)


def _matcher(pattern: str, default_schema: str, folds_case: bool) -> re.Pattern[str]:
    text = pattern if "." in pattern else f"{default_schema}.{pattern}"
    return re.compile(translate(text), re.IGNORECASE if folds_case else 0)

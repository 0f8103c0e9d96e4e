"""Table patterns: which tables a pipeline captures. The one place where names are matched.

Rules, for every source:
- A pattern is a glob (``*``, ``?``, ``[abc]``) over ``schema.table``. Without a dot it means a table of the source's
  default schema; ``orders`` and ``main.orders`` are the same for SQLite.
- Case folds exactly where the database folds it. SQLite and MySQL on a folding file system compare table names without
  case, so ``folds_case=True`` there; PostgreSQL stores names as they are, so there ``Orders`` is not ``orders``.
- Order and repetition do not matter; a table that two patterns match is taken once.
- A pattern that matches nothing is an error: a list that matches nothing looks like an idle database.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate

from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError

_SHOWN = 20


def match_tables(
    patterns: Sequence[str],
    tables: Iterable[TableId],
    *,
    default_schema: str,
    folds_case: bool,
    seen: Iterable[TableId] = (),
) -> tuple[TableId, ...]:
    """The tables that at least one pattern matches, sorted. ConfigError for a pattern that matches none.

    ``seen`` are tables that were there before: a pattern that matches one of them is right, and the table was dropped,
    which is that table's matter alone.
    """
    there = sorted(tables)
    found: set[TableId] = set()
    for pattern in patterns:
        matcher = _matcher(pattern, default_schema, folds_case)
        matched = [table for table in there if matcher.match(str(table))]
        if not matched and not any(matcher.match(str(table)) for table in seen):
            raise ConfigError(f"the table pattern '{pattern}' matches no table; {_choices(there)}")
        found.update(matched)
    return tuple(sorted(found))


def is_wanted(patterns: Sequence[str], table: TableId, *, default_schema: str, folds_case: bool) -> bool:
    """Does one of the patterns match the table, whether there is such a table or not?"""
    return any(_matcher(pattern, default_schema, folds_case).match(str(table)) for pattern in patterns)


def is_literal(pattern: str) -> bool:
    """Whether a pattern names one table and no other: it was written on purpose, so its absence needs a reason."""
    return not any(mark in pattern for mark in "*?[")


def _matcher(pattern: str, default_schema: str, folds_case: bool) -> re.Pattern[str]:
    text = pattern if "." in pattern else f"{default_schema}.{pattern}"
    return re.compile(translate(text), re.IGNORECASE if folds_case else 0)


def _choices(there: Sequence[TableId]) -> str:
    if not there:
        return "there are no tables that can be captured"
    more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
    return f"there are {', '.join(map(str, there[:_SHOWN]))}{more}"

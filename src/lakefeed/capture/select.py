"""Table patterns: which tables a pipeline captures. The one place where names are matched.

- A pattern is a glob (``*``, ``?``, ``[abc]``) over ``schema.table``. Without a dot it means a table of the source's
  default schema; ``orders`` and ``main.orders`` are the same for SQLite.
- Case folds exactly where the database folds it: in SQLite, in MySQL on a folding file system, not in PostgreSQL.
- A pattern that begins with ``!`` takes tables away again: ``public.*``, ``!public.audit_*``.
- Order and repetition do not matter; a table that two patterns match is taken once.
- A pattern that matches nothing is an error: a list that matches nothing looks like an idle database.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from functools import partial

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
    """The tables that at least one pattern matches and none takes away, sorted. ConfigError for a pattern that matches
    none, and none that was ``seen`` before: one of those was dropped, which is that table's matter alone. One that
    takes away may match nothing: it may be there for tables to come."""
    if patterns and all(pattern.startswith("!") for pattern in patterns):
        remedy = f'Add what to take them from: ["{default_schema}.*", "{patterns[0]}"].'
        raise ConfigError(f"the table pattern '{patterns[0]}' takes tables away, and no pattern has any", remedy=remedy)
    there, found = sorted(tables), set[TableId]()
    for pattern in patterns:
        if pattern.startswith("!"):
            continue
        matcher = _matcher(pattern, default_schema, folds_case)
        matched = [table for table in there if matcher.match(str(table))]
        if not matched and not any(matcher.match(str(table)) for table in seen):
            choices = "there are no tables that can be captured"
            if there:
                more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
                choices = f"there are {', '.join(map(str, there[:_SHOWN]))}{more}"
            raise ConfigError(f"the table pattern '{pattern}' matches no table; {choices}")
        found.update(matched)
    wanted = partial(is_wanted, patterns, default_schema=default_schema, folds_case=folds_case)
    return tuple(filter(wanted, sorted(found)))


def is_wanted(patterns: Sequence[str], table: TableId, *, default_schema: str, folds_case: bool) -> bool:
    """Does one of the patterns match the table and none take it away, whether there is such a table or not?"""
    wanted = False
    for pattern in patterns:
        takes_away = pattern.startswith("!")
        if _matcher(pattern.removeprefix("!"), default_schema, folds_case).match(str(table)):
            if takes_away:
                return False
            wanted = True
    return wanted


def is_literal(pattern: str) -> bool:
    """Whether a pattern names one table and no other: it was written on purpose, so its absence needs a reason."""
    return not any(mark in pattern for mark in "!*?[")


def _matcher(pattern: str, default_schema: str, folds_case: bool) -> re.Pattern[str]:
    text = pattern if "." in pattern else f"{default_schema}.{pattern}"
    return re.compile(translate(text), re.IGNORECASE if folds_case else 0)

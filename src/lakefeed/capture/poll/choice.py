"""Choice: which tables a polling source follows, and by which rule each."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from lakefeed.capture.dialect import DescribedTable, Dialect
from lakefeed.capture.poll.followed import Followed, follow
from lakefeed.capture.poll.rule import TableRule
from lakefeed.capture.select import is_literal, is_wanted, match_tables
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError

log = logging.getLogger(__name__)


class Choice:
    """``rules`` by pattern; of several that match a table, one that names it wins, then the first."""

    def __init__(self, connector: Dialect, patterns: Sequence[str], rules: Mapping[str, TableRule]) -> None:
        self._schema = connector.default_schema
        self._folds = connector.folds_case
        self._patterns = tuple(patterns)
        self._rules = dict(rules)
        self._said: set[TableId] = set()

    def tables(self, there: Mapping[TableId, str | None]) -> tuple[TableId, ...]:
        """Those that the patterns match. ConfigError for a pattern, or a rule, that matches none."""
        for pattern in filter(is_literal, (*self._patterns, *self._rules)):
            for table in self._matching(pattern, there):
                if there[table] is not None:
                    raise ConfigError(f"'{pattern}' cannot be polled: {there[table]}")
        usable = [table for table, reason in there.items() if reason is None]
        chosen = match_tables(self._patterns, usable, default_schema=self._schema, folds_case=self._folds)
        for pattern in self._rules:
            if not self._matching(pattern, chosen):
                raise ConfigError(f"rules: '{pattern}' matches none of the tables that are polled")
        return chosen

    def wants(self, table: TableId) -> bool:
        return is_wanted(self._patterns, table, default_schema=self._schema, folds_case=self._folds)

    def rule(self, table: TableId) -> TableRule:
        matching = [pattern for pattern in self._rules if self._matching(pattern, [table])]
        named = [pattern for pattern in matching if is_literal(pattern)]
        best = (named or matching)[:1]
        return self._rules[best[0]] if best else TableRule()

    def is_named(self, table: TableId) -> bool:
        """Written down on purpose, so that what is wrong with it is an error and not a reason to leave it out."""
        named = [pattern for pattern in self._patterns if is_literal(pattern)]
        return any(self._matching(pattern, [table]) for pattern in (*named, *self._rules))

    def followed(
        self, described: Mapping[TableId, DescribedTable], known: Collection[TableId] = ()
    ) -> dict[TableId, Followed]:
        """Checked against the catalog. A table that only a wildcard matches and that cannot be polled is left out.

        So is one of the ``known``, which were polled before: it is told as blocked, and must not hold up the others.
        """
        found = {}
        for table, source in described.items():
            try:
                found[table] = follow(source, self.rule(table))
            except ConfigError as error:
                if self.is_named(table) and table not in known:
                    raise
                if table not in self._said:
                    self._said.add(table)
                    log.warning("%s is left out: %s. %s", table, error.message, error.remedy)
        return found

    def _matching(self, pattern: str, tables: Mapping[TableId, str | None] | Sequence[TableId]) -> Sequence[TableId]:
        try:
            return match_tables([pattern], tables, default_schema=self._schema, folds_case=self._folds)
        except ConfigError:
            return ()

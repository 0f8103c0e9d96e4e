"""Which tables are polled and by which rule, and what ``lakefeed check`` says about them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing

import pyarrow as pa

from lakefeed.capture.base import Finding, Level
from lakefeed.capture.dialect import Dialect, Refusal, Session
from lakefeed.capture.fit import MisfitError
from lakefeed.capture.poll.poller import count_timeless
from lakefeed.capture.poll.query import Queries
from lakefeed.capture.poll.rule import NullPolicy, TableRule
from lakefeed.capture.poll.table import PolledTable, polled_table
from lakefeed.capture.select import is_literal, is_wanted, match_tables
from lakefeed.capture.snapshot import combined
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, LakefeedError, Retry

log = logging.getLogger(__name__)

_FUTURE_US = 60_000_000
_REFUSED_BY_DELTA = " ,;{}()\n\t="


class TableSelection:
    """Of several rules that match a table, one that names it wins, then the first."""

    def __init__(self, dialect: Dialect, patterns: Sequence[str], rules: Mapping[str, TableRule]) -> None:
        self._dialect = dialect
        self._patterns = tuple(patterns)
        self._rules = dict(rules)
        self._warned: set[TableId] = set()
        self._seen: frozenset[TableId] = frozenset()

    def wants(self, table: TableId) -> bool:
        return any(self._matches(pattern, table) for pattern in self._patterns)

    def rule(self, table: TableId) -> TableRule:
        matching = [pattern for pattern in self._rules if self._matches(pattern, table)]
        best = [pattern for pattern in matching if is_literal(pattern)] or matching
        return self._rules[best[0]] if best else TableRule()

    def polled(self, session: Session, known: Collection[TableId]) -> dict[TableId, PolledTable]:
        """Those that can be polled. One that only a wildcard matches and that cannot be is left out.

        So is one of the ``known``, which were polled before: a notice blocks it, and it must not hold up the others.
        """
        found = self._examine(session)
        for table, error in found.items():
            if isinstance(error, ConfigError):
                if self._is_named(table) and table not in known:
                    raise error
                if table not in self._warned:
                    self._warned.add(table)
                    log.warning("%s is left out: %s. %s", table, error.message, error.remedy)
        return {table: polled for table, polled in found.items() if isinstance(polled, PolledTable)}

    def check(self) -> tuple[Finding, ...]:
        """All findings. A database that cannot be reached is an error and not a finding."""
        with closing(self._dialect.connect()) as session:
            try:
                examined = self._examine(session)
            except ConfigError as error:
                return (Finding(level=Level.ERROR, problem=error.message, remedy=error.remedy),)
            found: list[Finding] = []
            for table, polled in examined.items():
                if isinstance(polled, PolledTable):
                    found += [
                        Finding(level=level, problem=f"{table}: {problem}", remedy=remedy, table=table)
                        for level, problem, remedy in self._problems(session, polled)
                    ]
                elif self._is_named(table):
                    found.append(Finding(level=Level.ERROR, problem=polled.message, remedy=polled.remedy, table=table))
                else:
                    problem = f"is left out: {polled.message}"
                    found.append(Finding(level=Level.WARNING, problem=problem, remedy=polled.remedy, table=table))
            return tuple(found)

    def _examine(self, session: Session) -> dict[TableId, PolledTable | ConfigError]:
        """What the patterns match, checked against the catalog: how it is polled, or why it cannot be."""
        found: dict[TableId, PolledTable | ConfigError] = {}
        for table, source in session.describe(self._choose(session.tables())).items():
            try:
                found[table] = polled_table(source, self.rule(table))
            except ConfigError as error:
                found[table] = error
        return found

    def _choose(self, there: Mapping[TableId, Refusal | None]) -> tuple[TableId, ...]:
        """Those that the patterns match. ConfigError for a pattern, or a rule, that matches none and never did."""
        for pattern in filter(is_literal, (*self._patterns, *self._rules)):
            for table, refusal in there.items():
                if refusal is not None and self._matches(pattern, table):
                    raise ConfigError(f"'{pattern}' cannot be polled: {refusal.reason}", remedy=refusal.remedy)
        chosen = match_tables(
            self._patterns,
            [table for table, refusal in there.items() if refusal is None],
            default_schema=self._dialect.default_schema,
            folds_case=self._dialect.folds_case,
            seen=self._seen,
        )
        self._seen |= set(chosen)
        for pattern in self._rules:
            if not any(self._matches(pattern, table) for table in self._seen):
                raise ConfigError(f"rules: '{pattern}' matches none of the tables that are polled")
        return chosen

    def _problems(self, session: Session, table: PolledTable) -> Iterator[tuple[Level, str, str]]:
        """What stands in the way of one table, what was guessed, and what polling cannot see."""
        name, updated_at, kind = table.id, table.updated_at, table.column(table.updated_at).type
        if table.is_guess:
            problem = f"'{updated_at}' is taken for the time of the last update, by its name"
            yield Level.WARNING, problem, f"Say so: rules: {{{name}: {{updated_at: {updated_at}}}}}."
        if table.rule.deletes is None:
            problem = "deleted rows stay in the lake: polling does not see deletes"
            yield Level.WARNING, problem, f"Set deletes in the rule of {name}: a soft_delete column, or full_diff."
        if isinstance(kind, pa.TimestampType) and kind.tz is None:
            problem = f"'{updated_at}' has no time zone and is taken for UTC; late commits are missed if it is not"
            yield Level.WARNING, problem, f"Write it in UTC, or make '{updated_at}' a timestamp with time zone."
        for column in table.schema.names:
            if any(letter in _REFUSED_BY_DELTA for letter in column) or column.lower().startswith("_lakefeed"):
                problem = f"lake tables refuse the column name '{column}'"
                yield Level.ERROR, problem, "Rename it, or leave it out: columns."
        try:
            if count := count_timeless(self._dialect, session, table):
                stops = table.rule.null_updated_at is not NullPolicy.IGNORE
                effect = "the table will stop" if stops else "their changes are not seen"
                problem = f"{count} rows have no {updated_at} or no key; {effect}"
                yield Level.ERROR if stops else Level.WARNING, problem, "Give them values, or set null_updated_at."
            schema = table.arrow(table.mark_names)
            rows = combined(session.read(Queries(self._dialect, table).newest(1), schema), schema)
            ahead = int(table.times(rows)[0]) - session.horizon().now_us if rows.num_rows else 0
            if ahead > _FUTURE_US:
                problem = f"the newest {updated_at} is {ahead / 1e6:.0f} s ahead of the source's clock"
                remedy = "Write it in UTC and by the database's clock; until then such rows are read again."
                yield Level.WARNING, problem, remedy
        except (LakefeedError, MisfitError) as caught:
            error = caught.stopped(name) if isinstance(caught, MisfitError) else caught
            if error.retry is Retry.BACKOFF:
                raise
            yield Level.ERROR, error.message.removeprefix(f"{name}: "), error.remedy

    def _is_named(self, table: TableId) -> bool:
        """Written down on purpose, so that what is wrong with it is an error and not a reason to leave it out."""
        named = [pattern for pattern in self._patterns if is_literal(pattern)]
        return any(self._matches(pattern, table) for pattern in (*named, *self._rules))

    def _matches(self, pattern: str, table: TableId) -> bool:
        schema, folds = self._dialect.default_schema, self._dialect.folds_case
        return is_wanted([pattern], table, default_schema=schema, folds_case=folds)

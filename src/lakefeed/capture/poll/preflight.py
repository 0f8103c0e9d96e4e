"""``lakefeed check`` for a polled source: what stands in the way, what was guessed, and what polling cannot see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from lakefeed.capture.base import Finding, Level
from lakefeed.capture.dialect import Dialect, Session
from lakefeed.capture.fit import MisfitError
from lakefeed.capture.poll.query import Queries
from lakefeed.capture.poll.rule import NullPolicy
from lakefeed.capture.poll.table import PolledTable, TableSelection, polled_table
from lakefeed.capture.snapshot import combined, read_number
from lakefeed.errors import ConfigError, LakefeedError, Retry

_FUTURE_US = 60_000_000
_REFUSED_BY_DELTA = " ,;{}()\n\t="


def check_source(dialect: Dialect, selection: TableSelection) -> tuple[Finding, ...]:
    """All findings. A database that cannot be reached is an error and not a finding."""
    with closing(dialect.connect()) as session:
        try:
            tables = selection.tables(session.tables())
        except ConfigError as error:
            return (Finding(level=Level.ERROR, problem=error.message, remedy=error.remedy),)
        found: list[Finding] = []
        for table, source in session.describe(tables).items():
            try:
                polled = polled_table(source, selection.rule(table))
            except ConfigError as error:
                is_named = selection.is_named(table)
                level, problem = Level.ERROR if is_named else Level.WARNING, error.message
                problem = problem if is_named else f"is left out: {problem}"
                found.append(Finding(level=level, problem=problem, remedy=error.remedy, table=table))
                continue
            found += [
                Finding(level=level, problem=f"{table}: {problem}", remedy=remedy, table=table)
                for level, problem, remedy in _of_table(dialect, session, polled)
            ]
        return tuple(found)


def _of_table(dialect: Dialect, session: Session, table: PolledTable) -> Iterator[tuple[Level, str, str]]:
    name = table.id
    if table.is_guess:
        problem = f"'{table.updated_at}' is taken for the time of the last update, by its name"
        yield Level.WARNING, problem, f"Say so: rules: {{{name}: {{updated_at: {table.updated_at}}}}}."
    if table.rule.deletes is None:
        problem = "deleted rows stay in the lake: polling does not see deletes"
        yield Level.WARNING, problem, f"Set deletes in the rule of {name}: a soft_delete column, or full_diff."
    kind = table.column(table.updated_at).type
    if isinstance(kind, pa.TimestampType) and kind.tz is None:
        problem = f"'{table.updated_at}' has no time zone and is taken for UTC; late commits are missed if it is not"
        yield Level.WARNING, problem, f"Write it in UTC, or make '{table.updated_at}' a timestamp with time zone."
    for column in table.schema.names:
        if any(letter in _REFUSED_BY_DELTA for letter in column) or column.lower().startswith("_lakefeed"):
            yield Level.ERROR, f"lake tables refuse the column name '{column}'", "Rename it, or leave it out: columns."
    try:
        yield from _of_rows(dialect, session, table)
    except LakefeedError as error:
        if error.retry is Retry.BACKOFF:
            raise
        yield Level.ERROR, error.message, error.remedy
    except MisfitError as error:
        stopped = error.stopped(name)
        yield Level.ERROR, stopped.message.removeprefix(f"{name}: "), stopped.remedy


def _of_rows(dialect: Dialect, session: Session, table: PolledTable) -> Iterator[tuple[Level, str, str]]:
    if table.nullable_time and (count := read_number(session, Queries(dialect, table).without_time())):
        stops = table.rule.null_updated_at is not NullPolicy.IGNORE
        effect = "the table will stop" if stops else "their changes are not seen"
        problem = f"{count} rows have no {table.updated_at} or no key; {effect}"
        yield Level.ERROR if stops else Level.WARNING, problem, "Give them values, or set null_updated_at."
    schema = table.arrow(table.mark_names)
    rows = combined(session.read(Queries(dialect, table).newest(1), schema), schema)
    if rows.num_rows:
        ahead = int(table.times(rows)[0]) - session.horizon().now_us
        if ahead > _FUTURE_US:
            problem = f"the newest {table.updated_at} is {ahead / 1e6:.0f} s ahead of the source's clock"
            yield (
                Level.WARNING,
                problem,
                "Write it in UTC and by the database's clock; until then such rows are read again.",
            )

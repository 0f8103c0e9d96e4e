"""``lakefeed check`` for a polled source: what stands in the way, what was guessed, and what polling cannot see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from lakefeed.capture.base import Finding, Level
from lakefeed.capture.dialect import Dialect, Session
from lakefeed.capture.fit import MisfitError
from lakefeed.capture.poll.choice import Choice
from lakefeed.capture.poll.followed import Followed, follow
from lakefeed.capture.poll.marking import Marking
from lakefeed.capture.poll.query import Queries
from lakefeed.capture.poll.reading import combined, count_without_time
from lakefeed.capture.poll.rule import NullPolicy
from lakefeed.change.watermark import Mark
from lakefeed.errors import ConfigError, LakefeedError, Retry

_FUTURE_US = 60_000_000
_REFUSED_BY_DELTA = " ,;{}()\n\t="


def check_source(connector: Dialect, choice: Choice) -> tuple[Finding, ...]:
    """All findings. A database that cannot be reached is an error and not a finding."""
    session = connector.connect()
    try:
        return tuple(_findings(connector, session, choice))
    finally:
        session.close()


def oldest_unread_us(connector: Dialect, session: Session, followed: Sequence[tuple[Followed, Mark]]) -> int | None:
    """The time of the oldest row after the marks, over all tables."""
    found = []
    for table, mark in followed:
        schema = table.reading
        rows = combined(session.read(Queries(connector, table).changes(mark, 1), schema), schema)
        if rows.num_rows:
            found.append(int(Marking(table).times(rows)[0]))
    return min(found, default=None)


def _findings(connector: Dialect, session: Session, choice: Choice) -> Iterator[Finding]:
    try:
        tables = choice.tables(session.tables())
    except ConfigError as error:
        yield Finding(level=Level.ERROR, problem=error.message, remedy=error.remedy)
        return
    for table, source in session.describe(tables).items():
        try:
            followed = follow(source, choice.rule(table))
        except ConfigError as error:
            level = Level.ERROR if choice.is_named(table) else Level.WARNING
            left_out = "" if choice.is_named(table) else "is left out: "
            yield Finding(level=level, problem=f"{left_out}{error.message}", remedy=error.remedy, table=table)
            continue
        for level, problem, remedy in _of_table(connector, session, followed):
            yield Finding(level=level, problem=f"{table}: {problem}", remedy=remedy, table=table)


def _of_table(connector: Dialect, session: Session, followed: Followed) -> Iterator[tuple[Level, str, str]]:
    name = followed.id
    if followed.is_guess:
        problem = f"'{followed.updated_at}' is taken for the time of the last update, by its name"
        yield Level.WARNING, problem, f"Say so: rules: {{{name}: {{updated_at: {followed.updated_at}}}}}."
    if followed.rule.deletes is None:
        problem = "deleted rows stay in the lake: polling does not see deletes"
        yield Level.WARNING, problem, f"Set deletes in the rule of {name}: a soft_delete column, or full_diff."
    kind = followed.column(followed.updated_at).type
    if isinstance(kind, pa.TimestampType) and kind.tz is None:
        problem = f"'{followed.updated_at}' has no time zone and is taken for UTC; late commits are missed if it is not"
        yield Level.WARNING, problem, f"Write it in UTC, or make '{followed.updated_at}' a timestamp with time zone."
    for column in followed.schema.names:
        if any(letter in _REFUSED_BY_DELTA for letter in column) or column.lower().startswith("_lakefeed"):
            yield Level.ERROR, f"lake tables refuse the column name '{column}'", "Rename it, or leave it out: columns."
    try:
        yield from _of_rows(connector, session, followed)
    except LakefeedError as error:
        if error.retry is Retry.BACKOFF:
            raise
        yield Level.ERROR, error.message, error.remedy
    except MisfitError as error:
        yield Level.ERROR, f"the column {error.column} holds values of several types", "Correct the values."


def _of_rows(connector: Dialect, session: Session, followed: Followed) -> Iterator[tuple[Level, str, str]]:
    if followed.nullable_stamp and (count := count_without_time(connector, session, followed)):
        stops = followed.rule.null_updated_at is not NullPolicy.IGNORE
        effect = "the table will stop" if stops else "their changes are not seen"
        problem = f"{count} rows have no {followed.updated_at} or no key; {effect}"
        yield Level.ERROR if stops else Level.WARNING, problem, "Give them values, or set null_updated_at."
    queries = Queries(connector, followed)
    schema = pa.schema([pa.field(name, followed.column(name).type) for name in queries.mark_names])
    rows = combined(session.read(queries.newest(1), schema), schema)
    if rows.num_rows:
        ahead = int(Marking(followed).times(rows)[0]) - session.horizon().now_us
        if ahead > _FUTURE_US:
            problem = f"the newest {followed.updated_at} is {ahead / 1e6:.0f} s ahead of the source's clock"
            yield (
                Level.WARNING,
                problem,
                "Write it in UTC and by the database's clock; until then such rows are read again.",
            )

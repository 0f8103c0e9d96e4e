"""Which tables are polled, and how: rules checked against the catalog, and what ``lakefeed check`` reports about
them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa

from lakefeed.capture.base import Finding, Level
from lakefeed.capture.dialect import DescribedTable, Dialect, Session
from lakefeed.capture.fit import MisfitError
from lakefeed.capture.poll.source import NullPolicy, SoftDelete, TableRule
from lakefeed.capture.poll.table import PolledTable, TableReads, given
from lakefeed.capture.select import TablePatterns, refused_names
from lakefeed.change.choice import NOTHING_CHOSEN, Choices, is_literal
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import ConfigError, LakefeedError, Retry

log = logging.getLogger(__name__)

UPDATED = {"updated_at", "updated_on", "updated", "modified_at", "modified_on", "last_modified", "last_updated"}
CREATED = {"created_at", "created_on", "created", "inserted_at"}

_FUTURE_US = 60_000_000


class TableSelection:
    """If several rules match a table, one that names it wins, then the first."""

    def __init__(self, dialect: Dialect, patterns: Sequence[str], rules: Mapping[str, TableRule]) -> None:
        self._dialect, self._choices = dialect, NOTHING_CHOSEN
        names: dict[str, Any] = {"default_schema": dialect.default_schema, "folds_case": dialect.folds_case}
        self._patterns, self._rule_patterns = TablePatterns(patterns, **names), TablePatterns(rules, **names)
        self._rules = dict(rules)
        self._warned: set[TableId] = set()
        self._seen: frozenset[TableId] = frozenset()

    def represent(self, dialect: Dialect, choices: Choices) -> None:
        """See ``ChangeCapture.represent``."""
        self._dialect, self._choices = dialect, choices

    def wants(self, table: TableId) -> bool:
        return bool(self._patterns.matching(table))

    def rule(self, table: TableId) -> TableRule:
        best = self._rule_patterns.matching(table)
        return self._rules[best[0]] if best else TableRule()

    def table(self, source: DescribedTable, known: TableSchema | None = None, mixed: Iterable[str] = ()) -> PolledTable:
        """How a table is polled by its rule. ConfigError, naming table and column, for whatever the catalog lacks.
        ``known`` is the schema it was delivered with last: a column that was text there, although it was and is
        declared otherwise, stays text. So do ``mixed`` columns, which hold values of several types."""
        table, rule = source.id, self.rule(source.id)
        soft = rule.deletes.column if isinstance(rule.deletes, SoftDelete) else None
        for name in given(*rule.key, *rule.columns, rule.created_at, rule.updated_at, soft):
            source.schema.column(name)  # raises ConfigError with the table, the column and the existing ones
        key = tuple(rule.key) or source.schema.key
        if not key:
            remedy = f"Name columns that are unique together: rules: {{{table}: {{key: […]}}}}."
            raise ConfigError(f"table {table} has no primary key, so its rows cannot be told apart", remedy=remedy)
        for name in source.unordered.keys() & set(key):
            raise ConfigError(f"table {table}: the key column '{name}' cannot be ordered: {source.unordered[name]}")
        updated_at = rule.updated_at or _guessed(source, UPDATED)
        created_at = rule.created_at or _guessed(source, CREATED)
        if updated_at is None:
            remedy = f"Name it: rules: {{{table}: {{updated_at: …}}}}; there are {', '.join(source.schema.names)}."
            raise ConfigError(f"table {table}: no single column looks like the time of the last update", remedy=remedy)
        for name in given(updated_at, rule.created_at):
            if not is_stamp(kind := source.schema.column(name).type):
                must = "it must be a timestamp, an ISO 8601 text or a whole number since 1970"
                raise ConfigError(f"table {table}: the column '{name}' ({kind}) cannot tell when a row changed; {must}")
        if rule.null_updated_at is NullPolicy.CREATED_AT and created_at is None:
            raise ConfigError(f"table {table}: null_updated_at is created_at, but there is no created_at column")

        declared = {column.name: column for column in source.schema.columns}
        before = [column for column in known.columns if pa.types.is_string(column.type)] if known is not None else []
        were = {(column.name, column.source_type) for column in before if column.name in source.misfits}
        texts = {*mixed, *(name for name, one in declared.items() if (name, one.source_type) in were)}
        columns = tuple(
            replace(one, type=pa.string() if name in texts else one.type, nullable=one.nullable and name not in key)
            for name, one in declared.items()
            if not rule.columns or name in (*rule.columns, *key)
        )
        schema, stamp = TableSchema(source.id, columns, key), declared[updated_at].type
        made = PolledTable(self._dialect, source, rule, schema, updated_at, created_at)
        if soft is not None:
            kind = declared[soft].type
            is_flag = pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and kind != stamp)
            made = replace(made, soft_flag=soft) if is_flag else replace(made, soft_time=soft)
        for other, why in ((made.stand_in, "stands in for it"), (made.soft_time, "says when a row was deleted")):
            kind = declared[other or updated_at].type
            if kind != stamp and not (pa.types.is_timestamp(kind) and pa.types.is_timestamp(stamp)):
                need = f"and must be stored like '{updated_at}' ({stamp})"
                raise ConfigError(f"table {table}: the column '{other}' ({kind}) {why}, {need}")
        choice, needed = self._choices.of(table), {*made.mark_names, made.soft_flag}
        unread = (name for name in schema.names if not choice.takes(name) and name not in needed)
        return replace(made, unread=frozenset(unread))

    def polled(self, session: Session, known: Collection[TableId]) -> dict[TableId, PolledTable]:
        """The tables that can be polled. One that cannot be polled is left out if only a wildcard matches it, or if it
        is one of the ``known``, which were polled before: a notice blocks it, and it must not hold up the others."""
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
        """All findings. An unreachable database raises an error."""
        with closing(self._dialect.connect()) as session:
            try:
                examined = self._examine(session)
            except ConfigError as error:
                return (Finding(level=Level.ERROR, problem=error.message, remedy=error.remedy),)
            found: list[Finding] = []
            for table, polled in examined.items():
                if isinstance(polled, PolledTable):
                    problems = [(one, f"{table}: {what}", how) for one, what, how in self._problems(session, polled)]
                elif self._is_named(table):
                    problems = [(Level.ERROR, polled.message, polled.remedy)]
                else:
                    problems = [(Level.WARNING, f"left out: {polled.message}", polled.remedy)]
                found += [Finding(level=one, problem=what, remedy=how, table=table) for one, what, how in problems]
            return tuple(found)

    def _examine(self, session: Session) -> dict[TableId, PolledTable | ConfigError]:
        """The tables that the patterns match, checked against the catalog: how each is polled, or why it cannot be.
        ConfigError for a pattern or a rule that matches no table and never did."""
        there = session.tables()
        for table, refusal in there.items():
            for pattern in (*self._patterns.matching(table), *self._rule_patterns.matching(table)):
                if refusal is not None and is_literal(pattern):
                    raise ConfigError(f"'{pattern}' cannot be polled: {refusal.reason}", remedy=refusal.remedy)
        chosen = self._patterns.choose((table for table, refusal in there.items() if refusal is None), self._seen)
        self._seen |= set(chosen)
        used = {pattern for table in self._seen for pattern in self._rule_patterns.matching(table)}
        for pattern in (one for one in self._rules if one not in used):
            raise ConfigError(f"rules: '{pattern}' matches none of the polled tables")
        found: dict[TableId, PolledTable | ConfigError] = {}
        for table, source in session.describe(chosen).items():
            try:
                found[table] = self.table(source)
            except ConfigError as error:
                found[table] = error
        return found

    def _problems(self, session: Session, table: PolledTable) -> Iterator[tuple[Level, str, str]]:
        """What prevents polling one table, what was guessed, and what polling cannot see."""
        name, updated_at, kind = table.id, table.updated_at, table.column(table.updated_at).type
        reads = TableReads(table, session)
        if table.rule.updated_at is None:
            problem = f"'{updated_at}' is taken for the time of the last update because of its name"
            yield Level.WARNING, problem, f"Confirm it: rules: {{{name}: {{updated_at: {updated_at}}}}}."
        if table.rule.deletes is None:
            problem = "deleted rows stay in the lake: polling does not see deletes"
            yield Level.WARNING, problem, f"Set deletes in the rule of {name}: a soft_delete column, or full_diff."
        if isinstance(kind, pa.TimestampType) and kind.tz is None:
            problem = f"'{updated_at}' has no time zone and is taken for UTC; if it is not, late commits are missed"
            yield Level.WARNING, problem, f"Write it in UTC, or make '{updated_at}' a timestamp with time zone."
        for _, problem, _ in refused_names(table.schema.names):
            yield Level.ERROR, problem, "Rename it, or leave it out: columns."
        try:
            if count := reads.count_timeless():
                stops = table.rule.null_updated_at is not NullPolicy.IGNORE
                effect = "the table will stop" if stops else "their changes are not seen"
                problem = f"{count} rows have no {updated_at} or no key; {effect}"
                yield Level.ERROR if stops else Level.WARNING, problem, "Give them values, or set null_updated_at."
            rows = reads.newest(1)
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
        """Whether the user named it on purpose, so that a problem is an error and not a reason to leave it out."""
        return bool(self._rule_patterns.matching(table)) or any(map(is_literal, self._patterns.matching(table)))


def _guessed(source: DescribedTable, names: set[str]) -> str | None:
    """The only column that has such a name and can be a time; None if there is none, or more than one."""
    found = [column.name for column in source.schema.columns if column.name.lower() in names and is_stamp(column.type)]
    return found[0] if len(found) == 1 else None


def is_stamp(kind: pa.DataType) -> bool:
    """Whether a column of this type can tell when a row changed. A date cannot: it stays the same all day."""
    return pa.types.is_timestamp(kind) or pa.types.is_string(kind) or pa.types.is_int64(kind)

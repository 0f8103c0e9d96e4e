"""PolledTable: a table together with how it is polled, every name checked against the catalog; and which are polled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.dialect import DescribedTable, Dialect, Refusal, key_rows
from lakefeed.capture.poll.rule import NullPolicy, SoftDelete, TableRule
from lakefeed.capture.poll.stamp import Instants, StampError, instants, is_stamp
from lakefeed.capture.select import is_literal, is_wanted, match_tables
from lakefeed.change.change_set import RecopyNeeded
from lakefeed.change.schema_change import AddColumn, ChangeKey, RetypeColumn, diff
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.change.watermark import Mark
from lakefeed.errors import ConfigError, TableStoppedError

log = logging.getLogger(__name__)

UPDATED = frozenset(
    {"updated_at", "updated_on", "updated", "modified_at", "modified_on", "last_modified", "last_updated"}
)
CREATED = frozenset({"created_at", "created_on", "created", "inserted_at"})


@dataclass(frozen=True, slots=True)
class PolledTable:
    """``schema`` is what is delivered. ``soft_time`` and ``soft_flag``: the column that marks deleted rows, by kind."""

    source: DescribedTable
    rule: TableRule
    schema: TableSchema
    updated_at: str
    created_at: str | None = None
    soft_time: str | None = None
    soft_flag: str | None = None
    is_guess: bool = False

    @property
    def id(self) -> TableId:
        return self.schema.table

    @property
    def key(self) -> tuple[str, ...]:
        return self.schema.key

    @property
    def ordering(self) -> frozenset[str]:
        """Columns that rows are put in order by, or that mark them deleted: their types are not open to change."""
        names = (*self.key, self.updated_at, self.soft_time, self.soft_flag)
        return frozenset(name for name in names if name is not None)

    @property
    def nullable_time(self) -> bool:
        """Whether rows without a time can exist: not if the column forbids it."""
        names = [self.updated_at]
        if self.rule.null_updated_at is NullPolicy.CREATED_AT and self.created_at is not None:
            names.append(self.created_at)
        return all(self.column(name).nullable for name in names)

    @property
    def read_names(self) -> tuple[str, ...]:
        """What is read: the delivered columns first, then those that only polling needs."""
        needed = (self.updated_at, self.created_at, self.soft_time, self.soft_flag)
        extra = dict.fromkeys(name for name in needed if name is not None and name not in self.schema.names)
        return (*self.schema.names, *extra)

    @property
    def mark_names(self) -> tuple[str, ...]:
        """The columns that a mark is made of: times and key."""
        times = (self.updated_at, self.created_at, self.soft_time)
        return tuple(dict.fromkeys(name for name in (*times, *self.key) if name is not None))

    def column(self, name: str) -> Column:
        """A column of the table, delivered or not, with the type that it is read as."""
        return self.schema.column(name) if name in self.schema.names else self.source.schema.column(name)

    def arrow(self, names: Iterable[str]) -> pa.Schema:
        return pa.schema([pa.field(name, self.column(name).type) for name in names])

    def times(self, rows: pa.RecordBatch, *, expect_order: bool = True) -> Instants:
        """When each row changed last, in microseconds. TableStoppedError if the database's order is not the time's."""
        found = self._instants(self._time_values(rows), self.updated_at)
        times: Instants = pc.fill_null(found, 0).to_numpy(zero_copy_only=False).astype(np.int64)
        if expect_order and not np.all(times[1:] >= times[:-1]):
            raise self._stopped(
                f"the values of {self.updated_at} are not written in one form, so that their order as stored is not "
                "the order of time"
            )
        return times

    def are_inserts(self, rows: pa.RecordBatch) -> Any | None:
        """A boolean array, true where a row was created and updated at the same instant; None if nothing says so."""
        if self.created_at is None:
            return None
        created = self._instants(rows.column(self.created_at), self.created_at)
        updated: Any = instants(rows.column(self.updated_at))
        return pc.fill_null(pc.equal(created, updated), False)

    def are_deleted(self, rows: pa.RecordBatch) -> Any | None:
        """A boolean array, None where no row can be marked as deleted."""
        if self.soft_time is not None:
            return pc.is_valid(rows.column(self.soft_time))
        if self.soft_flag is None:
            return None
        flag: Any = rows.column(self.soft_flag)
        return pc.fill_null(flag if pa.types.is_boolean(flag.type) else pc.not_equal(flag, pa.scalar(0)), False)

    def mark(self, rows: pa.RecordBatch, index: int, before: Mark) -> Mark:
        """The mark of the row at ``index``, when ``rows`` are what follows ``before``."""
        row = rows.slice(index, 1)
        (key,) = key_rows(row, self.key)
        times = self.times(rows.slice(0, index + 1))
        instant = int(times[-1])
        passed = before.place if before.instant_us == instant else 0
        # Beside the time, what the source stores for it, so that the next query can be asked with that.
        is_timestamp = pa.types.is_timestamp(self.column(self.updated_at).type)
        stamp = None if is_timestamp else self._time_values(row)[0].as_py()
        return Mark(instant, key, before.era, passed + int(np.count_nonzero(times == instant)), stamp)

    def _time_values(self, rows: pa.RecordBatch) -> Any:
        """The value that orders each row: of the update, or of the soft delete if that is later."""
        updated: Any = rows.column(self.updated_at)
        if self.rule.null_updated_at is NullPolicy.CREATED_AT and self.created_at is not None:
            updated = pc.coalesce(updated, rows.column(self.created_at).cast(updated.type))
        if self.soft_time is None:
            return updated
        deleted: Any = rows.column(self.soft_time).cast(updated.type)
        later = pc.fill_null(pc.greater(deleted, updated), pc.and_(pc.is_null(updated), pc.is_valid(deleted)))
        return pc.if_else(later, deleted, updated)

    def _instants(self, values: Any, name: str) -> Any:
        try:
            return instants(values)
        except StampError as error:
            raise self._stopped(f"a value of {name} is no time that can be read: {error}") from error

    def _stopped(self, problem: str) -> TableStoppedError:
        return TableStoppedError(
            f"{self.id}: {problem}", table=str(self.id), remedy="Correct the values in the source, then sync again."
        )


def polled_table(source: DescribedTable, rule: TableRule, as_text: Iterable[str] = ()) -> PolledTable:
    """Check a rule against a table. ConfigError, naming table and column, for whatever is not there.

    ``as_text`` are columns that have been delivered as text before, because they hold values of several types.
    """
    name, soft = source.id, rule.deletes.column if isinstance(rule.deletes, SoftDelete) else None
    for column in (*rule.key, *rule.columns, rule.created_at, rule.updated_at, soft):
        if column is not None:
            source.schema.column(column)  # ConfigError with the table, the column and those that there are
    key = tuple(rule.key) or source.schema.key
    if not key:
        raise ConfigError(
            f"table {name} has no primary key, so its rows cannot be told apart",
            remedy=f"Name columns that are unique together: rules: {{{name}: {{key: […]}}}}.",
        )
    for column in key:
        if column in source.unordered:
            raise ConfigError(f"table {name}: the key column '{column}' cannot be ordered: {source.unordered[column]}")

    updated_at = rule.updated_at or _guessed(source, UPDATED)
    if updated_at is None:
        raise ConfigError(
            f"table {name}: no column is unmistakably the time of the last update",
            remedy=f"Name it: rules: {{{name}: {{updated_at: …}}}}; there are {', '.join(source.schema.names)}.",
        )
    created_at = rule.created_at or _guessed(source, CREATED)
    for column in (updated_at, rule.created_at):
        if column is not None and not is_stamp(kind := source.schema.column(column).type):
            raise ConfigError(
                f"table {name}: the column '{column}' ({kind}) cannot say when a row changed; it must be a timestamp, "
                "an ISO 8601 text or a whole number since 1970"
            )
    if rule.null_updated_at is NullPolicy.CREATED_AT:
        if created_at is None:
            raise ConfigError(f"table {name}: null_updated_at is created_at, but no column is named as created_at")
        _require_same_kind(source, created_at, updated_at, "stands in for it")

    texts, wanted = frozenset(as_text), {*rule.columns, *key} if rule.columns else set(source.schema.names)
    columns = tuple(
        replace(
            column,
            type=pa.string() if column.name in texts else column.type,
            nullable=column.nullable and column.name not in key,
        )
        for column in source.schema.columns
        if column.name in wanted
    )
    made = PolledTable(
        source, rule, TableSchema(name, columns, key), updated_at, created_at, is_guess=rule.updated_at is None
    )
    if soft is None:
        return made
    kind, stamp = source.schema.column(soft).type, source.schema.column(updated_at).type
    if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and not _same_kind(kind, stamp)):
        return replace(made, soft_flag=soft)
    _require_same_kind(source, soft, updated_at, "says when a row was deleted")
    return replace(made, soft_time=soft)


def text_columns(known: TableSchema | None, source: DescribedTable) -> frozenset[str]:
    """Columns that have been delivered as text although their declared type is another, and still is that one."""
    declared = {column.name: column for column in source.schema.columns}
    return frozenset(
        column.name
        for column in (known.columns if known is not None else ())
        if pa.types.is_string(column.type)
        and column.name in declared
        and declared[column.name].type != column.type
        and declared[column.name].source_type == column.source_type
    )


def recopy_notice(old: TableSchema, new: TableSchema, is_filled: Callable[[str], bool]) -> RecopyNeeded | None:
    """What a change of the definition means for the rows that the lake has already; None: nothing.

    Polling sees no statement, only the catalog before and after; rows that a change filled without touching
    ``updated_at`` would never be read again. ``is_filled``: a row has a value in that column.
    """
    reasons: list[str] = []
    columns: list[str] = []
    for change in diff(old, new):
        match change:
            case ChangeKey(before, after):
                reasons.append(f"its key changed from ({', '.join(before)}) to ({', '.join(after)})")
            case RetypeColumn(name, was, now):
                reasons.append(f"the type of {name} changed from {was} to {now}")
                columns.append(name)
            case AddColumn(column) if column.name in new.key:
                return RecopyNeeded(new.table, "the table was created again")
            case AddColumn(column) if is_filled(column.name):
                reasons.append(f"rows have values in the new column {column.name}")
                columns.append(column.name)
    return RecopyNeeded(new.table, reasons[0], tuple(columns)) if reasons else None


class TableSelection:
    """Which tables are polled, and by which rule. Of several rules that match, one that names the table wins, then the
    first."""

    def __init__(self, dialect: Dialect, patterns: Sequence[str], rules: Mapping[str, TableRule]) -> None:
        self._schema = dialect.default_schema
        self._folds = dialect.folds_case
        self._patterns = tuple(patterns)
        self._rules = dict(rules)
        self._warned: set[TableId] = set()
        self._seen: frozenset[TableId] = frozenset()

    def tables(self, there: Mapping[TableId, Refusal | None]) -> tuple[TableId, ...]:
        """Those that the patterns match. ConfigError for a pattern, or a rule, that matches none and never did."""
        for pattern in filter(is_literal, (*self._patterns, *self._rules)):
            for table, refusal in there.items():
                if refusal is not None and self._matches(pattern, table):
                    raise ConfigError(f"'{pattern}' cannot be polled: {refusal.reason}", remedy=refusal.remedy)
        usable = [table for table, refusal in there.items() if refusal is None]
        chosen = match_tables(
            self._patterns, usable, default_schema=self._schema, folds_case=self._folds, seen=self._seen
        )
        self._seen |= set(chosen)
        for pattern in self._rules:
            if not any(self._matches(pattern, table) for table in self._seen):
                raise ConfigError(f"rules: '{pattern}' matches none of the tables that are polled")
        return chosen

    def wants(self, table: TableId) -> bool:
        return any(self._matches(pattern, table) for pattern in self._patterns)

    def rule(self, table: TableId) -> TableRule:
        matching = [pattern for pattern in self._rules if self._matches(pattern, table)]
        best = [pattern for pattern in matching if is_literal(pattern)] or matching
        return self._rules[best[0]] if best else TableRule()

    def is_named(self, table: TableId) -> bool:
        """Written down on purpose, so that what is wrong with it is an error and not a reason to leave it out."""
        named = [pattern for pattern in self._patterns if is_literal(pattern)]
        return any(self._matches(pattern, table) for pattern in (*named, *self._rules))

    def polled(
        self, described: Mapping[TableId, DescribedTable], known: Collection[TableId] = ()
    ) -> dict[TableId, PolledTable]:
        """Checked against the catalog. A table that only a wildcard matches and that cannot be polled is left out.

        So is one of the ``known``, which were polled before: a notice blocks it, and it must not hold up the others.
        """
        found = {}
        for table, source in described.items():
            try:
                found[table] = polled_table(source, self.rule(table))
            except ConfigError as error:
                if self.is_named(table) and table not in known:
                    raise
                if table not in self._warned:
                    self._warned.add(table)
                    log.warning("%s is left out: %s. %s", table, error.message, error.remedy)
        return found

    def _matches(self, pattern: str, table: TableId) -> bool:
        return is_wanted([pattern], table, default_schema=self._schema, folds_case=self._folds)


def _guessed(source: DescribedTable, names: frozenset[str]) -> str | None:
    """The one column that has such a name and can be a time; None if there is none, or more than one."""
    found = [column.name for column in source.schema.columns if column.name.lower() in names and is_stamp(column.type)]
    return found[0] if len(found) == 1 else None


def _same_kind(one: pa.DataType, other: pa.DataType) -> bool:
    return one == other or (pa.types.is_timestamp(one) and pa.types.is_timestamp(other))


def _require_same_kind(source: DescribedTable, name: str, updated_at: str, why: str) -> None:
    kind, stamp = source.schema.column(name).type, source.schema.column(updated_at).type
    if not _same_kind(kind, stamp):
        raise ConfigError(
            f"table {source.id}: the column '{name}' ({kind}) {why}, and must be stored as '{updated_at}' ({stamp}) is"
        )

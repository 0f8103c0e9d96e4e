"""Followed: a table together with how it is polled, every name checked against the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from lakefeed.capture.dialect import DescribedTable
from lakefeed.capture.poll.rule import NullPolicy, SoftDelete, TableRule
from lakefeed.capture.poll.stamp import is_stamp
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.errors import ConfigError, TableStoppedError

UPDATED = frozenset(
    {"updated_at", "updated_on", "updated", "modified_at", "modified_on", "last_modified", "last_updated"}
)
CREATED = frozenset({"created_at", "created_on", "created", "inserted_at"})


@dataclass(frozen=True, slots=True)
class Followed:
    """``schema`` is what is delivered. ``soft_time`` and ``soft_flag``: the column that marks deleted rows, by kind."""

    table: DescribedTable
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
        """Columns that rows are put in order by, or told deleted: their types are not open to change."""
        names = (*self.key, self.updated_at, self.soft_time, self.soft_flag)
        return frozenset(name for name in names if name is not None)

    @property
    def nullable_stamp(self) -> bool:
        """Whether rows without a time can exist: not if the column forbids it."""
        names = [self.updated_at]
        if self.rule.null_updated_at is NullPolicy.CREATED_AT and self.created_at is not None:
            names.append(self.created_at)
        return all(self.column(name).nullable for name in names)

    def column(self, name: str) -> Column:
        """A column of the table, delivered or not, with the type that it is read as."""
        if name in self.schema.names:
            return self.schema.column(name)
        return self.table.schema.column(name)

    @property
    def reading(self) -> pa.Schema:
        """What is read: the delivered columns first, then those that only polling needs."""
        return pa.schema([pa.field(name, self.column(name).type) for name in self.read_names])

    @property
    def read_names(self) -> tuple[str, ...]:
        needed = (self.updated_at, self.created_at, self.soft_time, self.soft_flag)
        own = self.schema.names
        extra = dict.fromkeys(name for name in needed if name is not None and name not in own)
        return (*own, *extra)


def follow(table: DescribedTable, rule: TableRule, as_text: Iterable[str] = ()) -> Followed:
    """Check a rule against a table. ConfigError, naming table and column, for whatever is not there.

    ``as_text`` are columns that have been delivered as text before, because they hold values of several types.
    """
    _require(table, [*rule.key, *rule.columns, *filter(None, (rule.created_at, rule.updated_at))])
    key = _key(table, rule)
    updated_at = rule.updated_at or guessed(table, UPDATED)
    if updated_at is None:
        raise ConfigError(
            f"table {table.id}: no column is unmistakably the time of the last update",
            remedy=f"Name it: rules: {{{table.id}: {{updated_at: …}}}}; there are {', '.join(table.schema.names)}.",
        )
    _require_stamp(table, updated_at)
    created_at = rule.created_at or guessed(table, CREATED)
    if rule.created_at is not None:
        _require_stamp(table, rule.created_at)
    elif created_at is not None and not is_stamp(table.schema.column(created_at).type):
        created_at = None
    if rule.null_updated_at is NullPolicy.CREATED_AT and created_at is None:
        raise ConfigError(f"table {table.id}: null_updated_at is created_at, but no column is named as created_at")
    if rule.null_updated_at is NullPolicy.CREATED_AT and created_at is not None:
        _require_same_kind(table, created_at, updated_at, "stands in for it")
    schema = _delivered(table, rule, key, frozenset(as_text))
    made = Followed(table, rule, schema, updated_at, created_at, is_guess=rule.updated_at is None)
    return _with_soft_delete(made)


def unordered(table: TableId, column: str) -> TableStoppedError:
    """The error for a column of ``ordering`` that holds what its type does not fit."""
    return TableStoppedError(
        f"{table}: the column {column} holds values of several types, so that rows cannot be put in order",
        table=str(table),
        remedy="Correct the values in the source, then sync again.",
    )


def guessed(table: DescribedTable, names: frozenset[str]) -> str | None:
    """The one column that has such a name and can be a time; None if there is none, or more than one."""
    found = [column.name for column in table.schema.columns if column.name.lower() in names and is_stamp(column.type)]
    return found[0] if len(found) == 1 else None


def _key(table: DescribedTable, rule: TableRule) -> tuple[str, ...]:
    key = tuple(rule.key) or table.schema.key
    if not key:
        raise ConfigError(
            f"table {table.id} has no primary key, so its rows cannot be told apart",
            remedy=f"Name columns that are unique together: rules: {{{table.id}: {{key: […]}}}}.",
        )
    for name in key:
        if name in table.unordered:
            raise ConfigError(f"table {table.id}: the key column '{name}' cannot be ordered: {table.unordered[name]}")
    return key


def _delivered(table: DescribedTable, rule: TableRule, key: tuple[str, ...], as_text: frozenset[str]) -> TableSchema:
    wanted = {*rule.columns, *key} if rule.columns else set(table.schema.names)
    columns = []
    for column in table.schema.columns:
        if column.name in wanted:
            kind = pa.string() if column.name in as_text else column.type
            columns.append(replace(column, type=kind, nullable=column.nullable and column.name not in key))
    return TableSchema(table.id, tuple(columns), key)


def _with_soft_delete(made: Followed) -> Followed:
    deletes = made.rule.deletes
    if not isinstance(deletes, SoftDelete):
        return made
    _require(made.table, [deletes.column])
    kind = made.table.schema.column(deletes.column).type
    stamp = made.table.schema.column(made.updated_at).type
    if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and not _same_kind(kind, stamp)):
        return replace(made, soft_flag=deletes.column)
    _require_same_kind(made.table, deletes.column, made.updated_at, "says when a row was deleted")
    return replace(made, soft_time=deletes.column)


def _same_kind(one: pa.DataType, other: pa.DataType) -> bool:
    return one == other or (pa.types.is_timestamp(one) and pa.types.is_timestamp(other))


def _require_same_kind(table: DescribedTable, name: str, updated_at: str, why: str) -> None:
    kind, stamp = table.schema.column(name).type, table.schema.column(updated_at).type
    if not _same_kind(kind, stamp):
        raise ConfigError(
            f"table {table.id}: the column '{name}' ({kind}) {why}, and must be stored as '{updated_at}' ({stamp}) is"
        )


def _require(table: DescribedTable, names: Sequence[str]) -> None:
    for name in names:
        table.schema.column(name)  # ConfigError with the table, the column and those that there are


def _require_stamp(table: DescribedTable, name: str) -> None:
    kind = table.schema.column(name).type
    if not is_stamp(kind):
        raise ConfigError(
            f"table {table.id}: the column '{name}' ({kind}) cannot say when a row changed; it must be a timestamp, "
            "an ISO 8601 text or a whole number since 1970"
        )

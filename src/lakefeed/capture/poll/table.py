"""PolledTable: a table together with how it is polled, every name checked against the catalog; and its times.

Text is ordered by the database as text, so all stamps of a column must be written in one form: ``PolledTable.times``
finds out that they are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.dialect import DescribedTable, key_rows
from lakefeed.capture.poll.rule import NullPolicy, SoftDelete, TableRule
from lakefeed.change.change_set import RecopyNeeded
from lakefeed.change.schema_change import AddColumn, ChangeKey, RetypeColumn, diff
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.change.watermark import Mark
from lakefeed.errors import ConfigError, TableStoppedError

UPDATED = frozenset(
    {"updated_at", "updated_on", "updated", "modified_at", "modified_on", "last_modified", "last_updated"}
)
CREATED = frozenset({"created_at", "created_on", "created", "inserted_at"})
Instants = npt.NDArray[np.int64]

_ISO = (
    r"^(?P<day>\d{4}-\d{2}-\d{2})(?:[T ](?P<minute>\d{2}:\d{2})(?::(?P<second>\d{2})(?:[.,](?P<part>\d{1,6}))?)?)?"
    r"\s*(?P<zone>Z|z|[+-]\d{2}(?::?\d{2})?)?$"
)


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
    def stand_in(self) -> str | None:
        """The column that stands in for an ``updated_at`` that is NULL."""
        return self.created_at if self.rule.null_updated_at is NullPolicy.CREATED_AT else None

    @property
    def nullable_time(self) -> bool:
        """Whether rows without a time can exist: not if the column forbids it."""
        return all(self.column(name).nullable for name in (self.updated_at, self.stand_in) if name is not None)

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
        if self.stand_in is not None:
            updated = pc.coalesce(updated, rows.column(self.stand_in).cast(updated.type))
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


def polled_table(
    source: DescribedTable, rule: TableRule, known: TableSchema | None = None, mixed: Iterable[str] = ()
) -> PolledTable:
    """Check a rule against a table. ConfigError, naming table and column, for whatever is not there.

    ``known`` is what it was delivered with last: a column that was text there, although its declared type was another
    and still is that one, stays text. So do ``mixed`` columns, which hold values of several types.
    """
    table, soft = source.id, rule.deletes.column if isinstance(rule.deletes, SoftDelete) else None
    for name in (*rule.key, *rule.columns, rule.created_at, rule.updated_at, soft):
        if name is not None:
            source.schema.column(name)  # ConfigError with the table, the column and those that there are
    key = tuple(rule.key) or source.schema.key
    if not key:
        raise ConfigError(
            f"table {table} has no primary key, so its rows cannot be told apart",
            remedy=f"Name columns that are unique together: rules: {{{table}: {{key: […]}}}}.",
        )
    for name in source.unordered.keys() & set(key):
        raise ConfigError(f"table {table}: the key column '{name}' cannot be ordered: {source.unordered[name]}")
    updated_at, created_at = rule.updated_at or _guessed(source, UPDATED), rule.created_at or _guessed(source, CREATED)
    if updated_at is None:
        raise ConfigError(
            f"table {table}: no column is unmistakably the time of the last update",
            remedy=f"Name it: rules: {{{table}: {{updated_at: …}}}}; there are {', '.join(source.schema.names)}.",
        )
    for name in (updated_at, rule.created_at):
        if name is not None and not is_stamp(kind := source.schema.column(name).type):
            raise ConfigError(
                f"table {table}: the column '{name}' ({kind}) cannot say when a row changed; it must be a timestamp, "
                "an ISO 8601 text or a whole number since 1970"
            )
    if rule.null_updated_at is NullPolicy.CREATED_AT:
        if created_at is None:
            raise ConfigError(f"table {table}: null_updated_at is created_at, but no column is named as created_at")
        _require_same_kind(source, created_at, updated_at, "stands in for it")

    texts, wanted = set(mixed), {*rule.columns, *key} if rule.columns else set(source.schema.names)
    declared = {column.name: column for column in source.schema.columns}
    for column in known.columns if known is not None else ():
        now = declared.get(column.name)
        if now is not None and pa.types.is_string(column.type) and now.source_type == column.source_type:
            texts.add(column.name)
    columns = tuple(
        replace(one, type=pa.string() if name in texts else one.type, nullable=one.nullable and name not in key)
        for name, one in declared.items()
        if name in wanted
    )
    schema = TableSchema(source.id, columns, key)
    made = PolledTable(source, rule, schema, updated_at, created_at, is_guess=rule.updated_at is None)
    if soft is None:
        return made
    kind, stamp = declared[soft].type, declared[updated_at].type
    if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and not _same_kind(kind, stamp)):
        return replace(made, soft_flag=soft)
    _require_same_kind(source, soft, updated_at, "says when a row was deleted")
    return replace(made, soft_time=soft)


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


class StampError(Exception):
    """A value that is no time. Internal: whoever reads turns it into a decision."""


def is_stamp(kind: pa.DataType) -> bool:
    """Whether a column of this type can say when a row changed. A date cannot: it is the same all day long."""
    return pa.types.is_timestamp(kind) or pa.types.is_string(kind) or pa.types.is_int64(kind)


def instants(values: Any) -> Any:
    """A whole column of stamps as microseconds since 1970 (UTC), int64, NULL where ``values`` is.

    A timestamp is itself; without a time zone it is taken for UTC. A string is ISO 8601: date, 'T' or blank, time, up
    to 6 digits of a second, 'Z' or an offset or none. An integer is a time since 1970 in seconds, milliseconds or
    microseconds, by its size; so is a string of digits. StampError for a value that is no time.
    """
    kind = values.type
    try:
        if pa.types.is_timestamp(kind):
            return values.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64())
        if not pa.types.is_string(kind):
            return _from_numbers(values)
        if pc.all(pc.match_substring_regex(values, r"^-?\d{1,17}$"), min_count=1).as_py():
            return _from_numbers(values.cast(pa.int64()))  # SQLite: a number in a column declared DATETIME
        return _from_text(values)
    except pa.ArrowInvalid as error:
        raise StampError(str(error).splitlines()[0][:200]) from error


def _from_numbers(values: Any) -> Any:
    size = pc.max(pc.abs(values)).as_py() or 0
    for below, factor in ((10**11, 1_000_000), (10**14, 1_000), (10**17, 1)):
        if size < below:
            return pc.multiply_checked(values, factor)
    raise StampError(f"{size} is not a time in seconds, milliseconds or microseconds since 1970")


def _from_text(values: Any) -> Any:
    def part(index: int, default: str) -> Any:
        found = pc.struct_field(parts, [index])
        return pc.if_else(pc.equal(found, pa.scalar("")), default, found)

    parts = pc.extract_regex(values, _ISO)
    wrong = pc.and_(pc.is_null(parts), pc.is_valid(values))
    if pc.any(wrong).as_py():
        raise StampError(f"{values.filter(wrong)[0].as_py()!r} is not a time")
    text = pc.binary_join_element_wise(part(0, ""), "T", part(1, "00:00"), ":", part(2, "00"), "")
    whole = text.cast(pa.timestamp("us")).cast(pa.int64())
    micros = pc.utf8_rpad(part(3, "0"), 6, "0").cast(pa.int64())
    zone = part(4, "+00")
    digits = pc.utf8_rpad(pc.replace_substring_regex(zone, r"[^0-9]", ""), 4, "0").cast(pa.int64())
    minutes = pc.subtract(digits, pc.multiply(pc.divide(digits, 100), 40))  # of 0530: 330
    offset = pc.multiply(minutes, pc.if_else(pc.starts_with(zone, "-"), -60_000_000, 60_000_000))
    return pc.subtract(pc.add(whole, micros), offset)

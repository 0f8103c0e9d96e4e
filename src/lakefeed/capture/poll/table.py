# ruff: noqa: S608 (names in SQL are quoted by the dialect; values are bound by it)
"""PolledTable: a table and how it is polled, with every name checked against the catalog; its times; and its SQL.

The database orders text as text, so all stamps of a column must have the same format: ``PolledTable.times`` finds out
if they do not. All of the SQL is SELECT, the same for every database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.dialect import PLAIN, DescribedTable, Dialect, Key, Query, Session, key_rows
from lakefeed.capture.poll.source import NullPolicy, TableRule
from lakefeed.capture.snapshot import (
    LOOKUP_ROWS,
    NUMBER,
    among,
    combined,
    from_where,
    read_number,
    select_list,
    sql_name,
)
from lakefeed.change.change_set import RecopyNeeded
from lakefeed.change.choice import field_of
from lakefeed.change.schema_change import AddColumn, ChangeKey, RetypeColumn, diff
from lakefeed.change.table import Column, OutOfRange, TableId, TableSchema
from lakefeed.change.watermark import Mark
from lakefeed.errors import TableStoppedError

Instants = npt.NDArray[np.int64]

_ISO = (
    r"^(?P<day>\d{4}-\d{2}-\d{2})(?:[T ](?P<time>\d{2}:\d{2}(?::\d{2}(?:[.,]\d{1,6})?)?))?"
    r"\s*(?P<zone>Z|z|[+-]\d{2}(?::?\d{2})?)?$"
)


@dataclass(frozen=True, slots=True)
class PolledTable:
    """``schema`` is what is delivered. ``soft_time`` or ``soft_flag`` is the column that marks deleted rows. ``unread``
    are columns that neither the lake nor polling needs: they are not selected, and are NULL."""

    dialect: Dialect
    source: DescribedTable
    rule: TableRule
    schema: TableSchema
    updated_at: str
    created_at: str | None = None
    soft_time: str | None = None
    soft_flag: str | None = None
    unread: frozenset[str] = frozenset()

    @property
    def id(self) -> TableId:
        return self.schema.table

    @property
    def key(self) -> tuple[str, ...]:
        return self.schema.key

    @property
    def ordering(self) -> frozenset[str]:
        """Columns that order rows or mark them deleted: their types cannot be changed."""
        return frozenset(given(*self.key, self.updated_at, self.soft_time, self.soft_flag))

    @property
    def stand_in(self) -> str | None:
        """The column that replaces an ``updated_at`` that is NULL."""
        return self.created_at if self.rule.null_updated_at is NullPolicy.CREATED_AT else None

    @property
    def read_names(self) -> tuple[str, ...]:
        """The columns to read: the delivered ones first, then those that only polling needs."""
        return given(*self.schema.names, self.updated_at, self.created_at, self.soft_time, self.soft_flag)

    @property
    def mark_names(self) -> tuple[str, ...]:
        """The columns that make up a mark: times and key."""
        return given(self.updated_at, self.created_at, self.soft_time, *self.key)

    def column(self, name: str) -> Column:
        """A column of the table, delivered or not, with the type it is read as."""
        return self.schema.column(name) if name in self.schema.names else self.source.schema.column(name)

    def arrow(self, names: Iterable[str]) -> pa.Schema:
        return pa.schema([field_of(self.column(name), exact=name in self.ordering) for name in names])

    def times(self, rows: pa.RecordBatch, *, expect_order: bool = True) -> Instants:
        """When each row last changed, in microseconds. TableStoppedError if the database's order is not that of
        time."""
        found = self._instants(self._time_values(rows), self.updated_at)
        times: Instants = pc.fill_null(found, 0).to_numpy(zero_copy_only=False).astype(np.int64)
        if expect_order and not np.all(times[1:] >= times[:-1]):
            form = f"the values of {self.updated_at} do not all have the same format"
            raise self._stopped(f"{form}, so their order in the database is not the order of time")
        return times

    def are_inserts(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Whether each row was created and updated at the same instant; False if there is no created_at column."""
        if self.created_at is None:
            return np.zeros(rows.num_rows, np.bool_)
        created, updated = (self._instants(rows.column(name), name) for name in (self.created_at, self.updated_at))
        return _mask(pc.equal(created, updated))

    def are_deleted(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Whether each row is marked as deleted."""
        if self.soft_time is not None:
            return _mask(pc.is_valid(rows.column(self.soft_time)))
        if self.soft_flag is None:
            return np.zeros(rows.num_rows, np.bool_)
        flag: Any = rows.column(self.soft_flag)
        return _mask(flag if pa.types.is_boolean(flag.type) else pc.not_equal(flag, pa.scalar(0)))

    def mark(self, rows: pa.RecordBatch, index: int, before: Mark) -> Mark:
        """The mark of the row at ``index``, if ``rows`` are what follows ``before``."""
        row = rows.slice(index, 1)
        (key,) = key_rows(row, self.key)
        times = self.times(rows.slice(0, index + 1))
        instant = int(times[-1])
        passed = before.place if before.instant_us == instant else 0
        # Besides the time, keep what the source stores for it, since the next query compares with that.
        is_timestamp = pa.types.is_timestamp(self.column(self.updated_at).type)
        stamp = None if is_timestamp else self._time_values(row)[0].as_py()
        return Mark(instant, key, before.era, passed + int(np.count_nonzero(times == instant)), stamp)

    def _time_values(self, rows: pa.RecordBatch) -> Any:
        """The value that orders each row: the time of the update, or of the soft delete if that is later."""
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
        except ValueError as error:
            reason = str(error).splitlines()[0][:200]
            raise self._stopped(f"a value of {name} cannot be read as a time: {reason}") from error

    def _stopped(self, problem: str) -> TableStoppedError:
        remedy = "Correct the values in the source, then sync again."
        return TableStoppedError(f"{self.id}: {problem}", table=str(self.id), remedy=remedy)


def recopy_notice(old: TableSchema, new: TableSchema, is_filled: Callable[[str], bool]) -> RecopyNeeded | None:
    """What a changed definition means for rows that the lake already has; None if nothing. Polling sees no statements,
    only the catalog before and after; rows that a change filled without touching ``updated_at`` would never be read
    again. ``is_filled``: whether a row has a value in that column."""
    reasons: list[tuple[str, str | None]] = []  # with the column concerned; None for the key
    for change in diff(old, new):
        match change:
            case ChangeKey(before, after):
                reasons.append((f"its key changed from ({', '.join(before)}) to ({', '.join(after)})", None))
            case RetypeColumn(name, was, now):
                reasons.append((f"the type of {name} changed from {was} to {now}", name))
            case AddColumn(column) if column.name in new.key:
                return RecopyNeeded(new.table, "the table was created again")
            case AddColumn(column) if is_filled(column.name):
                reasons.append((f"rows have values in the new column {column.name}", column.name))
    rules = {one.name: one.out_of_range for one in old.columns}
    reasons += (
        (f"the configuration has another out_of_range for {one.name} than before", one.name)
        for one in new.columns  # under STOP no delivered row had a value that a rule applies to
        if rules.get(one.name, OutOfRange.STOP) not in (one.out_of_range, OutOfRange.STOP)
    )
    columns = tuple(name for _, name in reasons if name is not None)
    return RecopyNeeded(new.table, reasons[0][0], columns) if reasons else None


def with_nulls(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of ``schema``, NULL where ``rows`` lacks them. Keeps the metadata of the batch."""
    found = [
        rows.column(one.name) if one.name in rows.schema.names else pa.nulls(rows.num_rows, one.type) for one in schema
    ]
    return pa.RecordBatch.from_arrays(found, schema=schema.with_metadata(rows.schema.metadata))


def given(*names: str | None) -> tuple[str, ...]:
    """Each name once, without None."""
    return tuple(dict.fromkeys(name for name in names if name is not None))


def _mask(values: Any) -> npt.NDArray[np.bool_]:
    """True where ``values`` is true; NULL counts as false."""
    found: npt.NDArray[np.bool_] = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return found


def instants(values: Any) -> Any:
    """A column of stamps as microseconds since 1970 (UTC), int64, NULL where ``values`` is. A timestamp without a time
    zone is taken for UTC. A string is ISO 8601: date, 'T' or blank, time, up to 6 fractional digits, then 'Z', an
    offset or nothing. An integer is a time since 1970 in seconds, milliseconds or microseconds, depending on its
    magnitude; so is a string of digits. ValueError for a value that is not a time."""
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.timestamp("us", tz=values.type.tz)).cast(pa.int64())
    if pa.types.is_string(values.type):
        if not pc.all(pc.match_substring_regex(values, r"^-?\d{1,17}$"), min_count=1).as_py():
            parts = pc.extract_regex(values, _ISO)
            wrong = pc.and_(pc.is_null(parts), pc.is_valid(values))
            if pc.any(wrong).as_py():
                raise ValueError(f"{values.filter(wrong)[0].as_py()!r} is not a time")
            day, hours, zone = (pc.struct_field(parts, [index]) for index in range(3))
            hours, zone = pc.replace_substring_regex(hours, "^$", "00:00"), pc.replace_substring_regex(zone, "^$", "Z")
            text = pc.utf8_upper(pc.replace_substring(pc.binary_join_element_wise(day, "T", hours, zone, ""), ",", "."))
            return text.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        values = values.cast(pa.int64())  # SQLite: a number in a column declared DATETIME
    size = pc.max(pc.abs(values)).as_py() or 0
    for below, factor in ((10**11, 1_000_000), (10**14, 1_000), (10**17, 1)):
        if size < below:
            return pc.multiply_checked(values, factor)
    raise ValueError(f"{size} is not a time in seconds, milliseconds or microseconds since 1970")


class TableReads:
    """The queries that polling runs on one table in one session. The condition is always compound: (time, key…) after
    (time, key…) of the last row read, so that rows with the same time are read once each, across batches and restarts.
    A soft delete that does not touch ``updated_at`` has a time of its own; a row's time is the later of the two, and
    the query has a branch for each, so that both can use their index."""

    def __init__(self, table: PolledTable, session: Session) -> None:
        self._table, self._dialect, self._session = table, table.dialect, session
        self._asked = table.arrow(name for name in table.read_names if name not in table.unread)
        self._key = [self._name(name) for name in table.key]
        self._updated, self._time = self._times(self._name)

    def changes(self, mark: Mark, limit: int, enough_bytes: int | None = None) -> tuple[pa.RecordBatch, int]:
        """The rows after ``mark`` in (time, key) order, ``limit`` at most, and how many bytes were read."""
        table, updated = self._table, self._updated
        query = Query(exact=frozenset(table.key), enough_bytes=enough_bytes)

        def branch(time: str, *conditions: str) -> str:
            after = f"{time} IS NOT NULL" if mark.is_start else self._after(time, mark, query)
            rows = f"{self._list(self._asked.names)} {self._from(*conditions, after)}"
            return f"SELECT {rows} ORDER BY {', '.join([time, *self._key])} LIMIT {limit}"

        def outer(name: str) -> str:
            """A column of the union."""
            return f"q.{self._dialect.quoted(name)}"

        if table.soft_time is None:
            query.sql = branch(updated)
        else:
            at = self._name(table.soft_time)
            live = branch(updated, f"({at} IS NULL OR {at} <= {updated})")
            gone = branch(at, f"({updated} IS NULL OR {at} > {updated})")
            order = ", ".join([self._times(outer)[1], *map(outer, table.key)])
            both = f"SELECT * FROM ({live}) AS a UNION ALL SELECT * FROM ({gone}) AS b"
            query.sql = f"SELECT * FROM ({both}) AS q ORDER BY {order} LIMIT {limit}"
        read = list(self._session.read(query, self._asked))
        return self._whole(combined(read, self._asked)), sum(batch.nbytes for batch in read)

    def newest(self, limit: int) -> pa.RecordBatch:
        """The last rows in (time, key) order, the very last one first: only time and key."""
        names, order = self._table.mark_names, ", ".join(f"{one} DESC" for one in [self._time, *self._key])
        rows = f"{self._list(names)} {self._from(f'{self._time} IS NOT NULL')}"
        query = Query(f"SELECT {rows} ORDER BY {order} LIMIT {limit}", exact=frozenset(self._table.key))
        return combined(self._session.read(query, self._table.arrow(names)), self._table.arrow(names))

    def count_timeless(self) -> int:
        """How many rows no poll would find, because their time or part of their key is NULL. No query if the columns
        are NOT NULL."""
        table = self._table
        is_sure = not all(table.column(name).nullable for name in given(table.updated_at, table.stand_in))
        if is_sure and not any(table.source.schema.column(name).nullable for name in table.key):
            return 0
        nulls = " OR ".join(f"{one} IS NULL" for one in [self._updated, *self._key])
        return read_number(self._session, Query(f"SELECT count(*) AS n {self._from(f'({nulls})')}"))

    def mixed_columns(self) -> frozenset[str]:
        """Columns with values that do not fit their declared type. One pass over the table."""
        tests = self._table.source.misfits
        listed = ", ".join(f"max({test}) AS {self._dialect.quoted(name)}" for name, test in tests.items())
        schema = pa.schema([pa.field(name, pa.int64()) for name in tests])
        rows = combined(self._session.read(Query(f"SELECT {listed} {self._from()}"), schema), schema)
        return frozenset(name for name in tests if rows.column(name)[0].as_py())

    def by_key(self, keys: Sequence[Key]) -> pa.RecordBatch:
        """The rows with one of these keys, softly deleted or not, in one consistent read."""
        names, schema = self._table.key, self._asked
        orderings = [self._table.source.orderings.get(name, PLAIN) for name in names]
        batches: list[pa.RecordBatch] = []
        with self._session.consistent():
            for start in range(0, len(keys), LOOKUP_ROWS):
                query = Query(exact=frozenset(names))
                values = [self._values(key, query) for key in keys[start : start + LOOKUP_ROWS]]
                condition = among(self._key, values, orderings)
                query.sql = f"SELECT {self._list(schema.names)} {self._from(f'({condition})')}"
                batches += self._session.read(query, schema)
        return self._whole(combined(batches, schema))

    def is_filled(self, column: str, mark: Mark) -> bool:
        """Whether a row that will not be read anyway has a value in ``column``."""
        query, has_value = Query(), f"{self._name(column)} IS NOT NULL"
        before = [] if mark.is_start else [f"NOT ({self._after(self._time, mark, query)})"]
        query.sql = f"SELECT 1 AS n {self._from(has_value, *before)} LIMIT 1"
        return any(batch.num_rows for batch in self._session.read(query, NUMBER))

    def existing(self) -> tuple[str, ...]:
        """Conditions of every row that exists for the user: selected by the rule, and not softly deleted."""
        table, conditions = self._table, [self._table.rule.where] if self._table.rule.where else []
        if table.soft_time is not None:
            conditions.append(f"{self._name(table.soft_time)} IS NULL")
        if table.soft_flag is not None:
            flag, is_boolean = self._name(table.soft_flag), pa.types.is_boolean(table.column(table.soft_flag).type)
            conditions.append(f"{flag} IS NULL OR " + (f"NOT {flag}" if is_boolean else f"{flag} = 0"))
        return tuple(conditions)

    def _whole(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """With the columns that were not selected, as NULL."""
        schema = self._table.arrow(self._table.read_names)
        return rows if len(schema) == len(self._asked) else with_nulls(rows, schema)

    def _after(self, time: str, mark: Mark, query: Query) -> str:
        table = self._table
        value = mark.instant_us if mark.stamp is None else mark.stamp
        at = self._dialect.bound(table.column(table.updated_at), value, query)
        if not mark.key:
            return f"{time} >= {at}"
        orderings = [table.source.orderings.get(name, PLAIN) for name in (table.updated_at, *table.key)]
        return self._dialect.after([time, *self._key], [at, *self._values(mark.key, query)], orderings)

    def _from(self, *conditions: str) -> str:
        own = self._table.rule.where
        # The user's condition is in parentheses: an OR in it must not reach beyond it.
        return from_where(self._table.source, [f"({own})", *conditions] if own else conditions)

    def _times(self, name: Callable[[str], str]) -> tuple[str, str]:
        """SQL for when a row was updated, and for the later of that and its soft delete."""
        updated, stand_in, soft = name(self._table.updated_at), self._table.stand_in, self._table.soft_time
        if stand_in is not None:
            updated = f"coalesce({updated}, {name(stand_in)})"
        if soft is None:
            return updated, updated
        return updated, f"CASE WHEN {name(soft)} > {updated} THEN {name(soft)} ELSE {updated} END"

    def _values(self, key: Key, query: Query) -> list[str]:
        columns = [self._table.column(name) for name in self._table.key]
        return [self._dialect.bound(column, value, query) for column, value in zip(columns, key, strict=True)]

    def _list(self, names: Sequence[str]) -> str:
        return select_list(self._dialect, self._table.source, names)

    def _name(self, name: str) -> str:
        return sql_name(self._dialect, self._table.source, name)

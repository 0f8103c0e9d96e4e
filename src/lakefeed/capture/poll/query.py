# ruff: noqa: S608 (names in SQL are quoted by the dialect; values are bound by it)
"""The SQL of polling, for every database alike. All of it is SELECT.

The predicate is compound everywhere: (time, key…) after (time, key…) of the last row that was read, so that rows of
one time are read once each, over batches and restarts. A soft delete that does not touch ``updated_at`` has a time of
its own; a row's time is the later of the two, and each of the two branches of the query can use its index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakefeed.capture.dialect import PLAIN, Dialect, Key, Query
from lakefeed.capture.poll.table import PolledTable
from lakefeed.capture.snapshot import from_where, select_list, sql_name
from lakefeed.change.watermark import Mark


class Queries:
    """The queries of one table."""

    def __init__(self, dialect: Dialect, table: PolledTable) -> None:
        self._dialect = dialect
        self._table = table
        self._key = [self._name(name) for name in table.key]
        self._time = self._time_of(self._name)

    def changes(self, mark: Mark, limit: int) -> Query:
        """The rows after ``mark`` in (time, key) order, at most ``limit``."""
        table, updated = self._table, self._time
        query = Query(exact=frozenset(table.key))
        if table.soft_time is None:
            query.sql = self._branch(updated, [], mark, limit, query)
            return query
        at = self._name(table.soft_time)
        live = self._branch(updated, [f"({at} IS NULL OR {at} <= {updated})"], mark, limit, query)
        gone = self._branch(at, [f"({updated} IS NULL OR {at} > {updated})"], mark, limit, query)

        def outer(name: str) -> str:
            """Of the union, whose columns have their own names."""
            return f"q.{self._dialect.quoted(name)}"

        order = ", ".join([self._row_time(outer), *map(outer, table.key)])
        query.sql = (
            f"SELECT * FROM (SELECT * FROM ({live}) AS a UNION ALL SELECT * FROM ({gone}) AS b) AS q"
            f" ORDER BY {order} LIMIT {limit}"
        )
        return query

    def newest(self, limit: int) -> Query:
        """The last rows in (time, key) order, the very last first: time and key only."""
        time = self._row_time(self._name)
        order = ", ".join(f"{one} DESC" for one in [time, *self._key])
        rows = f"{self._list(self._table.mark_names)} {self._from([f'{time} IS NOT NULL'])}"
        return Query(f"SELECT {rows} ORDER BY {order} LIMIT {limit}", exact=frozenset(self._table.key))

    def without_time(self) -> Query:
        """How many rows no comparison finds, because their time or a part of their key is NULL."""
        nulls = " OR ".join(f"{one} IS NULL" for one in [self._time, *self._key])
        return Query(f"SELECT count(*) AS n {self._from([f'({nulls})'])}")

    def misfits(self) -> Query:
        """One row: for each column that may hold values of several types, whether it does."""
        tests = self._table.source.misfits
        listed = ", ".join(f"max({test}) AS {self._dialect.quoted(name)}" for name, test in tests.items())
        return Query(f"SELECT {listed} {self._from([])}")

    def by_key(self, keys: Sequence[Key]) -> Query:
        """The rows with one of these keys, softly deleted or not."""
        query = Query(exact=frozenset(self._table.key))
        equal = [self._table.source.orderings.get(name, PLAIN).equal for name in self._table.key]
        if equal == [PLAIN.equal]:
            condition = f"{self._key[0]} IN ({', '.join(self._values(key, query)[0] for key in keys)})"
        else:
            rows = [zip(self._key, equal, self._values(key, query), strict=True) for key in keys]
            condition = " OR ".join("(" + " AND ".join(f"{c} {e} {v}" for c, e, v in row) + ")" for row in rows)
        query.sql = f"SELECT {self._list(self._table.read_names)} {self._from([f'({condition})'])}"
        return query

    def filled(self, column: str, mark: Mark) -> Query:
        """1 if a row that is not going to be read anyway has a value in ``column``."""
        query = Query()
        conditions = [f"{self._name(column)} IS NOT NULL"]
        if not mark.is_start:
            conditions.append(f"NOT ({self._after(self._row_time(self._name), mark, query)})")
        query.sql = f"SELECT 1 AS n {self._from(conditions)} LIMIT 1"
        return query

    def existing(self) -> tuple[str, ...]:
        """Conditions of every row that exists for the user: in the rule's part of the table, and not softly deleted."""
        table, conditions = self._table, [self._table.rule.where] if self._table.rule.where else []
        if table.soft_time is not None:
            conditions.append(f"{self._name(table.soft_time)} IS NULL")
        if table.soft_flag is not None:
            flag, is_boolean = self._name(table.soft_flag), str(table.column(table.soft_flag).type) == "bool"
            conditions.append(f"{flag} IS NULL OR " + (f"NOT {flag}" if is_boolean else f"{flag} = 0"))
        return tuple(conditions)

    def _branch(self, time: str, conditions: list[str], mark: Mark, limit: int, query: Query) -> str:
        conditions = [*conditions, f"{time} IS NOT NULL" if mark.is_start else self._after(time, mark, query)]
        order = ", ".join([time, *self._key])
        return f"SELECT {self._list(self._table.read_names)} {self._from(conditions)} ORDER BY {order} LIMIT {limit}"

    def _after(self, time: str, mark: Mark, query: Query) -> str:
        table = self._table
        value = mark.instant_us if mark.stamp is None else mark.stamp
        at = self._dialect.bound(table.column(table.updated_at), value, query)
        if not mark.key:
            return f"{time} >= {at}"
        orderings = [table.source.orderings.get(name, PLAIN) for name in (table.updated_at, *table.key)]
        return self._dialect.after([time, *self._key], [at, *self._values(mark.key, query)], orderings)

    def _from(self, conditions: Sequence[str]) -> str:
        own = self._table.rule.where
        # The user's condition stands in parentheses: an OR in it must not reach beyond it.
        return from_where(self._table.source, [*([f"({own})"] if own else []), *conditions])

    def _time_of(self, name: Callable[[str], str]) -> str:
        """When a row was updated, in SQL."""
        updated, stand_in = name(self._table.updated_at), self._table.stand_in
        return updated if stand_in is None else f"coalesce({updated}, {name(stand_in)})"

    def _row_time(self, name: Callable[[str], str]) -> str:
        """The later of the update and the soft delete."""
        updated, soft = self._time_of(name), self._table.soft_time
        return updated if soft is None else f"CASE WHEN {name(soft)} > {updated} THEN {name(soft)} ELSE {updated} END"

    def _values(self, key: Key, query: Query) -> list[str]:
        columns = [self._table.column(name) for name in self._table.key]
        return [self._dialect.bound(column, value, query) for column, value in zip(columns, key, strict=True)]

    def _list(self, names: Sequence[str]) -> str:
        return select_list(self._dialect, self._table.source, names)

    def _name(self, name: str) -> str:
        return sql_name(self._dialect, self._table.source, name)

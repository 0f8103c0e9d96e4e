# ruff: noqa: S608 (names in SQL are quoted by the connector; values are bound by it)
"""The SQL of polling, for every database alike. All of it is SELECT.

The predicate is compound everywhere: (time, key…) after (time, key…) of the last row that was read, so that rows of
one time are read once each, over batches and restarts. A soft delete that does not touch ``updated_at`` has a time of
its own; a row's time is the later of the two, and each of the two branches of the query can use its index.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakefeed.capture.dialect import PLAIN, Dialect, Key, Ordering, Query
from lakefeed.capture.poll.followed import Followed
from lakefeed.capture.poll.rule import NullPolicy
from lakefeed.capture.poll.stamp import stamp_value
from lakefeed.change.watermark import Mark


class Queries:
    """The queries of one table."""

    def __init__(self, connector: Dialect, followed: Followed) -> None:
        self._connector = connector
        self._followed = followed

    def changes(self, mark: Mark | None, limit: int) -> Query:
        """The rows after ``mark`` in (time, key) order, at most ``limit``."""
        query = self._query()
        deleted = self._followed.soft_time
        if deleted is None:
            query.sql = self._branch(self._time("t"), [], mark, limit, query)
            return query
        updated = self._time("t")
        at = self._name(deleted, "t")
        live = self._branch(updated, [f"({at} IS NULL OR {at} <= {updated})"], mark, limit, query)
        gone = self._branch(at, [f"({updated} IS NULL OR {at} > {updated})"], mark, limit, query)
        later = f"CASE WHEN {self._plain(deleted)} > {self._time('q', plain=True)} THEN {self._plain(deleted)}"
        order = ", ".join([f"{later} ELSE {self._time('q', plain=True)} END", *map(self._plain, self._followed.key)])
        query.sql = (
            f"SELECT * FROM (SELECT * FROM ({live}) AS a UNION ALL SELECT * FROM ({gone}) AS b) AS q"
            f" ORDER BY {order} LIMIT {limit}"
        )
        return query

    def newest(self, limit: int) -> Query:
        """The last rows in (time, key) order, the very last first: time and key only."""
        time = self._row_time()
        order = ", ".join(f"{one} DESC" for one in [time, *self._key("t")])
        names = self.mark_names
        listed = self._list(names)
        return self._query(f"SELECT {listed} {self._from([f'{time} IS NOT NULL'])} ORDER BY {order} LIMIT {limit}")

    @property
    def mark_names(self) -> tuple[str, ...]:
        """The columns that a mark is made of: times and key."""
        followed = self._followed
        times = (followed.updated_at, followed.created_at, followed.soft_time)
        return tuple(dict.fromkeys(name for name in (*times, *followed.key) if name is not None))

    def without_time(self) -> Query:
        """How many rows no comparison finds, because their time or a part of their key is NULL."""
        nulls = " OR ".join(f"{one} IS NULL" for one in [self._time("t"), *self._key("t")])
        return Query(f"SELECT count(*) AS n {self._from([f'({nulls})'])}")

    def misfits(self) -> Query:
        """One row: for each column that may hold values of several types, whether it does."""
        tests = self._followed.table.misfits
        listed = ", ".join(f"max({test}) AS {self._connector.quoted(name)}" for name, test in tests.items())
        return Query(f"SELECT {listed} {self._from([])}")

    def by_key(self, keys: Sequence[Key]) -> Query:
        """The rows with one of these keys, softly deleted or not."""
        query = self._query()
        columns = self._key("t")
        equal = [self._ordering(name).equal for name in self._followed.key]
        if equal == [PLAIN.equal]:
            listed = ", ".join(self._values(key, query)[0] for key in keys)
            condition = f"{columns[0]} IN ({listed})"
        if len(columns) > 1 or equal != [PLAIN.equal]:
            pairs = [zip(columns, equal, self._values(key, query), strict=True) for key in keys]
            condition = " OR ".join("(" + " AND ".join(f"{c} {e} {v}" for c, e, v in pair) + ")" for pair in pairs)
        query.sql = f"SELECT {self._list(self._followed.read_names)} {self._from([f'({condition})'])}"
        return query

    def filled(self, column: str, mark: Mark | None) -> Query:
        """1 if a row that is not going to be read anyway has a value in ``column``."""
        query = self._query()
        conditions = [f"{self._name(column, 't')} IS NOT NULL"]
        if mark is not None and not mark.is_start:
            conditions.append(f"NOT ({self._after(self._row_time(), mark, query)})")
        query.sql = f"SELECT 1 AS n {self._from(conditions)} LIMIT 1"
        return query

    def _query(self, sql: str = "") -> Query:
        """One whose rows may become marks, or bounds of chunks."""
        return Query(sql, exact=frozenset(self._followed.key))

    def _branch(self, time: str, conditions: list[str], mark: Mark | None, limit: int, query: Query) -> str:
        if mark is not None and not mark.is_start:
            conditions = [*conditions, self._after(time, mark, query)]
        else:
            conditions = [*conditions, f"{time} IS NOT NULL"]
        order = ", ".join([time, *self._key("t")])
        listed = self._list(self._followed.read_names)
        return f"SELECT {listed} {self._from(conditions)} ORDER BY {order} LIMIT {limit}"

    def _after(self, time: str, mark: Mark, query: Query) -> str:
        column = self._followed.column(self._followed.updated_at)
        at = self._connector.bound(column, stamp_value(mark), query)
        if not mark.key:
            return f"{time} >= {at}"
        orderings = [self._ordering(self._followed.updated_at), *map(self._ordering, self._followed.key)]
        return self._connector.after([time, *self._key("t")], [at, *self._values(mark.key, query)], orderings)

    def _from(self, conditions: Sequence[str]) -> str:
        own = self._followed.rule.where
        # The user's condition stands in parentheses: an OR in it must not reach beyond it.
        every = [*([f"({own})"] if own else []), *conditions]
        where = f" WHERE {' AND '.join(every)}" if every else ""
        return f"FROM {self._followed.table.origin} AS t{where}"

    def alive(self) -> list[str]:
        if self._followed.soft_time is not None:
            return [f"{self._name(self._followed.soft_time, 't')} IS NULL"]
        if self._followed.soft_flag is not None:
            flag = self._name(self._followed.soft_flag, "t")
            is_boolean = str(self._followed.column(self._followed.soft_flag).type) == "bool"
            return [f"({flag} IS NULL OR {'NOT ' if is_boolean else ''}{flag}{'' if is_boolean else ' = 0'})"]
        return []

    def _row_time(self) -> str:
        """The later of the update and the soft delete."""
        updated = self._time("t")
        if self._followed.soft_time is None:
            return updated
        at = self._name(self._followed.soft_time, "t")
        return f"CASE WHEN {at} > {updated} THEN {at} ELSE {updated} END"

    def _time(self, alias: str, *, plain: bool = False) -> str:
        followed = self._followed
        name = self._plain if plain else lambda one: self._name(one, alias)
        if followed.rule.null_updated_at is NullPolicy.CREATED_AT and followed.created_at is not None:
            return f"coalesce({name(followed.updated_at)}, {name(followed.created_at)})"
        return name(followed.updated_at)

    def _ordering(self, name: str) -> Ordering:
        return self._followed.table.orderings.get(name, PLAIN)

    def _values(self, key: Key, query: Query) -> list[str]:
        columns = [self._followed.column(name) for name in self._followed.key]
        return [self._connector.bound(column, value, query) for column, value in zip(columns, key, strict=True)]

    def _key(self, alias: str) -> list[str]:
        return [self._name(name, alias) for name in self._followed.key]

    def _list(self, names: Sequence[str]) -> str:
        return ", ".join(f"{self._name(name, 't')} AS {self._connector.quoted(name)}" for name in names)

    def _name(self, name: str, alias: str) -> str:
        return f"{alias}.{self._connector.quoted(self._followed.table.sql_names.get(name, name))}"

    def _plain(self, name: str) -> str:
        return f"q.{self._connector.quoted(name)}"

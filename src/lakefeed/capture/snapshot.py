"""The snapshot of one table, for every database that has a Dialect: key ranges that any process can read on its own.

- Together, the chunks of a plan cover every key that exists or will exist, without overlap, in the order of the key's
  own operators. Physical ranges would not do: a row that moves between two reads would be in both ranges or in none.
- A chunk is read in one consistent read. If the database has a log, ``low`` and ``high`` say which commits it includes.
- A NULL in the key, a value that its column cannot hold, and a table that changed since the plan stop this one table
  (TableStoppedError). The flow then plans its copy again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self, TypeVar

import pyarrow as pa

from lakefeed.capture.dialect import (
    PLAIN,
    DescribedTable,
    Dialect,
    Key,
    Ordering,
    Query,
    Session,
    SpareSessions,
    TableChangedError,
    key_rows,
)
from lakefeed.capture.fit import MisfitError
from lakefeed.change.choice import field_of
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.change.watermark import tag_value, untag_value
from lakefeed.errors import DecodeError, Retry, SourceError, SourceSetupError, StateError, TableStoppedError

NUMBER = pa.schema([pa.field("n", pa.int64())])  # the result of queries that count
_REMEDY = "Run `lakefeed sync` again: it plans the copy of this table again."
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TableChunk:
    """The rows with low < key <= high; None is open-ended. Picklable; holds no connection.

    ``source`` is the table as described for the plan, ``schema`` what is delivered of it. ``names`` are the columns to
    read, in order: () means those of ``schema``; it may also name other columns of ``source``, or only the key.
    ``where`` are SQL conditions on the alias ``t``. ``exact`` are columns whose values must be returned exactly as
    stored (see ``Query``). ``origin`` is what the plan recorded for ``Session.consistent``. ``keys``: only the rows
    with these keys; () means all rows. ``sessions``: those of this process that may read it."""

    dialect: Dialect
    source: DescribedTable
    schema: TableSchema
    low: Key | None = None
    high: Key | None = None
    names: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    exact: frozenset[str] = frozenset()
    origin: Mapping[str, Any] | None = None
    keys: tuple[Key, ...] = ()
    sessions: SpareSessions = field(default_factory=SpareSessions, compare=False, repr=False)

    @property
    def table(self) -> TableId:
        return self.schema.table

    def open(self) -> TableChunkReader:
        return TableChunkReader(self)

    def to_json(self) -> dict[str, Any]:
        """Everything but the dialect, which comes from the configuration."""
        return {
            "source": self.source.to_json(),
            "schema": self.schema.to_json(),
            "low": self.low and [tag_value(value) for value in self.low],
            "high": self.high and [tag_value(value) for value in self.high],
            "names": list(self.names),
            "where": list(self.where),
            "exact": sorted(self.exact),
            "origin": None if self.origin is None else dict(self.origin),
            "keys": [[tag_value(value) for value in key] for key in self.keys],
        }

    @classmethod
    def from_json(cls, dialect: Dialect, data: Mapping[str, Any]) -> Self:
        """DecodeError for a plan made by another version of Lakefeed: the flow then plans the table again."""
        try:
            low, high = (data[end] and tuple(untag_value(value) for value in data[end]) for end in ("low", "high"))
            source, schema = DescribedTable.from_json(data["source"]), TableSchema.from_json(data["schema"])
            names, where, exact = tuple(data["names"]), tuple(data["where"]), frozenset(data["exact"])
            keys = tuple(tuple(map(untag_value, key)) for key in data.get("keys", ()))
            return cls(dialect, source, schema, low, high, names, where, exact, data["origin"], keys)
        except (KeyError, TypeError, ValueError) as error:
            problem = f"the plan of a copy cannot be read ({type(error).__name__}: {error})"
            raise DecodeError(problem, remedy=_REMEDY) from error

    def query(self) -> Query:
        """Selects the rows of the chunk; if the table has no columns, their number."""
        query = Query(exact=self.exact, source=self.source, ends_read=True)
        columns = [self.schema.column(name) for name in self.schema.key]
        key = [sql_name(self.dialect, self.source, name) for name in self.schema.key]
        orderings = [self.source.orderings.get(name, PLAIN) for name in self.schema.key]
        conditions = [f"({one})" for one in self.where]
        for compare, edge in ((self.dialect.after, self.low), (self.dialect.up_to, self.high)):
            if edge is not None:
                bound = [self.dialect.bound(*pair, query) for pair in zip(columns, edge, strict=True)]
                conditions.append(compare(key, bound, orderings))
        if self.keys:
            rows = [[self.dialect.bound(*pair, query) for pair in zip(columns, one, strict=True)] for one in self.keys]
            conditions.append(f"({among(key, rows, orderings)})")
        listed = select_list(self.dialect, self.source, self.names or self.schema.names)
        query.sql = f"SELECT {listed or 'count(*) AS n'} {from_where(self.source, conditions)}"
        return query


class TableChunkReader:
    """An open chunk; see ``ChunkReader``."""

    def __init__(self, chunk: TableChunk) -> None:
        self._chunk = chunk
        self._stack = ExitStack()
        self._session: Session | None = None
        self._bracket: tuple[Position, Position] | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            session = stack.enter_context(self._chunk.sessions.use(self._chunk.dialect))
            self._bracket = stack.enter_context(session.consistent(self._chunk.origin))
            self._session, self._stack = session, stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._session = None
        self._stack.__exit__(*error)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        chunk, session, own = self._chunk, _entered(self._session), self._chunk.schema.arrow
        names = chunk.names or chunk.schema.names
        columns = [(chunk.schema if name in own.names else chunk.source.schema).column(name) for name in names]
        given = pa.schema([own.field(one.name) if one.name in own.names else field_of(one) for one in columns])
        read = pa.schema([field_of(one, exact=one.name in chunk.exact) for one in columns])
        try:
            if not names:  # a table without columns can have rows
                rows: Any = pa.array([{}] * read_number(session, chunk.query()), pa.struct([]))
                yield pa.RecordBatch.from_struct_array(rows)
                return
            for batch in session.read(chunk.query(), read):
                for name in chunk.schema.key:
                    if name in names and batch.column(name).null_count:
                        raise self._stopped(f"there is a NULL in the key column {name}")
                yield pa.RecordBatch.from_arrays(batch.columns, schema=given.with_metadata(batch.schema.metadata))
        except MisfitError as error:
            if error.remedy is not None or error.column in chunk.exact:
                raise error.stopped(chunk.table) from error
            raise self._stopped(f"a value that does not fit its column appeared in {error.column}") from error
        except TableChangedError as error:
            raise self._stopped("its definition changed") from error
        except SourceError as error:
            if error.retry is Retry.BACKOFF or not self._has_changed():
                raise
            raise self._stopped(f"its definition changed ({error.message})") from error

    @property
    def low(self) -> Position:
        return _entered(self._bracket)[0]

    @property
    def high(self) -> Position:
        return _entered(self._bracket)[1]

    def _has_changed(self) -> bool:
        """Whether the catalog no longer has the planned columns. Asked on a connection of its own."""
        with closing(self._chunk.dialect.connect()) as session:
            now = session.describe([self._chunk.table]).get(self._chunk.table)
        planned = {(column.name, column.source_type) for column in self._chunk.source.schema.columns}
        return now is None or not planned <= {(column.name, column.source_type) for column in now.schema.columns}

    def _stopped(self, what: str) -> TableStoppedError:
        table = self._chunk.table
        return TableStoppedError(f"{table}: {what} while it was copied", table=str(table), remedy=_REMEDY)


def _entered(kept: _T | None) -> _T:
    if kept is None:
        raise StateError("a chunk is read inside its with block", remedy="Enter the reader first.")
    return kept


LOOKUP_ROWS = 500
"""How many keys one query looks up."""


def among(key: Sequence[str], rows: Sequence[Sequence[str]], orderings: Sequence[Ordering]) -> str:
    """SQL that is true for rows whose key is one of ``rows``, using the operators of the key's own ordering."""
    if [one.equal for one in orderings] == [PLAIN.equal]:
        return f"{key[0]} IN ({', '.join(value for (value,) in rows)})"
    equal = [one.equal for one in orderings]
    pairs = (" AND ".join(f"{c} {e} {v}" for c, e, v in zip(key, equal, row, strict=True)) for row in rows)
    return " OR ".join(f"({one})" for one in pairs)


def still_there(described: DescribedTable, known: TableSchema) -> tuple[DescribedTable, TableSchema]:
    """A table, and the part of the delivered schema that it still has. SourceSetupError if the key is gone or has
    changed."""
    columns = tuple(one for one in known.columns if one.name in described.schema.names)
    names = {one.name for one in columns}
    if not set(known.key) <= names or (described.schema.key and not known.key):
        raise SourceSetupError(
            f"the key of {known.table} is not what it was: the lake's is ({', '.join(known.key)})",
            remedy="Run `lakefeed sync`, which notices that.",
        )
    return described, replace(known, columns=columns, left_out=())


def keyed_chunks(whole: TableChunk, keys: Sequence[Key]) -> tuple[TableChunk, ...]:
    """The rows with ``keys``, LOOKUP_ROWS of them in each chunk."""
    return tuple(
        replace(whole, keys=tuple(keys[start : start + LOOKUP_ROWS])) for start in range(0, len(keys), LOOKUP_ROWS)
    )


def plan_chunks(session: Session, whole: TableChunk, chunk_rows: int) -> tuple[tuple[TableChunk, ...], int]:
    """Cut the table into ranges of about ``chunk_rows`` keys. Returns them with the approximate number of rows. A table
    without a key, or with keys that cannot be returned exactly, becomes one chunk. TableStoppedError if a key contains
    NULL, since no range includes that row. Never writes to the source."""
    key, where = whole.schema.key, [f"({one})" for one in whole.where]
    names = [sql_name(whole.dialect, whole.source, name) for name in key]
    columns = [whole.schema.column(name) for name in key]
    with session.consistent():
        if any(whole.source.schema.column(name).nullable for name in key):
            nulls = " OR ".join(f"{name} IS NULL" for name in names)
            query = Query(f"SELECT 1 AS n {from_where(whole.source, [*where, f'({nulls})'])} LIMIT 1")
            if any(batch.num_rows for batch in session.read(query, NUMBER)):
                problem = f"{whole.table} has rows with NULL in its key ({', '.join(key)})"
                remedy = f"DELETE {from_where(whole.source, [nulls])}; or give these rows a key; then sync again."
                raise TableStoppedError(problem, table=str(whole.table), remedy=remedy)
        edges: list[Key | None] = [None]
        if (cuts := session.cuts(whole.source, whole.where, columns, chunk_rows)) is not None:
            edges, rows = [None, *cuts.keys], cuts.rows
        else:  # count, then walk the index from cut to cut, which is faster than numbering the rows
            rows = read_number(session, Query(f"SELECT count(*) AS n {from_where(whole.source, where)}"))
            schema = pa.schema([pa.field(column.name, column.type) for column in columns])
            rest = replace(whole, names=key, exact=frozenset(key))
            try:
                for _ in range((rows - 1) // chunk_rows if key else 0):
                    query = replace(rest.query(), source=None, ends_read=False)
                    query.sql += f" ORDER BY {', '.join(names)} LIMIT 1 OFFSET {chunk_rows - 1}"
                    edges += key_rows(combined(session.read(query, schema), schema), key)
                    rest = replace(rest, low=edges[-1])
            except MisfitError:
                edges = [None]
    return tuple(replace(whole, low=low, high=high) for low, high in pairwise([*edges, None])), rows


def select_list(dialect: Dialect, table: DescribedTable, names: Sequence[str]) -> str:
    """Columns of the alias ``t``, each under its Lakefeed name."""
    return ", ".join(f"{sql_name(dialect, table, name)} AS {dialect.quoted(name)}" for name in names)


def sql_name(dialect: Dialect, table: DescribedTable, name: str) -> str:
    # With the alias, because SQLite takes a quoted name that is no longer a column for a string literal.
    return f"t.{dialect.quoted(table.sql_names.get(name, name))}"


def from_where(table: DescribedTable, conditions: Sequence[str]) -> str:
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"FROM {table.origin} AS t{where}"


def read_number(session: Session, query: Query) -> int:
    """The single number, named n, that a query returns."""
    return int(combined(session.read(query, NUMBER), NUMBER).column("n")[0].as_py())


def combined(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """All batches as one."""
    found = pa.Table.from_batches(list(batches), schema).combine_chunks().to_batches()
    if len(found) > 1:  # Arrow splits a column whose texts exceed what one array can hold
        raise DecodeError("rows that were read at once hold more than 2 GiB", remedy="Lower batch_rows in their rule.")
    return found[0] if found else pa.RecordBatch.from_arrays([pa.array([], one.type) for one in schema], schema=schema)

# ruff: noqa: S608 (names in SQL are quoted; values are psycopg literals)
"""The copy of one table: key ranges of about equal size that any process can read on its own.

Rows come through COPY in binary form (``binary.form_of`` says of each column what that is) and give the same Arrow
values as the stream's. While the exported snapshot of the plan is alive and the table is still the one that it shows,
every chunk imports it and is exact at its position. Otherwise a chunk reads under a snapshot of its own and says
between which positions that is (``bracketed``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import psycopg
import pyarrow as pa
from psycopg import sql

from lakefeed.capture.postgres.binary import form_of, read_copy
from lakefeed.capture.postgres.catalog import SourceTable, sql_name, wait_for_commits
from lakefeed.capture.postgres.database import READING, Connection, Database, Names, quoted, run
from lakefeed.capture.postgres.pgoutput import unfit
from lakefeed.capture.postgres.resume import inserted
from lakefeed.capture.postgres.values import SourceType, UnfitError
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import SourceUnavailableError, StateError, TableStoppedError

_PIECE_BYTES = 4 << 20
_PIECE_ROWS = 16_384
"""Small enough for the processor's caches: larger pieces were measured to be slower by half."""

_COUNTED_BYTES = 64 << 20
"""Tables up to this size are counted; of larger ones the catalog's estimate and a sample are good enough."""
_SAMPLED_BLOCKS = 50
"""For each chunk. Rows of one block are often neighbours by key, so a few blocks would give uneven chunks."""
_BLOCK_BYTES = 8192
_COMMIT_SECONDS = 30.0

Key = tuple[str, ...]
"""Key values as PostgreSQL prints them."""

_SIZE = """
SELECT sum(pg_relation_size(c.oid))::int8, sum(greatest(c.reltuples, 0))::int8 FROM pg_class c
 WHERE c.relkind = 'r' AND (c.oid = %s OR c.oid IN (SELECT relid FROM pg_partition_tree(%s::oid::regclass)))"""

# The catalog as the imported snapshot shows it, beside the files that there are now: a table that was rewritten or a
# partition that was attached since has no rows for this snapshot.
_SAME_FILES = """
WITH RECURSIVE tree(part) AS (
  SELECT %(oid)s::oid UNION ALL SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.part
   WHERE EXISTS (SELECT FROM pg_class c WHERE c.oid = i.inhrelid AND c.relispartition)),
snapshot(parts) AS (
  SELECT array_agg(c.oid::int8 || ':' || c.relfilenode::int8 ORDER BY c.oid)
    FROM tree t JOIN pg_class c ON c.oid = t.part),
now(parts) AS (
  SELECT array_agg(p.oid::int8 || ':' || coalesce(pg_relation_filenode(p.oid)::int8, 0) ORDER BY p.oid)
    FROM (SELECT relid::oid FROM pg_partition_tree(%(oid)s::oid::regclass) UNION SELECT %(oid)s::oid) AS p(oid))
SELECT s.parts IS NOT DISTINCT FROM n.parts FROM snapshot s, now n"""


@dataclass(frozen=True, slots=True)
class Origin:
    """The exported snapshot of a plan: its name, what it contains, and where in the log it belongs."""

    snapshot: str
    content: str
    position: PostgresLsn


@dataclass(frozen=True, slots=True)
class TableChunk:
    """The rows with low < key <= high; None is open-ended. ``only``: a plain table, not its inheritance children."""

    database: Database
    names: Names
    schema: TableSchema
    origin: Origin | None
    only: bool
    low: Key | None = None
    high: Key | None = None

    @property
    def table(self) -> TableId:
        return self.schema.table

    def open(self) -> TableChunkReader:
        return TableChunkReader(self)

    def to_json(self) -> Mapping[str, Any]:
        origin = self.origin
        return {
            "schema": self.schema.to_json(),
            "snapshot": origin.snapshot if origin is not None else None,
            "content": origin.content if origin is not None else None,
            "at": origin.position.text() if origin is not None else None,
            "only": self.only,
            "low": list(self.low) if self.low is not None else None,
            "high": list(self.high) if self.high is not None else None,
        }

    @classmethod
    def from_json(cls, database: Database, names: Names, data: Mapping[str, Any]) -> TableChunk:
        origin = None
        if data["snapshot"] is not None:
            origin = Origin(data["snapshot"], data["content"], PostgresLsn.parse(data["at"]))
        low, high = (tuple(data[name]) if data[name] is not None else None for name in ("low", "high"))
        return cls(database, names, TableSchema.from_json(data["schema"]), origin, data["only"], low, high)

    def select(self, columns: str) -> str:
        key = f"({', '.join(map(quoted, self.schema.key))})"
        conditions = []
        for operator, bound in ((">", self.low), ("<=", self.high)):
            if bound is not None:
                literals = [
                    f"{sql.Literal(value).as_string(None)}::{self.schema.column(name).source_type}"
                    for name, value in zip(self.schema.key, bound, strict=True)
                ]
                conditions.append(f"{key} {operator} ({', '.join(literals)})")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"SELECT {columns} FROM {'ONLY ' if self.only else ''}{sql_name(self.table)}{where}"


class TableChunkReader:
    """An open chunk; see ``ChunkReader``."""

    def __init__(self, chunk: TableChunk) -> None:
        self._chunk = chunk
        self._connection: Connection | None = None
        self._bracket: tuple[PostgresLsn, PostgresLsn] | None = None

    def __enter__(self) -> Self:
        chunk = self._chunk
        connection = chunk.database.connect(chunk.names.readers, READING)
        try:
            with chunk.database.errors():
                origin, oid = chunk.origin, _oid(chunk.schema)
                # From the LIMIT 0 on the transaction has a lock on the table: what is true of it then stays true.
                if origin is not None and import_snapshot(connection, origin, oid, lock=chunk.select("") + " LIMIT 0"):
                    self._bracket = (origin.position, origin.position)
                else:
                    self._bracket = bracketed(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        connection, chunk = self._connection, self._chunk
        if connection is None:
            raise StateError("a chunk is read inside its with block", remedy="Enter the reader first.")
        schema = chunk.schema
        with chunk.database.errors():
            if not schema.columns:  # such a table can have rows
                row = connection.execute(chunk.select("count(*)").encode()).fetchone()
                rows: Any = pa.array([{}] * (row[0] if row else 0), pa.struct([]))
                yield pa.RecordBatch.from_struct_array(rows)
                return
            stated = run(connection, f"{chunk.select(', '.join(map(quoted, schema.names)))} LIMIT 0")
            forms = [
                form_of(column.name, column.type, SourceType(stated.ftype(index), stated.fmod(index)))
                for index, column in enumerate(schema.columns)
            ]
            query = chunk.select(", ".join(form.sql for form in forms))
            for copied in read_copy(connection, query, piece_bytes=_PIECE_BYTES, piece_rows=_PIECE_ROWS):
                arrays = []
                for column, form, values in zip(schema.columns, forms, copied.columns(len(forms)), strict=True):
                    try:
                        arrays.append(form.read(values))
                    except UnfitError as error:
                        notice = unfit(chunk.table, UnfitError(f"{column.name}: {error}"))
                        raise TableStoppedError(
                            f"{chunk.table}: {notice.reason}", table=str(chunk.table), remedy=notice.remedy
                        ) from error
                yield pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)

    @property
    def low(self) -> PostgresLsn:
        return self._marks()[0]

    @property
    def high(self) -> PostgresLsn:
        return self._marks()[1]

    def _marks(self) -> tuple[PostgresLsn, PostgresLsn]:
        if self._bracket is None:
            raise StateError("a chunk has a bracket once it is open", remedy="Enter the reader first.")
        return self._bracket


def _oid(schema: TableSchema) -> int | None:
    """Of the relation that a schema was read from: it is in the ids of its columns."""
    first = schema.columns[0].id if schema.columns else None
    return int(first.partition(".")[0]) if first else None


def import_snapshot(connection: Connection, origin: Origin, oid: int | None, *, lock: str | None = None) -> bool:
    """Begin a read transaction under an exported snapshot, if it is still there and still the same (names are used
    again after a restart), and shows the table as it is. ``lock`` is a query that locks the table first. False: no
    transaction is open."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(origin.snapshot)))
        row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
        if row is not None and row[0] == origin.content:
            if lock is not None:
                connection.execute(lock.encode())
            row = connection.execute(_SAME_FILES, {"oid": oid}).fetchone() if oid is not None else (True,)
            if row is not None and row[0] is True:
                return True
    except (
        psycopg.errors.ObjectNotInPrerequisiteState,
        psycopg.errors.InvalidParameterValue,
        psycopg.errors.UndefinedObject,
    ):
        pass  # it is of a transaction that is over, or there is no such snapshot
    connection.execute("ROLLBACK")
    return False


def bracketed(connection: Connection) -> tuple[PostgresLsn, PostgresLsn]:
    """Begin a read transaction, and say which commits it has: all up to the first position, none after the second.

    By visibility and not by log position alone (T5): a commit is in the log before its rows become visible. So the
    position that was read first is a low mark only once every transaction that might have been committing at that
    moment is over; the high mark is read after the snapshot. SourceUnavailableError if they do not come to an end.
    """
    low = inserted(connection)
    if not wait_for_commits(connection, _COMMIT_SECONDS):
        raise SourceUnavailableError(
            f"transactions that were active {_COMMIT_SECONDS:.0f} s ago are still active, so a copy cannot be dated",
            remedy="Lakefeed tries again by itself; a long statement in pg_stat_activity is what it waits for.",
        )
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute("SELECT pg_current_snapshot()")  # the first statement takes the snapshot
    return low, inserted(connection)


def plan_chunks(
    connection: Connection,
    whole: TableChunk,
    source: SourceTable,
    chunk_rows: int,
    *,
    counted_bytes: int = _COUNTED_BYTES,
) -> tuple[tuple[TableChunk, ...], int]:
    """The chunks, and about how many rows they have together. A table without a key is one chunk."""
    name = f"{'ONLY ' if whole.only else ''}{sql_name(source.id)}"
    row = connection.execute(_SIZE, (source.oid, source.oid)).fetchone()
    size, rows = (int(row[0] or 0), int(row[1] or 0)) if row is not None else (0, 0)
    is_small = size <= counted_bytes or rows <= 0
    if is_small:
        row = connection.execute(f"SELECT count(*) FROM {name}".encode()).fetchone()
        rows = int(row[0]) if row is not None else 0
    bounds: list[Key] = []
    if whole.schema.key and rows > chunk_rows:
        number, total = "_lakefeed_number", "_lakefeed_total"  # names that no captured table may have
        origin, step = f"{name} AS k", str(chunk_rows)
        if not is_small:
            chunks = -(-rows // chunk_rows)
            percent = min(100.0, 100.0 * chunks * _SAMPLED_BLOCKS * _BLOCK_BYTES / max(size, 1))
            origin += f" TABLESAMPLE SYSTEM ({percent:f}) REPEATABLE (1)"
            step = f"greatest(1, n.{total} / {chunks})"
        keys = ", ".join(f"k.{quoted(one)}" for one in whole.schema.key)
        numbered = (
            f"SELECT {keys}, row_number() OVER (ORDER BY {keys}) AS {number}, count(*) OVER () AS {total} FROM {origin}"
        )
        # Every step-th key but the last. Printed only at the very end: as text, keys would have another order.
        printed = ", ".join(f"n.{quoted(one)}::text" for one in whole.schema.key)
        condition = f"n.{number} % ({step}) = 0 AND n.{number} < n.{total}"
        query = f"SELECT {printed} FROM ({numbered}) AS n WHERE {condition} ORDER BY n.{number}"
        bounds = [tuple(one) for one in connection.execute(query.encode())]
    edges: list[Key | None] = [None, *bounds, None]
    return tuple(replace(whole, low=low, high=high) for low, high in pairwise(edges)), rows

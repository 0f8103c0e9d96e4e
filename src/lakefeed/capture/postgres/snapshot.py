# ruff: noqa: S608 (names in SQL are quoted; values are psycopg literals)
"""The copy of one table: key ranges that any process can read on its own.

Rows come through COPY in binary form (``form`` says of each column what that is) and give the same Arrow values as the
stream's. While the snapshot of the plan is alive, every chunk imports it and is exact at its position. When it is gone
(a restart), a chunk reads under a snapshot of its own and says between which positions that is (``bracket``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.pq import ExecStatus

from lakefeed.capture.postgres.assemble import unfit
from lakefeed.capture.postgres.bracket import bracketed
from lakefeed.capture.postgres.catalog import sql_name
from lakefeed.capture.postgres.copyrows import CopyRows, read_copy
from lakefeed.capture.postgres.database import Connection, Database
from lakefeed.capture.postgres.form import Form, form_of
from lakefeed.capture.postgres.names import Names, quoted
from lakefeed.capture.postgres.text import UnfitError
from lakefeed.capture.postgres.types import SourceType
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import LakefeedError, StateError, TableStoppedError

_PIECE_BYTES = 4 << 20
_PIECE_ROWS = 16_384
"""Small enough for the processor's caches: larger pieces were measured to be slower by half."""

Key = tuple[str, ...]
"""Key values as PostgreSQL prints them."""


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
    origin: Origin
    only: bool
    low: Key | None = None
    high: Key | None = None

    @property
    def table(self) -> TableId:
        return self.schema.table

    def open(self) -> TableChunkReader:
        return TableChunkReader(self)

    def to_json(self) -> Mapping[str, Any]:
        origin = {"snapshot": self.origin.snapshot, "content": self.origin.content}
        bounds = {"low": _listed(self.low), "high": _listed(self.high)}
        return {
            "schema": self.schema.to_json(),
            **origin,
            "at": self.origin.position.text(),
            "only": self.only,
            **bounds,
        }

    @classmethod
    def from_json(cls, database: Database, names: Names, data: Mapping[str, Any]) -> TableChunk:
        origin = Origin(data["snapshot"], data["content"], PostgresLsn.parse(data["at"]))
        low, high = (tuple(data[name]) if data[name] is not None else None for name in ("low", "high"))
        return cls(database, names, TableSchema.from_json(data["schema"]), origin, data["only"], low, high)

    def select(self, columns: str) -> str:
        return f"SELECT {columns} FROM {'ONLY ' if self.only else ''}{sql_name(self.table)}{self._where()}"

    def _where(self) -> str:
        key = f"({', '.join(map(quoted, self.schema.key))})"
        conditions = [f"{key} > {self._literal(self.low)}"] if self.low is not None else []
        conditions += [f"{key} <= {self._literal(self.high)}"] if self.high is not None else []
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def _literal(self, key: Key) -> str:
        parts = [
            f"{sql.Literal(value).as_string(None)}::{self.schema.column(name).source_type}"
            for name, value in zip(self.schema.key, key, strict=True)
        ]
        return f"({', '.join(parts)})"


class TableChunkReader:
    """An open chunk; see ``ChunkReader``."""

    def __init__(self, chunk: TableChunk) -> None:
        self._chunk = chunk
        self._connection: Connection | None = None
        self._bracket: tuple[PostgresLsn, PostgresLsn] | None = None

    def __enter__(self) -> Self:
        database = self._chunk.database
        connection = database.connect(self._chunk.names.readers)
        try:
            with database.errors():
                origin = self._chunk.origin
                exact = _imported(connection, origin)
                self._bracket = (origin.position, origin.position) if exact else bracketed(connection)
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
        if self._connection is None:
            raise StateError("a chunk is read inside its with block", remedy="Enter the reader first.")
        with self._chunk.database.errors():
            if not self._chunk.schema.columns:
                yield _without_columns(self._connection, self._chunk)
                return
            forms = _forms(self._connection, self._chunk)
            query = self._chunk.select(", ".join(form.sql for form in forms))
            for rows in read_copy(self._connection, query, piece_bytes=_PIECE_BYTES, piece_rows=_PIECE_ROWS):
                yield self._batch(rows, forms)

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

    def _batch(self, rows: CopyRows, forms: Sequence[Form]) -> pa.RecordBatch:
        schema = self._chunk.schema
        arrays = []
        for column, form, values in zip(schema.columns, forms, rows.columns(len(forms)), strict=True):
            try:
                arrays.append(form.read(values))
            except UnfitError as error:
                raise self._stopped(UnfitError(f"{column.name}: {error}")) from error
        return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)

    def _stopped(self, error: UnfitError) -> LakefeedError:
        said = unfit(self._chunk.table, error)
        return TableStoppedError(f"{said.table}: {said.reason}", table=str(said.table), remedy=said.remedy)


def _imported(connection: Connection, origin: Origin) -> bool:
    """Read under the plan's snapshot, if it is still there and still the same: names are used again after a restart."""
    begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    connection.execute(begin)
    try:
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(origin.snapshot)))
        row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
        if row is not None and row[0] == origin.content:
            return True
    except psycopg.errors.ObjectNotInPrerequisiteState:  # it is of a transaction that is over
        pass
    except psycopg.OperationalError:
        raise
    except psycopg.DatabaseError:  # no such snapshot
        pass
    connection.execute("ROLLBACK")
    return False


def _forms(connection: Connection, chunk: TableChunk) -> list[Form]:
    """From now on the transaction has a lock on the table, so that what the server states here stays true."""
    columns = chunk.schema.columns
    result = connection.pgconn.exec_(f"{chunk.select(', '.join(map(quoted, chunk.schema.names)))} LIMIT 0".encode())
    if result.status != ExecStatus.TUPLES_OK:
        raise psycopg.errors.error_from_result(result)
    stated = [SourceType(result.ftype(place), result.fmod(place)) for place in range(len(columns))]
    return [form_of(column.name, column.type, kind) for column, kind in zip(columns, stated, strict=True)]


def _without_columns(connection: Connection, chunk: TableChunk) -> pa.RecordBatch:
    """A table of no columns can have rows."""
    row = connection.execute(chunk.select("count(*)").encode()).fetchone()
    rows: Any = pa.array([{}] * (row[0] if row else 0), pa.struct([]))
    return pa.RecordBatch.from_struct_array(rows)


def _listed(key: Key | None) -> list[str] | None:
    return list(key) if key is not None else None

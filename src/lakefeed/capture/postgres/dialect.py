# ruff: noqa: S608 (names in SQL are quoted; values are psycopg literals)
"""PostgresDialect: a PostgreSQL database or replica, for a role that may do nothing but SELECT.

Rows come through COPY in binary form and give the same Arrow values as the log capture's (``capture.postgres.binary``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.pq import ExecStatus

from lakefeed.capture.dialect import DescribedTable, Horizon, Query
from lakefeed.capture.postgres.binary import CopyRows, Form, form_of, read_copy
from lakefeed.capture.postgres.catalog import SourceTable, read_tables, sql_name, with_columns
from lakefeed.capture.postgres.database import READING, Connection, Database, quoted
from lakefeed.capture.postgres.values import SourceType, UnfitError
from lakefeed.change.table import Column, TableId
from lakefeed.change.watermark import KeyValue
from lakefeed.errors import TableStoppedError

_NAME = "lakefeed_poll"
_PIECE_BYTES, _PIECE_ROWS = 4 << 20, 16_384
_POLLS_KEPT = 4_096
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_PRIMARY_KEY = """
SELECT i.indrelid::int8, array_agg(a.attname::text ORDER BY k.place)
  FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place), pg_attribute a
 WHERE i.indisprimary AND i.indrelid = ANY(%s) AND a.attrelid = i.indrelid AND a.attnum = k.number
   AND k.place <= i.indnkeyatts
 GROUP BY i.indrelid"""

# A transaction without an id has written nothing. It may yet write, under the time of its beginning; after a minute it
# is taken for a report that only reads, since otherwise one such would hold up everything for hours.
_HORIZON = """
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8,
       pg_snapshot_xmin(s)::text::int8, pg_snapshot_xmax(s)::text::int8,
       pg_is_in_recovery() OR NOT pg_has_role('pg_read_all_stats', 'USAGE')
         OR EXISTS (SELECT FROM pg_prepared_xacts),
       (SELECT (extract(epoch FROM min(a.xact_start)) * 1000000)::int8 FROM pg_stat_activity a
         WHERE a.datname = current_database() AND a.application_name <> %s AND a.pid <> pg_backend_pid()
           AND (a.backend_xid IS NOT NULL OR a.xact_start > clock_timestamp() - interval '1 minute'))
  FROM pg_current_snapshot() AS s"""


@dataclass(frozen=True, slots=True)
class PostgresDialect:
    """``text_columns``: patterns over ``schema.table.column`` of columns that are kept as PostgreSQL prints them."""

    dsn: str = field(repr=False)
    text_columns: tuple[str, ...] = ()

    default_schema = "public"
    folds_case = False

    def connect(self) -> PostgresSession:
        database = Database(self.dsn)
        return PostgresSession(database, database.connect(_NAME, READING), self.text_columns)

    def quoted(self, name: str) -> str:
        return quoted(name)

    def bound(self, column: Column, value: KeyValue, query: Query) -> str:  # noqa: ARG002  # COPY takes no parameters
        return f"{sql.Literal(_printed(column, value)).as_string(None)}::{column.source_type}"

    def after(self, left: Sequence[str], right: Sequence[str]) -> str:
        return f"({', '.join(left)}) > ({', '.join(right)})"


class PostgresSession:
    """See ``Session``."""

    def __init__(self, database: Database, connection: Connection, text_columns: tuple[str, ...]) -> None:
        self._database = database
        self._connection = connection
        self._text_columns = text_columns
        self._polls: deque[tuple[int, int]] = deque(maxlen=_POLLS_KEPT)

    def identity(self) -> str:
        """System identifier and database. A replica is the same database: it has the same rows."""
        with self._database.errors():
            row = self._connection.execute(
                "SELECT (SELECT system_identifier::text FROM pg_control_system()), current_database()"
            ).fetchone()
        assert row is not None  # noqa: S101  # functions always answer
        return f"postgres:{row[0]}/{row[1]}"

    def tables(self) -> Mapping[TableId, str | None]:
        with self._database.errors():
            there = read_tables(self._connection)
            query = "SELECT oid::int8 FROM pg_class WHERE oid = ANY(%s) AND has_any_column_privilege(oid, 'SELECT')"
            may = {row[0] for row in self._connection.execute(query, ([table.oid for table in there.values()],))}
        return {table: None if source.oid in may else "this role may not read it" for table, source in there.items()}

    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, DescribedTable]:
        with self._database.errors():
            there = read_tables(self._connection)
            wanted = [there[table] for table in tables if table in there]
            found = self._connection.execute(_PRIMARY_KEY, ([table.oid for table in wanted],)).fetchall()
            keys: dict[int, list[str]] = dict(found)
            complete = with_columns(self._connection, wanted)
        return {table.id: self._described(replace(table, key=tuple(keys.get(table.oid, ())))) for table in complete}

    def horizon(self) -> Horizon:
        """Exact where the role may see when transactions began; else by the snapshot's oldest transaction.

        The second way: everything that is in flight now had no transaction id yet at the newest earlier poll whose
        snapshot ended before the oldest of them. It holds on replicas too, whose snapshots do not list transactions.
        """
        with self._database.errors():
            row = self._connection.execute(_HORIZON, (_NAME,)).fetchone()
        assert row is not None  # noqa: S101  # functions always answer
        now, oldest, next_one, is_hidden, began = row
        self._polls.append((now, next_one))
        if not is_hidden:
            return Horizon(now, min(now, began if began is not None else now))
        return Horizon(now, max((at for at, limit in self._polls if limit <= oldest), default=None))

    def read(self, query: Query, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if self._connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            with self.consistent():
                yield from self._read(query, schema)
        else:
            yield from self._read(query, schema)

    @contextmanager
    def consistent(self) -> Iterator[None]:
        with self._database.errors():
            self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                yield
            finally:
                if not self._connection.broken:
                    self._connection.execute("ROLLBACK")

    def cancel(self) -> None:
        self._connection.cancel_safe(timeout=2.0)

    def close(self) -> None:
        self._connection.close()

    def _described(self, source: SourceTable) -> DescribedTable:
        origin = f"{'ONLY ' if source.kind == 'r' else ''}{sql_name(source.id)}"
        return DescribedTable(source.schema(self._text_columns), origin)

    def _read(self, query: Query, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with self._database.errors():
            forms = self._forms(query.sql, schema)
            listed = ", ".join(form.sql for form in forms)
            copied = f"SELECT {listed} FROM ({query.sql}) AS r"
            for rows in read_copy(self._connection, copied, piece_bytes=_PIECE_BYTES, piece_rows=_PIECE_ROWS):
                yield _batch(rows, forms, schema)

    def _forms(self, query: str, schema: pa.Schema) -> list[Form]:
        """What the server says of each column; the read transaction keeps it true."""
        result = self._connection.pgconn.exec_(f"SELECT * FROM ({query}) AS r LIMIT 0".encode())
        if result.status != ExecStatus.TUPLES_OK:
            raise psycopg.errors.error_from_result(result)
        stated = [SourceType(result.ftype(place), result.fmod(place)) for place in range(len(schema))]
        return [form_of(one.name, one.type, kind) for one, kind in zip(schema, stated, strict=True)]


def _batch(rows: CopyRows, forms: Sequence[Form], schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for form, values, one in zip(forms, rows.columns(len(forms)), schema, strict=True):
        try:
            arrays.append(form.read(values))
        except UnfitError as error:
            raise TableStoppedError(
                f"a value does not fit its column exactly: {one.name}: {error}",
                remedy=f"Add the column {one.name} to source.text_columns, which keeps it as PostgreSQL prints it.",
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _printed(column: Column, value: KeyValue) -> str:
    """A value as PostgreSQL reads it back exactly."""
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, int) and pa.types.is_timestamp(column.type):
        return (_EPOCH + timedelta(microseconds=value)).isoformat(" ", "microseconds")
    if isinstance(value, int) and pa.types.is_boolean(column.type):
        return "t" if value else "f"
    return str(value)

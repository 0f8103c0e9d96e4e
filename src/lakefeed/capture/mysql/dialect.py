# ruff: noqa: S608 (names in SQL are quoted; values are hexadecimal literals)
"""MysqlDialect: a MySQL or MariaDB server or replica, for an account that may do nothing but SELECT.

Rows come through the binary protocol (``packets``) and give the same Arrow values as the binlog's. A chunk is read in a
transaction with a consistent snapshot, which locks nothing. Which commits it has is told by the executed GTIDs around
it: a GTID is in ``gtid_executed`` after its rows are visible, and in ``gtid_owned`` from before that on (T5). MariaDB
tells the binlog's position of the snapshot itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pymysql
from pymysql.cursors import SSCursor

from lakefeed.capture.dialect import (
    Bracket,
    DescribedTable,
    Dialect,
    Horizon,
    Ordering,
    Query,
    Refusal,
    Session,
    TableChangedError,
)
from lakefeed.capture.mysql.columns import CODECS, Flavour, Kind, ZeroDates, kind_of
from lakefeed.capture.mysql.database import READING, Connection, Database, listed, literal, quoted
from lakefeed.capture.mysql.history import (
    VISIBLE_SECONDS,
    Gtid,
    executed,
    owned,
    snapshot_position,
    wait_for_commits,
)
from lakefeed.capture.mysql.packets import read_rows
from lakefeed.change.mysql import MariadbGtid, MysqlBinlog, MysqlGtid
from lakefeed.change.position import decode_position
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.change.watermark import KeyValue
from lakefeed.errors import SourceUnavailableError

SYSTEM = ("mysql", "sys", "information_schema", "performance_schema")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CHANGED = (1412, 1054, 1146)
"""The table's definition has changed; no such column; no such table."""
_NO_PROCESS = 1227
_RUN_ROWS = 20_000

_TABLES = f"""
SELECT t.TABLE_SCHEMA, t.TABLE_NAME, t.ENGINE FROM information_schema.TABLES t
 WHERE t.TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND t.TABLE_SCHEMA NOT IN ({listed(SYSTEM)})"""
_COLUMNS = """
SELECT c.TABLE_SCHEMA, c.TABLE_NAME, c.COLUMN_NAME, c.COLUMN_TYPE, c.CHARACTER_SET_NAME, c.NUMERIC_PRECISION,
       c.NUMERIC_SCALE, c.CHARACTER_OCTET_LENGTH, c.IS_NULLABLE, c.EXTRA, c.COLUMN_DEFAULT
  FROM information_schema.COLUMNS c WHERE (c.TABLE_SCHEMA, c.TABLE_NAME) IN ({tables})
 ORDER BY c.TABLE_SCHEMA, c.TABLE_NAME, c.ORDINAL_POSITION"""
_KEYS = """
SELECT s.TABLE_SCHEMA, s.TABLE_NAME, s.COLUMN_NAME FROM information_schema.STATISTICS s
 WHERE s.INDEX_NAME = 'PRIMARY' AND (s.TABLE_SCHEMA, s.TABLE_NAME) IN ({tables})
 ORDER BY s.TABLE_SCHEMA, s.TABLE_NAME, s.SEQ_IN_INDEX"""
# A transaction that has changed nothing may yet do so, under the time of its beginning; after a minute it is taken for
# a report that only reads, since otherwise one such would hold up everything for hours.
_OPEN = """
SELECT CAST(UNIX_TIMESTAMP(MIN(trx_started)) * 1000000 AS SIGNED) FROM information_schema.INNODB_TRX
 WHERE trx_mysql_thread_id <> CONNECTION_ID()
   AND (trx_rows_modified > 0 OR trx_started > NOW() - INTERVAL 1 MINUTE)"""


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column as the catalog has it. ``kind`` is None for a type that is not understood: it is kept as printed."""

    name: str
    kind: Kind | None
    nullable: bool
    extra: str
    has_default: bool

    def column(self, zero_dates: ZeroDates) -> Column:
        return column_of(self.name, self.kind or Kind("other"), self.nullable, zero_dates)


def column_of(name: str, kind: Kind, nullable: bool, zero_dates: ZeroDates) -> Column:
    members = f"({','.join(literal(one) for one in kind.members)})" if kind.members else ""
    return Column(name, kind.arrow(zero_dates), nullable, kind.source_type + members, id=name)


@dataclass(frozen=True, slots=True)
class MysqlDialect(Dialect):
    dsn: str = field(repr=False)
    flavour: Flavour = "mysql"
    zero_dates: ZeroDates = ZeroDates.STOP

    default_schema = "mysql"
    folds_case = False

    def connect(self) -> MysqlSession:
        database = Database(self.dsn, self.flavour)
        return MysqlSession(database, database.connect(READING), self.zero_dates)

    def quoted(self, name: str) -> str:
        return quoted(name)

    def bound(self, column: Column, value: KeyValue, query: Query) -> str:  # noqa: ARG002  # all values are literals
        """A number for a member of an enum: that is its order, and comparing with a text would be by the text."""
        if column.source_type.startswith("enum("):
            members = column.source_type[5:-1].split(",")
            return str(members.index(literal(str(value))) + 1) if value else "0"
        if isinstance(value, bytes):
            return f"X'{value.hex()}'" if value else "''"
        if isinstance(value, int) and pa.types.is_timestamp(column.type):
            return f"'{(_EPOCH + timedelta(microseconds=value)).strftime('%Y-%m-%d %H:%M:%S.%f')}'"
        if pa.types.is_temporal(column.type):
            return f"'{str(value).removesuffix('+00:00')}'"
        return literal(value) if isinstance(value, str) else str(value)

    def after(self, left: Sequence[str], right: Sequence[str], orderings: Sequence[Ordering]) -> str:  # noqa: ARG002
        # The server begins in its index by the first condition alone.
        both = f"({', '.join(left)}) > ({', '.join(right)})"
        return f"({left[0]} >= {right[0]} AND {both})" if len(left) > 1 else both

    def up_to(self, left: Sequence[str], right: Sequence[str], orderings: Sequence[Ordering]) -> str:  # noqa: ARG002
        both = f"({', '.join(left)}) <= ({', '.join(right)})"
        return f"({left[0]} <= {right[0]} AND {both})" if len(left) > 1 else both


class MysqlSession(Session):
    """See ``Session``."""

    def __init__(self, database: Database, connection: Connection, zero_dates: ZeroDates) -> None:
        self._database = database
        self.connection = connection
        self._zero_dates = zero_dates
        with database.errors():
            connection.run("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self._in_snapshot = False

    def identity(self) -> str:
        with self._database.errors():
            return read_identity(self.connection)

    def tables(self) -> Mapping[TableId, Refusal | None]:
        with self._database.errors():
            rows = self.connection.run(_TABLES)
        return {TableId(schema, name): None for schema, name, _ in rows if "." not in schema}

    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, DescribedTable]:
        with self._database.errors():
            there = read_columns(self.connection, tables)
        return {
            table: DescribedTable(
                TableSchema(table, tuple(one.column(self._zero_dates) for one in columns), key),
                f"{quoted(table.schema)}.{quoted(table.name)}",
                unordered={
                    one.name: "its values have no order"
                    for one in columns
                    if one.kind is None or one.kind.name in ("json", "geometry", "set", "vector")
                },
            )
            for table, (columns, key) in there.items()
        }

    def horizon(self) -> Horizon:
        """Transactions that are open are seen by an account with PROCESS; without it the safety lag has to do."""
        with self._database.errors():
            now = int(self.connection.value("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"))
            try:
                began = self.connection.value(_OPEN)
            except pymysql.err.OperationalError as error:
                if error.args[0] != _NO_PROCESS:
                    raise
                began = None
        return Horizon(now, min(now, int(began)) if began is not None else now)

    def read(self, query: Query, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if self._in_snapshot:
            yield from self._read(query, schema)
        else:
            with self.consistent():
                yield from self._read(query, schema)

    def _read(self, query: Query, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with self._database.errors():
            try:
                if query.source is not None:
                    # From here on the transaction has a metadata lock: what the catalog tells stays true.
                    self.connection.run(f"SELECT 1 FROM {query.source.origin} LIMIT 0")
                    table = query.source.id
                    columns, key = read_columns(self.connection, [table]).get(table, ((), ()))
                    now = TableSchema(table, tuple(one.column(self._zero_dates) for one in columns), key)
                    if now.columns != query.source.schema.columns:
                        raise TableChangedError
                yield from read_rows(self.connection, query.sql, schema, READING.answer, self._zero_dates)
            except pymysql.err.Error as error:
                if query.source is not None and error.args and error.args[0] in _CHANGED:
                    raise TableChangedError from error
                raise

    @contextmanager
    def consistent(self, origin: Mapping[str, Any] | None = None) -> Iterator[Bracket | None]:
        """``origin`` says what the stream has delivered: the snapshot has that. The server sends a transaction to its
        readers a moment before the rows are visible."""
        begin = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
        with self._database.errors():
            try:
                low = None if origin is None else self._visible(origin.get("delivered"))
                self.connection.run(begin)
                self._in_snapshot = True
                if low is None:
                    yield None
                elif isinstance(low, MariadbGtid):
                    at = snapshot_position(self.connection)
                    until = time.monotonic() + VISIBLE_SECONDS
                    while not at >= low and time.monotonic() < until:  # commits that are on their way
                        time.sleep(0.01)
                        self.connection.run("ROLLBACK")
                        self.connection.run(begin)
                        at = snapshot_position(self.connection)
                    yield Bracket(at, at)
                elif isinstance(low, MysqlBinlog):
                    yield Bracket(low, executed(self.connection, low))
                else:
                    under_way, now = owned(self.connection), executed(self.connection, low)
                    assert isinstance(now, MysqlGtid)  # noqa: S101  # as low is
                    yield Bracket(low, low.union(under_way).union(now))
            finally:
                self._in_snapshot = False
                with suppress(pymysql.err.Error, OSError):  # nothing was written
                    self.connection.run("ROLLBACK")

    def _visible(self, delivered: str | None) -> Gtid:
        """The transactions that are visible now, with all that were ``delivered``."""
        least = None if delivered is None else decode_position(delivered)
        assert least is None or isinstance(least, Gtid)  # noqa: S101  # of this source
        until, low = time.monotonic() + VISIBLE_SECONDS, executed(self.connection, least)
        if isinstance(low, MysqlBinlog):
            wait_for_commits(self.connection)
        while least is not None and not low >= least:
            if time.monotonic() > until:
                problem = f"it has not got to {least} yet; is it a replica that lags?"
                raise SourceUnavailableError(f"{self._database}: {problem}")
            time.sleep(0.01)
            low = executed(self.connection, least)
        return low

    def cancel(self) -> None:
        self.connection.kill()
        self.connection.sever()

    def close(self) -> None:
        self.connection.close()


def read_columns(
    connection: Connection, tables: Sequence[TableId]
) -> dict[TableId, tuple[tuple[SourceColumn, ...], tuple[str, ...]]]:
    """Columns and primary key of those that are there, in one query each."""
    if not tables:
        return {}
    pairs = ", ".join(f"({literal(table.schema)}, {literal(table.name)})" for table in tables)
    columns: dict[TableId, list[SourceColumn]] = {}
    for schema, table, name, kind, charset, precision, scale, longest, nullable, extra, default in connection.run(
        _COLUMNS.format(tables=pairs)
    ):
        text = kind.decode() if isinstance(kind, bytes) else str(kind)
        found = kind_of(text, charset, precision, scale, longest)
        has_default = default is not None and str(default).upper() != "NULL"
        one = SourceColumn(name, found, nullable == "YES", str(extra).upper(), has_default)
        columns.setdefault(TableId(schema, table), []).append(one)
    keys: dict[TableId, list[str]] = {}
    for schema, table, name in connection.run(_KEYS.format(tables=pairs)):
        keys.setdefault(TableId(schema, table), []).append(name)
    return {table: (tuple(found), tuple(keys.get(table, ()))) for table, found in columns.items()}


def unknown_charset(columns: Sequence[SourceColumn]) -> str | None:
    """The first column whose character set cannot be decoded here."""
    kinds = ((one.name, one.kind) for one in columns if one.kind is not None and one.kind.charset)
    return next((name for name, kind in kinds if kind is not None and kind.charset not in CODECS), None)


def read_identity(connection: Connection) -> str:
    """Of the server, not of its history: a replica has another one."""
    if connection.database.flavour == "mysql":
        return f"mysql:{connection.value('SELECT @@server_uuid')}"
    host, port, directory, server = connection.run("SELECT @@hostname, @@port, @@datadir, @@server_id")[0]
    return f"mariadb:{host}:{port}{directory}:{server}"


class MysqlVerifyReader:
    """See ``capture.registry.VerifyReader``. Values by plain SELECT, as PyMySQL converts them from text, not through
    ``Session.read``: that is the decoder whose work ``lakefeed verify`` proves. Rows are not buffered, so that memory
    stays bounded."""

    def __init__(self, dialect: MysqlDialect, table: TableId) -> None:
        self._dialect = dialect
        self._database = Database(dialect.dsn, dialect.flavour)
        self._table = table

    def columns(self) -> Sequence[str]:
        return self._dialect.described(self._table).schema.names

    def count(self) -> int:
        origin = self._dialect.described(self._table).origin
        with self._database.connection(READING) as connection:
            return int(connection.value(f"SELECT count(*) FROM {origin}"))

    def rows(self, columns: pa.Schema, names: Sequence[str]) -> Iterator[Sequence[tuple[Any, ...]]]:
        origin = self._dialect.described(self._table).origin
        with self._database.connection(READING) as connection:
            kinds = {one.name: one.kind for one in read_columns(connection, [self._table])[self._table][0]}
            listed = []
            for name, field in zip(names, columns, strict=True):
                kind, sql = kinds[name], quoted(name)
                if kind is not None and kind.name == "geometry":
                    sql = f"SUBSTRING(CAST({sql} AS BINARY), 5)"
                elif kind is not None and kind.name in ("float", "bit"):
                    sql = f"{sql} + {'0e0' if kind.name == 'float' else '0'}"
                elif field.type == pa.string():
                    sql = f"CAST({sql} AS CHAR)"
                listed.append(sql)
            zoned = [index for index, field in enumerate(columns) if getattr(field.type, "tz", None) is not None]
            flags = [index for index, field in enumerate(columns) if pa.types.is_boolean(field.type)]
            with connection.driver.cursor(SSCursor) as cursor:
                cursor.execute(f"SELECT {', '.join(listed)} FROM {origin}")
                while rows := cursor.fetchmany(_RUN_ROWS):
                    for row in (converted := [list(one) for one in rows]):
                        for index in zoned:  # in UTC, as the session is
                            row[index] = row[index].replace(tzinfo=UTC) if hasattr(row[index], "tzinfo") else row[index]
                        for index in flags:
                            row[index] = None if row[index] is None else bool(row[index])
                    yield [tuple(row) for row in converted]

# ruff: noqa: S608 (names in SQL are quoted; values are hexadecimal literals)
"""MysqlDialect: a MySQL or MariaDB server or replica, for an account that needs no privilege but SELECT.

Rows arrive through the binary protocol (``packets``) and give the same Arrow values as those of the binlog. A chunk is
read in a transaction with a consistent snapshot, which locks nothing. The executed GTIDs before and after its start
tell which commits it sees: a GTID enters ``gtid_executed`` after its rows have become visible, and is in ``gtid_owned``
from before that on. MariaDB reports the binlog position of the snapshot itself.
"""

from __future__ import annotations

import time
from calendar import monthrange
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from typing import Any

import pyarrow as pa
import pymysql
from pymysql.cursors import SSCursor

from lakefeed.capture.base import TableSize
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
from lakefeed.capture.mysql.columns import CODECS, INTEGERS, TEMPORAL, Flavour, Kind, ZeroDates, kind_of
from lakefeed.capture.mysql.database import READING, Connection, Database, listed, literal, quoted
from lakefeed.capture.mysql.history import VISIBLE_SECONDS, Gtid, executed, owned, snapshot_position, visible
from lakefeed.capture.mysql.packets import read_rows
from lakefeed.change.choice import MICROSECONDS, NOTHING_CHOSEN, Choices, rule_of
from lakefeed.change.mysql import MariadbGtid, MysqlGtid
from lakefeed.change.table import Column, Comments, OutOfRange, TableId, TableSchema
from lakefeed.change.watermark import KeyValue
from lakefeed.errors import SourceUnavailableError

SYSTEM = ("mysql", "sys", "information_schema", "performance_schema")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CHANGED = (1412, 1054, 1146)
"""Table definition has changed; unknown column; no such table."""
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
_SIZES = """
SELECT t.TABLE_SCHEMA, t.TABLE_NAME, t.TABLE_ROWS, t.DATA_LENGTH FROM information_schema.TABLES t
 WHERE (t.TABLE_SCHEMA, t.TABLE_NAME) IN ({tables})"""
# An open transaction that has changed nothing may still do so, with the time of its start. After a minute it is taken
# for a report that only reads; otherwise one such report would hold everything up for hours.
_OPEN = """
SELECT CAST(UNIX_TIMESTAMP(MIN(trx_started)) * 1000000 AS SIGNED) FROM information_schema.INNODB_TRX
 WHERE trx_mysql_thread_id <> CONNECTION_ID()
   AND (trx_rows_modified > 0 OR trx_started > NOW() - INTERVAL 1 MINUTE)"""


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column as the catalog has it. ``kind`` is None for an unknown type, whose values are kept as printed."""

    name: str
    kind: Kind | None
    nullable: bool
    extra: str
    has_default: bool


@dataclass(frozen=True, slots=True)
class MysqlDialect(Dialect):
    dsn: str = field(repr=False)
    flavour: Flavour = "mysql"
    zero_dates: ZeroDates = ZeroDates.STOP
    choices: Choices = NOTHING_CHOSEN

    default_schema = "*"  # a pattern without a dot means a table of any database
    folds_case = False

    def connect(self) -> MysqlSession:
        database = Database(self.dsn, self.flavour)
        return MysqlSession(database, database.connect(READING), self)

    def represent(self, choices: Choices) -> MysqlDialect:
        return replace(self, choices=choices)

    def schema(self, table: TableId, columns: Sequence[SourceColumn], key: tuple[str, ...]) -> TableSchema:
        """A table's schema in the lake."""
        shown = tuple(
            self.column(table, one.name, one.kind or Kind("other"), nullable=one.nullable, in_key=one.name in key)
            for one in columns
        )
        return TableSchema(table, shown, key)

    def column(self, table: TableId, name: str, kind: Kind, *, nullable: bool, in_key: bool) -> Column:
        """A column with the type and rule that the lake wants. A key column gets no rule that could give two rows the
        same key. Besides texts, only numbers, dates and times can become text: both the server and Lakefeed print them
        the same way."""
        rule = self.choices.rule(table, name, self.zero_dates)
        is_free = rule is OutOfRange.TEXT or not in_key
        column = column_of(name, kind, nullable, rule if is_free else OutOfRange.STOP)
        if kind.name in (*INTEGERS, *TEMPORAL, "decimal", "year") and self.choices.is_text(table, name):
            return replace(column, type=pa.string(), out_of_range=OutOfRange.STOP)
        if kind.name == "time" and self.choices.of(table).type_of(name) == MICROSECONDS:
            return replace(column, type=pa.int64())
        return column

    def quoted(self, name: str) -> str:
        return quoted(name)

    def bound(self, column: Column, value: KeyValue, query: Query) -> str:  # noqa: ARG002  # all values are literals
        """An enum member becomes its number, and a time a TIME literal: MySQL would compare both as texts, whose order
        differs."""
        if isinstance(value, bytes):
            return f"X'{value.hex()}'" if value else "''"
        if column.source_type.partition("(")[0] == "time":
            return f"TIME'{value}'"
        if column.source_type.startswith("enum("):
            members = column.source_type[5:-1].split(",")
            return str(members.index(literal(str(value))) + 1) if value else "0"
        if isinstance(value, int) and pa.types.is_timestamp(column.type):
            return f"'{(_EPOCH + timedelta(microseconds=value)).strftime('%Y-%m-%d %H:%M:%S.%f')}'"
        if pa.types.is_temporal(column.type):
            return f"'{str(value).removesuffix('+00:00')}'"
        return literal(value) if isinstance(value, str) else str(value)

    def after(self, left: Sequence[str], right: Sequence[str], orderings: Sequence[Ordering]) -> str:  # noqa: ARG002
        # The redundant first condition lets the server start in its index.
        both = f"({', '.join(left)}) > ({', '.join(right)})"
        return f"({left[0]} >= {right[0]} AND {both})" if len(left) > 1 else both

    def up_to(self, left: Sequence[str], right: Sequence[str], orderings: Sequence[Ordering]) -> str:  # noqa: ARG002
        both = f"({', '.join(left)}) <= ({', '.join(right)})"
        return f"({left[0]} <= {right[0]} AND {both})" if len(left) > 1 else both


def column_of(name: str, kind: Kind, nullable: bool, rule: OutOfRange) -> Column:
    """A column derived from its type, with a rule for impossible dates."""
    members = f"({','.join(literal(one) for one in kind.members)})" if kind.members else ""
    own = rule if kind.name in TEMPORAL and rule is not OutOfRange.TEXT else OutOfRange.STOP
    return Column(name, kind.arrow(rule), nullable, kind.source_type + members, id=name, out_of_range=own)


class MysqlSession(Session):
    """See ``Session``."""

    def __init__(self, database: Database, connection: Connection, dialect: MysqlDialect) -> None:
        self._database = database
        self.connection = connection
        self._dialect = dialect
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
                self._dialect.schema(table, columns, key),
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
        """Open transactions are visible with the PROCESS privilege; without it, only the safety lag covers them."""
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
                    # From here on the transaction holds a metadata lock, so the catalog's answer stays true.
                    self.connection.run(f"SELECT 1 FROM {query.source.origin} LIMIT 0")
                    now = self.describe([query.source.id]).get(query.source.id)
                    if now is None or now.schema.columns != query.source.schema.columns:
                        raise TableChangedError
                yield from read_rows(self.connection, query.sql, schema, READING.answer)
            except pymysql.err.Error as error:
                if query.source is not None and error.args and error.args[0] in _CHANGED:
                    raise TableChangedError from error
                raise

    @contextmanager
    def consistent(self, origin: Mapping[str, Any] | None = None) -> Iterator[Bracket | None]:
        """``origin`` has the position up to which the stream has delivered; the snapshot must include it, and the
        server sends a transaction to its replicas a moment before the rows become visible. ``exact``: the snapshot must
        lie between two commits."""
        begin, until = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY", time.monotonic() + VISIBLE_SECONDS
        bracket: Bracket | None = None
        with self._database.errors():
            try:
                while origin is not None:
                    low = visible(self.connection, origin.get("delivered"))
                    self.connection.run(begin)
                    bracket = self._bracket(low)
                    if bracket.high >= low and (bracket.low == bracket.high or not origin.get("exact")):
                        break
                    if time.monotonic() > until:
                        problem = f"no moment between two commits was found within {VISIBLE_SECONDS:.0f} s"
                        raise SourceUnavailableError(f"{self._database}: {problem}, so the copy cannot start")
                    self.connection.run("ROLLBACK")
                    time.sleep(0.001)
                if origin is None:
                    self.connection.run(begin)
                self._in_snapshot = True
                yield bracket
            finally:
                self._in_snapshot = False
                with suppress(pymysql.err.Error, OSError):  # the transaction wrote nothing
                    self.connection.run("ROLLBACK")

    def sizes(self, tables: Sequence[TableId]) -> Mapping[TableId, TableSize]:
        if not tables:
            return {}
        pairs = ", ".join(f"({literal(table.schema)}, {literal(table.name)})" for table in tables)
        with self._database.errors():
            rows = self.connection.run(_SIZES.format(tables=pairs))
        return {TableId(schema, name): TableSize(rows, size) for schema, name, rows, size in rows}

    def comments(self, table: TableId) -> Comments:
        place = f"table_schema = {literal(table.schema)} AND table_name = {literal(table.name)}"
        with self._database.errors():
            own = self.connection.run(f"SELECT table_comment FROM information_schema.tables WHERE {place}")
            rows = self.connection.run(
                f"SELECT column_name, column_comment FROM information_schema.columns WHERE {place}"
            )
        by_column = {str(name): str(text) for name, text in rows if text}
        return Comments(next((str(text) for (text,) in own if text), ""), by_column)

    def _bracket(self, low: Gtid) -> Bracket:
        """Which commits the snapshot just taken includes; those up to ``low`` were visible before it."""
        if isinstance(low, MariadbGtid):
            at = snapshot_position(self.connection)
            return Bracket(at, at)
        owned_now = owned(self.connection) if isinstance(low, MysqlGtid) else None  # before they move to executed
        now = executed(self.connection, low)
        if isinstance(low, MysqlGtid) and isinstance(now, MysqlGtid) and owned_now is not None:
            now = low.union(owned_now).union(now)
        return Bracket(low, now)

    def cancel(self) -> None:
        self.connection.kill()
        self.connection.sever()

    def close(self) -> None:
        self.connection.close()


def read_columns(
    connection: Connection, tables: Sequence[TableId]
) -> dict[TableId, tuple[tuple[SourceColumn, ...], tuple[str, ...]]]:
    """Columns and primary keys of those tables that exist, in one query each."""
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
    """The first column whose character set Lakefeed cannot decode."""
    kinds = ((one.name, one.kind) for one in columns if one.kind is not None and one.kind.charset)
    return next((name for name, kind in kinds if kind is not None and kind.charset not in CODECS), None)


def read_identity(connection: Connection) -> str:
    """Identifies the server, not its history: a replica has another identity."""
    if connection.database.flavour == "mysql":
        return f"mysql:{connection.value('SELECT @@server_uuid')}"
    host, port, directory, server = connection.run("SELECT @@hostname, @@port, @@datadir, @@server_id")[0]
    return f"mariadb:{host}:{port}{directory}:{server}"


class MysqlVerifyReader:
    """See ``capture.registry.VerifyReader``. Reads by plain SELECT, with values as PyMySQL converts them from text, and
    not through ``Session.read``: that is the decoder that ``lakefeed verify`` checks. Rows are not buffered, so memory
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
            rules = {index: rule_of(field) for index, field in enumerate(columns) if pa.types.is_temporal(field.type)}
            rules = {index: rule for index, rule in rules.items() if rule is not OutOfRange.STOP}
            clocks = [index for index, field in enumerate(columns) if pa.types.is_int64(field.type)
                      and (kind := kinds[names[index]]) is not None and kind.name == "time"]  # fmt: skip
            with connection.driver.cursor(SSCursor) as cursor:
                cursor.execute(f"SELECT {', '.join(listed)} FROM {origin}")
                while rows := cursor.fetchmany(_RUN_ROWS):
                    for row in (converted := [list(one) for one in rows]):
                        for index, rule in rules.items():
                            if isinstance(row[index], str):  # an impossible date, which the driver returns as text
                                row[index] = _nearest(row[index]) if rule is OutOfRange.CLAMP else None
                        for index in clocks:
                            row[index] = None if row[index] is None else row[index] // timedelta(microseconds=1)
                        for index in zoned:  # the session's time zone is UTC
                            row[index] = row[index].replace(tzinfo=UTC) if hasattr(row[index], "tzinfo") else row[index]
                        for index in flags:
                            row[index] = None if row[index] is None else bool(row[index])
                    yield [tuple(row) for row in converted]


def _nearest(text: str) -> date | datetime:
    """The date or time nearest to an impossible one such as ``2026-02-31 12:00:00``."""
    day, _, clock = text.partition(" ")
    year, month, number = (int(part) for part in day.split("-"))
    year, month = max(year, 1), min(max(month, 1), 12)
    found = date(year, month, min(max(number, 1), monthrange(year, month)[1]))
    return datetime.combine(found, time_of_day.fromisoformat(clock)) if clock else found

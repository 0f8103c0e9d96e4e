# ruff: noqa: S608 (names in SQL are quoted; values are psycopg literals)
"""PostgresDialect: a PostgreSQL database or replica, for a role that needs no privilege but SELECT.

Rows arrive through binary COPY and give the same Arrow values as those of the log (``values``). The copy of a log
source is read under the exported snapshot that its plan recorded (``SnapshotOrigin``) while that exists: then every
chunk is exact at its position. Without it, a chunk reads under a snapshot of its own and has a bracket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from lakefeed.capture import dialect
from lakefeed.capture.base import TableSize
from lakefeed.capture.dialect import Bracket, Cuts, DescribedTable, Dialect, Horizon, Ordering, Query, Refusal, Session
from lakefeed.capture.fit import REPLACED, MisfitError
from lakefeed.capture.postgres.catalog import SourceTable, read_tables, sql_name, with_columns
from lakefeed.capture.postgres.database import BEGIN, READING, Connection, Database, quoted, run
from lakefeed.capture.postgres.slices import copied_columns
from lakefeed.capture.postgres.slot import SnapshotOrigin, bracketed, import_snapshot, shows
from lakefeed.capture.postgres.values import form_of, may_misfit, stated_type
from lakefeed.capture.postgres.wire import read_copy
from lakefeed.change.batch import replaced_metadata
from lakefeed.change.choice import NOTHING_CHOSEN, Choices, rule_of
from lakefeed.change.table import Column, Comments, OutOfRange, TableId
from lakefeed.change.watermark import KeyValue

_NAME, _VERIFY, _RUN_ROWS = "lakefeed_poll", "lakefeed_verify", 50_000
COUNTED_BYTES = 64 << 20  # larger tables are not counted: the catalog's estimate and a sample are good enough
# Per chunk. Rows of one block often have neighbouring keys, so a few blocks would give uneven chunks.
_SAMPLED_BLOCKS, _BLOCK_BYTES = 50, 8192
_PIECE_BYTES, _PIECE_ROWS, _POLLS_KEPT = 4 << 20, 16_384, 4_096
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# A transaction without an id has written nothing. It may still write, with the time of its start. After a minute it is
# taken for a report that only reads; otherwise one such report would hold everything up for hours.
_HORIZON = """
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8,
       pg_snapshot_xmin(s)::text::int8, pg_snapshot_xmax(s)::text::int8,
       pg_is_in_recovery() OR NOT pg_has_role('pg_read_all_stats', 'USAGE') OR EXISTS (SELECT FROM pg_prepared_xacts),
       (SELECT (extract(epoch FROM min(a.xact_start)) * 1000000)::int8 FROM pg_stat_activity a
         WHERE a.datname = current_database() AND a.application_name <> %s AND a.pid <> pg_backend_pid()
           AND (a.backend_xid IS NOT NULL OR a.xact_start > clock_timestamp() - interval '1 minute'))
  FROM pg_current_snapshot() AS s"""

# Operators that a plain < would not find, because the search path is pg_catalog: ORDER BY uses the operator class, and
# < on citext would be that of text. Built-in types, and types sorted by their operators (varchar, arrays), need none.
_ORDERINGS = """
SELECT c.opcintype::int8, p.amopstrategy, format('OPERATOR(%%I.%%s)', n.nspname, o.oprname)
  FROM pg_opclass c JOIN pg_am m ON m.oid = c.opcmethod AND m.amname = 'btree'
  JOIN pg_amop p ON p.amopfamily = c.opcfamily AND p.amoplefttype = c.opcintype AND p.amoprighttype = c.opcintype
  JOIN pg_operator o ON o.oid = p.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace
 WHERE c.opcdefault AND c.opcintype = ANY(%s) AND p.amopstrategy IN (1, 3, 5)
   AND c.opcnamespace <> 'pg_catalog'::regnamespace"""

_SIZE = """
SELECT coalesce(sum(pg_relation_size(c.oid)), 0)::int8, coalesce(sum(greatest(c.reltuples, 0)), 0)::int8 FROM pg_class c
 WHERE c.relkind = 'r' AND (c.oid = %s::regclass OR c.oid IN (SELECT relid FROM pg_partition_tree(%s::regclass)))"""


# Column comments, and the table's own with a NULL name.
_COMMENTS = """
    SELECT a.attname, d.description FROM pg_description d
    JOIN pg_class c ON d.classoid = 'pg_class'::regclass AND d.objoid = c.oid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.objsubid AND d.objsubid > 0 AND NOT a.attisdropped
    WHERE n.nspname = %s AND c.relname = %s AND (d.objsubid = 0 OR a.attname IS NOT NULL)
"""
# Rows as of the last ANALYZE or VACUUM; -1 if there was none. Sizes include what is stored out of line.
_SIZES = """
SELECT n.nspname, c.relname, CASE WHEN min(l.reltuples) >= 0 THEN sum(l.reltuples)::int8 END,
       sum(pg_table_size(l.oid))::int8
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN LATERAL pg_partition_tree(c.oid) p ON c.relkind = 'p' AND p.isleaf AND p.relid <> c.oid
  JOIN pg_class l ON l.oid = coalesce(p.relid, c.oid)
 WHERE n.nspname || '.' || c.relname = ANY(%s) AND c.relkind IN ('r', 'p') GROUP BY 1, 2"""


@dataclass(frozen=True, slots=True)
class PostgresDialect(Dialect):
    """``text_columns``: patterns over ``schema.table.column`` of columns that are kept as PostgreSQL prints them.
    ``application_name`` is shown in pg_stat_activity."""

    dsn: str = field(repr=False)
    text_columns: tuple[str, ...] = ()
    application_name: str = _NAME
    choices: Choices = NOTHING_CHOSEN

    default_schema = "public"
    folds_case = False

    def __post_init__(self) -> None:
        Database(self.dsn)  # ConfigError for an invalid connection string

    @property
    def database_name(self) -> str | None:
        return Database(self.dsn).parameters.get("dbname")

    def connect(self) -> PostgresSession:
        database = Database(self.dsn)
        choices = replace(self.choices, text_columns=self.text_columns)
        return PostgresSession(database, database.connect(self.application_name, READING), choices)

    def represent(self, choices: Choices) -> PostgresDialect:
        return replace(self, choices=choices)

    def quoted(self, name: str) -> str:
        return quoted(name)

    def bound(self, column: Column, value: KeyValue, query: Query) -> str:  # noqa: ARG002  # COPY takes no parameters
        """A literal that PostgreSQL reads back as exactly this value."""
        printed = f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
        if isinstance(value, int) and pa.types.is_timestamp(column.type):
            printed = (_EPOCH + timedelta(microseconds=value)).isoformat(" ", "microseconds")
        return f"{sql.Literal(printed).as_string(None)}::{column.source_type}"


class PostgresSession(Session):
    """See ``Session``."""

    def __init__(self, database: Database, connection: Connection, choices: Choices) -> None:
        self._database, self._connection, self._choices = database, connection, choices
        self._polls: deque[tuple[int, int]] = deque(maxlen=_POLLS_KEPT)

    def _reading(self) -> AbstractContextManager[Any]:
        """The open consistent read, or a new one."""
        is_idle = self._connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        return self.consistent() if is_idle else nullcontext()

    def identity(self) -> str:
        """System identifier and database. A replica counts as the same database: it has the same rows."""
        with self._database.errors():
            system, name = self._connection.one("SELECT system_identifier, current_database() FROM pg_control_system()")
        return f"postgres:{system}/{name}"

    def tables(self) -> Mapping[TableId, Refusal | None]:
        with self._database.errors():
            there = read_tables(self._connection)
            query = "SELECT oid::int8 FROM pg_class WHERE oid = ANY(%s) AND has_any_column_privilege(oid, 'SELECT')"
            may = {row[0] for row in self._connection.execute(query, ([table.oid for table in there.values()],))}
        unreadable = Refusal("this role may not read it")
        return {table: None if source.oid in may else unreadable for table, source in there.items()}

    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, DescribedTable]:
        with self._reading(), self._database.errors():
            there = read_tables(self._connection)
            wanted = [replace(there[table], key=there[table].primary_key) for table in tables if table in there]
            return described(self._connection, with_columns(self._connection, wanted), self._choices)

    def horizon(self) -> Horizon:
        """Exact if the role may see when transactions began. Otherwise derived from the snapshot's oldest transaction:
        take the newest earlier poll whose snapshot ended before it; none of the transactions now in flight had an id at
        that poll. This also holds on replicas, whose snapshots do not list transactions."""
        with self._database.errors():
            now, oldest, next_one, is_hidden, began = self._connection.one(_HORIZON, _NAME)
        self._polls.append((now, next_one))
        if not is_hidden:
            return Horizon(now, min(now, began if began is not None else now))
        return Horizon(now, max((at for at, limit in self._polls if limit <= oldest), default=None))

    def read(self, query: Query, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with self._reading(), self._database.errors():
            # From here on the transaction holds a lock on the table, so that the server's answer stays true.
            result = run(self._connection, f"SELECT * FROM ({query.sql}) AS r LIMIT 0")
            stated = [stated_type(result.ftype(index), result.fmod(index)) for index in range(len(schema))]
            if query.source is not None and not shows(self._connection, sql_name(query.source.id)):
                raise dialect.TableChangedError
            forms = [
                form_of(quoted(one.name), one.type, kind, rule_of(one))
                for one, kind in zip(schema, stated, strict=True)
            ]
            copied = f"SELECT {', '.join(form for form, _ in forms)} FROM ({query.sql}) AS r"
            for rows in read_copy(self._connection, copied, piece_bytes=_PIECE_BYTES, piece_rows=_PIECE_ROWS):
                arrays, replaced = [], dict[str, int]()
                for (_, as_arrow), values, one in zip(forms, copied_columns(rows, len(forms)), schema, strict=True):
                    before = REPLACED.values
                    try:
                        arrays.append(as_arrow(values))
                    except MisfitError as error:
                        raise error.of(one.name) from error
                    if REPLACED.values > before:
                        replaced[one.name] = REPLACED.values - before
                given = schema.with_metadata(replaced_metadata(replaced)) if replaced else schema
                yield pa.RecordBatch.from_arrays(arrays, schema=given)

    @contextmanager
    def consistent(self, origin: Mapping[str, Any] | None = None) -> Iterator[Bracket | None]:
        """``origin`` is a SnapshotOrigin as JSON."""
        with self._database.errors():
            try:
                if origin is None:
                    self._connection.execute(BEGIN)
                    yield None
                elif import_snapshot(self._connection, exported := SnapshotOrigin(**origin)):
                    yield Bracket(exported.position, exported.position)
                else:
                    yield Bracket(*bracketed(self._connection))
            finally:
                with suppress(psycopg.Error):  # the transaction wrote nothing
                    self._connection.execute("ROLLBACK")

    def sizes(self, tables: Sequence[TableId]) -> Mapping[TableId, TableSize]:
        wanted = [str(table) for table in tables]
        with self._database.errors():
            rows = self._connection.execute(_SIZES, (wanted,)).fetchall()
        return {TableId(schema, name): TableSize(rows, size) for schema, name, rows, size in rows}

    def comments(self, table: TableId) -> Comments:
        with self._database.errors():
            rows = self._connection.execute(_COMMENTS, (table.schema, table.name)).fetchall()
        by_column = {str(name): str(text) for name, text in rows if name is not None}
        return Comments(next((str(text) for name, text in rows if name is None), ""), by_column)

    def cuts(self, table: DescribedTable, where: Sequence[str], key: Sequence[Column], rows: int) -> Cuts | None:
        """For a large table: as many cuts as its estimated number of rows needs, from a sample of its blocks."""
        with self._database.errors():
            size, there = self._connection.one(_SIZE, sql_name(table.id), sql_name(table.id))
        if size <= COUNTED_BYTES or there <= 0:
            return None
        chunks = -(-there // rows)
        if not key or chunks == 1:
            return Cuts((), there)
        percent = min(100.0, 100.0 * chunks * _SAMPLED_BLOCKS * _BLOCK_BYTES / size)
        conditions = f" WHERE {' AND '.join(f'({one})' for one in where)}" if where else ""
        sample = f"{table.origin} AS t TABLESAMPLE SYSTEM ({percent:f}) REPEATABLE (1){conditions}"
        listed = ", ".join(f"t.{quoted(column.name)}" for column in key)
        number, total = "_lakefeed_number", "_lakefeed_total"  # captured tables have no such column names
        query = Query(
            f"SELECT {listed} FROM (SELECT {listed}, row_number() OVER (ORDER BY {listed}) AS {number},"
            f" count(*) OVER () AS {total} FROM {sample}) AS t"
            f" WHERE {number} % greatest(1, {total} / {chunks}) = 0 AND {number} < {total} ORDER BY {number}"
        )
        schema = pa.schema([pa.field(column.name, column.type) for column in key])
        found = [cut for batch in self.read(query, schema) for cut in dialect.key_rows(batch, schema.names)]
        return Cuts(tuple(found), there)

    def cancel(self) -> None:
        """The server ends the statement; the connection to a frozen server is cut, so that nobody waits for it."""
        with suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=2.0)
        self._connection.sever()

    def close(self) -> None:
        self._connection.close()


def described(connection: Connection, tables: Sequence[SourceTable], choices: Choices) -> dict[TableId, DescribedTable]:
    """The tables as queries see them, with the orderings of types whose operators are not in pg_catalog."""
    operators: dict[int, dict[int, str]] = {}
    kinds = list({column.type.oid for table in tables for column in table.columns})
    for kind, strategy, operator in connection.execute(_ORDERINGS, (kinds,)):
        operators.setdefault(kind, {})[strategy] = operator
    ordered = {kind: Ordering(one[1], one[3], one[5]) for kind, one in operators.items()}
    found = {}
    for table in tables:
        orderings = {one.name: ordered[one.type.oid] for one in table.columns if one.type.oid in ordered}
        origin = f"{'ONLY ' if table.kind == 'r' else ''}{sql_name(table.id)}"
        schema = table.schema(choices)
        lists = {one.name: "its values are lists" for one in schema.columns if pa.types.is_list(one.type)}
        found[table.id] = DescribedTable(schema, origin, unordered=lists, orderings=orderings)
    return found


class PostgresVerifyReader:
    """See ``capture.registry.VerifyReader``. Leaves out rows of inheritance children. Reads by plain SELECT from a
    cursor, with values as psycopg converts them: the COPY decoder is what ``lakefeed verify`` checks."""

    def __init__(self, dsn: str, table: TableId) -> None:
        self._database, self._dialect, self._table = Database(dsn), PostgresDialect(dsn), table

    def columns(self) -> Sequence[str]:
        return self._dialect.described(self._table).schema.names

    def count(self) -> int:
        origin = self._dialect.described(self._table).origin
        with self._database.connection(_VERIFY) as connection:
            return int(connection.one(f"SELECT count(*) FROM {origin}")[0])

    def rows(self, columns: pa.Schema, names: Sequence[str]) -> Iterator[Sequence[tuple[Any, ...]]]:
        described = self._dialect.described(self._table)
        listed = []
        for name, wanted in zip(names, columns, strict=True):
            value = _compared(quoted(name), wanted.type, rule_of(wanted))
            if pa.types.is_int64(wanted.type) and described.schema.column(name).source_type.startswith("time"):
                value = f"(extract(epoch FROM {quoted(name)}) * 1000000)::int8"
            listed.append(value)
        query = f"SELECT {', '.join(listed)} FROM {described.origin}"
        with self._database.connection(_VERIFY) as opened, opened.transaction(), opened.cursor(_VERIFY) as cursor:
            cursor.execute(query.encode())
            while rows := cursor.fetchmany(_RUN_ROWS):
                yield rows


def _compared(value: str, kind: pa.DataType, rule: OutOfRange) -> str:
    """SQL for a value as the lake should have it. The server applies the rule here, not the decoder."""
    if pa.types.is_string(kind):  # as printed; a cast to text would strip the padding of char(n)
        return f"CASE WHEN {value} IS NULL THEN NULL ELSE format('%s', {value}) END"
    if pa.types.is_list(kind):
        # In the order of unnest, without bounds and dimensions, which a list cannot have.
        element = _compared("e", kind.value_type, rule)
        elements = f"ARRAY(SELECT {element} FROM unnest({value}) WITH ORDINALITY AS u(e, n) ORDER BY n)"
        is_odd = f"array_ndims({value}) > 1 OR array_lower({value}, 1) <> 1" if rule is OutOfRange.NULL else "false"
        return f"CASE WHEN {value} IS NULL OR {is_odd} THEN NULL ELSE {elements} END"
    if rule not in (OutOfRange.NULL, OutOfRange.CLAMP) or not may_misfit(kind):
        return value
    if isinstance(kind, pa.Decimal128Type):
        most, exact = f"{10**kind.precision - 1}e-{kind.scale}::numeric", f"round({value}, {kind.scale})"
        if rule is OutOfRange.NULL:
            return f"CASE WHEN {value} = {exact} AND abs({value}) <= {most} THEN {value} END"
        inside = f"WHEN {value} > {most} THEN {most} WHEN {value} < -{most} THEN -{most} ELSE {exact}"
        return f"CASE WHEN {value} = 'NaN' THEN NULL {inside} END"
    name, clock = "date", ("", "")
    if isinstance(kind, pa.TimestampType):
        name, clock = "timestamptz" if kind.tz else "timestamp", (" 00:00:00", " 23:59:59.999999")
    first, last = f"'0001-01-01{clock[0]}'::{name}", f"'9999-12-31{clock[1]}'::{name}"
    if rule is OutOfRange.NULL:
        return f"CASE WHEN {value} BETWEEN {first} AND {last} THEN {value} END"
    return f"CASE WHEN {value} < {first} THEN {first} WHEN {value} > {last} THEN {last} ELSE {value} END"

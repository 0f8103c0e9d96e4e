"""What the catalog says about tables, as it is now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

import pyarrow as pa

from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.partition import Leaf, read_leaves
from lakefeed.capture.postgres.types import SourceType, arrow_type
from lakefeed.change.table import Column, TableId, TableSchema

# An index that is not immediate (PRIMARY KEY ... DEFERRABLE) or not valid is no replica identity. Nor is it a key for
# the lake: inside a transaction two rows may have the same.
_TABLES = """
SELECT c.oid::int8, n.nspname, c.relname, c.relreplident::text, c.relpersistence::text, c.relkind::text,
       (SELECT array_agg(a.attname::text ORDER BY k.place)
          FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place), pg_attribute a
         WHERE i.indrelid = c.oid AND a.attrelid = c.oid AND a.attnum = k.number AND k.place <= i.indnkeyatts
           AND i.indimmediate AND i.indisvalid
           AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
   AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)'
 ORDER BY 2, 3"""

_COLUMNS = """
WITH RECURSIVE plain(attrelid, attnum, type, modifier) AS (
  SELECT attrelid, attnum, atttypid, atttypmod FROM pg_attribute WHERE attrelid = ANY(%s)
  UNION ALL
  SELECT p.attrelid, p.attnum, t.typbasetype, CASE WHEN t.typtypmod >= 0 THEN t.typtypmod ELSE p.modifier END
    FROM plain p JOIN pg_type t ON t.oid = p.type WHERE t.typtype = 'd')
SELECT a.attrelid::int8, a.attnum::int4, a.attname::text, a.attnotnull, p.type::int8, p.modifier,
       format_type(a.atttypid, a.atttypmod), a.attisdropped, a.atthasdef,
       CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] END
  FROM pg_attribute a
  JOIN plain p ON p.attrelid = a.attrelid AND p.attnum = a.attnum
  LEFT JOIN pg_type t ON t.oid = p.type
 WHERE a.attnum > 0 AND a.attgenerated = '' AND t.typtype IS DISTINCT FROM 'd'
 ORDER BY 1, 2"""

_BASE = """
WITH RECURSIVE plain(type, modifier, depth) AS (
  SELECT %s::oid, %s::int4, 0
  UNION ALL
  SELECT t.typbasetype, CASE WHEN t.typtypmod >= 0 THEN t.typtypmod ELSE p.modifier END, depth + 1
    FROM plain p JOIN pg_type t ON t.oid = p.type WHERE t.typtype = 'd')
SELECT type::int8, modifier, format_type(%s::oid, %s::int4) FROM plain ORDER BY depth DESC LIMIT 1"""

_NOT_WHOLE = """
SELECT c.oid::int8, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_partition_tree(%s::oid::regclass) p ON p.relid = c.oid
 WHERE (c.oid = %s OR p.isleaf) AND c.relreplident <> 'f' ORDER BY p.level DESC, 2, 3"""

FULL, INDEX, NOTHING, DEFAULT = "f", "i", "n", "d"
PARTITIONED = "p"
_REFUSING = "once it is published, PostgreSQL would refuse its UPDATEs and DELETEs"


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """``missing`` is what rows from before the column was added read as (its text), None if they read NULL."""

    number: int
    name: str
    not_null: bool
    type: SourceType
    dropped: bool = False
    has_default: bool = False
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class SourceTable:
    oid: int
    id: TableId
    identity: str
    persistence: str
    kind: str
    key: tuple[str, ...]
    attributes: tuple[SourceColumn, ...] = ()
    """Every column that ever was, by number. Generated ones are left out: the stream does not carry them."""
    leaves: tuple[Leaf, ...] = field(default=(), compare=False)
    """Of a partitioned table: the partitions that have its rows."""

    @property
    def columns(self) -> tuple[SourceColumn, ...]:
        return tuple(column for column in self.attributes if not column.dropped)

    @property
    def refusal(self) -> tuple[str, str] | None:
        """Why its changes cannot be captured, and the statement that repairs it."""
        name = sql_name(self.id)
        if self.persistence != "p":
            return "it is not logged, so its changes are not in the log", f"ALTER TABLE {name} SET LOGGED;"
        if self.identity == NOTHING:
            return "its replica identity is NOTHING", f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT;"
        if self.identity != FULL and not self.key:
            reason = f"it has no primary key, or only a deferrable one: {_REFUSING}"
            return reason, _to_full(*self._unfit, name)
        if self._unfit:
            reason = f"the replica identity of its partition {self._unfit[0]} is another one, without its key"
            return f"{reason}: each partition has its own", _to_full(*self._unfit)
        return None

    @property
    def _unfit(self) -> list[str]:
        """Partitions whose old rows are logged without what tells the table's rows apart. Each has an identity of its
        own, which ALTER TABLE on the table above does not change."""
        enough = {FULL} if not self.key else {FULL, INDEX} if self.identity == INDEX else {FULL, DEFAULT}
        return [leaf.name for leaf in self.leaves if leaf.identity not in enough]

    def schema(self, text_columns: Sequence[str] = ()) -> TableSchema:
        columns = tuple(column_of(self, column, text_columns) for column in self.columns)
        return TableSchema(self.id, columns, self.key)


def not_whole(connection: Connection, relation: int) -> dict[int, str]:
    """Of a table and the partitions that have its rows: those whose old rows PostgreSQL does not log whole.

    By oid, their names as SQL. The stream says of a partitioned table what *its* replica identity is, but rows are
    logged by that of their partition. The table itself comes last: made FULL after its partitions, it never stands
    for one that is not.
    """
    rows = connection.execute(_NOT_WHOLE, (relation, relation)).fetchall()
    return {oid: _as_sql(schema, name) for oid, schema, name in rows}


def _to_full(*names: str) -> str:
    return " ".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL;" for name in names)


def sql_name(table: TableId) -> str:
    return _as_sql(table.schema, table.name)


def _as_sql(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def column_of(table: SourceTable, column: SourceColumn, text_columns: Sequence[str]) -> Column:
    """A column of the lake. Its stable id is the relation and the attribute number, which renames do not change."""
    as_text = any(fnmatchcase(f"{table.id}.{column.name}", pattern) for pattern in text_columns)
    kind = pa.string() if as_text else arrow_type(column.type)
    return Column(
        column.name,
        kind,
        nullable=not (column.not_null or column.name in table.key),
        source_type=column.type.name,
        id=f"{table.oid}.{column.number}",
        default=_default(kind, column.missing),
    )


def _default(kind: pa.DataType, missing: str | None) -> int | str | None:
    """What rows from before the column was added read as, where that has a form that everybody understands."""
    if missing is None:
        return None
    if pa.types.is_integer(kind):
        return int(missing)
    return missing if pa.types.is_string(kind) else None


def read_tables(connection: Connection) -> dict[TableId, SourceTable]:
    """Every table of the database but the system's and single partitions, without columns."""
    found = {}
    for oid, schema, name, identity, persistence, kind, key in connection.execute(_TABLES):
        if "." not in schema:
            table = TableId(schema, name)
            usable = () if identity == NOTHING else tuple(key or ())
            found[table] = SourceTable(oid, table, identity, persistence, kind, usable)
    if all(one.kind != PARTITIONED for one in found.values()):
        return found
    leaves = read_leaves(connection)
    return {table: replace(one, leaves=leaves.get(one.oid, ())) for table, one in found.items()}


def with_columns(connection: Connection, tables: Sequence[SourceTable]) -> list[SourceTable]:
    by_oid: dict[int, list[SourceColumn]] = {table.oid: [] for table in tables}
    for oid, number, name, not_null, kind, modifier, text, dropped, default, missing in connection.execute(
        _COLUMNS, (list(by_oid),)
    ):
        source_type = SourceType(kind or 0, modifier, text or "")
        by_oid[oid].append(SourceColumn(number, name, not_null, source_type, dropped, default, missing))
    return [replace(table, attributes=tuple(by_oid[table.oid])) for table in tables]


def read_table(connection: Connection, table: TableId) -> SourceTable | None:
    found = read_tables(connection).get(table)
    return with_columns(connection, [found])[0] if found is not None else None


def read_type(connection: Connection, oid: int, modifier: int) -> SourceType:
    """A type of a relation message, looked through domains. A type that is gone is unknown, so its values are text."""
    row = connection.execute(_BASE, (oid, modifier, oid, modifier)).fetchone()
    assert row is not None  # noqa: S101  # the recursion has its first row
    return SourceType(int(row[0]), int(row[1]), str(row[2]))

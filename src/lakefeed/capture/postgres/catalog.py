"""What the catalog says about tables and partitions now. Each question is one query for all tables.

A partitioned table is published as one table. The stream does not report partitions that are detached, attached with
rows, or truncated on their own: comparing two readings of the catalog finds them (``unseen``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import pyarrow as pa

from lakefeed.capture.base import Statement
from lakefeed.capture.dialect import Refusal
from lakefeed.capture.postgres.database import BEGIN, Connection, quoted, wait_while
from lakefeed.capture.postgres.values import INTEGERS, SourceType, arrow_type, may_misfit
from lakefeed.change.choice import LIST, MICROSECONDS, NOTHING_CHOSEN, Choices, TableChoice
from lakefeed.change.table import Column, OutOfRange, TableId, TableSchema

if TYPE_CHECKING:
    from lakefeed.capture.postgres.pgoutput import Relation

# A deferrable or invalid index is neither a replica identity nor a key: two rows may have the same values for a while.
_TABLES = """
SELECT c.oid::int8, n.nspname, c.relname, c.relreplident::text, c.relpersistence::text, c.relkind::text,
       k.names, k.primary_key, k.generated,
       EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated <> ''),
       c.relfilenode::int8, c.relnatts::int4, pg_current_snapshot()::text
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN LATERAL (
       SELECT array_agg(name ORDER BY place) FILTER (WHERE identifies) AS names,
              array_agg(name ORDER BY place) FILTER (WHERE indisprimary) AS primary_key,
              bool_or(is_generated) FILTER (WHERE identifies) AS generated
          FROM (SELECT a.attname::text AS name, k.place, a.attgenerated <> '' AS is_generated, i.indisprimary,
                       i.indimmediate AND i.indisvalid AND CASE c.relreplident
                         WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END AS identifies
                  FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place), pg_attribute a
                 WHERE i.indrelid = c.oid AND a.attrelid = c.oid AND a.attnum = k.number
                   AND k.place <= i.indnkeyatts) AS x) AS k ON true
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
   AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)'
   AND (%(oids)s::int8[] IS NULL OR c.oid = ANY(%(oids)s::int8[]))
 ORDER BY 2, 3"""

_COLUMNS = """
SELECT attrelid::int8, attnum::int4, attname::text, attnotnull, atttypid::int8, atttypmod, attisdropped, atthasdef,
       CASE WHEN atthasmissing THEN (attmissingval::text::text[])[1] END, xmin::text, attndims::int4
  FROM pg_attribute WHERE attrelid = ANY(%s) AND attnum > 0 AND attgenerated = '' ORDER BY 1, 2"""

# A partitioned table has no rows itself, so only its partitions know what older rows hold in a new column.
_MISSING = """
SELECT attrelid::int8, attname::text, (attmissingval::text::text[])[1] FROM pg_attribute
 WHERE attrelid = ANY(%s) AND atthasmissing AND NOT attisdropped"""

# What the text of a value depends on besides the value: labels of enums and attributes of composites, nested ones too.
_PARTS = """
WITH RECURSIVE part(root, type) AS (
  SELECT t, t FROM unnest(%s::oid[]) AS u(t)
  UNION SELECT p.root, c.type FROM part p CROSS JOIN LATERAL (
    SELECT unnest(ARRAY[t.typelem, t.typbasetype]) AS type FROM pg_type t WHERE t.oid = p.type
    UNION SELECT a.atttypid FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
           WHERE t.oid = p.type AND a.attnum > 0
    UNION SELECT r.rngsubtype FROM pg_range r WHERE p.type IN (r.rngtypid, r.rngmultitypid)) AS c
   WHERE c.type >= 16384)
SELECT p.root::int8, 'label ' || e.oid, e.enumlabel::text FROM part p JOIN pg_enum e ON e.enumtypid = p.type
UNION ALL
SELECT p.root::int8, 'row ' || t.oid,
       string_agg(concat_ws(' ', a.attnum, a.atttypid, a.atttypmod), ',' ORDER BY a.attnum)
  FROM part p JOIN pg_type t ON t.oid = p.type JOIN pg_attribute a ON a.attrelid = t.typrelid
 WHERE a.attnum > 0 AND NOT a.attisdropped GROUP BY 1, 2"""

# Types with their modifiers; domains are resolved, and one array to its elements, if a comma separates them. A type
# that no longer exists is unknown, so its values are text.
_TYPES = """
WITH RECURSIVE plain(of_type, of_modifier, type, modifier, is_list, depth) AS (
  SELECT t, m, t, m, false, 0 FROM unnest(%s::oid[], %s::int4[]) AS u(t, m)
  UNION ALL
  SELECT of_type, of_modifier, coalesce(e.oid, t.typbasetype),
         CASE WHEN t.typtypmod >= 0 THEN t.typtypmod ELSE p.modifier END, is_list OR e.oid IS NOT NULL, depth + 1
    FROM plain p JOIN pg_type t ON t.oid = p.type
    LEFT JOIN pg_type e ON e.typarray = t.oid AND e.typdelim = ',' AND NOT p.is_list
   WHERE t.typtype = 'd' OR e.oid IS NOT NULL)
SELECT DISTINCT ON (1, 2) of_type::int8, of_modifier, type::int8, modifier, format_type(of_type, of_modifier), is_list
  FROM plain ORDER BY 1, 2, depth DESC"""

# ``joined`` is newer than the table itself if an existing table was attached. The catalog rows of a table's system
# columns are never rewritten, so they show when it was created.
_LEAVES = """
WITH RECURSIVE tree(root, leaf, joined) AS (
  SELECT c.oid, i.inhrelid, age(i.xmin) FROM pg_class c JOIN pg_inherits i ON i.inhparent = c.oid
   WHERE c.relkind = 'p' AND NOT c.relispartition AND NOT i.inhdetachpending AND c.oid = ANY(%s)
  UNION ALL SELECT t.root, i.inhrelid, least(t.joined, age(i.xmin))
    FROM tree t JOIN pg_inherits i ON i.inhparent = t.leaf WHERE NOT i.inhdetachpending)
SELECT t.root::int8, c.oid::int8, n.nspname, c.relname, c.relreplident::text, c.relpersistence::text,
       c.relfilenode::int8, t.joined < age(a.xmin)
  FROM tree t JOIN pg_class c ON c.oid = t.leaf JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = -1
 WHERE c.relkind <> 'p' ORDER BY 1, 3, 4"""

# Rows of transactions from before ``seen`` existed at that reading. A newer file has them only if it was made from
# them, by VACUUM FULL or CLUSTER, which keep a row's transaction id. Frozen rows are old.
_KEPT = """
SELECT bool_or(age(xmin) > pg_snapshot_xmax(pg_current_snapshot())::text::int8 - {seen})
  FROM (SELECT xmin FROM ONLY {name} LIMIT 1000) AS r"""

# Every transaction with an id holds a lock on it until its rows are visible. An open one whose client is idle is not
# committing. A prepared one (without a process) is committed by a statement of some session. Wait for any other one.
_COMMITTING = """
SELECT l.transactionid::text FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'transactionid' AND l.granted AND CASE WHEN l.pid IS NULL
       THEN EXISTS (SELECT FROM pg_stat_activity b WHERE b.state = 'active' AND b.query ILIKE '%commit prepared%'
                       AND b.pid <> pg_backend_pid())
       ELSE coalesce(a.state, '') NOT LIKE 'idle in transaction%' END"""

FULL, INDEX, NOTHING, DEFAULT, PARTITIONED, _LOGGED = "f", "i", "n", "d", "p", "p"
_READS_GENERATED, _FIRST_OWN_TYPE = 180_000, 16_384
_REFUSING = "once it is published, PostgreSQL would refuse its UPDATEs and DELETEs"


class Snapshot(NamedTuple):
    """A moment of the database. Later ones are larger: the set of finished transactions only grows."""

    end: int
    running: int  # how many of those before ``end`` have not finished, negated
    begin: int  # all before it have finished

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        begin, end, running = text.split(":")
        return cls(int(end), -len(running.split(",")) if running else 0, int(begin))


NEVER = Snapshot(0, 0, 0)


class Leaf(NamedTuple):
    """A partition that has rows itself. ``file`` changes with TRUNCATE, and with everything that rewrites the table."""

    oid: int
    name: str  # as SQL
    identity: str
    persistence: str
    file: int
    attached: bool  # it was a table of its own before


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """``missing`` is the text that rows from before the column was added hold in it; None if they hold NULL."""

    number: int
    name: str
    not_null: bool
    type: SourceType
    dropped: bool = False
    has_default: bool = False
    missing: str | None = None
    version: str = ""  # the transaction that last wrote its row in the catalog
    parts: Mapping[str, str] = field(default_factory=dict, compare=False)  # see _PARTS
    dimensions: int = 0  # of an array, as declared; PostgreSQL does not enforce it


@dataclass(frozen=True, slots=True)
class SourceTable:
    """``attributes`` are all columns that ever existed, by number, without generated ones: the stream has none."""

    oid: int
    id: TableId
    identity: str
    persistence: str
    kind: str
    key: tuple[str, ...]
    attributes: tuple[SourceColumn, ...] = ()
    primary_key: tuple[str, ...] = ()  # even if it is not the identity: it is deferrable, or another one was chosen
    generated_key: bool = False
    generated_refused: bool = False  # it has a generated column, which is part of a full identity (18)
    leaves: tuple[Leaf, ...] = field(default=(), compare=False)  # the partitions that have its rows
    file: int = field(default=0, compare=False)
    width: int = 0  # the highest number that a column ever had
    snapshot: Snapshot = field(default=NEVER, compare=False)  # the moment of this reading of the catalog

    @property
    def files(self) -> dict[int, int]:
        """The files of all relations that have its rows."""
        return {leaf.oid: leaf.file for leaf in self.leaves} if self.kind == PARTITIONED else {self.oid: self.file}

    @property
    def columns(self) -> tuple[SourceColumn, ...]:
        return tuple(column for column in self.attributes if not column.dropped)

    def follows_inserts(self, choices: Choices) -> bool:
        """Whether it has no identity, and a rule says that capturing its inserts is enough."""
        has_none = self.identity == NOTHING or (self.identity != FULL and not self.key)
        return has_none and choices.of(self.id).inserts_only

    def refusal(self, choices: Choices = NOTHING_CHOSEN) -> Refusal | None:
        """Why its changes cannot be captured, and the statement that repairs it; None if they can."""

        def altered(names: Iterable[str], how: str) -> str:
            text = " ".join(f"ALTER TABLE {one} {how};" for one in names)
            return text if "…" in text else Statement(text)

        name = sql_name(self.id)
        unlogged = [leaf.name for leaf in self.leaves if leaf.persistence != _LOGGED]
        # Each partition has its own identity, which ALTER TABLE on its parent does not change.
        enough = {FULL} if not self.key else {FULL, INDEX} if self.identity == INDEX else {FULL, DEFAULT}
        unfit = [leaf.name for leaf in self.leaves if leaf.identity not in enough]
        full = [leaf.name for leaf in self.leaves if leaf.identity == FULL] + [name] * (self.identity == FULL)
        if self.persistence != _LOGGED or unlogged:
            what = "it" if self.persistence != _LOGGED else f"its partition {unlogged[0]}"
            remedy = altered([name] if self.persistence != _LOGGED else unlogged, "SET LOGGED")
            return Refusal(f"{what} is unlogged, so the log does not have its changes", remedy)
        if self.follows_inserts(choices):
            return None
        if self.generated_key:
            repair = f"{altered([name], 'REPLICA IDENTITY USING INDEX …')} with an index of other columns."
            return Refusal("a column of its key is generated, and the log does not have generated columns", repair)
        if self.identity == NOTHING:
            return Refusal("its replica identity is NOTHING", altered([name], "REPLICA IDENTITY DEFAULT"))
        if self.generated_refused and full:
            with_key = altered([name], "ADD PRIMARY KEY (…), REPLICA IDENTITY DEFAULT")
            remedy = altered(full, "REPLICA IDENTITY DEFAULT") if self.key else with_key
            return Refusal(f"its replica identity is FULL, and it has a generated column: {_REFUSING}", remedy)
        if self.identity != FULL and not self.key:
            remedy = altered([*unfit, name], "REPLICA IDENTITY FULL")
            return Refusal(f"it has no primary key, or only a deferrable one: {_REFUSING}", remedy)
        if unfit:
            reason = f"its partition {unfit[0]} has another replica identity, which lacks the key"
            return Refusal(f"{reason}: each partition has its own", altered(unfit, "REPLICA IDENTITY FULL"))
        return None

    @property
    def not_whole(self) -> list[str]:
        """Those of the table and its partitions, as SQL, for which PostgreSQL does not log whole old rows. The table
        itself comes last: made FULL after its partitions, it never claims more than they log."""
        own = [sql_name(self.id)] if self.identity != FULL else []
        return [leaf.name for leaf in self.leaves if leaf.identity != FULL] + own

    def schema(self, choices: Choices = NOTHING_CHOSEN) -> TableSchema:
        """Its schema in the lake. The stable id of a column is the relation's oid and the attribute number, which
        renames do not change. Its default is what older rows hold in it, if that has a form that every reader
        understands."""
        choice, columns = choices.of(self.id), []
        for one in self.columns:
            id_ = f"{self.oid}.{one.number}"
            kind, rule = self._represented(one, id_, choices, choice)
            default: int | str | None = one.missing if pa.types.is_string(kind) else None
            if one.missing is not None and pa.types.is_integer(kind) and one.type.oid in INTEGERS:
                default = int(one.missing)
            is_nullable = not (one.not_null or one.name in self.key)
            columns.append(Column(one.name, kind, is_nullable, one.type.name, id_, default, rule))
        return TableSchema(self.id, tuple(columns), () if self.generated_key else self.key)

    def _represented(
        self, one: SourceColumn, id_: str, choices: Choices, choice: TableChoice
    ) -> tuple[pa.DataType, OutOfRange]:
        """The type and rule that the lake wants. A key has no lists, because keys are ordered, and no rule that could
        give two rows the same key. Arrays declared with more than one dimension are text by default."""
        name, kind = one.name, arrow_type(one.type)
        if choices.is_text(self.id, name):
            return pa.string(), OutOfRange.STOP
        if one.type.is_numeric:
            kind = choice.decimal_of(name) or kind
        elif one.type.is_time and choice.type_of(name) == MICROSECONDS:
            kind = pa.int64()
        elif one.type.is_list:
            was_text = one.dimensions > 1 or choices.was_text(self.id, id_, one.type.name)
            kind = pa.string() if name in self.key or (was_text and choice.type_of(name) != LIST) else kind
        if not may_misfit(kind):
            return kind, OutOfRange.STOP
        rule = choices.rule(self.id, name)
        if rule is OutOfRange.TEXT:
            return pa.string(), OutOfRange.STOP
        return kind, OutOfRange.STOP if name in self.key else rule


class CatalogFacts(NamedTuple):
    """What was read about the relations that the stream describes, by oid, and when; None for one that is gone.
    ``types`` are those in the messages, by oid and modifier."""

    tables: Mapping[int, tuple[Snapshot, SourceTable | None]] = MappingProxyType({})
    types: Mapping[tuple[int, int], SourceType] = MappingProxyType({})


def sql_name(table: TableId) -> str:
    return f"{quoted(table.schema)}.{quoted(table.name)}"


@contextmanager
def one_reading(connection: Connection) -> Iterator[None]:
    """Queries inside see one state of the catalog: a table dropped meanwhile exists for all of them or for none."""
    connection.execute(BEGIN)
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("ROLLBACK")


def read_tables(connection: Connection, oids: Sequence[int] | None = None) -> dict[TableId, SourceTable]:
    """Every table of the database, or those of ``oids``, without columns. Leaves out system tables and partitions."""
    refuses = connection.info.server_version >= _READS_GENERATED
    found = [row for row in connection.execute(_TABLES, {"oids": oids}) if "." not in row[1]]
    partitioned, leaves = [row[0] for row in found if row[5] == PARTITIONED], dict[int, list[Leaf]]()
    for root, oid, schema, name, *more in connection.execute(_LEAVES, (partitioned,)) if partitioned else ():
        leaves.setdefault(root, []).append(Leaf(oid, f"{quoted(schema)}.{quoted(name)}", *more))
    tables = {}
    for oid, schema, name, identity, persistence, kind, names, primary_key, in_key, generated, file, width, at in found:
        table, key = TableId(schema, name), () if identity == NOTHING else tuple(names or ())
        tables[table] = SourceTable(
            oid, table, identity, persistence, kind, key, (), tuple(primary_key or ()), bool(in_key and key),
            refuses and generated, tuple(leaves.get(oid, ())), file, width, Snapshot.parse(at),
        )  # fmt: skip
    return tables


def with_columns(connection: Connection, tables: Sequence[SourceTable]) -> list[SourceTable]:
    rows = connection.execute(_COLUMNS, ([table.oid for table in tables],)).fetchall()
    types = read_types(connection, {(row[4], row[5]) for row in rows})
    parts, missing = dict[int, dict[str, str]](), dict[tuple[int, str], set[str]]()
    if own := list({row[4] for row in rows if row[4] >= _FIRST_OWN_TYPE}):
        for kind, name, text in connection.execute(_PARTS, (own,)):
            parts.setdefault(kind, {})[name] = text
    roots = {leaf.oid: table.oid for table in tables for leaf in table.leaves}
    for oid, name, text in connection.execute(_MISSING, (list(roots),)) if roots else ():
        missing.setdefault((roots[oid], name), set()).add(text)
    by_oid: dict[int, list[SourceColumn]] = {}
    for oid, number, name, not_null, kind, modifier, dropped, has_default, value, version, dimensions in rows:
        values = missing.get((oid, name), {value})
        column = SourceColumn(
            number, name, not_null, types[kind, modifier], dropped, has_default or len(values) > 1,
            next(iter(values)) if len(values) == 1 else None, version, parts.get(kind, {}), dimensions,
        )  # fmt: skip
        by_oid.setdefault(oid, []).append(column)
    return [replace(table, attributes=tuple(by_oid.get(table.oid, ()))) for table in tables]


def read_types(connection: Connection, wanted: Collection[tuple[int, int]]) -> dict[tuple[int, int], SourceType]:
    """Types by oid and modifier."""
    rows = connection.execute(_TYPES, ([kind for kind, _ in wanted], [modifier for _, modifier in wanted]))
    return {(kind, of): SourceType(base, modifier, *more) for kind, of, base, modifier, *more in rows}


def read_facts(connection: Connection, relations: Iterable[Relation]) -> CatalogFacts:
    """What the catalog says about the relations described in a piece of the log."""
    described = {relation.id: relation for relation in relations}
    types = {(column.type, column.modifier) for one in described.values() for column in one.columns}
    with one_reading(connection):
        now = Snapshot.parse(connection.one("SELECT pg_current_snapshot()::text")[0])
        sources = with_columns(connection, list(read_tables(connection, list(described)).values()))
        known = read_types(connection, types)
    by_oid = {source.oid: source for source in sources}
    return CatalogFacts({oid: (now, by_oid.get(oid)) for oid in described}, known)


def wait_for_commits(connection: Connection, seconds: float) -> bool:
    """Wait until all transactions that may be committing now have ended and are visible. False if that takes too
    long."""
    return not wait_while(connection, _COMMITTING, seconds)


def has_kept_rows(connection: Connection, name: str, seen: int) -> bool | None:
    """Whether the file of a table has rows from before ``seen``; None if it has no rows, or that cannot be read."""
    found: bool | None = None
    with suppress(psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable):
        (found,) = connection.one(_KEPT.format(name=name, seen=seen))
    return found


def fingerprint(source: SourceTable) -> str:
    """What to remember about a table, so that changes of its rows that no log has are noticed (``altered``)."""
    columns = {str(column.number): [column.version, dict(column.parts)] for column in source.columns}
    files = {str(oid): file for oid, file in source.files.items()}
    return json.dumps([source.snapshot.begin, source.width, files, columns], separators=(",", ":"), sort_keys=True)


def width_of(fingerprint: str) -> int:
    return int(json.loads(fingerprint)[1]) if fingerprint else 0


def altered(connection: Connection | None, before: str, source: SourceTable) -> tuple[bool, dict[str, str]]:
    """Whether to remember a new fingerprint; and by column id, why existing rows may hold other values in a column than
    when ``before`` was taken. Without a connection every new file counts as a rewrite.

    ALTER TABLE ... TYPE, if it changes values, writes all rows to a new file in its own transaction, and updates the
    column's row in the catalog. VACUUM FULL, CLUSTER and TRUNCATE also make a new file; the first two keep the
    transaction ids of rows, and TRUNCATE is in the log. A column that is new here but has an old number was a generated
    one; a new column that came with a new file may have got values that the catalog no longer has."""
    seen, width, files, columns = json.loads(before)
    names = {source.oid: sql_name(source.id), **{leaf.oid: leaf.name for leaf in source.leaves}}
    changed = [oid for oid, file in source.files.items() if files.get(str(oid), file) != file]
    is_rewritten = any(connection is None or has_kept_rows(connection, names[oid], seen) is False for oid in changed)
    found = {}
    for column in source.columns:
        version, parts = columns.get(str(column.number), (None, {}))
        is_new, id_ = version is None, f"{source.oid}.{column.number}"
        if is_new and column.number <= width:
            found[id_] = f"the column {column.name} was a generated one, so existing rows have values in it"
        elif is_new and changed and column.missing is None:
            found[id_] = f"existing rows may have got values in the new column {column.name}"
        elif not is_new and is_rewritten and version != column.version:
            found[id_] = f"ALTER TABLE may have changed values of the column {column.name}"
        elif any(column.parts.get(name) != text for name, text in parts.items()):
            found[id_] = f"values of the column {column.name} are printed differently since its type was altered"
    is_other = any(columns.get(str(one.number), (0, one.parts))[1] != one.parts for one in source.columns)
    has_others = files.keys() != {str(oid) for oid in source.files}
    return bool(changed or found or is_other or has_others), found


def as_remembered(source: SourceTable, before: str) -> SourceTable:
    """A table with the partitions recorded in its fingerprint ``before``, for ``unseen``."""
    seen, _, files, _ = json.loads(before)
    names = {leaf.oid: leaf.name for leaf in source.leaves}
    parts = [(int(oid), file) for oid, file in files.items() if int(oid) != source.oid]
    leaves = tuple(Leaf(oid, names.get(oid, f"with the oid {oid}"), "", "", file, False) for oid, file in parts)
    return replace(source, leaves=leaves, snapshot=Snapshot(seen, 0, seen))


def unseen(connection: Connection, before: SourceTable, now: SourceTable) -> str | None:
    """What happened to rows between two readings without the stream reporting it; None if nothing did."""
    there, known = {leaf.oid: leaf for leaf in now.leaves}, {leaf.oid for leaf in before.leaves}
    for leaf in before.leaves:
        if leaf.oid not in there:
            return f"its partition {leaf.name} was dropped or detached"
        # A file with rows from before was rewritten. If that cannot be known, it counts as truncated.
        is_new = there[leaf.oid].file != leaf.file
        if is_new and not has_kept_rows(connection, there[leaf.oid].name, before.snapshot.begin):
            return f"its partition {leaf.name} was truncated"
    for leaf in (leaf for leaf in now.leaves if leaf.attached and leaf.oid not in known):
        # The stream has all rows of a partition that was empty when it was attached.
        if connection.one("SELECT coalesce(pg_relation_size(%s::oid), 0)", leaf.oid) != (0,):
            return f"the table {leaf.name} was attached to it as a partition, with rows"
    return None

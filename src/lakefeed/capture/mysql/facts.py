"""MysqlFacts: turns table maps into layouts, and knows what statements in the log do to captured tables.

The log describes a table before its rows, with names, types and key. What it lacks comes from the latest reading of the
catalog: types that MariaDB logs as bytes, and whether existing rows have values in a new column. Columns have no stable
id, so the name identifies a column: a renamed column counts as one dropped and one added, and is read again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from lakefeed.capture.dialect import DescribedTable, Session
from lakefeed.capture.log import Announced, Choose
from lakefeed.capture.mysql.binlog import Resolved
from lakefeed.capture.mysql.columns import Kind
from lakefeed.capture.mysql.database import Database
from lakefeed.capture.mysql.dialect import MysqlDialect, SourceColumn, read_columns
from lakefeed.capture.mysql.events import Effect, Statement
from lakefeed.capture.mysql.history import Gtid, executed
from lakefeed.capture.mysql.rows import Layout, TableMap
from lakefeed.capture.schema import DeliveredSchemas, Stated
from lakefeed.change.change_set import RecopyNeeded, TableBlocked, TableDropped, TableNotice
from lakefeed.change.choice import Choices
from lakefeed.change.table import Column, TableId, TableSchema

_METADATA = "SET GLOBAL binlog_row_metadata = 'FULL'; then run `lakefeed rebuild FILE {table} --from-source`."
_LOGGED_AS = {**dict.fromkeys(("uuid", "inet4", "inet6"), ("binary",)), "vector": ("varbinary", "binary")}
_PRINTED = ("decimal", "time", "datetime", "timestamp")
_SIZE = re.compile(r"\((\d+)")


class MysqlFacts(DeliveredSchemas[Gtid]):
    """See ``SchemaFacts``. ``resolve`` and ``apply`` belong to the stream's thread and do no I/O."""

    def __init__(
        self,
        dialect: MysqlDialect,
        captured: Callable[[], Sequence[TableId]],
        found: Callable[[], Gtid | None],
        retyped: dict[TableId, set[str]],
    ) -> None:
        super().__init__()
        self._captured: Callable[[], Sequence[TableId]] | None = captured
        self._found = found
        self._dialect = dialect
        self._database = Database(dialect.dsn, dialect.flavour)
        self._newest: dict[TableId, tuple[SourceColumn, ...]] = {}
        self._altered: dict[TableId, bool] = {}  # tables altered since their last table map, and whether with a default
        self._retyped = retyped  # see StreamNotes

    def recall(self, schemas: Sequence[TableSchema]) -> None:
        for schema in schemas:
            self.learn(schema.table, _life(schema.table), schema.at_version(0))

    def represent(self, choices: Choices) -> None:
        self._dialect = self._dialect.represent(choices)

    def rewind(self, position: Gtid) -> None:
        """The first stream of a process also learns the tables that an earlier process prepared."""
        super().rewind(position)
        captured, self._captured = self._captured, None
        missing = [table for table in captured() if self.known(table) is None] if captured is not None else []
        for table, schema in self._read(missing).items():
            self.learn(table, _life(table), schema)

    def expect(self, tables: Sequence[TableId]) -> None:
        """Read the catalog: it is needed before the first rows of these tables."""
        self._read(tables)

    def prepared(self, tables: Sequence[TableId]) -> None:
        for table, schema in self._read(tables).items():
            self.learn(table, _life(table), schema)
            self.begin(table)

    def snapshot(self, session: Session, table: TableId) -> tuple[DescribedTable, TableSchema] | None:
        self._read([table])
        found = session.describe([table]).get(table)
        if found is None:
            return None
        self.learn(table, _life(table), found.schema)
        return found, found.schema

    def discover(self, session: Session, choose: Choose) -> tuple[TableSchema, ...]:
        """Compares the catalog with what was delivered. Finds tables that disappeared without a statement in the
        log."""
        tables, known = choose(session.tables()), self.all_known()
        wanted = list(dict.fromkeys((*known, *tables)))
        with self._database.connection() as connection:
            there = self._schemas(read_columns(connection, wanted))
            for table in [one for one in self._known if one not in there and not self.is_due_later(one)]:
                self.later(executed(connection, self._found()), TableDropped(table))
            stated = [self._stated(schema) for schema in there.values()]
            self.observe(stated, known, lambda: executed(connection, self._found()))
        return tuple(there[table] for table in tables if table in there)

    def resolve(self, found: TableMap) -> Resolved:
        """What a table map means for a captured table."""
        table = found.table
        if self.known(table) is None:
            return Resolved(None)
        if not all(column.name for column in found.columns):
            reason = "the log does not name its columns, because binlog_row_metadata is not FULL"
            return _blocked(table, reason, _METADATA.format(table=table))
        hints = {one.name: one.kind for one in self._newest.get(table, ())}
        kinds: list[Kind] = []
        for column in found.columns:
            # The log's kind; from the catalog, types that are logged as bytes, and character sets that it does not
            # name.
            kind, hint = column.kind, hints.get(column.name)
            if kind is None:
                reason = f"the log has its column {column.name} in an unknown format"
                return _blocked(
                    table, reason, f"ALTER TABLE {table} FORCE; then run `lakefeed rebuild FILE {table} --from-source`."
                )
            if hint is not None and kind.name in _LOGGED_AS.get(hint.name, ()):
                kind = hint
            elif hint is not None and kind.name == hint.name and not kind.charset:
                kind = replace(kind, charset=hint.charset)
            kinds.append(kind)
        key = tuple(found.columns[index].name for index in found.key)
        columns = tuple(
            self._dialect.column(table, one.name, kind, nullable=one.nullable, in_key=one.name in key)
            for one, kind in zip(found.columns, kinds, strict=True)
        )
        schema = TableSchema(table, columns, key)
        delivered, announced = self.change(self._stated(schema))
        self._altered.pop(table, None)
        self._retyped.pop(table, None)
        return Resolved(Layout(delivered, found.columns, tuple(kinds)), announced)

    def apply(self, statement: Statement) -> Announced:
        """What a statement of the log does to captured tables."""
        effect, notices = statement.effect, list[TableNotice]()
        if effect is Effect.DROP:
            notices = self._gone(statement.tables)
        elif effect is Effect.DROP_DATABASE:
            notices = self._gone([one for one in list(self._known) if one.schema == statement.database])
        elif effect is Effect.RENAME:
            pairs = list(zip(statement.tables[0::2], statement.tables[1::2], strict=False))
            for old, _ in pairs:
                taken = [one for one, to in pairs if to == old]
                # gh-ost and pt-online-schema-change replace the table by one with the same rows.
                ghosts = [f"_{old.name}_gho", *(f"{prefix}{old.name}_new" for prefix in ("_", "__", "___"))]
                if not taken:
                    notices += self._gone([old])
                elif self.is_captured(old) and taken[0] not in [TableId(old.schema, one) for one in ghosts]:
                    notices.append(RecopyNeeded(old, f"the table {taken[0]} has its name now"))
                elif taken[0] in self._altered:
                    self._altered[old] = self._altered.pop(taken[0])
        elif effect is Effect.REPLACED:
            reason = "a statement changed its rows, and the log does not have these changes"
            notices = [RecopyNeeded(one, reason) for one in statement.tables if self.is_captured(one)]
        elif effect is Effect.ALTER:
            for table in statement.tables:
                before = self.known(table)
                with_default = bool({"default", "generated", "as", "not"} & set(statement.words))
                self._altered[table] = self._altered.get(table, False) or with_default
                if before is None:
                    continue
                names = {name.lower() for name in before.schema.names}
                added, retyped = _altered_columns(statement.words)
                if again := added & names:
                    reason = f"the column {min(again)} was dropped and added again"
                    notices.append(RecopyNeeded(table, reason))
                # The log does not say what the type was between two of them, and it may have truncated values.
                retyped = names if "convert" in statement.words else names & retyped
                earlier = self._retyped.setdefault(table, set())
                if twice := earlier & retyped:
                    reason = f"the type of {min(twice)} was stated twice with no row in between"
                    notices.append(RecopyNeeded(table, reason))
                earlier |= retyped
        elif effect is Effect.XA_COMMIT:  # of a transaction whose rows were never seen
            reason = "a distributed transaction (XA) was committed that had been prepared before capture began"
            notices = [RecopyNeeded(one, reason) for one in list(self._known)]
        elif effect is Effect.CHANGE:
            words = set(statement.words)
            for table in list(self._known):
                if table.name.lower() in words:
                    reason = "a statement changed it, and the log has the statement instead of the rows"
                    remedy = (
                        f"SET GLOBAL binlog_format = 'ROW'; then run `lakefeed rebuild FILE {table} --from-source`."
                    )
                    notices.append(TableBlocked(table, reason, remedy))
                elif table.schema == statement.database:
                    reason = "a logged statement may have changed it, through a trigger or a foreign key"
                    notices.append(RecopyNeeded(table, reason))
        return Announced(notices=tuple(notices))

    def _gone(self, tables: Iterable[TableId]) -> list[TableNotice]:
        found = [table for table in tables if self.is_captured(table)]
        with self._lock:
            for table in found:
                self._known.pop(table, None)
                self.begin(table)
        return [TableDropped(table) for table in found]

    def _read(self, tables: Sequence[TableId]) -> dict[TableId, TableSchema]:
        with self._database.connection() as connection:
            return self._schemas(read_columns(connection, tables))

    def _schemas(
        self, there: dict[TableId, tuple[tuple[SourceColumn, ...], tuple[str, ...]]]
    ) -> dict[TableId, TableSchema]:
        found = {}
        for table, (columns, key) in there.items():
            self._newest[table] = columns
            found[table] = self._dialect.schema(table, columns, key)
        return found

    def _stated(self, schema: TableSchema) -> Stated:
        """Rows from before a column was added hold NULL in it, unless it has a default or may be a renamed column."""
        before, not_known, altered = self.known(schema.table), {}, {}
        if before is not None:
            for old in before.schema.columns:
                if old.name in schema.names and _may_rewrite(old, new := schema.column(old.name)):
                    change = f"changed from {old.source_type} to {new.source_type}"
                    altered[old.name] = f"the type of {old.name} {change}, which may have rewritten its values"
            was, hints = set(before.schema.names), {one.name: one for one in self._newest.get(schema.table, ())}
            is_renamed = bool(was - set(schema.names))
            for name in schema.names:
                hint, with_default = hints.get(name), self._altered.get(schema.table)
                is_plain = with_default is False  # fallback, since the catalog may be older or newer than the log
                if hint is not None:
                    is_plain = hint.nullable and not (hint.has_default or with_default or "GENERATED" in hint.extra)
                is_plain = is_plain and schema.column(name).nullable
                if name not in was and (is_renamed or not is_plain):
                    not_known[name] = f"existing rows may have values in the new column {name}"
        return Stated(_life(schema.table), schema, not_known=not_known, altered=altered)


def _may_rewrite(old: Column, new: Column) -> bool:
    """Whether an ALTER from the old type to the new one can change existing values. It cannot if it only makes room:
    for longer texts, or for enum members after the old ones."""
    if old.source_type == new.source_type:
        return False
    base = new.source_type.partition("(")[0]
    if base in ("enum", "set"):
        return not new.source_type.startswith(f"{old.source_type[:-1]},")
    if base == "binary" or (base in _PRINTED and pa.types.is_string(new.type)):
        return True  # padded with zeros; printed with other digits
    sizes = [int(match[1]) if (match := _SIZE.search(one.source_type)) else 0 for one in (old, new)]
    return sizes[1] < sizes[0]


def _altered_columns(words: Sequence[str]) -> tuple[set[str], set[str]]:
    """Names that an ALTER gives to columns (ADD [COLUMN] x, RENAME COLUMN y TO x, CHANGE [COLUMN] y x), and columns
    whose type it states again (MODIFY [COLUMN] x, CHANGE [COLUMN] x x)."""
    added, retyped, skipped = set(), set(), ("column", "if", "not", "exists", "(")
    for index, word in enumerate(words):
        rest = [one for one in words[index + 1 : index + 8] if one not in skipped]
        if word == "add" and rest and rest[0] not in ("index", "key", "unique", "primary", "constraint", "foreign"):
            added.add(rest[0])
        elif word == "rename" and words[index + 1 : index + 2] == ("column",) and len(rest) > 2 and rest[0] != rest[2]:
            added.add(rest[2])
        elif word == "modify" and rest:
            retyped.add(rest[0])
        elif word == "change" and len(rest) > 1:
            (retyped if rest[0] == rest[1] else added).add(rest[1])
    return added, retyped


def _blocked(table: TableId, reason: str, remedy: str) -> Resolved:
    return Resolved(None, Announced(notices=(TableBlocked(table, reason, remedy),)))


def _life(table: TableId) -> int:
    """Derived from the name, which identifies a table here; the log has whatever happened to it."""
    return int.from_bytes(hashlib.sha256(str(table).encode()).digest()[:7], "big")

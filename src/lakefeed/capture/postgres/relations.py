"""Relations: from the stream's description of a table to its layout, and what changed since the last one.

The stream says names, types and the replica identity as they were at that place of the log; column numbers, NOT NULL
and the primary key come from the catalog as it is now (``columns`` tells how the two are put together). What a table
was last delivered as comes from this process or, after a restart, from the journal (``recall``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lakefeed.capture.postgres.assemble import Resolved
from lakefeed.capture.postgres.catalog import (
    FULL,
    SourceColumn,
    SourceTable,
    column_of,
    read_tables,
    read_type,
    with_columns,
)
from lakefeed.capture.postgres.columns import match_columns, relation_of
from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.layout import Layout
from lakefeed.capture.postgres.message import Relation
from lakefeed.capture.postgres.stale import judge, settled
from lakefeed.change.change_set import RecopyNeeded, TableBlocked, TableDropped, TableNotice
from lakefeed.change.table import TableId, TableSchema

MADE_ANEW = "the table was dropped and created again"


@dataclass(frozen=True, slots=True)
class Known:
    """What a table was last delivered as: the oid of its relation, and the schema."""

    relation: int
    schema: TableSchema


class Relations:
    """Remembers every table that it has seen, over reconnects. One thread at a time."""

    def __init__(self, text_columns: Sequence[str]) -> None:
        self._text_columns = tuple(text_columns)
        self._known: dict[TableId, Known] = {}
        self._settled: dict[TableId, Known] = {}

    def settle(self) -> None:
        """What was resolved so far has been handed out."""
        self._settled = dict(self._known)

    def rewind(self) -> None:
        """What was resolved and not handed out is read again, and must be told again."""
        self._known = dict(self._settled)

    def recall(self, schemas: Iterable[TableSchema]) -> None:
        """What was delivered by an earlier process."""
        for schema in schemas:
            relation = relation_of(schema)
            if relation is not None:
                self._known[schema.table] = self._settled[schema.table] = Known(relation, schema.at_version(0))

    def learn(self, source: SourceTable) -> TableSchema:
        """A table as it is when it is prepared or copied: what the stream says next is compared with this."""
        schema = source.schema(self._text_columns)
        self._known[source.id] = self._settled[source.id] = Known(source.oid, schema)
        return schema

    def known(self, table: TableId) -> Known | None:
        return self._known.get(table)

    def forget(self, table: TableId) -> None:
        self._known.pop(table, None)

    def differs(self, source: SourceTable) -> bool:
        """Whether a table that was delivered is now, by the catalog, another than it was then."""
        before = self._known.get(source.id)
        if before is None:
            return False
        if source.refusal is not None or before.relation != source.oid:
            return True
        return not before.schema.same_shape(settled(before.schema, source.schema(self._text_columns)))

    def adopt(self, source: SourceTable) -> Resolved:
        """Take a table as the catalog has it, although no row has told."""
        schema, before = source.schema(self._text_columns), self._known.get(source.id)
        matched = match_columns(schema.names, before.schema if before is not None else None, source)
        return self._changed(source.oid, schema, source, matched.doubt)

    def resolve(self, connection: Connection, relation: Relation) -> Resolved:
        """What a relation message means."""
        if "." in relation.schema:
            return Resolved(None)
        table = TableId(relation.schema, relation.name)
        source = _current(connection, relation.id)
        before = self._known.get(table)
        last = before.schema if before is not None and before.relation == relation.id else None
        names = [column.name for column in relation.columns]
        if source is None and last is not None and tuple(names) == last.names:
            return Resolved(Layout(relation.id, last))  # dropped since; its last rows are still to come
        matched = match_columns(names, last, source)
        schema = self._schema(connection, relation, table, source, matched.numbers)
        renamed = [name for name, one in self._known.items() if one.relation == relation.id and name != table]
        for name in renamed:
            self.forget(name)
        resolved = self._changed(relation.id, schema, source, matched.doubt)
        told: tuple[TableNotice, ...] = tuple(map(TableDropped, renamed))
        return Resolved(resolved.layout, resolved.schema, (*told, *resolved.notices))

    def _changed(self, relation: int, stated: TableSchema, source: SourceTable | None, doubt: str | None) -> Resolved:
        """Remember the new shape, and say what it means for the rows of before."""
        table, before = stated.table, self._known.get(stated.table)
        if before is None:
            self._known[table] = Known(relation, stated)
            return Resolved(Layout(relation, stated))
        schema = settled(before.schema, stated)
        self._known[table] = Known(relation, schema)
        layout = Layout(relation, schema)
        if before.relation != relation:
            return Resolved(layout, schema, (RecopyNeeded(table, MADE_ANEW),))
        if before.schema.same_shape(schema) and (source is None or source.refusal is None):
            return Resolved(layout)
        notice = judge(before.schema, schema, source)
        if doubt is not None and not isinstance(notice, TableBlocked):
            notice = RecopyNeeded(table, notice.reason if notice is not None else doubt)  # any row may differ
        return Resolved(layout, schema, (notice,) if notice is not None else ())

    def _schema(
        self,
        connection: Connection,
        relation: Relation,
        table: TableId,
        source: SourceTable | None,
        numbers: Sequence[int],
    ) -> TableSchema:
        key = _key(relation, source)
        frame = SourceTable(relation.id, table, relation.identity, "p", "r", key)
        by_number = {column.number: column for column in source.attributes} if source is not None else {}
        columns = []
        for stated, number in zip(relation.columns, numbers, strict=True):
            known = by_number.get(number)
            kind = read_type(connection, stated.type, stated.modifier)
            not_null, missing = (known.not_null, known.missing) if known else (False, None)
            column = SourceColumn(number, stated.name, not_null, kind, missing=missing)
            columns.append(column_of(frame, column, self._text_columns))
        return TableSchema(table, tuple(columns), key)


def _current(connection: Connection, relation: int) -> SourceTable | None:
    """The catalog's table of that oid, with its columns; None if it is gone."""
    found = next((one for one in read_tables(connection).values() if one.oid == relation), None)
    return with_columns(connection, [found])[0] if found is not None else None


def _key(relation: Relation, source: SourceTable | None) -> tuple[str, ...]:
    names = [column.name for column in relation.columns]
    if relation.identity == FULL:  # marks every column, so the key is the catalog's (T2)
        return source.key if source is not None and set(source.key) <= set(names) else ()
    marked = {column.name for column in relation.columns if column.in_identity}
    in_order = source.key if source is not None and set(source.key) == marked else ()
    return in_order or tuple(name for name in names if name in marked)

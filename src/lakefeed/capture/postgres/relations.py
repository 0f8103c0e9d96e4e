"""Relations: from the stream's description of a table to its layout, and what changed since the last one.

The stream says names, types and the replica identity as they were at that place of the log; column numbers, NOT NULL
and the primary key come from the catalog as it is now. Where the catalog has moved on, columns are matched by name
first and by order for the rest: attribute numbers only ever grow, and dropped ones stay in the catalog.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.layout import Layout
from lakefeed.capture.postgres.message import Relation
from lakefeed.change.change_set import ReseedNeeded, TableDropped, TableNotice
from lakefeed.change.schema_change import AddColumn, diff
from lakefeed.change.table import Column, TableId, TableSchema

_INVISIBLE = 10_000  # beyond every attribute number (1600 columns at most)


@dataclass(slots=True)
class _Known:
    relation: int
    schema: TableSchema


class Relations:
    """Remembers every table that it has seen, over reconnects. One thread at a time."""

    def __init__(self, text_columns: Sequence[str]) -> None:
        self._text_columns = tuple(text_columns)
        self._known: dict[TableId, _Known] = {}

    def learn(self, source: SourceTable) -> TableSchema:
        """A table as it is when it is prepared or copied: what the stream says next is compared with this."""
        schema = source.schema(self._text_columns)
        self._known[source.id] = _Known(source.oid, schema)
        return schema

    def forget(self, table: TableId) -> None:
        self._known.pop(table, None)

    def resolve(self, connection: Connection, relation: Relation) -> Resolved:
        if "." in relation.schema:
            return Resolved(None)
        table = TableId(relation.schema, relation.name)
        current = next((one for one in read_tables(connection).values() if one.oid == relation.id), None)
        source = with_columns(connection, [current])[0] if current is not None else None
        before = self._known.get(table)
        if source is None and before is not None and before.relation == relation.id:
            stated = tuple(column.name for column in relation.columns)
            if stated == before.schema.names:  # dropped since; its last rows are still to come
                return Resolved(Layout(relation.id, before.schema))
        schema = self._schema(connection, relation, table, source)
        notices: list[TableNotice] = [
            TableDropped(name) for name, one in self._known.items() if one.relation == relation.id and name != table
        ]
        for notice in notices:
            self.forget(notice.table)
        self._known[table] = _Known(relation.id, schema)
        layout = Layout(relation.id, schema)
        if before is None or before.schema.same_shape(schema):
            return Resolved(layout, notices=tuple(notices))
        reason = _stale(before, relation, schema, source)
        if reason is not None:
            notices.append(ReseedNeeded(table, reason))
        return Resolved(Layout(relation.id, schema), schema, tuple(notices))

    def _schema(
        self, connection: Connection, relation: Relation, table: TableId, source: SourceTable | None
    ) -> TableSchema:
        names = [column.name for column in relation.columns]
        if relation.identity == FULL:  # marks every column, so the key is the catalog's (T2)
            key = source.key if source is not None and set(source.key) <= set(names) else ()
        else:
            marked = {column.name for column in relation.columns if column.in_identity}
            in_order = source.key if source is not None and set(source.key) == marked else ()
            key = in_order or tuple(name for name in names if name in marked)
        frame = SourceTable(relation.id, table, relation.identity, "p", "r", key)
        numbers = self._numbers(relation, source)
        by_number = {column.number: column for column in source.attributes} if source is not None else {}
        columns = []
        for stated, number in zip(relation.columns, numbers, strict=True):
            known = by_number.get(number)
            kind = read_type(connection, stated.type, stated.modifier)
            not_null, missing = (known.not_null, known.missing) if known else (False, None)
            column = SourceColumn(number, stated.name, not_null, kind, missing=missing)
            columns.append(column_of(frame, column, self._text_columns))
        return TableSchema(table, tuple(columns), key)

    def _numbers(self, relation: Relation, source: SourceTable | None) -> list[int]:
        """The attribute number of each column of the message."""
        if source is None:
            return list(range(_INVISIBLE, _INVISIBLE + len(relation.columns)))
        live = {column.name: column.number for column in source.columns}
        numbers: list[int | None] = [live.get(column.name) for column in relation.columns]
        numbers = _in_order(numbers)
        taken = {number for number in numbers if number is not None}
        free = [column.number for column in source.attributes if column.number not in taken]
        found: list[int] = []
        for number in numbers:
            if number is None:
                low = found[-1] if found else 0
                number = next((one for one in free if one > low), low + _INVISIBLE)
            found.append(number)
        return found


def _in_order(numbers: Sequence[int | None]) -> list[int | None]:
    """Keep the matches that grow, as attribute numbers do; a name that was given to another column does not."""
    kept: list[int | None] = []
    last = 0
    for number in numbers:
        grows = number is not None and number > last
        kept.append(number if grows else None)
        last = number if grows and number is not None else last
    return kept


def _stale(before: _Known, relation: Relation, schema: TableSchema, source: SourceTable | None) -> str | None:
    """Why the rows must be copied anew, None if they need not."""
    if before.relation != relation.id:
        return "the table was dropped and created again"
    was = {column.id: column for column in before.schema.columns}
    renamed = {column.name: was[column.id].name for column in schema.columns if column.id in was}
    if tuple(renamed.get(name) for name in schema.key) != before.schema.key:
        return f"its key changed from ({', '.join(before.schema.key)}) to ({', '.join(schema.key)})"
    for column in schema.columns:
        old = was.get(column.id)
        if old is not None and _rewritten(old, column):
            return f"the type of {column.name} changed from {old.source_type} to {column.source_type}"
    for change in diff(before.schema, schema):
        if isinstance(change, AddColumn):
            reason = _unreadable_default(change.column, source)
            if reason is not None:
                return reason
    return None


def _rewritten(old: Column, new: Column) -> bool:
    """Whether existing values may print otherwise now. A longer varchar does not rewrite anything."""
    base = [text.partition("(")[0] for text in (old.source_type, new.source_type)]
    return old.type != new.type or base[0] != base[1]


def _unreadable_default(column: Column, source: SourceTable | None) -> str | None:
    """Why nobody can tell without reading them what existing rows have in a new column; None if it is known."""
    attributes = source.attributes if source is not None else ()
    found = next((one for one in attributes if column.id == f"{source.oid if source else 0}.{one.number}"), None)
    if column.default is not None or found is None or (found.missing is None and not found.has_default):
        return None
    return f"the new column {column.name} has a default, so existing rows have values in it"

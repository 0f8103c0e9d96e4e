"""When a change of a table's shape cannot be followed in place: what is said of it, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lakefeed.capture.postgres.catalog import SourceTable
from lakefeed.change.change_set import RecopyNeeded, TableBlocked
from lakefeed.change.schema_change import AddColumn, diff
from lakefeed.change.table import Column, TableSchema


def judge(before: TableSchema, after: TableSchema, source: SourceTable | None) -> RecopyNeeded | TableBlocked | None:
    """What has to be said beside the new schema; None if the lake can follow it as it is."""
    if source is not None and source.refusal is not None:
        reason, remedy = source.refusal
        return TableBlocked(after.table, reason, remedy)
    reasons = list(_stale(before, after, source))
    if not reasons:
        return None
    doubted = tuple(column for _, column in reasons if column is not None)
    return RecopyNeeded(after.table, reasons[0][0], doubted)


def settled(before: TableSchema, after: TableSchema) -> TableSchema:
    """``after`` with the defaults of columns that are known already.

    What rows from before the column read as was settled when it was added; the catalog forgets it when the table is
    rewritten.
    """
    was = {column.id: column.default for column in before.columns}
    columns = tuple(replace(one, default=was[one.id]) if one.id in was else one for one in after.columns)
    return replace(after, columns=columns)


def _stale(before: TableSchema, after: TableSchema, source: SourceTable | None) -> Iterator[tuple[str, str | None]]:
    """Why the rows of before may not be right any more, and in which column; None for the key."""
    was = {column.id: column for column in before.columns}
    renamed = {column.name: was[column.id].name for column in after.columns if column.id in was}
    if tuple(renamed.get(name) for name in after.key) != before.key:
        yield f"its key changed from ({', '.join(before.key)}) to ({', '.join(after.key)})", None
    for column in after.columns:
        old = was.get(column.id)
        if old is not None and _rewritten(old, column):
            yield _retyped(old, column), column.name
    added = [change.column for change in diff(before, after) if isinstance(change, AddColumn)]
    for column in added:
        if (reason := _unreadable(column, source)) is not None:
            yield reason, column.name


def _rewritten(old: Column, new: Column) -> bool:
    """Whether existing values may print otherwise now. A longer varchar does not rewrite anything."""
    base = [text.partition("(")[0] for text in (old.source_type, new.source_type)]
    return old.type != new.type or base[0] != base[1]


def _retyped(old: Column, new: Column) -> str:
    if old.source_type == new.source_type:
        return f"source.text_columns says otherwise than before about {new.name}"
    return f"the type of {new.name} changed from {old.source_type} to {new.source_type}"


def _unreadable(column: Column, source: SourceTable | None) -> str | None:
    """Why nobody can tell without reading them what existing rows have in a new column; None if it is known.

    NOT NULL without a value for older rows: they were rewritten with one, as for an identity column.
    """
    attributes = source.attributes if source is not None else ()
    found = next((one for one in attributes if column.id == f"{source.oid if source else 0}.{one.number}"), None)
    if column.default is not None or found is None:
        return None
    if found.missing is None and not found.has_default and not found.not_null:
        return None
    return f"existing rows have values in the new column {column.name}, by its default"

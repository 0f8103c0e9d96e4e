"""What happened between two versions of a table's schema, as typed values."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from lakefeed.change.table import Column, TableSchema


@dataclass(frozen=True, slots=True)
class AddColumn:
    column: Column


@dataclass(frozen=True, slots=True)
class DropColumn:
    name: str


@dataclass(frozen=True, slots=True)
class RenameColumn:
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class RetypeColumn:
    name: str
    old: pa.DataType
    new: pa.DataType


@dataclass(frozen=True, slots=True)
class ChangeKey:
    old: tuple[str, ...]
    new: tuple[str, ...]


SchemaChange = AddColumn | DropColumn | RenameColumn | RetypeColumn | ChangeKey


def origins(old: TableSchema, new: TableSchema) -> dict[str, str | None]:
    """For each column of ``new``, its name in ``old``, or None if it did not exist there.

    Columns with the same stable id are the same column; where either side has no id, columns with the same name are.
    """
    by_id = {column.id: column.name for column in old.columns if column.id is not None}
    without_id = {column.name for column in old.columns if column.id is None}
    taken = {by_id[column.id] for column in new.columns if column.id in by_id}
    found: dict[str, str | None] = {}
    for column in new.columns:
        if column.id in by_id:
            found[column.name] = by_id[column.id]
            continue
        same_name = set(old.names) - taken if column.id is None else without_id
        found[column.name] = column.name if column.name in same_name else None
    return found


def diff(old: TableSchema, new: TableSchema) -> tuple[SchemaChange, ...]:
    """The changes that lead from ``old`` to ``new``, in this order: drops, renames, retypes, additions, key.

    Renames happen simultaneously, so two columns may swap names. Whatever readers of the rows cannot see (column order,
    nullability, defaults, the source's type names) does not count as a change.
    """
    origin = origins(old, new)
    kept = {name for name in origin.values() if name is not None}
    drops = [DropColumn(name) for name in old.names if name not in kept]
    renames = [RenameColumn(was, name) for name, was in origin.items() if was is not None and was != name]
    retypes = [
        RetypeColumn(name, old.column(was).type, new.column(name).type)
        for name, was in origin.items()
        if was is not None and old.column(was).type != new.column(name).type
    ]
    added = [AddColumn(new.column(name)) for name, was in origin.items() if was is None]
    changes: list[SchemaChange] = [*drops, *renames, *retypes, *added]
    renamed = {change.old: change.new for change in renames}
    if tuple(renamed.get(name, name) for name in old.key) != new.key:
        changes.append(ChangeKey(old.key, new.key))
    return tuple(changes)

"""An Iceberg table's columns from one schema to a later one, as alterations of metadata. No file is rewritten.

Iceberg knows columns by id, so that a drop or a rename is metadata alone; and (from version 3 of its table format) a
column keeps the value that rows from before it read, so that a default is too. Of the types that are widened it reads
some in place (a longer integer, double for float, more digits); for others the rows have to be written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

import pyarrow as pa

from lakefeed.change.schema_change import AddColumn, DropColumn, RenameColumn, RetypeColumn, diff
from lakefeed.change.table import TableSchema
from lakefeed.lake.iceberg_schema import default_value, type_json


@dataclass(frozen=True, slots=True)
class Add:
    """``type`` is Iceberg's JSON; ``default`` what rows from before read."""

    name: str
    type: Any
    default: Any = None


@dataclass(frozen=True, slots=True)
class Drop:
    name: str


@dataclass(frozen=True, slots=True)
class Rename:
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Widen:
    """``type`` is Iceberg's JSON. For a list, ``name`` is that of its element."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Move:
    """Behind another column; to the front if that is None."""

    name: str
    after: str | None


Alteration = Add | Drop | Rename | Widen | Move


def is_in_place(path: Sequence[TableSchema]) -> bool:
    """Can Iceberg read the rows that are there as the last schema has them?"""
    changes = [change for before, after in pairwise(path) for change in diff(before, after)]
    return all(_promotes(change.old, change.new) for change in changes if isinstance(change, RetypeColumn))


def alterations(path: Sequence[TableSchema]) -> list[Alteration]:
    """What leads from the first schema of ``path`` to the last, in an order in which each is possible."""
    found: list[Alteration] = []
    names = list(path[0].names)
    for before, after in pairwise(path):
        found += _step(before, after, names)
    return [*found, *_moves(names, path[-1].names)]


def _step(before: TableSchema, after: TableSchema, names: list[str]) -> Iterator[Alteration]:
    """Drops make room for renames, renames for additions. ``names`` follows."""
    changes = diff(before, after)
    for change in changes:
        if isinstance(change, DropColumn):
            names.remove(change.name)
            yield Drop(change.name)
    renames = [change for change in changes if isinstance(change, RenameColumn)]
    yield from _renames(renames, names)
    for change in changes:
        if isinstance(change, RetypeColumn):
            yield from _widened(change.name, change.old, change.new)
        if isinstance(change, AddColumn):
            names.append(change.column.name)
            kind = type_json(change.column.type, count(1))  # Iceberg gives ids of its own
            yield Add(change.column.name, kind, default_value(change.column))


def _renames(renames: Sequence[RenameColumn], names: list[str]) -> Iterator[Alteration]:
    """Renames happen at once: where a new name is still another column's old one, all go by way of a third name."""
    crossing = {change.new.lower() for change in renames} & {change.old.lower() for change in renames}
    if crossing:
        yield from (Rename(change.old, f"_lakefeed_was_{change.old}") for change in renames)
    for change in renames:
        yield Rename(f"_lakefeed_was_{change.old}" if crossing else change.old, change.new)
    new = {change.old: change.new for change in renames}
    names[:] = [new.get(name, name) for name in names]


def _moves(names: list[str], wanted: Sequence[str]) -> Iterator[Alteration]:
    """So that ``SELECT *`` has the columns in the source's order."""
    if names == list(wanted):
        return
    after: str | None = None
    for name in wanted:
        yield Move(name, after)
        after = name


def _widened(name: str, old: Any, new: Any) -> Iterator[Alteration]:
    if pa.types.is_list(new):
        yield from _widened(f"{name}.element", old.value_type, new.value_type)
    elif type_json(old, count(1)) != (kind := type_json(new, count(1))):
        yield Widen(name, kind)


def _promotes(old: pa.DataType, new: pa.DataType) -> bool:
    if pa.types.is_list(old) and pa.types.is_list(new):
        return _promotes(old.value_type, new.value_type)
    if pa.types.is_decimal128(old) and pa.types.is_decimal128(new):
        return bool(old.scale == new.scale and old.precision <= new.precision)
    if pa.types.is_integer(old):
        return bool(pa.types.is_integer(new))  # the policy has seen to it that it is a longer one
    return old == new or (old, new) == (pa.float32(), pa.float64())

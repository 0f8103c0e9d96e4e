# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""From a table in the catalog to its capture: columns, slots, types, and how they go on after an ALTER TABLE."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa

from lakefeed.capture.fit import MisfitError
from lakefeed.capture.sqlite.catalog import SourceColumn, SourceTable
from lakefeed.capture.sqlite.database import quoted
from lakefeed.capture.sqlite.meta import Captured
from lakefeed.capture.sqlite.values import arrow_type, misfit, text_form, to_arrow
from lakefeed.change.table import Column, TableSchema
from lakefeed.errors import TableStoppedError

WIDEST = 1990
"""SQLite allows 2000 columns in a table, and the log has a few of its own."""


@dataclass(frozen=True, slots=True)
class Reshaped:
    """A capture after an ALTER TABLE.

    ``reason`` says why what is known of its rows may be wrong, None if it is not; ``doubted`` are the columns that are
    concerned, None if any may be.
    """

    captured: Captured
    added: tuple[str, ...]
    reason: str | None
    doubted: tuple[str, ...] | None = None


def key_columns(source: SourceTable) -> tuple[str, ...]:
    return source.key or (rowid_column(source),)


def rowid_column(source: SourceTable) -> str:
    """What the rowid is called in the lake: ``_rowid``, or more underscores if the table has that name itself."""
    name = "_rowid"
    while any(column.name.lower() == name for column in source.columns):
        name += "_"
    return name


def table_schema(source: SourceTable) -> TableSchema:
    """The schema of a table that is not captured yet: no stable column ids."""
    return TableSchema(source.id, _columns(source), key_columns(source))


def new_capture(source: SourceTable, number: int, *, before_images: bool) -> Captured:
    """A capture from scratch. What the rows hold that are there already is not known yet."""
    if not source.key and source.rowid is None:
        raise TableStoppedError(
            f"table {source.id} has no key, and its columns hide every name of the rowid",
            table=str(source.id),
            remedy=f"Declare a primary key on {source.name}, or leave the table out.",
        )
    if len(source.columns) > WIDEST:
        raise TableStoppedError(
            f"table {source.id} has {len(source.columns)} columns; a change log can hold {WIDEST}",
            table=str(source.id),
            remedy="Leave the table out.",
        )
    columns = tuple(replace(column, id=f"{number}.{slot}") for slot, column in enumerate(_columns(source)))
    schema, slots = TableSchema(source.id, columns, key_columns(source)), tuple(range(len(columns)))
    return Captured(
        number,
        schema,
        slots,
        len(columns),
        rowid_key=not source.key,
        sql=source.sql,
        before_images=before_images,
        scanned=False,
    )


def reshape(old: Captured, source: SourceTable, names: Mapping[int, str]) -> Reshaped:
    """The same capture over the table as it is now. ``names`` tells what each slot's column is called now."""
    # Columns are only ever appended, so one that comes before a column it used to follow was dropped and added again.
    slot_by_name = {names.get(slot, name): slot for name, slot in old.slot_of.items()}
    index_of = {slot: index for index, slot in enumerate(old.slots)}
    kept: dict[str, int] = {}
    last = -1
    for column in source.columns:
        found = slot_by_name.get(column.name)
        if found is not None and index_of[found] > last:
            kept[column.name], last = found, index_of[found]
    before = dict(zip(old.slots, old.schema.columns, strict=True))
    slots, columns, added, doubted = [], [], [], dict[str, str]()
    next_slot = old.next_slot
    if old.rowid_key:
        slots.append(old.key_slots[0])
        columns.append(before[old.key_slots[0]])
    for column in source.columns:
        if column.name in kept:
            slot = kept[column.name]
            columns.append(replace(before[slot], name=column.name))
        else:
            slot, next_slot = next_slot, next_slot + 1
            made, reason = _added(column)
            columns.append(replace(made, id=f"{old.number}.{slot}"))
            added.append(column.name)
            doubted |= {column.name: reason} if reason else {}
        slots.append(slot)
    schema = TableSchema(old.table, tuple(columns), source.key or old.schema.key)
    captured = replace(old, schema=schema, slots=tuple(slots), next_slot=next_slot, sql=source.sql)
    if not _explained(old, source, kept, added):
        return Reshaped(captured, tuple(added), "its definition changed in a way that cannot be followed")
    return Reshaped(captured, tuple(added), next(iter(doubted.values()), None), tuple(doubted))


def mixed_columns(connection: sqlite3.Connection, source: SourceTable) -> frozenset[str]:
    """Columns with values that the declared type does not fit. One pass over the table."""
    tests = {
        column.name: test
        for column in source.columns
        if (test := misfit(arrow_type(column.declared), quoted(column.name))) is not None
    }
    if not tests:
        return frozenset()
    listed = ", ".join(f"max({test})" for test in tests.values())
    row = connection.execute(f"SELECT {listed} FROM {quoted(source.name)}").fetchone()
    return frozenset(name for name, found in zip(tests, row, strict=True) if found)


def as_text(captured: Captured, mixed: frozenset[str]) -> Captured:
    """The capture with ``mixed`` columns as strings."""
    columns = tuple(
        replace(column, type=pa.string(), default=text_form(column.default)) if column.name in mixed else column
        for column in captured.schema.columns
    )
    return replace(captured, schema=replace(captured.schema, columns=columns))


def _columns(source: SourceTable) -> tuple[Column, ...]:
    """Those of the table; ahead of them the rowid, where it is the key."""
    columns = []
    if not source.key:
        columns.append(Column(rowid_column(source), pa.int64(), nullable=False, source_type="INTEGER"))
    for column in source.columns:
        in_key = column.name in source.key and (source.key_is_rowid or source.without_rowid)
        nullable = not (column.not_null or in_key)
        columns.append(Column(column.name, arrow_type(column.declared), nullable, column.declared))
    return tuple(columns)


def _added(column: SourceColumn) -> tuple[Column, str | None]:
    """A column that ALTER TABLE ADD made, with what existing rows read in it."""
    plain = Column(column.name, arrow_type(column.declared), not column.not_null, column.declared)
    if column.generated:
        return plain, f"the new column {column.name} is computed, so existing rows have values in it"
    if column.default is None:
        return plain, None
    with closing(sqlite3.connect(":memory:")) as scratch:  # SQLite itself says what the default is
        scratch.execute("CREATE TABLE t (a)")
        scratch.execute("INSERT INTO t VALUES (1)")
        scratch.execute(f"ALTER TABLE t ADD COLUMN c {column.declared} DEFAULT {column.default}")
        (value,) = scratch.execute("SELECT c FROM t").fetchone()
    try:
        value = to_arrow([value], plain.type)[0].as_py()
    except MisfitError:
        return replace(plain, type=pa.string(), default=text_form(value)), None
    if isinstance(value, bytes):
        return plain, f"the new column {column.name} has a blob as its default, so existing rows have values in it"
    return replace(plain, default=value), None


def _explained(old: Captured, source: SourceTable, kept: Mapping[str, int], added: list[str]) -> bool:
    """Whether the CREATE statement changed only as the ALTERs that were recognised change it.

    Catches, for example, a last column that was dropped and added again under its old name.
    """
    renamed = any(dict(zip(old.slots, old.schema.names, strict=True))[slot] != name for name, slot in kept.items())
    dropped = len(old.slots) - old.rowid_key - len(kept)
    if renamed or dropped > 1 or (dropped and added):
        return True  # the texts cannot be compared; the slots and the order have told what happened
    if not dropped and not added:
        return old.sql == source.sql
    return _grows(source.sql, old.sql) if dropped else _grows(old.sql, source.sql)


def _grows(short: str, long: str) -> bool:
    """Whether ``long`` is ``short`` with one piece put in."""
    return _common(short, long) + _common(short[::-1], long[::-1]) >= len(short)


def _common(a: str, b: str) -> int:
    """How many characters both begin with."""
    return next((index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

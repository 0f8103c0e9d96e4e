"""Iceberg's names for column types, the field ids in its files, and how a table's columns evolve.

Iceberg identifies a column by its id, not by its name, so it renames and drops columns without touching a file. A copy
writes its files with these ids, like Iceberg itself. From version 3 of the table format a column's default is metadata:
older rows read it. Iceberg reads some widened types in place (a longer integer, double for float, more digits); for
others Lakefeed rewrites the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count, pairwise
from typing import Any

import pyarrow as pa

from lakefeed.change.schema_change import AddColumn, DropColumn, RenameColumn, RetypeColumn, diff
from lakefeed.change.table import Column, TableSchema
from lakefeed.errors import TableStoppedError
from lakefeed.lake.spark.type import quoted

_SCALARS: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",  # Iceberg has nothing smaller
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", tz="UTC"): "timestamptz",
}
_PROMOTED = {("int", "long"), ("float", "double")}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_TRUE = {"true", "t", "yes", "y", "on", "1"}


def schema_json(schema: TableSchema, comments: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The columns as Iceberg's JSON, with ``comments`` by name. When Iceberg creates a table it assigns other ids: see
    ``with_field_ids``.

    All are optional: a source may drop NOT NULL at any time, and a mirror must not fail on that.
    """
    nested = iter(range(len(schema.columns) + 1, 10**6))
    fields = [
        {"id": number, "name": column.name, "required": False, "type": type_json(column.type, nested)}
        for number, column in enumerate(schema.columns, 1)
    ]
    for one in fields:
        if text := (comments or {}).get(one["name"]):
            one["doc"] = text
    return {"type": "struct", "schema-id": 0, "fields": fields}


def type_json(kind: pa.DataType, ids: Any) -> Any:
    """One type as Iceberg's JSON; ``ids`` gives the next free id, for the elements of a list."""
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_list(kind):
        element = {"type": "list", "element-id": next(ids), "element-required": False}
        return {**element, "element": type_json(kind.value_type, ids)}
    return _SCALARS[kind]


def with_field_ids(columns: pa.Schema, described: Mapping[str, Any]) -> pa.Schema:
    """The Arrow columns of a file with the field ids of the table's schema (Iceberg's JSON)."""
    by_name = {field["name"]: field for field in described["fields"]}
    return pa.schema([_with_id(column, by_name[column.name]["id"], by_name[column.name]["type"]) for column in columns])


def _with_id(field: Any, number: int, described: Any) -> Any:
    kind = field.type
    if pa.types.is_list(kind):
        kind = pa.list_(_with_id(kind.value_field, described["element-id"], described["element"]))
    return pa.field(field.name, kind, metadata={"PARQUET:field_id": str(number)})


def default_value(column: Column) -> bool | int | float | str | bytes | Decimal | None:
    """The value that older rows read in the column, in a form for Iceberg's literals; times as ISO text."""
    value, kind = column.default, column.type
    if value is None:
        return None
    try:
        if pa.types.is_boolean(kind):
            return str(value).lower() in _TRUE
        if pa.types.is_integer(kind):
            return int(value)
        if pa.types.is_floating(kind):
            return float(value)
        if pa.types.is_decimal(kind):
            return Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale))
        if pa.types.is_date(kind):
            return date.fromisoformat(str(value)).isoformat()
        if pa.types.is_timestamp(kind):
            moment = datetime.fromisoformat(str(value))
            if kind.tz is not None:
                moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
            return moment.isoformat(timespec="microseconds")
        if pa.types.is_binary(kind):
            return str(value).encode()
        if pa.types.is_string(kind):
            return str(value)
        raise TypeError(f"no default for {kind}")
    except (ArithmeticError, TypeError, ValueError) as error:
        raise TableStoppedError(
            f"the source added column '{column.name}' with the default {value!r}, which is no {kind}",
            remedy="Remove the lake table and start the pipeline again: the table is then copied again.",
        ) from error


@dataclass(frozen=True, slots=True)
class Add:
    """``type`` is Iceberg's JSON; older rows read ``default``."""

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
    """``type`` is Iceberg's JSON. For a list, ``name`` names its element."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Move:
    """Move a column behind ``after``, or to the front."""

    name: str
    after: str | None


@dataclass(frozen=True, slots=True)
class Describe:
    """Set a column's comment."""

    name: str
    text: str


Alteration = Add | Drop | Rename | Widen | Move | Describe


def is_in_place(path: Sequence[TableSchema]) -> bool:
    """Can Iceberg read the stored rows under the last schema, without a rewrite?"""
    changes = [change for before, after in pairwise(path) for change in diff(before, after)]
    return all(_promotes(change.old, change.new) for change in changes if isinstance(change, RetypeColumn))


def alterations(path: Sequence[TableSchema]) -> list[Alteration]:
    """The alterations from the first schema of ``path`` to the last, in an order in which each is possible."""
    found: list[Alteration] = []
    names = list(path[0].names)
    for before, after in pairwise(path):
        # Drops make room for renames, renames for additions.
        changes = diff(before, after)
        for change in changes:
            if isinstance(change, DropColumn):
                names.remove(change.name)
                found.append(Drop(change.name))
        # Renames happen at once: if a new name is still another column's old one, all go through a third name.
        renames = {change.old: change.new for change in changes if isinstance(change, RenameColumn)}
        crossing = {new.lower() for new in renames.values()} & {old.lower() for old in renames}
        found += [Rename(old, f"_lakefeed_was_{old}") for old in renames if crossing]
        found += [Rename(f"_lakefeed_was_{old}" if crossing else old, new) for old, new in renames.items()]
        names = [renames.get(name, name) for name in names]
        for change in changes:
            if isinstance(change, RetypeColumn):
                found += _widened(change.name, change.old, change.new)
            if isinstance(change, AddColumn):
                names.append(change.column.name)
                kind = type_json(change.column.type, count(1))  # Iceberg assigns its own ids
                found.append(Add(change.column.name, kind, default_value(change.column)))
    if names != list(path[-1].names):  # so that ``SELECT *`` has the columns in the source's order
        found += [Move(name, after) for after, name in pairwise([None, *path[-1].names]) if name is not None]
    return found


def replacements(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Alteration]:
    """The alterations from a table's columns to those of a new copy of it, both as Iceberg's JSON.

    A column of the same name keeps its id and comment if Iceberg can read its older values as the new type; otherwise
    it is dropped, and a new column takes its name.
    """
    old = {field["name"]: without_ids(field["type"]) for field in current["fields"]}
    new = {field["name"]: without_ids(field["type"]) for field in wanted["fields"]}
    stays = {name for name, kind in new.items() if old.get(name) == kind or (old.get(name), kind) in _PROMOTED}
    stays |= {name for name in old.keys() & new.keys() if _is_longer_decimal(old[name], new[name])}
    found: list[Alteration] = [Drop(name) for name in old if name not in stays]
    found += [Widen(name, new[name]) for name in new if name in stays and old[name] != new[name]]
    found += [Add(field["name"], field["type"]) for field in wanted["fields"] if field["name"] not in stays]
    order = [*(name for name in old if name in stays), *(name for name in new if name not in stays)]
    if order != list(new):
        found += [Move(name, after) for after, name in pairwise([None, *new]) if name is not None]
    stored = {field["name"]: field.get("doc") for field in current["fields"] if field["name"] in stays}
    comments = {field["name"]: field["doc"] for field in wanted["fields"] if "doc" in field}
    return found + [Describe(name, text) for name, text in comments.items() if stored.get(name) != text]


def current_schema(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """A table's current columns, from its metadata."""
    found: Mapping[str, Any] = next(
        one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"]
    )
    return found


@dataclass(frozen=True, slots=True)
class Use:
    """Something of the table owner's that uses a column. The column can go once somebody has run ``statement``."""

    column: str
    what: str
    statement: str


def uses(metadata: Mapping[str, Any], sql_name: str) -> list[Use]:
    """What uses columns of a table: partition fields, sort order and identifier fields."""
    schema = current_schema(metadata)
    names = {field["id"]: field["name"] for field in schema["fields"]}
    specs = [one for one in metadata["partition-specs"] if one["spec-id"] == metadata["default-spec-id"]]
    orders = [one for one in metadata["sort-orders"] if one["order-id"] == metadata["default-sort-order-id"]]
    table = f"ALTER TABLE {sql_name}"
    found = [
        (field["source-id"], f"the partition field {field['name']}", f"{table} DROP PARTITION FIELD {field['name']}")
        for spec in specs
        for field in spec["fields"]
    ]
    found += [
        (field["source-id"], "the sort order", f"{table} WRITE UNORDERED") for one in orders for field in one["fields"]
    ]
    found += [
        (number, "the identifier fields", f"{table} DROP IDENTIFIER FIELDS {quoted(names[number])}")
        for number in schema.get("identifier-field-ids", ())
        if number in names
    ]
    return [Use(names[number], what, statement) for number, what, statement in found if number in names]


def transform_text(transform: str, column: str) -> str:
    """A partition field in the form of a layout: ``day`` of a column is ``days(column)``."""
    if transform == "identity":
        return column
    kind, _, number = transform.removesuffix("]").partition("[")
    return f"{kind}({number}, {column})" if number else f"{kind}s({column})"


def without_ids(described: Any) -> Any:
    """A type of Iceberg's JSON in a form to compare: a scalar's name, or that of a list's items in brackets."""
    return f"[{without_ids(described['element'])}]" if isinstance(described, Mapping) else described


def _is_longer_decimal(old: str, new: str) -> bool:
    digits = [_DECIMAL.fullmatch(one) for one in (old, new)]
    if digits[0] is None or digits[1] is None:
        return False
    return digits[0][2] == digits[1][2] and int(digits[0][1]) <= int(digits[1][1])


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
        return bool(pa.types.is_integer(new))  # the policy has checked that it is a longer one
    return old == new or (old, new) == (pa.float32(), pa.float64())

"""Iceberg's words for the column types that Lakefeed stores, and the field ids that its files carry.

Iceberg knows a column by its id, not by its name: that is what lets it rename and drop columns without touching a file.
Files of a copy are written with these ids, like Iceberg's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lakefeed.change.table import Column, TableSchema
from lakefeed.errors import TableStoppedError

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
_TRUE = {"true", "t", "yes", "y", "on", "1"}


def schema_json(schema: TableSchema) -> dict[str, Any]:
    """The columns as Iceberg's JSON. Iceberg gives them ids of its own when a table is made: see ``with_field_ids``.

    All are optional: a source may lift NOT NULL at any time, and a mirror must not fail on that.
    """
    nested = iter(range(len(schema.columns) + 1, 10**6))
    fields = [
        {"id": number, "name": column.name, "required": False, "type": type_json(column.type, nested)}
        for number, column in enumerate(schema.columns, 1)
    ]
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
    """The Arrow columns of a file, marked with the ids of the table's schema (Iceberg's JSON)."""
    by_name = {field["name"]: field for field in described["fields"]}
    return pa.schema([_marked(column, by_name[column.name]["id"], by_name[column.name]["type"]) for column in columns])


def _marked(field: Any, number: int, described: Any) -> Any:
    kind = field.type
    if pa.types.is_list(kind):
        kind = pa.list_(_marked(kind.value_field, described["element-id"], described["element"]))
    return pa.field(field.name, kind, metadata={"PARQUET:field_id": str(number)})


def default_value(column: Column) -> bool | int | float | str | bytes | Decimal | None:
    """What rows from before the column read, in a form that Iceberg's literals take; times as ISO text."""
    value, kind = column.default, column.type
    if value is None:
        return None
    try:
        return _default(value, kind)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise TableStoppedError(
            f"column '{column.name}' was added with the default {value!r}, which is no {kind}",
            remedy="Remove the lake table and start the pipeline again: the table is then copied anew.",
        ) from error


def _default(value: int | float | str, kind: pa.DataType) -> bool | int | float | str | bytes | Decimal:
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
        return _instant(str(value), zoned=kind.tz is not None)
    if pa.types.is_binary(kind):
        return str(value).encode()
    if pa.types.is_string(kind):
        return str(value)
    raise TypeError(f"no default for {kind}")


def _instant(text: str, *, zoned: bool) -> str:
    moment = datetime.fromisoformat(text)
    if zoned:
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return moment.isoformat(timespec="microseconds")

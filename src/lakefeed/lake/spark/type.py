"""Spark's names for the column types that Lakefeed stores, and the tables that Delta cannot hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from lakefeed.change.table import Column, TableSchema
from lakefeed.errors import TableStoppedError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SCALARS: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", tz="UTC"): "timestamp",
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_PLAIN = re.compile(r"[A-Za-z0-9_.@-]*")


def spark_type(kind: pa.DataType) -> str | None:
    """The type's name in Spark SQL; None if Delta has no such type."""
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        item = spark_type(kind.value_type)
        return f"array<{item}>" if item else None
    return _SCALARS.get(kind)


def arrow_type(name: str) -> pa.DataType | None:
    """The type of that name in Spark SQL; None if Lakefeed stores no such type. The inverse of ``spark_type``."""
    if found := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(found[1]), int(found[2]))
    if name.startswith("array<"):
        item = arrow_type(name.removeprefix("array<").removesuffix(">"))
        return pa.list_(item) if item is not None else None
    return next((kind for kind, text in _SCALARS.items() if text == name), None)


def spark_columns(schema: pa.Schema) -> str | StructType:
    """Columns for a reader of files, all nullable. As Spark SQL writes them, which takes one call into the JVM; those
    with a type that Lakefeed does not store, as an owner's column may have, as pyspark's own objects."""
    kinds = {field.name: spark_type(field.type) for field in schema}
    if None in kinds.values():
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(schema, prefer_timestamp_ntz=True)
    # Which of its two kinds ``timestamp`` alone is depends on the session. No name is in these texts.
    return ", ".join(
        f"{quoted(name)} {re.sub(r'timestamp(?!_)', 'timestamp_ltz', kind or '')}" for name, kind in kinds.items()
    )


def text_literal(value: str) -> str:
    """A text in Spark SQL, in hexadecimal, so that no Spark setting can change how it is quoted.

    Plain words stay literals: to skip files, the formats need literals.
    """
    if _PLAIN.fullmatch(value):
        return f"'{value}'"
    return f"decode(X'{value.encode().hex()}', 'UTF-8')"


def text_literal_quoted(value: str) -> str:
    """A text in Spark SQL where only a literal is allowed, such as a property or a comment."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def quoted(name: str) -> str:
    """A quoted name in Spark SQL, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def lake_arrow(schema: TableSchema) -> pa.Schema:
    """The table's own columns as its files have them.

    All are nullable: a source may drop NOT NULL at any time, and a mirror must not fail on that.
    """
    return pa.schema([pa.field(column.name, column.type) for column in schema.columns])


def refuse_unstorable(schema: TableSchema, *, added: Sequence[Column] = (), reserved: Sequence[str] = ()) -> None:
    """TableStoppedError if the lake cannot store a column under its name. ``added`` are Lakefeed's own columns.

    ``reserved`` are the names that Iceberg keeps for itself.
    """
    own = next((name for name in schema.names if name.lower() in reserved), None)
    problem = _problem(schema, {column.name for column in added})
    if own is not None:
        problem = f"Iceberg keeps the column name '{own}' for itself"
    if problem:
        raise TableStoppedError(
            f"table {schema.table}: {problem}",
            remedy="Give the column another name in the lake (rename, or naming), another type (transform), or leave "
            f"it out (columns), all in a rule for {schema.table} in lake.tables.",
            table=str(schema.table),
        )


def _problem(schema: TableSchema, added: set[str]) -> str | None:
    seen: dict[str, str] = {}
    for column in schema.columns:
        if spark_type(column.type) is None:
            return f"column '{column.name}' is {column.type}, which Delta has no type for"
        if column.name.lower().startswith("_lakefeed_") and column.name not in added:
            return f"column '{column.name}' has a name that Lakefeed uses for itself"
        if twin := seen.get(column.name.lower()):
            return f"columns '{twin}' and '{column.name}' differ only in case, and Spark takes them for the same"
        seen[column.name.lower()] = column.name
    return None

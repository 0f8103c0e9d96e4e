"""A source table as Lakefeed sees it: name, columns, key, version. Pure values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

import pyarrow as pa

from lakefeed.errors import ConfigError

_SCALARS: dict[str, pa.DataType] = {
    str(kind): kind
    for kind in (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(),
        pa.binary(), pa.date32(), pa.time64("us"), pa.timestamp("us"), pa.timestamp("us", tz="UTC"),
    )
}  # fmt: skip
_DECIMAL = re.compile(r"decimal128\((\d+), (-?\d+)\)")
_LIST = re.compile(r"list<item: (.+)>")


def type_from_text(text: str) -> pa.DataType:
    """The Arrow type that prints as ``text``: the inverse of ``str`` for every type that Lakefeed stores."""
    if text in _SCALARS:
        return _SCALARS[text]
    if match := _DECIMAL.fullmatch(text):
        return pa.decimal128(int(match[1]), int(match[2]))
    if match := _LIST.fullmatch(text):
        return pa.list_(type_from_text(match[1]))
    raise ConfigError(f"'{text}' is not a column type that Lakefeed stores; it stores {', '.join(sorted(_SCALARS))}")


@dataclass(frozen=True, order=True, slots=True)
class TableId:
    """``schema.name`` in the source; the table has the same two names in the lake and in the journal.

    A schema whose name contains a dot is refused: its tables could not be told apart from those of another schema.
    """

    schema: str
    name: str

    def __post_init__(self) -> None:
        if not self.schema or not self.name or "." in self.schema:
            raise ConfigError(f"'{self}' is not a table name; it must read schema.table, with no dot in the schema")

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @classmethod
    def parse(cls, text: str) -> TableId:
        """Inverse of ``str``. Only the first dot separates: a table's own name may contain dots."""
        schema, dot, name = text.partition(".")
        if not dot:
            raise ConfigError(
                f"'{text}' is not a table name; it must read schema.table",
                remedy=f"Add its schema, as in public.{text} or main.{text}.",
            )
        return cls(schema, name)


V = TypeVar("V")


class ByTable(dict[TableId, V]):
    """Values by table. ``found["public.orders"]`` works too, and so does ``found["orders"]`` if one table has that
    name."""

    def __missing__(self, key: object) -> V:
        named = [table for table in self if key in (str(table), table.name)]
        if len(named) != 1:
            raise KeyError(f"{key}; there are {', '.join(map(str, self)) or 'no tables'}")
        return self[named[0]]


class OutOfRange(StrEnum):
    """What happens to a value that its column's type cannot hold: infinity, BC, NaN in a numeric, 0000-00-00, an array
    with more dimensions. STOP blocks its table. NULL replaces it by NULL. CLAMP replaces it by the nearest value of the
    type, or by NULL if there is none (NaN). TEXT makes the whole column text, as the source prints it."""

    STOP = "stop"
    NULL = "null"
    CLAMP = "clamp"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``id`` survives renames where the source has such an id; otherwise it is None.

    ``default`` is the value of the column in rows that existed before it was added (JSON-able; None for NULL).
    ``out_of_range`` is what the source does with values that ``type`` cannot hold; STOP where it can hold them all.
    """

    name: str
    type: pa.DataType
    nullable: bool = True
    source_type: str = ""
    id: str | None = None
    default: int | float | str | None = None
    out_of_range: OutOfRange = OutOfRange.STOP

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"name": self.name, "type": str(self.type), "nullable": self.nullable}
        data |= {"source_type": self.source_type, "id": self.id, "default": self.default}
        return data if self.out_of_range is OutOfRange.STOP else data | {"out_of_range": str(self.out_of_range)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Column:
        rule = OutOfRange(data.get("out_of_range", OutOfRange.STOP))
        return cls(**{**data, "type": type_from_text(data["type"]), "out_of_range": rule})


@dataclass(frozen=True, slots=True)
class Comments:
    """The comments that the source has on a table and on its columns, by column name; empty where there is none."""

    table: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The columns and key of a table at one time.

    ``version`` is 0 until the journal's schema history numbers it (1, 2, 3 … per table). An empty ``key`` means that
    rows have no identity. The key is all or nothing: a part of it is never used as a key. ``fingerprint`` belongs to
    the source alone: with it the source notices, even after a restart, that rows changed without an entry in its log.
    ``left_out`` are the columns that the pipeline does not take, each with its index. If it has a column that the
    pipeline does take, that is the source's own column, before it was masked.
    """

    table: TableId
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    version: int = 0
    fingerprint: str = ""
    left_out: tuple[tuple[int, Column], ...] = ()

    def __post_init__(self) -> None:
        missing = [name for name in self.key if name not in self.names]
        if missing:
            raise ConfigError(f"table {self.table}: key column '{missing[0]}' is not among its columns")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns of the key, in the order of the key."""
        known = {column.name: column for column in self.columns}
        return tuple(known[name] for name in self.key)

    @property
    def arrow(self) -> pa.Schema:
        """The table's own columns, without Lakefeed's metadata columns."""
        return pa.schema([pa.field(column.name, column.type, column.nullable) for column in self.columns])

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise ConfigError(f"table {self.table} has no column '{name}'; it has {', '.join(self.names)}")

    def without(self, names: Sequence[str], masked: Sequence[Column] = ()) -> TableSchema:
        """The schema without the columns ``names``, and with each column of ``masked`` in place of the one with its
        name. ``whole`` undoes it."""
        if not names and not masked:
            return self
        others = {column.name: column for column in masked}
        left_out = tuple(one for one in enumerate(self.columns) if one[1].name in (*names, *others))
        kept = tuple(others.get(column.name, column) for column in self.columns if column.name not in names)
        return replace(self, columns=kept, left_out=left_out)

    @property
    def whole(self) -> TableSchema:
        """The source's own schema: with the columns that were left out, and unmasked."""
        columns = list(self.columns)
        for index, column in self.left_out:
            if column.name in self.names:
                columns[index] = column
            else:
                columns.insert(index, column)
        return replace(self, columns=tuple(columns), left_out=())

    def at_version(self, version: int) -> TableSchema:
        return replace(self, version=version)

    def same_shape(self, other: TableSchema) -> bool:
        """Whether the two are equal in everything but the version number."""
        mine, theirs = (self.table, self.columns, self.key), (other.table, other.columns, other.key)
        beside = (self.fingerprint, self.left_out) == (other.fingerprint, other.left_out)
        return mine == theirs and beside

    def to_json(self) -> dict[str, Any]:
        return {
            "table": str(self.table),
            "columns": [column.to_json() for column in self.columns],
            "key": list(self.key),
            "version": self.version,
            **({"fingerprint": self.fingerprint} if self.fingerprint else {}),
            **({"left_out": [[index, one.to_json()] for index, one in self.left_out]} if self.left_out else {}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TableSchema:
        columns = tuple(Column.from_json(column) for column in data["columns"])
        left_out = tuple((index, Column.from_json(one)) for index, one in data.get("left_out", ()))
        table, key, fingerprint = TableId.parse(data["table"]), tuple(data["key"]), data.get("fingerprint", "")
        return cls(table, columns, key, data["version"], fingerprint, left_out)

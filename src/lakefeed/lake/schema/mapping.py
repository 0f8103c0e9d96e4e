"""Column mapping: which source column each column of a lake table gets its values from. Pure values.

Mostly it is the one of the same name. But the configuration may ignore an added column, keep a dropped one, or send the
values to a column of another name after an incompatible change of type. So each lake column knows its source column,
and in which versions of the source's schema it had that source.

``mapped_window`` turns that into schemas whose columns have stable ids, which the rest of the lake works with: a column
of a journal file and a column of the lake table are the same if their ids are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lakefeed.change.segment import Window
from lakefeed.change.table import Column, TableSchema
from lakefeed.lake.schema.projection import lineage, steps

_NO_COLUMN = "_lakefeed_none_"
"""Prefix of a column that no journal file has: it reads as NULL."""


@dataclass(frozen=True, slots=True)
class MappedColumn:
    """A column of the lake table. Its id is made here and lasts as long as the column.

    ``source`` is the name of its source column: now, or in version ``until``, the last one that had it. Rows of
    versions before ``since`` have no value for it: theirs are in another column.
    """

    column: Column
    source: str
    since: int = 0
    until: int | None = None

    @property
    def is_live(self) -> bool:
        return self.until is None

    def to_json(self) -> dict[str, Any]:
        return {"column": self.column.to_json(), "source": self.source, "since": self.since, "until": self.until}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MappedColumn:
        return cls(Column.from_json(data["column"]), data["source"], data["since"], data["until"])


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """The lake table's columns, without the mode's own, at one version of the source's schema."""

    version: int
    columns: tuple[MappedColumn, ...]

    @classmethod
    def plain(cls, schema: TableSchema) -> ColumnMapping:
        """Each column has the values of the source column of its name, as after a copy."""
        return cls(
            schema.version,
            tuple(MappedColumn(new_column(column, schema.version), column.name) for column in schema.columns),
        )

    @property
    def live(self) -> dict[str, MappedColumn]:
        """The columns that have a source now, by the source column's name."""
        return {one.source: one for one in self.columns if one.is_live}

    def ignored(self, source: TableSchema) -> tuple[str, ...]:
        """The source's columns whose values no lake column has."""
        live = self.live
        return tuple(name for name in source.names if name not in live)

    def is_plain(self, source: TableSchema) -> bool:
        """Is the mapping the same as after a copy?"""
        return not self.ignored(source) and all(
            one.is_live and not one.since and one.column.name == one.source for one in self.columns
        )

    def schema(self, source: TableSchema) -> TableSchema:
        """The lake table's schema, without the mode's own columns. Without a part of the key it has no key."""
        live = self.live
        key = tuple(live[name].column.name for name in source.key if name in live)
        key = key if len(key) == len(source.key) else ()
        return TableSchema(source.table, tuple(one.column for one in self.columns), key, source.version)


def new_column(column: Column, version: int) -> Column:
    """A source column of ``version`` as a new column of the lake table."""
    return replace(column, id=f"{version}.{column.name}")


def mapped_window(window: Window, mapping: ColumnMapping) -> Window:
    """The same changes for a lake table with these columns: ``target`` is the lake table's schema, ``schemas`` are the
    files'.

    A file of the newest version may have other names than the lake table. So the target is one version further.
    """
    newest = window.target.version
    schemas = {**window.schemas, newest: window.target}
    found: dict[int, TableSchema] = {}
    for version in sorted({*(segment.schema_version for segment in window.segments), newest}):
        given = {column.name: column for column in schemas[version].columns}
        names: dict[int, Mapping[str, str | None]] = {}
        columns: list[Column] = []
        for index, one in enumerate(mapping.columns):
            last = mapping.version if one.until is None else one.until
            if not one.since <= version <= last:
                columns.append(replace(one.column, name=f"{_NO_COLUMN}{index}"))
                continue
            if last not in names:
                names[last] = lineage(steps(schemas, version, last))
            name = names[last][one.source]
            if name is not None:  # a column that the file lacks was added later, and reads as its default
                columns.append(replace(given[name], id=one.column.id))
        found[version] = TableSchema(schemas[version].table, tuple(columns), (), version)
    target = mapping.schema(window.target).at_version(newest + 1)
    return replace(window, target=target, schemas={**found, target.version: target})

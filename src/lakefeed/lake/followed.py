"""Followed: which source columns feed which columns of a lake table. Pure values.

Mostly every column feeds the one of its name. It does not where the user has chosen otherwise: an added column may be
ignored, a dropped one kept, and after an incompatible change of type the values go to a column of another name. Each
lake column therefore knows the source column that feeds it, and in which versions of the source's schema it did.

``window_of`` puts that into the form that the rest of the lake works with, schemas whose columns have
stable ids: a column of a journal file and a column of the lake table are the same if their ids are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lakefeed.change.segment import Window
from lakefeed.change.table import Column, TableSchema
from lakefeed.lake.projection import lineage, steps

_NO_COLUMN = "_lakefeed_none_"
"""Prefix of a column that no journal file has: it reads as NULL."""


@dataclass(frozen=True, slots=True)
class Fed:
    """A column of the lake table. Its id is made here and lasts as long as the column.

    ``source`` feeds it: the source column's name now, or what it was in version ``until``, the last one that fed it.
    Rows of versions before ``since`` have nothing for it: their values are in another column.
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
    def from_json(cls, data: Mapping[str, Any]) -> Fed:
        return cls(Column.from_json(data["column"]), data["source"], data["since"], data["until"])


@dataclass(frozen=True, slots=True)
class Followed:
    """The lake table's columns, without the mode's own, at one version of the source's schema."""

    version: int
    columns: tuple[Fed, ...]

    @classmethod
    def plain(cls, schema: TableSchema) -> Followed:
        """Every column feeds the one of its name, as in a table that was just copied."""
        return cls(schema.version, tuple(Fed(born(column, schema.version), column.name) for column in schema.columns))

    @property
    def live(self) -> dict[str, Fed]:
        """By the name of the source column."""
        return {fed.source: fed for fed in self.columns if fed.is_live}

    def ignored(self, source: TableSchema) -> tuple[str, ...]:
        """The source's columns that feed nothing."""
        live = self.live
        return tuple(name for name in source.names if name not in live)

    def is_plain(self, source: TableSchema) -> bool:
        """Is it no different from a table that was just copied?"""
        return not self.ignored(source) and all(
            fed.is_live and not fed.since and fed.column.name == fed.source for fed in self.columns
        )

    def schema(self, source: TableSchema) -> TableSchema:
        """The lake table's schema, without the mode's own columns. A key that it has only in part is none."""
        live = self.live
        key = tuple(live[name].column.name for name in source.key if name in live)
        key = key if len(key) == len(source.key) else ()
        return TableSchema(source.table, tuple(fed.column for fed in self.columns), key, source.version)


def born(column: Column, version: int) -> Column:
    """A source column of ``version`` as a new column of the lake table."""
    return replace(column, id=f"{version}.{column.name}")


def window_of(window: Window, followed: Followed) -> Window:
    """The same changes for a lake table with these columns: the target is the lake table's, the schemas the files'.

    A file of the newest version may have other names than the lake table: that table is therefore one version further.
    """
    newest = window.target.version
    schemas = {**window.schemas, newest: window.target}
    versions = {*(segment.schema_version for segment in window.segments), newest}
    files = {version: _file(schemas, version, followed) for version in sorted(versions)}
    target = followed.schema(window.target).at_version(newest + 1)
    return replace(window, target=target, schemas={**files, target.version: target})


def _file(schemas: Mapping[int, TableSchema], version: int, followed: Followed) -> TableSchema:
    """What of a file of ``version`` feeds the table. What is not in it was added later, and reads as its default."""
    given = {column.name: column for column in schemas[version].columns}
    names: dict[int, Mapping[str, str | None]] = {}
    columns: list[Column] = []
    for index, fed in enumerate(followed.columns):
        last = followed.version if fed.until is None else fed.until
        if not fed.since <= version <= last:
            columns.append(replace(fed.column, name=f"{_NO_COLUMN}{index}"))
            continue
        if last not in names:
            names[last] = lineage(steps(schemas, version, last))
        name = names[last][fed.source]
        if name is not None:
            columns.append(replace(given[name], id=fed.column.id))
    return TableSchema(schemas[version].table, tuple(columns), (), version)

"""SchemaHistory: every version of every table's schema that something in the journal still needs. Numbering: which of
them each part of one change set has.

One file per table. A version is durable before the first commit that uses it. Recording is idempotent by position: a
schema change that is read again after a crash, alone or with others, in one change set or in several, gets the same
version as before. Versions count 1, 2, 3 … per table and are never reused.

A version that a commit uses is in effect from that commit on. A version that was recorded for a copy of the table, with
no commit that carries it, has a beginning: the change set number from which it is in effect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lakefeed.change.position import Position, decode_position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.durable import pack, unpack
from lakefeed.errors import CheckpointError, ConfigError, JournalDamagedError
from lakefeed.journal.layout import folder_name
from lakefeed.storage.base import Storage


@dataclass(frozen=True, slots=True)
class Beginning:
    """``version`` is in effect from change set ``number`` on, unless a commit names another."""

    number: int
    version: int


@dataclass(frozen=True, slots=True)
class Version:
    """A numbered schema and where it was first seen."""

    schema: TableSchema
    position: Position


@dataclass(frozen=True, slots=True)
class TableHistory:
    """The history of one table: versions by number, and beginnings, oldest first. Immutable; it is replaced."""

    versions: Mapping[int, Version] = field(default_factory=dict)
    beginnings: tuple[Beginning, ...] = ()


_UNKNOWN = TableHistory()


class SchemaHistory:
    """Thread-safe: reads see a consistent state, writes exclude each other."""

    def __init__(self, root: Storage, folder: str) -> None:
        self._root = root
        self._folder = folder
        self._tables: dict[TableId, TableHistory] = {}
        self._writing = threading.Lock()

    def load(self) -> None:
        """Read every file. JournalDamagedError names the first damaged one."""
        names = [entry.name for entry in self._root.entries(self._folder) if entry.name.endswith(".json")]
        found = zip(self._root.read_all(names), names, strict=True)
        self._tables = dict(_parse(data, self._root.place(name)) for data, name in found)

    def place(self, table: TableId) -> str:
        """The address of a table's file, for messages."""
        return self._root.place(self._name(table))

    def _name(self, table: TableId) -> str:
        return f"{self._folder}/{folder_name(table)}.json"

    def tables(self) -> tuple[TableId, ...]:
        return tuple(self._tables)

    def __getitem__(self, table: TableId) -> TableHistory:
        """The history of a table; an empty one if the journal does not know the table."""
        return self._tables.get(table, _UNKNOWN)

    def versions(self, table: TableId) -> Mapping[int, TableSchema]:
        """All versions that are kept, ascending."""
        return {number: version.schema for number, version in self[table].versions.items()}

    def record(self, schema: TableSchema, position: Position, *, begins: int | None = None) -> TableSchema:
        """``schema`` with its version, which is new only if the schema is not known yet; durable on return.

        ``begins`` gives a new version a beginning: it is in effect from that change set on.
        """
        with self._writing:
            history = self[schema.table]
            newest = max(history.versions, default=0)
            same = [one for one in history.versions.values() if one.schema.same_shape(schema)]
            for one in same:  # a replay; never for positions without an order
                if type(one.position) is type(position) and one.position >= position:
                    return one.schema
            if same and same[-1].schema.version == newest:
                return same[-1].schema
            numbered, beginnings = schema.at_version(newest + 1), history.beginnings
            if begins is not None:
                beginnings = (*beginnings, Beginning(begins, numbered.version))
            versions = {**history.versions, numbered.version: Version(numbered, position)}
            self._save(schema.table, TableHistory(versions, beginnings))
            return numbered

    def begin(self, table: TableId, beginning: Beginning) -> None:
        """Put a known version in effect again."""
        with self._writing:
            history = self._tables[table]
            self._save(table, replace(history, beginnings=(*history.beginnings, beginning)))

    def prune(self, table: TableId, *, keep_last: int | None, needed: Collection[int], trimmed: int) -> int:
        """Remove old versions that nothing needs, and beginnings at or below ``trimmed``. Returns the number of
        versions.

        The ``keep_last`` newest stay, and so does every version in ``needed``.
        """
        with self._writing:
            history = self._tables[table]
            kept_beginnings = tuple(one for one in history.beginnings if one.number > trimmed)
            wanted = set(needed) | {one.version for one in kept_beginnings}
            old = len(history.versions) - keep_last if keep_last is not None else 0
            kept = {
                number: version
                for index, (number, version) in enumerate(history.versions.items())
                if index >= old or number in wanted
            }
            if len(kept) < len(history.versions) or len(kept_beginnings) < len(history.beginnings):
                self._save(table, TableHistory(kept, kept_beginnings))
            return len(history.versions) - len(kept)

    def _save(self, table: TableId, history: TableHistory) -> None:
        body = {
            "table": str(table),
            "versions": [
                {"schema": version.schema.to_json(), "position": version.position.encode()}
                for version in history.versions.values()
            ],
            "marks": [[one.number, one.version] for one in history.beginnings],
        }
        self._root.replace(self._name(table), pack(body))
        self._tables = {**self._tables, table: history}


def _parse(data: bytes, path: str) -> tuple[TableId, TableHistory]:
    body = unpack(data, path)
    try:
        versions = [
            Version(TableSchema.from_json(item["schema"]), decode_position(item["position"]))
            for item in body["versions"]
        ]
        beginnings = tuple(Beginning(number, version) for number, version in body["marks"])
        history = TableHistory({version.schema.version: version for version in versions}, beginnings)
        return TableId.parse(body["table"]), history
    except (KeyError, TypeError, ValueError, AttributeError, CheckpointError, ConfigError) as error:
        raise JournalDamagedError(f"{path} is damaged: it is not a schema history ({error!r})") from error


@dataclass(slots=True)
class Numbering:
    """For one change set, which ends at ``position``. ``in_effect`` returns a table's version before it, if any.

    Announcements come first, in order; the batches then find their versions among them, or are the first with a new
    one. A batch from before a schema change still finds the old version.

    ``final`` has the version of every table at the end of the change set. A table that was copied under a schema newer
    than this change set keeps that one: older rows, from before the copy, do not set the table back.
    """

    history: SchemaHistory
    in_effect: Callable[[TableId], int | None]
    position: Position
    final: dict[TableId, int] = field(default_factory=dict)
    _known: dict[tuple[Any, ...], TableSchema] = field(default_factory=dict)
    _current: dict[TableId, TableSchema | None] = field(default_factory=dict)
    _announced: set[TableId] = field(default_factory=set)
    _copied: set[TableId] = field(default_factory=set)

    def number(self, schema: TableSchema, *, announced: bool = False) -> TableSchema:
        """The schema with its version; a new version is durable on return.

        ``announced``: the table changed to it somewhere in the change set. Otherwise it is the schema of a batch.
        """
        table, shape = schema.table, (schema.table, schema.columns, schema.key)
        if table not in self._current:
            version, self._current[table] = self.in_effect(table), None
            if version is not None:
                before = self.history[table].versions[version]  # retention never drops the version in effect
                self._current[table] = self._known[table, before.schema.columns, before.schema.key] = before.schema
                if type(before.position) is type(self.position) and before.position.compare(self.position) == 1:
                    self._copied.add(table)
                    self.final[table] = version
        numbered = self._known.get(shape)
        new = numbered is None or (
            announced and (numbered != self._current[table] or numbered.fingerprint != schema.fingerprint)
        )
        if numbered is None or new:  # without an announcement, the rows themselves show the change
            numbered = self._current[table] = self._known[shape] = self.history.record(schema, self.position)
        if announced:
            self._announced.add(table)
        if table not in self._copied and (new or announced or table not in self._announced):
            self.final[table] = numbered.version
        return numbered

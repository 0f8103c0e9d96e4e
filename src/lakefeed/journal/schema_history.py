"""SchemaHistory: every version of every table's schema that something in the journal still needs. Numbering: which of
them each part of one change set has.

One file per table. A version is durable before the first commit that uses it. Recording is idempotent by position: a
schema change that is read again after a crash, alone or with others, in one change set or in several, gets the
version it got before. Versions count 1, 2, 3 … for each table and are never given out again.

A version that a commit uses is in effect from that commit on. One that was recorded for a copy of the table, with no
commit to carry it, has a beginning: the change set number from which it is in effect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lakefeed.change.position import Position, decode_position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.durable import is_temporary, pack, replace_file, unpack
from lakefeed.errors import JournalDamagedError, JournalError
from lakefeed.journal.layout import folder_name


@dataclass(frozen=True, slots=True)
class Beginning:
    """From change set ``number`` on, ``version`` is in effect, unless a commit names another."""

    number: int
    version: int


@dataclass(frozen=True, slots=True)
class _Version:
    schema: TableSchema
    position: Position


@dataclass(frozen=True, slots=True)
class _Table:
    """The history of one table, oldest first. Replaced as a whole, so that readers need no lock."""

    versions: tuple[_Version, ...] = ()
    beginnings: tuple[Beginning, ...] = ()

    def find(self, schema: TableSchema, position: Position) -> TableSchema | None:
        """The version that ``schema``, seen at ``position``, already has."""
        same = [version for version in self.versions if version.schema.same_shape(schema)]
        replayed = [  # positions that have no order are never taken for a replay
            one for one in same if type(one.position) is type(position) and one.position >= position
        ]
        if replayed:
            return replayed[0].schema
        return self.versions[-1].schema if same and same[-1] is self.versions[-1] else None


class SchemaHistory:
    """Safe to use from several threads: reads see a whole state, writes wait for each other."""

    def __init__(self, folder: Path, *, fsync: bool = True) -> None:
        self._folder = folder
        self._fsync = fsync
        self._tables: dict[TableId, _Table] = {}
        self._writing = threading.Lock()

    def load(self) -> None:
        """Read every file. JournalDamagedError names the first that is not what was written."""
        paths = sorted(path for path in self._folder.glob("*.json") if not is_temporary(path))
        self._tables = dict(_load(path) for path in paths)

    def path(self, table: TableId) -> Path:
        return self._folder / f"{folder_name(table)}.json"

    def tables(self) -> tuple[TableId, ...]:
        return tuple(self._tables)

    def versions(self, table: TableId) -> Mapping[int, TableSchema]:
        """All versions that are kept, ascending."""
        return {entry.schema.version: entry.schema for entry in self._tables.get(table, _Table()).versions}

    def beginnings(self, table: TableId) -> tuple[Beginning, ...]:
        return self._tables.get(table, _Table()).beginnings

    def position(self, table: TableId, version: int) -> Position | None:
        """Where a version was first seen."""
        entries = self._tables.get(table, _Table()).versions
        return next((entry.position for entry in entries if entry.schema.version == version), None)

    def get(self, table: TableId, version: int) -> TableSchema:
        found = self.versions(table).get(version)
        if found is None:
            raise JournalError(f"the journal has no version {version} of the schema of {table} (any more)")
        return found

    def record(self, schema: TableSchema, position: Position, *, begins: int | None = None) -> TableSchema:
        """``schema`` with its version; a new one only if it is not known yet, durable on return.

        ``begins`` gives a new version a beginning: it is in effect from that change set on.
        """
        with self._writing:
            table = self._tables.get(schema.table, _Table())
            found = table.find(schema, position)
            if found is not None:
                return found
            newest = table.versions[-1].schema.version if table.versions else 0
            numbered = schema.at_version(newest + 1)
            beginnings = table.beginnings
            if begins is not None:
                beginnings = (*beginnings, Beginning(begins, numbered.version))
            self._save(schema.table, _Table((*table.versions, _Version(numbered, position)), beginnings))
            return numbered

    def begin(self, table: TableId, beginning: Beginning) -> None:
        """A version that is known already is in effect again."""
        with self._writing:
            history = self._tables[table]
            self._save(table, replace(history, beginnings=(*history.beginnings, beginning)))

    def prune(self, table: TableId, *, keep_last: int | None, needed: Collection[int], trimmed: int) -> int:
        """Forget old versions that nothing needs, and beginnings at or below ``trimmed``. Returns how many versions.

        The ``keep_last`` newest stay, and so does every version in ``needed``.
        """
        with self._writing:
            history = self._tables[table]
            kept_beginnings = tuple(one for one in history.beginnings if one.number > trimmed)
            wanted = set(needed) | {one.version for one in kept_beginnings}
            old = len(history.versions) - keep_last if keep_last is not None else 0
            kept = tuple(
                entry for index, entry in enumerate(history.versions) if index >= old or entry.schema.version in wanted
            )
            if len(kept) < len(history.versions) or len(kept_beginnings) < len(history.beginnings):
                self._save(table, _Table(kept, kept_beginnings))
            return len(history.versions) - len(kept)

    def _save(self, table: TableId, history: _Table) -> None:
        body = {
            "table": str(table),
            "versions": [
                {"schema": entry.schema.to_json(), "position": entry.position.encode()} for entry in history.versions
            ],
            "marks": [[one.number, one.version] for one in history.beginnings],
        }
        replace_file(self.path(table), pack(body), fsync=self._fsync)
        self._tables = {**self._tables, table: history}


def _load(path: Path) -> tuple[TableId, _Table]:
    body = unpack(path.read_bytes(), path)
    try:
        versions = tuple(
            _Version(TableSchema.from_json(item["schema"]), decode_position(item["position"]))
            for item in body["versions"]
        )
        beginnings = tuple(Beginning(number, version) for number, version in body["marks"])
        return TableId.parse(body["table"]), _Table(versions, beginnings)
    except (KeyError, TypeError, ValueError) as error:
        raise JournalDamagedError(f"{path} is damaged: it is not a schema history ({error!r})") from error


class Numbering:
    """For one change set. ``before`` gives a table's schema as it was before the change set.

    Announcements come first, in order; the batches then find their versions among them, or are the first to show a
    new one. A batch from before the change still finds the old version.
    """

    def __init__(
        self, history: SchemaHistory, before: Callable[[TableId], TableSchema | None], position: Position
    ) -> None:
        self._history = history
        self._before = before
        self._position = position
        self._known: dict[TableSchema, TableSchema] = {}
        self._current: dict[TableId, TableSchema | None] = {}
        self._announced: set[TableId] = set()
        self._final: dict[TableId, int] = {}

    def announce(self, schema: TableSchema) -> None:
        """The table changed to ``schema`` somewhere in the change set."""
        current = self._known_before(schema.table)
        if current is None or not current.same_shape(schema):
            current = self._record(schema)
        self._announced.add(schema.table)
        self._final[schema.table] = current.version

    def number(self, schema: TableSchema) -> TableSchema:
        """The numbered form of a batch's schema."""
        table = schema.table
        self._known_before(table)
        numbered = self._known.get(schema.at_version(0))
        if numbered is None:  # nobody announced it: the rows themselves show the change
            numbered = self._record(schema)
            self._final[table] = numbered.version
        elif table not in self._announced:
            self._final[table] = numbered.version
        return numbered

    def final_versions(self) -> dict[TableId, int]:
        """The version of every table of the change set, at its end.

        A table that was copied under a schema newer than this change set keeps that one: rows of an older shape, from
        before the copy, do not take the table back to it.
        """
        final = dict(sorted(self._final.items()))
        for table in final:
            before = self._before(table)
            if before is None:
                continue
            seen = self._history.position(table, before.version)
            if seen is not None and type(seen) is type(self._position) and seen > self._position:
                final[table] = before.version
        return final

    def _known_before(self, table: TableId) -> TableSchema | None:
        if table not in self._current:
            before = self._current[table] = self._before(table)
            if before is not None:
                self._known[before.at_version(0)] = before
        return self._current[table]

    def _record(self, schema: TableSchema) -> TableSchema:
        numbered = self._history.record(schema, self._position)
        self._current[schema.table] = numbered
        self._known[schema.at_version(0)] = numbered
        return numbered

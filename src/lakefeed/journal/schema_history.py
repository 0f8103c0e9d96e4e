"""SchemaHistory: every version of every table's schema that something in the journal still needs.

One file per table. A version is durable before the first commit that uses it. Recording is idempotent by position: a
schema change that is read again after a crash, alone or with others, in one change set or in several, gets the
version it got before. Versions count 1, 2, 3 … for each table and are never given out again.

A version that a commit uses is in effect from that commit on. One that was recorded for a copy of the table, with no
commit to carry it, has a mark: the change set number from which it is in effect.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lakefeed.change.position import Position, decode_position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import JournalDamagedError, JournalError
from lakefeed.journal import checked_json
from lakefeed.journal.atomic import is_temporary, write_atomic
from lakefeed.journal.layout import folder_name


@dataclass(frozen=True, slots=True)
class Mark:
    """From change set ``number`` on, ``version`` is in effect, unless a commit says otherwise."""

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
    marks: tuple[Mark, ...] = ()

    def find(self, schema: TableSchema, position: Position) -> TableSchema | None:
        """The version that ``schema``, seen at ``position``, already has."""
        same = [version for version in self.versions if version.schema.same_shape(schema)]
        replayed = [version for version in same if _at_or_after(version.position, position)]
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

    def marks(self, table: TableId) -> tuple[Mark, ...]:
        return self._tables.get(table, _Table()).marks

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

        ``begins`` gives a new version a mark: it is in effect from that change set on.
        """
        with self._writing:
            table = self._tables.get(schema.table, _Table())
            found = table.find(schema, position)
            if found is not None:
                return found
            newest = table.versions[-1].schema.version if table.versions else 0
            numbered = schema.at_version(newest + 1)
            marks = (*table.marks, Mark(begins, numbered.version)) if begins is not None else table.marks
            self._save(schema.table, _Table((*table.versions, _Version(numbered, position)), marks))
            return numbered

    def mark(self, table: TableId, mark: Mark) -> None:
        """A version that is known already is in effect again."""
        with self._writing:
            history = self._tables[table]
            self._save(table, replace(history, marks=(*history.marks, mark)))

    def prune(self, table: TableId, *, keep_last: int | None, needed: Collection[int], trimmed: int) -> int:
        """Forget old versions that nothing needs, and marks at or below ``trimmed``. Returns how many versions.

        The ``keep_last`` newest stay, and so does every version in ``needed``.
        """
        with self._writing:
            history = self._tables[table]
            kept_marks = tuple(mark for mark in history.marks if mark.number > trimmed)
            wanted = set(needed) | {mark.version for mark in kept_marks}
            old = len(history.versions) - keep_last if keep_last is not None else 0
            kept = tuple(
                entry for place, entry in enumerate(history.versions) if place >= old or entry.schema.version in wanted
            )
            if len(kept) < len(history.versions) or len(kept_marks) < len(history.marks):
                self._save(table, _Table(kept, kept_marks))
            return len(history.versions) - len(kept)

    def _save(self, table: TableId, history: _Table) -> None:
        body = {
            "table": str(table),
            "versions": [
                {"schema": entry.schema.to_json(), "position": entry.position.encode()} for entry in history.versions
            ],
            "marks": [[mark.number, mark.version] for mark in history.marks],
        }
        write_atomic(self.path(table), checked_json.pack(body), fsync=self._fsync)
        self._tables = {**self._tables, table: history}


def _load(path: Path) -> tuple[TableId, _Table]:
    body = checked_json.unpack(path.read_bytes(), path)
    try:
        versions = tuple(_version(item) for item in body["versions"])
        marks = tuple(Mark(number, version) for number, version in body["marks"])
        return TableId.parse(body["table"]), _Table(versions, marks)
    except (KeyError, TypeError, ValueError) as error:
        raise JournalDamagedError(f"{path} is damaged: it is not a schema history ({error!r})") from error


def _version(item: dict[str, Any]) -> _Version:
    return _Version(TableSchema.from_json(item["schema"]), decode_position(item["position"]))


def _at_or_after(recorded: Position, position: Position) -> bool:
    """False too for positions that have no order: those are never taken for a replay."""
    return type(recorded) is type(position) and recorded >= position

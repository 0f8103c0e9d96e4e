"""Numbering: which schema version each part of one change set has."""

from __future__ import annotations

from collections.abc import Callable

from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.journal.schema_history import SchemaHistory


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
        current = self._look_up(schema.table)
        if current is None or not current.same_shape(schema):
            current = self._record(schema)
        self._announced.add(schema.table)
        self._final[schema.table] = current.version

    def number(self, schema: TableSchema) -> TableSchema:
        """The numbered form of a batch's schema."""
        table = schema.table
        self._look_up(table)
        numbered = self._known.get(schema.at_version(0))
        if numbered is None:  # nobody announced it: the rows themselves tell of the change
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
            if before is not None and self._is_newer(before):
                final[table] = before.version
        return final

    def _is_newer(self, schema: TableSchema) -> bool:
        seen = self._history.position(schema.table, schema.version)
        return seen is not None and type(seen) is type(self._position) and seen > self._position

    def _look_up(self, table: TableId) -> TableSchema | None:
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

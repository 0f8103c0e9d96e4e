"""Replica: the simplest possible lake, a dictionary, which shows the rows that a table must have in the end."""

from __future__ import annotations

from typing import Any

from lakefeed.capture.base import SnapshotPlan
from lakefeed.change.batch import OP, SEQ, Operation
from lakefeed.change.change_set import ChangeSet, RecopyNeeded
from lakefeed.change.schema_change import origins
from lakefeed.change.table import TableId, TableSchema

Key = tuple[Any, ...]
_METADATA = "_lakefeed_"


class Replica:
    """Rows by key, for each table. ``stale`` are the tables for which a notice asked for a new copy."""

    def __init__(self) -> None:
        self.schemas: dict[TableId, TableSchema] = {}
        self.stale: set[TableId] = set()
        self._tables: dict[TableId, dict[Key, dict[str, Any]]] = {}

    def rows(self, table: TableId) -> list[dict[str, Any]]:
        return list(self._tables.get(table, {}).values())

    def copy(self, plan: SnapshotPlan) -> None:
        """Replace a table by the rows of its chunks. A key that occurs twice is a fault of the plan."""
        rows: dict[Key, dict[str, Any]] = {}
        for chunk in plan.chunks:
            with chunk.open() as reader:
                for row in (row for batch in reader for row in batch.to_pylist()):
                    key = _key(plan.schema, row)
                    assert key not in rows, f"{plan.schema.table}: {key} is in two chunks"
                    rows[key] = row
        self._tables[plan.schema.table] = rows
        self.schemas[plan.schema.table] = plan.schema
        self.stale.discard(plan.schema.table)

    def apply(self, change_set: ChangeSet) -> None:
        """Apply the schemas first, then the rows in order."""
        self.stale |= {notice.table for notice in change_set.notices if isinstance(notice, RecopyNeeded)}
        for schema in change_set.schemas:
            self._evolve(schema)
        rows = [
            (int(row[SEQ]), batch.schema, row) for batch in change_set.batches for row in batch.data.to_pylist()
        ]  # fmt: skip
        assert len(rows) == change_set.rows, "the change set counts other rows than it has"
        for _, schema, row in sorted(rows, key=lambda item: item[0]):
            self._apply(schema, row)

    def _apply(self, schema: TableSchema, row: dict[str, Any]) -> None:
        rows = self._tables.setdefault(schema.table, {})
        self.schemas.setdefault(schema.table, schema)
        operation = Operation(row[OP])
        if operation is Operation.BEFORE:
            return
        if operation is Operation.TRUNCATE:
            rows.clear()
            return
        key = _key(schema, row)
        if operation is Operation.DELETE:
            rows.pop(key, None)
        else:
            rows[key] = {name: value for name, value in row.items() if not name.startswith(_METADATA)}

    def _evolve(self, schema: TableSchema) -> None:
        """Convert existing rows to a new schema: columns are renamed and dropped, new ones get their default."""
        old = self.schemas.get(schema.table)
        if old is not None:
            origin = origins(old, schema)
            rows = [
                {
                    column.name: row[was] if (was := origin[column.name]) is not None else column.default
                    for column in schema.columns
                }
                for row in self.rows(schema.table)
            ]
            self._tables[schema.table] = {_key(schema, row): row for row in rows}
        self.schemas[schema.table] = schema


def _key(schema: TableSchema, row: dict[str, Any]) -> Key:
    assert schema.key, f"{schema.table} has no key"
    return tuple(row[name] for name in schema.key)

"""A lake in memory: the TableFormat contract with dictionaries instead of Spark. A test double for the flow.

It applies changes row by row, in order, in the simplest way possible, so it is also the model that the Spark side is
compared with. The object represents the lake's storage: keep it while pipelines come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from lakefeed.change.batch import ABSENT, METADATA, OP, SEQ, Operation
from lakefeed.change.position import Position, highest
from lakefeed.change.schema_change import ChangeKey, RetypeColumn, diff, origins
from lakefeed.change.segment import Segment, Window
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import CommitFailedError, LakeError, RebuildNeededError, TableStoppedError
from lakefeed.failpoint import hit
from lakefeed.lake.base import Applied, Loaded, TableCopy, TableVersion
from lakefeed.lake.layout import Difference
from lakefeed.lake.maintenance import MaintenanceOptions, MaintenanceResult
from lakefeed.lake.mode import Mirror
from lakefeed.lake.route import Route, RoutedFormat, Routes, Rule
from lakefeed.lake.rule.rows import RowRule
from lakefeed.lake.schema.mapping import ColumnMapping

Row = dict[str, Any]
Key = tuple[Any, ...]


@dataclass
class MemoryTable:
    """One table, with what a real one keeps in its commits."""

    generation: int
    schema: TableSchema
    number: int
    copied: int = 0
    high: Position | None = None
    rows: dict[Key, Row] = field(default_factory=dict)
    moved: Row | None = None
    """The row that the last delete removed: an insert of it under another key may lack values."""


class MemoryLake(RoutedFormat):
    """Both the Lake (what a user writes) and the TableFormat it binds to. Every table is a mirror."""

    def __init__(
        self, path: str, *, rules: Sequence[Rule] = (), out_of_range: str | None = None, salt: str = ""
    ) -> None:
        self.path = path
        self.tables: dict[TableId, MemoryTable] = {}
        self.commits = 0
        self._routes = Routes(Mirror(), rules, out_of_range=out_of_range, salt=salt)

    def bind(self, pipeline: str) -> MemoryLake:  # noqa: ARG002  # one lake, one pipeline
        return self

    def rows(self, table: str) -> list[Row]:
        return list(self.tables[TableId.parse(table)].rows.values())

    def scratch(self, path: str) -> MemoryLake:
        return MemoryLake(path)

    def table(self, route: Route) -> MemoryLakeTable:
        return MemoryLakeTable(self, route)


class MemoryLakeTable:
    """One table of a MemoryLake, as a LakeTable. The lake keeps its content."""

    def __init__(self, lake: MemoryLake, route: Route) -> None:
        self.route = route
        self.location = f"memory:{route.table}"
        self._lake = lake

    def applied(self, generation: int) -> Applied | None:
        found = self._lake.tables.get(self.route.table)
        if found is None or found.generation != generation:
            return None
        return Applied(number=found.number, schema_version=found.schema.version, rows=len(found.rows))

    def load(self, copy: TableCopy, progress: Callable[[int], None]) -> Loaded:
        hit("lake.before_load")
        table = self._lake.tables.get(self.route.table)
        if table is None or table.generation != copy.generation:
            table = MemoryTable(copy.generation, copy.schema, copy.base)
            self._lake.tables[self.route.table] = table
        for chunk in copy.chunks[table.copied :]:
            with chunk.open() as reader:
                rows = [row for batch in reader for row in batch.to_pylist()]
                for row in rows:
                    table.rows[_free_key(table, row)] = row
                table.high = highest(table.high, reader.high)
            table.copied += 1
            self._lake.commits += 1
            progress(len(rows))
            hit("lake.during_load")
        hit("lake.after_load")
        return Loaded(rows=len(table.rows), high=table.high)

    def apply(self, window: Window, generation: int) -> Applied:
        table = self._lake.tables[self.route.table]
        if table.generation != generation or table.number >= window.upto:
            return Applied(number=table.number, schema_version=table.schema.version, rows=len(table.rows))
        for stale in window.open_stale_reasons(table.schema.version):
            raise RebuildNeededError(f"table {self.route.table}: {stale.reason}", table=str(self.route.table))
        hit("lake.before_commit")
        after = MemoryTable(table.generation, window.target, window.upto, table.copied, table.high)
        after.rows = _evolved(table.rows, table.schema, window.target)
        changes = [change for segment in window.segments for change in _changes(segment, window)]
        for row in sorted(changes, key=lambda row: row[SEQ]):
            _apply(after, row)
        hit("lake.during_commit")
        if self._lake.tables.get(self.route.table) is not table:  # of two writers, one commits: as a real table does it
            raise CommitFailedError(f"table {self.route.table} has another commit since it was read")
        self._lake.tables[self.route.table] = after
        self._lake.commits += 1
        hit("lake.after_commit")
        return Applied(number=after.number, schema_version=after.schema.version, rows=len(after.rows))

    def states(self, generation: int) -> tuple[TableVersion, ...]:
        """Only the newest: a dictionary has no history."""
        found = self._lake.tables.get(self.route.table)
        if found is None or found.generation != generation:
            return ()
        return (TableVersion(number=found.number, schema_version=found.schema.version, position=found.high, version=0),)

    def check(self, schema: TableSchema, before: TableSchema | None = None) -> tuple[str, ...]:  # noqa: ARG002
        """Accepts every schema."""
        return ()

    def made_by(self, schema: TableSchema, mapping: ColumnMapping, generation: int) -> None:
        """Its rows are the source's."""

    def rule(self, generation: int | None = None) -> RowRule:  # noqa: ARG002  # it makes no rows by rules
        return RowRule()

    def touched(self, generation: int) -> Mapping[str, int]:  # noqa: ARG002  # the seam's
        return {}

    def is_in_place(self, path: Sequence[TableSchema]) -> bool:  # noqa: ARG002  # the seam's
        return True

    def laid_out_otherwise(self) -> tuple[Difference, ...]:
        return ()

    def maintain(self, options: MaintenanceOptions, key: Sequence[str]) -> MaintenanceResult:  # noqa: ARG002  # it has no files
        return MaintenanceResult()

    def current(self, source: TableSchema, generation: int) -> Any:  # noqa: ARG002  # there is no Spark to give it to
        raise LakeError(f"{self.location} cannot be compared on Spark", remedy="Compare tables of a Delta lake.")

    def chunks(self, state: TableVersion, schema: TableSchema) -> tuple[RowsChunk, ...]:
        rows = list(self._lake.tables[self.route.table].rows.values())
        return (RowsChunk(schema, rows, state.position),)


@dataclass
class RowsChunk:
    """Rows of a table, read at once. It is its own reader."""

    schema: TableSchema
    rows: list[Row]
    high: Position | None

    @property
    def table(self) -> TableId:
        return self.schema.table

    @contextmanager
    def open(self) -> Iterator[Self]:
        yield self

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist(self.rows, schema=self.schema.arrow)


def _free_key(table: MemoryTable, row: Mapping[str, Any]) -> Key:
    """The key of a new row: in a table without a key all its values, and a number that equal rows do not have."""
    if table.schema.key:
        return tuple(row[name] for name in table.schema.key)
    key = tuple(repr(row[name]) for name in table.schema.names)
    return next((*key, number) for number in count() if (*key, number) not in table.rows)


def _last_key(table: MemoryTable, row: Mapping[str, Any]) -> Key:
    """The key of a row: of several equal ones in a table without a key, the last."""
    *key, last = _free_key(table, row)
    return (*key, last if table.schema.key else last - 1)


def _evolved(rows: Mapping[Key, Row], old: TableSchema, new: TableSchema) -> dict[Key, Row]:
    for change in diff(old, new):
        if isinstance(change, ChangeKey):
            raise RebuildNeededError(f"table {new.table} cannot follow {change}", table=str(new.table))
        if isinstance(change, RetypeColumn):
            raise TableStoppedError(f"table {new.table} cannot follow {change}", table=str(new.table))
    evolved = MemoryTable(0, new, 0)
    for key, row in rows.items():
        projected = _projected(row, old, new)
        evolved.rows[key if new.key else _free_key(evolved, projected)] = projected
    return evolved.rows


def _projected(row: Row, old: TableSchema, new: TableSchema) -> Row:
    """A row of schema ``old`` as a row of schema ``new``; columns added later get their default."""
    origin = origins(old, new)
    return {name: new.column(name).default if was is None else row[was] for name, was in origin.items()}


def _changes(segment: Segment, window: Window) -> list[Row]:
    schema = window.schemas[segment.schema_version]
    found = []
    for row in pq.read_table(segment.path, partitioning=None).to_pylist():
        own = _projected(row, schema, window.target)
        found.append(own | {name: row[name] for name in METADATA.names})
    return found


def _apply(table: MemoryTable, row: Row) -> None:
    operation, absent = Operation(row[OP]), row[ABSENT] or ()
    own = {name: row[name] for name in table.schema.names}
    key = _last_key(table, own) if operation is Operation.DELETE else _free_key(table, own)
    if operation is Operation.BEFORE:
        return
    if operation is Operation.TRUNCATE:
        table.rows.clear()
    elif operation is Operation.DELETE:
        table.moved = table.rows.pop(key, None)
    elif absent:
        before = table.moved if operation is Operation.INSERT and table.moved is not None else table.rows[key]
        table.rows[key] = {name: before[name] if name in absent else value for name, value in own.items()}
    else:
        table.rows[key] = own

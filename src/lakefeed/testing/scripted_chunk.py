"""A snapshot chunk of a ScriptedCapture: a slice of the rows it was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema


@dataclass(slots=True)
class ScriptedContent:
    """The rows and schemas that snapshots read. ``pinned`` stands in for ``head``: a reader that sees an old state."""

    rows: dict[TableId, list[Mapping[str, Any]]]
    schemas: dict[TableId, TableSchema]
    head: Position
    pinned: Position | None = None


@dataclass(frozen=True, slots=True)
class ScriptedChunk:
    """Rows ``start`` to ``stop`` (None: to the end) as they are when it is opened."""

    content: ScriptedContent = field(compare=False, repr=False)
    table: TableId
    start: int
    stop: int | None

    def open(self) -> ScriptedReader:
        rows = self.content.rows.get(self.table, [])[self.start : self.stop]
        return ScriptedReader(self.content.schemas[self.table], rows, self.content.pinned or self.content.head)

    def to_json(self) -> Mapping[str, Any]:
        return {"table": str(self.table), "start": self.start, "stop": self.stop}


class ScriptedReader:
    """An exact chunk: ``low`` and ``high`` are one."""

    def __init__(self, schema: TableSchema, rows: Sequence[Mapping[str, Any]], at: Position) -> None:
        self._schema = schema
        self._rows = rows
        self.low = at
        self.high = at

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([dict(row) for row in self._rows], schema=self._schema.arrow)

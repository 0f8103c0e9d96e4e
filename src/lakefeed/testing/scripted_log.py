"""A ChangeLog and a chunk without a journal or a database, for tests of table formats and of the sync engine.

log = ScriptedLog(tmp_path)
people = log.schema_of(table("main.people", {"id": pa.int64()}, key=("id",)))
log.add(batch(people, [("insert", {"id": 1})]))
format.apply(log.window(people.table, 0, log.head), generation=1)
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from lakefeed.change.batch import ABSENT, OP, SEQ, ChangeBatch, Operation
from lakefeed.change.position import Position
from lakefeed.change.segment import Counts, Segment, StaleReason, Window
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import JournalError
from lakefeed.testing.builders import at


class ScriptedLog:
    """Change sets that a test adds; segments are real Parquet files. Satisfies ``lake.base.ChangeLog``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sets: list[tuple[Segment, ...]] = []
        self._schemas: dict[TableId, list[tuple[int, TableSchema]]] = {}
        self._seq = 0
        self._stale: list[tuple[int, TableId, StaleReason]] = []
        self.trimmed = 0

    def schema_of(self, schema: TableSchema) -> TableSchema:
        """Give a schema its version, effective from the next change set on."""
        known = self._schemas.setdefault(schema.table, [])
        numbered = schema.at_version(len(known) + 1)
        known.append((self.head + 1, numbered))
        return numbered

    def add(self, *batches: ChangeBatch) -> int:
        """Append one change set; returns its number."""
        self._sets.append(tuple(self._write(batch) for batch in batches))
        return self.head

    def add_stale_reason(self, table: TableId, reason: str, columns: tuple[str, ...] | None = None) -> None:
        """The next change set says about ``table`` what a RecopyNeeded would say."""
        self._stale.append((self.head + 1, table, StaleReason(self._schemas[table][-1][1].version, reason, columns)))

    @property
    def head(self) -> int:
        return len(self._sets)

    def position(self, number: int) -> Position | None:
        return at(number) if number else None

    def schema(self, table: TableId, version: int) -> TableSchema:
        return self._schemas[table][version - 1][1]

    def window(self, table: TableId, after: int, upto: int) -> Window:
        if after < self.trimmed:
            raise JournalError(f"change sets up to {self.trimmed} have been trimmed")
        known = self._schemas[table]
        target = [schema for number, schema in known if number <= max(upto, 1)][-1]
        segments = tuple(part for parts in self._sets[after:upto] for part in parts if part.table == table)
        schemas = {schema.version: schema for _, schema in known}
        stale = tuple(one for number, of, one in self._stale if of == table and after < number <= upto)
        return Window(table, after, upto, self.position(upto), segments, target, schemas, stale_reasons=stale)

    def check(self, window: Window) -> None:
        """Does nothing: its segments have no checksums."""

    def _write(self, batch: ChangeBatch) -> Segment:
        data = batch.data
        first = self._seq + 1
        self._seq += batch.rows
        order = pa.array(range(first, self._seq + 1), pa.int64())
        data = data.set_column(data.schema.get_field_index(SEQ), data.schema.field(SEQ), order)
        path = self._directory / f"{uuid.uuid4()}.parquet"
        pq.write_table(pa.Table.from_batches([data]), path, compression="zstd")
        operations: list[Any] = data.column(OP).to_pylist()
        truncates = [first + row for row, operation in enumerate(operations) if operation == Operation.TRUNCATE]
        absent = sorted({name for names in data.column(ABSENT).to_pylist() for name in names or ()})
        return Segment(
            batch.table, str(path), batch.rows, path.stat().st_size, batch.schema.version, first, self._seq,
            counts=_counts(operations), truncated_at=max(truncates, default=None), absent=tuple(absent),
        )  # fmt: skip


def _counts(operations: list[Any]) -> Counts:
    def of(*kinds: Operation) -> int:
        return sum(operations.count(int(kind)) for kind in kinds)

    return Counts(
        of(Operation.INSERT, Operation.READ), of(Operation.UPDATE), of(Operation.DELETE), of(Operation.TRUNCATE)
    )


@dataclass(frozen=True)
class ListChunk:
    """A chunk of given rows. Each read leaves a mark, even in another process: see ``reads``."""

    table: TableId
    data: pa.RecordBatch
    read_at: int
    marks: Path

    @classmethod
    def of(cls, schema: TableSchema, rows: Sequence[dict[str, Any]], *, read_at: int, marks: Path) -> Self:
        return cls(schema.table, pa.RecordBatch.from_pylist(list(rows), schema=schema.arrow), read_at, marks)

    def open(self) -> ListChunkReader:
        return ListChunkReader(self)

    @staticmethod
    def reads(marks: Path) -> int:
        return len(list(marks.glob("read-*")))


class ListChunkReader:
    """See ``capture.base.ChunkReader``."""

    def __init__(self, chunk: ListChunk) -> None:
        self._chunk = chunk

    def __enter__(self) -> Self:
        (self._chunk.marks / f"read-{uuid.uuid4()}").touch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        half = self._chunk.data.num_rows // 2
        yield self._chunk.data.slice(0, half)
        yield self._chunk.data.slice(half)

    @property
    def low(self) -> Position:
        return at(self._chunk.read_at)

    @property
    def high(self) -> Position:
        return at(self._chunk.read_at)

"""Which columns of a source table the pipeline takes. What is left out never reaches the journal, whatever the source.

The choice is a list of globs per source table (``lake.tables[].columns``): a column is taken if one of them matches it
and none that begins with ``!`` does; a list of nothing but ``!`` takes all others. The columns of the key are always
taken: a list that leaves one out stops its table before the copy (TableStoppedError), and so does a glob that matches
no column. A column that is added later is judged by the same list.

A schema remembers what was left out (``TableSchema.left_out``): so the source is told after a restart what its tables
looked like, and a changed list is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Self

import pyarrow as pa

from lakefeed.capture.base import Chunk, ChunkReader, SnapshotPlan
from lakefeed.capture.snapshot import TableChunk
from lakefeed.change.batch import ABSENT, ChangeBatch, change_schema
from lakefeed.change.change_set import ChangeSet, RecopyNeeded, TableNotice
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import TableStoppedError

_INNER, _NAMES = "shaped", "names"


class Shape:
    """``columns`` gives the list of a source table; an empty one takes every column. None: there is no list at all."""

    def __init__(self, columns: Callable[[TableId], Sequence[str]] | None) -> None:
        self._is_plain = columns is None
        self._columns = columns or (lambda _: ())

    def schema(self, schema: TableSchema) -> TableSchema:
        """What is taken of a table with this schema, as the source has it."""
        globs = self._columns(schema.table)
        if not globs:
            return schema
        return schema.without([name for name in schema.names if name not in schema.key and not _takes(globs, name)])

    def planned(self, plan: SnapshotPlan) -> SnapshotPlan:
        """The copy of what is taken: the columns left out are not even read where the chunk is one of the kit's.

        TableStoppedError for a list that does not fit the table.
        """
        globs = self._columns(plan.schema.table)
        if not globs:
            return plan
        for name in plan.schema.key:
            if not _takes(globs, name):
                raise _unfit(plan.schema, f"leaves out {name}, which is part of the key", f"Add '{name}' to the list.")
        for glob in globs:
            if not any(fnmatchcase(name, glob.removeprefix("!")) for name in plan.schema.names):
                listed = ", ".join(plan.schema.names)
                raise _unfit(plan.schema, f"has '{glob}', which matches no column", f"Its columns are {listed}.")
        schema = self.schema(plan.schema)
        return replace(plan, schema=schema, chunks=tuple(_taken(chunk, schema) for chunk in plan.chunks))

    def change_set(self, change_set: ChangeSet) -> ChangeSet:
        """The same changes without what is left out."""
        if self._is_plain or change_set.is_heartbeat:
            return change_set
        return replace(
            change_set,
            batches=_Batches(change_set.batches, self),
            schemas=tuple(map(self.schema, change_set.schemas)),
            notices=tuple(one for notice in change_set.notices for one in self._notices(notice)),
        )

    def batch(self, batch: ChangeBatch) -> ChangeBatch:
        schema = self.schema(batch.schema)
        if schema is batch.schema:
            return batch
        data = batch.data
        absent = _without(data.column(ABSENT), [column.name for _, column in schema.left_out])
        arrays = [absent if one.name == ABSENT else data.column(one.name) for one in change_schema(schema)]
        return ChangeBatch(schema, pa.RecordBatch.from_arrays(arrays, schema=change_schema(schema)))

    def _notices(self, notice: TableNotice) -> Iterator[TableNotice]:
        """Stale columns that are left out are nobody's concern."""
        if isinstance(notice, RecopyNeeded) and notice.columns and (globs := self._columns(notice.table)):
            columns = tuple(name for name in notice.columns if _takes(globs, name))
            if columns:
                yield replace(notice, columns=columns)
        else:
            yield notice


def chunk_from_json(data: Mapping[str, Any], chunk: Callable[[Mapping[str, Any]], Chunk]) -> Chunk:
    """A planned chunk back from its JSON; ``chunk`` is the capture's."""
    return _TakenChunk(chunk(data[_INNER]), tuple(data[_NAMES])) if _INNER in data else chunk(data)


@dataclass(frozen=True, slots=True)
class _Batches:
    """Lazy, and as often as the source's own."""

    batches: Iterable[ChangeBatch]
    shape: Shape

    def __iter__(self) -> Iterator[ChangeBatch]:
        return map(self.shape.batch, self.batches)


@dataclass(frozen=True, slots=True)
class _TakenChunk:
    """Some columns of a chunk that cannot leave the others out itself."""

    chunk: Chunk
    names: tuple[str, ...]

    @property
    def table(self) -> TableId:
        return self.chunk.table

    def open(self) -> _TakenRows:
        return _TakenRows(self.chunk.open(), self.names)

    def to_json(self) -> dict[str, Any]:
        return {_INNER: dict(self.chunk.to_json()), _NAMES: list(self.names)}


@dataclass(frozen=True, slots=True)
class _TakenRows(ChunkReader):
    reader: ChunkReader
    names: tuple[str, ...]

    def __enter__(self) -> Self:
        self.reader.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.reader.__exit__(*error)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return (batch.select(list(self.names)) for batch in self.reader)

    @property
    def low(self) -> Position:
        return self.reader.low

    @property
    def high(self) -> Position:
        return self.reader.high


def _taken(chunk: Chunk, schema: TableSchema) -> Chunk:
    if isinstance(chunk, TableChunk):
        return replace(chunk, schema=schema)
    return _TakenChunk(chunk, schema.names)


def _takes(globs: Sequence[str], name: str) -> bool:
    wanted = [glob for glob in globs if not glob.startswith("!")]
    unwanted = [glob.removeprefix("!") for glob in globs if glob.startswith("!")]
    is_wanted = not wanted or any(fnmatchcase(name, glob) for glob in wanted)
    return is_wanted and not any(fnmatchcase(name, glob) for glob in unwanted)


def _without(absent: Any, names: Sequence[str]) -> Any:
    """Lists of column names without these; a list that is left with none is NULL, as for a row that came whole."""
    if absent.null_count == len(absent):
        return absent
    kept = [[name for name in one if name not in names] if one else None for one in absent.to_pylist()]
    return pa.array([one or None for one in kept], absent.type)


def _unfit(schema: TableSchema, problem: str, remedy: str) -> TableStoppedError:
    text = f"table {schema.table}: the list of columns in its rule {problem}"
    return TableStoppedError(text, remedy=f"Correct columns in lake.tables. {remedy}", table=str(schema.table))

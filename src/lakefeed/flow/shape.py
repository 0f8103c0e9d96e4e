"""Which columns of a source table the pipeline takes, and which of them it masks. Columns that are left out never reach
the journal, and neither does the clear text of sensitive ones, whatever the source is.

Columns are chosen by a list of globs per source table (``lake.tables[].columns``): a column is taken if one of them
matches it and none with ``!`` does; if all have a ``!``, all other columns are taken. Key columns are always taken: a
list that leaves one out stops its table before the copy (TableStoppedError), and so does a glob that matches no column,
unless the rule is for many tables. The same list applies to columns that are added later.

Masks (``lake.tables[].mask`` of a ``sensitive`` rule) are applied column by column in Arrow, to copied rows and to
changes (``change.mask``). Only masks that keep different values different may mask a key.

A schema records what was left out, and the source's form of what was masked (``TableSchema.left_out``): after a restart
the source can be told what its tables looked like, and a changed list is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Self

import pyarrow as pa

from lakefeed.capture.base import Chunk, ChunkReader, SnapshotPlan
from lakefeed.capture.snapshot import TableChunk
from lakefeed.change.batch import ABSENT, ChangeBatch, change_schema
from lakefeed.change.change_set import ChangeSet, RecopyNeeded, TableBlocked, TableNotice
from lakefeed.change.choice import NOTHING_CHOSEN, Choices, TableChoice
from lakefeed.change.mask import KEYED, can_mask, masked, masked_type
from lakefeed.change.position import Position
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.errors import TableStoppedError
from lakefeed.lake.rule.rows import RowRule

_INNER, _NAMES = "shaped", "names"
_MASKED, _BY_COLUMN = "masked", "masks"
_NO_MASKS = RowRule()

UNUSED = "Correct it or remove it from the section lake: a rule that matches nothing looks like one that works."


class Shape:
    """``columns`` returns the list for a source table; an empty one takes every column. None: there are no lists at
    all.

    ``sensitive`` returns the masks of a source table, as a rule with nothing else; None: there are no masks at all.
    ``choices`` know which globs come from a rule for many tables, so that a table need not have such a column.
    """

    def __init__(
        self,
        columns: Callable[[TableId], Sequence[str]] | None,
        sensitive: Callable[[TableId], RowRule] | None = None,
        choices: Choices = NOTHING_CHOSEN,
    ) -> None:
        self._choices = choices
        self._is_plain = columns is None and sensitive is None
        self._columns = columns or (lambda _: ())
        self._sensitive = sensitive or (lambda _: _NO_MASKS)
        self._masked: dict[TableId, set[str]] = {}  # columns that have been masked so far
        self._blocked: set[TableId] = set()

    def recall(self, schemas: Iterable[TableSchema]) -> None:
        """Takes the newest schemas in the journal, which say what was masked before this process."""
        for schema in schemas:
            names = {one.name for _, one in schema.left_out if one.name in schema.names}
            self._masked.setdefault(schema.table, set()).update(names)

    def schema(self, schema: TableSchema) -> TableSchema:
        """What the pipeline takes of a table; ``schema`` is the source's own."""
        globs, masks = self._columns(schema.table), self._masks(schema)
        left_out = [name for name in schema.names if globs and name not in schema.key and not _takes(globs, name)]
        return schema.without(left_out, [masks.column(one) for one in schema.columns if one.name in masks.by_column])

    def planned(self, plan: SnapshotPlan) -> SnapshotPlan:
        """The copy of what is taken. Chunks of the capture kit do not even read the columns that are left out.

        TableStoppedError for a list or a mask that does not suit the table.
        """
        globs, masks = self._columns(plan.schema.table), self._masks(plan.schema)
        self._require_fitting_masks(plan.schema)
        self._blocked.discard(plan.schema.table)
        if not globs and not masks.by_column:
            return plan
        for name in plan.schema.key:
            if globs and not _takes(globs, name):
                raise _unfit(plan.schema, f"leaves out {name}, which is part of the key", f"Add '{name}' to the list.")
        optional = self._choices.of(plan.schema.table).optional
        for glob in (one for one in globs if one not in optional):
            if not any(fnmatchcase(name, glob.removeprefix("!")) for name in plan.schema.names):
                listed = ", ".join(plan.schema.names)
                raise _unfit(plan.schema, f"has '{glob}', which matches no column", f"Its columns are {listed}.")
        schema = self.schema(plan.schema)
        clear = plan.schema.without([name for name in plan.schema.names if name not in schema.names])
        chunks = [_taken(chunk, clear) if globs else chunk for chunk in plan.chunks]
        if masks.by_column:
            chunks = [_MaskedChunk(chunk, masks) for chunk in chunks]
        return replace(plan, schema=schema, chunks=tuple(chunks))

    def chunk(self, data: Mapping[str, Any], chunk: Callable[[Mapping[str, Any]], Chunk]) -> Chunk:
        """The inverse of ``Chunk.to_json``; ``chunk`` is the capture's. The salt of masks is never part of the JSON."""
        if _MASKED in data:
            inner = self.chunk(data[_MASKED], chunk)
            rule = self._sensitive(inner.table)
            return _MaskedChunk(inner, _Masks(data[_BY_COLUMN], rule.salt))
        return _TakenChunk(chunk(data[_INNER]), tuple(data[_NAMES])) if _INNER in data else chunk(data)

    def masks_key(self, schema: TableSchema) -> bool:
        """Whether a part of the key is masked: then the source's row cannot be found from the lake's values."""
        return any(name in self._masks(schema).by_column for name in schema.key)

    def change_set(self, change_set: ChangeSet) -> ChangeSet:
        """The same changes, without the columns that are left out, and masked."""
        if self._is_plain or change_set.is_heartbeat:
            return change_set
        notices = [one for notice in change_set.notices for one in self._notices(notice)]
        # The schema of a table that was blocked before a restart is not announced again.
        unseen = (one.schema for one in change_set.batches) if self._masked else ()
        for schema in (*change_set.schemas, *unseen):
            if (lost := self._lost_masks(schema)) and schema.table not in self._blocked:
                error = _unmasked(schema, f"is for the column {lost[0]}, which the table no longer has")
                notices.append(TableBlocked(schema.table, error.message, error.remedy))
                self._blocked.add(schema.table)
        rows = change_set.rows
        if self._blocked:  # drop the rows of blocked tables
            kept = (one for one in change_set.batches if one.schema.table not in self._blocked)
            rows = sum(one.data.num_rows for one in kept)
        return replace(
            change_set,
            batches=_Batches(change_set.batches, self),
            rows=rows,
            schemas=tuple(self.schema(one) for one in change_set.schemas if one.table not in self._blocked),
            notices=tuple(notices),
        )

    def batch(self, batch: ChangeBatch) -> ChangeBatch | None:
        """None for a table that is blocked because a masked column is gone or has another name."""
        if batch.schema.table in self._blocked:
            return None
        if lost := self._lost_masks(batch.schema):  # nobody announced it: better nothing than clear text
            raise _unmasked(batch.schema, f"is for the column {lost[0]}, which the table no longer has")
        schema = self.schema(batch.schema)
        if schema is batch.schema:
            return batch
        data, masks = batch.data, self._masks(batch.schema)
        absent = _without(data.column(ABSENT), [one.name for _, one in schema.left_out if one.name not in schema.names])
        arrays = [
            absent if one.name == ABSENT else masks.masked(one.name, data.column(one.name))
            for one in change_schema(schema)
        ]
        layout = change_schema(schema).with_metadata(data.schema.metadata)
        return ChangeBatch(schema, pa.RecordBatch.from_arrays(arrays, schema=layout))

    def _masks(self, schema: TableSchema) -> _Masks:
        rule = self._sensitive(schema.table)
        by_column = {name: kind for name, kind in rule.mask if name in schema.names}
        if by_column:
            self._masked.setdefault(schema.table, set()).update(by_column)
        return _Masks(by_column, rule.salt)

    def _lost_masks(self, schema: TableSchema) -> list[str]:
        """Columns that should be masked and do not exist: under another name they would arrive as clear text."""
        rule, known = self._sensitive(schema.table), self._masked.get(schema.table, set())
        expected = [name for name, _ in rule.mask if name not in rule.optional or name in known]
        return [name for name in expected if name not in schema.names]

    def _require_fitting_masks(self, schema: TableSchema) -> None:
        rule = self._sensitive(schema.table)
        for name in self._lost_masks(schema):
            raise _unmasked(schema, f"names the column {name}, which the table does not have")
        for name, kind in rule.mask:
            if name not in schema.names:
                continue
            column = schema.column(name)
            if name in schema.key and kind not in KEYED:
                raise _unmasked(schema, f"of {name} is {kind}, which makes different keys one")
            if not can_mask(column.type, kind):
                raise _unmasked(schema, f"of {name} is {kind}, which a column of type {column.type} cannot have")

    def _notices(self, notice: TableNotice) -> Iterator[TableNotice]:
        """Drops stale columns that are left out: they concern nobody."""
        if isinstance(notice, RecopyNeeded) and notice.columns and (globs := self._columns(notice.table)):
            columns = tuple(name for name in notice.columns if _takes(globs, name))
            if columns:
                yield replace(notice, columns=columns)
        else:
            yield notice


@dataclass(frozen=True, slots=True)
class _Masks:
    """The masks of one table's columns. Picklable, including the salt: it goes to Spark tasks, and into no file."""

    by_column: Mapping[str, str]
    salt: str = field(repr=False)

    def column(self, column: Column) -> Column:
        kind = self.by_column[column.name]
        default = column.default
        if default is not None:
            default = self.masked(column.name, pa.array([default], column.type))[0].as_py()
        return replace(column, type=masked_type(column.type, kind), default=default)

    def masked(self, name: str, values: Any) -> Any:
        return masked(values, self.by_column[name], self.salt) if name in self.by_column else values


@dataclass(frozen=True, slots=True)
class _MaskedChunk:
    """A chunk whose rows are masked as they are read."""

    chunk: Chunk
    masks: _Masks

    @property
    def table(self) -> TableId:
        return self.chunk.table

    def open(self) -> _MaskedRows:
        return _MaskedRows(self.chunk.open(), self.masks)

    def to_json(self) -> dict[str, Any]:
        return {_MASKED: dict(self.chunk.to_json()), _BY_COLUMN: dict(self.masks.by_column)}


@dataclass(frozen=True, slots=True)
class _MaskedRows(ChunkReader):
    reader: ChunkReader
    masks: _Masks

    def __enter__(self) -> Self:
        self.reader.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.reader.__exit__(*error)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self.reader:
            arrays = [self.masks.masked(one.name, batch.column(one.name)) for one in batch.schema]
            fields = [one.with_type(values.type) for one, values in zip(batch.schema, arrays, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields).with_metadata(batch.schema.metadata))

    @property
    def low(self) -> Position:
        return self.reader.low

    @property
    def high(self) -> Position:
        return self.reader.high


@dataclass(frozen=True, slots=True)
class _Batches:
    """Lazy, and as repeatable as the source's own."""

    batches: Iterable[ChangeBatch]
    shape: Shape

    def __iter__(self) -> Iterator[ChangeBatch]:
        return (shaped for batch in self.batches if (shaped := self.shape.batch(batch)) is not None)


@dataclass(frozen=True, slots=True)
class _TakenChunk:
    """Some columns of a chunk that cannot leave out the others itself."""

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
    return TableChoice(tuple(globs)).takes(name)


def _without(absent: Any, names: Sequence[str]) -> Any:
    """Lists of column names without these; an empty list becomes NULL, as for a row that was sent completely."""
    if absent.null_count == len(absent):
        return absent
    kept = [[name for name in one if name not in names] if one else None for one in absent.to_pylist()]
    return pa.array([one or None for one in kept], absent.type)


def _unfit(schema: TableSchema, problem: str, remedy: str) -> TableStoppedError:
    text = f"table {schema.table}: the list of columns in its rule {problem}"
    return TableStoppedError(text, remedy=f"Correct columns in lake.tables. {remedy}", table=str(schema.table))


def _unmasked(schema: TableSchema, problem: str) -> TableStoppedError:
    listed = ", ".join(schema.names)
    return TableStoppedError(
        f"table {schema.table}: a mask that is applied before the journal {problem}",
        remedy=f"Correct mask in the rule for {schema.table}; its columns are {listed}. A part of the key may have "
        f"{' or '.join(KEYED)}.",
        table=str(schema.table),
    )

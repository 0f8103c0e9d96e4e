"""Assembler: runs of messages → change sets that end at a commit. No I/O but the spill file.

``add`` takes runs as they come, also in the middle of a transaction; ``cut`` hands out what is complete. Places in a
change set (``_lakefeed_seq``) grow with the stream; there are gaps, because an update may become several rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from lakefeed.capture.postgres import message as wire
from lakefeed.capture.postgres.layout import Layout
from lakefeed.capture.postgres.rows import PLACES, decode_rows
from lakefeed.capture.postgres.slices import Ints, integers
from lakefeed.capture.postgres.spill import MEMORY_BYTES, Parts
from lakefeed.capture.postgres.text import UnfitError
from lakefeed.change.batch import METADATA, ChangeBatch, Operation, change_schema
from lakefeed.change.change_set import ChangeSet, RecopyNeeded, TableBlocked, TableNotice
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import DecodeError

_OPERATION, _SEQ, _CODE, _ABSENT = "op", "seq", "transaction", "absent"
_PART = pa.schema([(_OPERATION, pa.int8()), (_SEQ, pa.int64()), (_CODE, pa.int32()), (_ABSENT, pa.list_(pa.string()))])
_TIME = METADATA.field("_lakefeed_time").type


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a relation message means. No layout: the table is not captured. ``schema`` is set if its shape changed."""

    layout: Layout | None
    schema: TableSchema | None = None
    notices: tuple[TableNotice, ...] = ()


Resolve = Callable[[wire.Relation], Resolved]


@dataclass(slots=True)
class Transactions:
    """Of each transaction in a change set: end of its commit record, commit time (microseconds since 1970), id."""

    ends: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    xids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Draft:
    """The change set that is being put together."""

    parts: Parts
    tables: list[TableSchema] = field(default_factory=list)
    transactions: Transactions = field(default_factory=Transactions)
    schemas: list[TableSchema] = field(default_factory=list)
    notices: list[TableNotice] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    next_seq: int = 0


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches of a change set; each iteration makes them anew from what is kept."""

    parts: Parts
    tables: tuple[TableSchema, ...]
    transactions: Transactions

    def __iter__(self) -> Iterator[ChangeBatch]:
        for schema, part in zip(self.tables, self.parts, strict=True):
            yield ChangeBatch(schema, self._batch(schema, part))

    def _batch(self, schema: TableSchema, part: pa.RecordBatch) -> pa.RecordBatch:
        width = len(schema.columns)
        operations, seqs, codes, absent = part.columns[width:]
        numbers = codes.to_numpy()
        first, last = int(numbers.min()), int(numbers.max())
        chosen = slice(first, last + 1)
        indices = pa.array(numbers - first)
        ends = [PostgresLsn(end).encode() for end in self.transactions.ends[chosen]]
        times = pa.array(self.transactions.times[chosen], pa.int64()).cast(_TIME)
        xids = [str(xid) for xid in self.transactions.xids[chosen]]
        meta = [
            operations,
            seqs,
            pa.DictionaryArray.from_arrays(indices, pa.array(ends)),
            times.take(indices),
            pa.DictionaryArray.from_arrays(indices, pa.array(xids)),
            absent,
        ]
        return pa.RecordBatch.from_arrays([*part.columns[:width], *meta], schema=change_schema(schema))


class Assembler:
    """See the module. ``position`` is where the last change set that was cut ended; ``reached`` may be further.

    A table in ``blocked`` had a value that its columns cannot hold: nothing of it is delivered any more. With
    ``before_images`` the old rows that the stream carries whole are delivered, too.
    """

    def __init__(
        self,
        position: PostgresLsn,
        resolve: Resolve,
        *,
        memory_bytes: int = MEMORY_BYTES,
        before_images: bool = False,
    ) -> None:
        self.position = position
        self.reached = position
        self.in_transaction = False
        self.blocked: set[TableId] = set()
        self._resolve = resolve
        self._before_images = before_images
        self._memory_bytes = memory_bytes
        self._layouts: dict[int, Layout | None] = {}
        self._draft = _Draft(Parts(memory_bytes=memory_bytes))

    @property
    def rows(self) -> int:
        return self._draft.rows

    @property
    def bytes(self) -> int:
        return self._draft.bytes

    @property
    def is_empty(self) -> bool:
        """Nothing for the lake has been taken in since the last cut."""
        draft = self._draft
        return not (draft.rows or draft.notices or draft.schemas)

    def tell(self, found: Resolved) -> None:
        """Say something about a table with the next change set."""
        for notice in found.notices:
            if isinstance(notice, TableBlocked):
                if notice.table in self.blocked:
                    continue  # it was said already
                self.blocked.add(notice.table)
            self._draft.notices.append(notice)
        if found.schema is not None:
            self._draft.schemas.append(found.schema)

    def add(self, run: wire.Run) -> None:
        """Take in messages. DecodeError if they are not what PostgreSQL sends."""
        codes = self._transactions(run)
        truncates = {
            int(index): wire.read_truncate(run.message(int(index)))
            for index in np.flatnonzero(run.kinds == wire.TRUNCATE)
        }
        seqs = self._places(run, truncates)
        start = 0
        special = np.flatnonzero((run.kinds == wire.RELATION) | (run.kinds == wire.TRUNCATE))
        for index in special.tolist():
            self._rows(run, start, index, seqs, codes)
            if index in truncates:
                self._truncate(truncates[index], int(seqs[index]), int(codes[index]))
            else:
                self._relation(wire.read_relation(run.message(index)))
            start = index + 1
        self._rows(run, start, len(run), seqs, codes)
        self._draft.bytes += run.size

    def cut(self) -> ChangeSet:
        """Everything since the last cut. Only between transactions."""
        assert not self.in_transaction  # noqa: S101  # the caller cuts at commits
        draft, start = self._draft, self.position
        self._draft = _Draft(Parts(memory_bytes=self._memory_bytes))
        self.position = self.reached
        batches = Batches(draft.parts, tuple(draft.tables), draft.transactions)
        return ChangeSet(start, self.reached, batches, draft.rows, tuple(draft.schemas), tuple(draft.notices))

    def advance(self, reached: PostgresLsn) -> None:
        """The source has nothing more up to ``reached``. Ignored inside a transaction: its commit is to come."""
        if not self.in_transaction and reached > self.reached:
            self.reached = reached

    def _transactions(self, run: wire.Run) -> Ints:
        """The transaction that each message belongs to, by its number in the change set."""
        begin, commit = run.kinds == wire.BEGIN, run.kinds == wire.COMMIT
        depth = int(self.in_transaction) + np.cumsum(begin) - np.cumsum(commit)
        inside = np.isin(run.kinds, (wire.INSERT, wire.UPDATE, wire.DELETE, wire.TRUNCATE))
        if np.any(depth[begin | inside] != 1) or np.any(depth[commit] != 0):
            raise DecodeError("messages do not come in whole transactions")
        transactions = self._draft.transactions
        codes: Ints = len(transactions.xids) - 1 + np.cumsum(begin)
        begins = wire.read_begins(run)
        transactions.times += begins.times.tolist()
        transactions.xids += begins.xids.tolist()
        ends = wire.read_commits(run).tolist()
        transactions.ends += ends
        if len(run):
            self.in_transaction = bool(depth[-1])
        if ends:
            self.reached = max(self.reached, PostgresLsn(ends[-1] & 0xFFFF_FFFF_FFFF_FFFF))
        return codes

    def _places(self, run: wire.Run, truncates: dict[int, wire.Truncate]) -> Ints:
        """``PLACES`` for a row message, one for each table of a truncate."""
        widths = np.where(np.isin(run.kinds, (wire.INSERT, wire.UPDATE, wire.DELETE)), PLACES, 0)
        for index, truncate in truncates.items():
            widths[index] = len(truncate.relations)
        ends = self._draft.next_seq + np.cumsum(widths)
        if len(ends):
            self._draft.next_seq = int(ends[-1])
        places: Ints = ends - widths
        return places

    def _relation(self, relation: wire.Relation) -> None:
        resolved = self._resolve(relation)
        self._layouts[relation.id] = resolved.layout
        self.tell(resolved)

    def _layout(self, relation: int) -> Layout | None:
        if relation not in self._layouts:
            raise DecodeError(f"a row of relation {relation} came before its description")
        layout = self._layouts[relation]
        return None if layout is None or layout.schema.table in self.blocked else layout

    def _rows(self, run: wire.Run, start: int, stop: int, seqs: Ints, codes: Ints) -> None:
        """The row messages from ``start`` to before ``stop``, table by table."""
        kinds = run.kinds[start:stop]
        rows = start + np.flatnonzero((kinds == wire.INSERT) | (kinds == wire.UPDATE) | (kinds == wire.DELETE))
        if not len(rows):
            return
        if np.any(run.begins[rows] + 5 > run.ends[rows]):
            raise DecodeError("a row message ends too early")
        relations = integers(run.data, run.begins[rows] + 1, ">u4")
        for relation in np.unique(relations).tolist():
            layout = self._layout(relation)
            if layout is not None:
                self._table_rows(run, rows[relations == relation], layout, seqs, codes)

    def _table_rows(self, run: wire.Run, chosen: Ints, layout: Layout, seqs: Ints, codes: Ints) -> None:
        try:
            rows = decode_rows(run, chosen, seqs[chosen], layout, before_images=self._before_images)
        except UnfitError as error:
            self._block(layout.schema, error)
            return
        numbers = codes[rows.messages].astype(np.int32)
        self._keep(layout.schema, [*rows.columns, rows.operations, rows.seqs, numbers, rows.absent])
        if rows.incomplete:
            reason = "the key of a row changed, and PostgreSQL did not send its large values along"
            self._draft.notices.append(RecopyNeeded(layout.schema.table, reason))

    def _truncate(self, truncate: wire.Truncate, seq: int, code: int) -> None:
        for place, relation in enumerate(truncate.relations):
            layout = self._layout(relation)
            if layout is not None:
                own = [pa.array([None], column.type) for column in layout.schema.columns]
                meta = [[int(Operation.TRUNCATE)], [seq + place], [code], pa.nulls(1, pa.list_(pa.string()))]
                self._keep(layout.schema, [*own, *meta])

    def _keep(self, schema: TableSchema, columns: list[Any]) -> None:
        fields = [*(pa.field(column.name, column.type) for column in schema.columns), *_PART]
        arrays = [
            values if isinstance(values, pa.Array) else pa.array(values, field.type)
            for values, field in zip(columns, fields, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
        self._draft.parts.append(batch)
        self._draft.tables.append(schema)
        self._draft.rows += batch.num_rows

    def _block(self, schema: TableSchema, error: UnfitError) -> None:
        self.blocked.add(schema.table)
        self._draft.notices.append(unfit(schema.table, error))


def unfit(table: TableId, error: UnfitError) -> TableBlocked:
    """What is said of a table with a value that its column cannot hold exactly."""
    column = str(error).partition(":")[0]
    remedy = f"Add '{table}.{column}' to source.text_columns, which keeps that column as PostgreSQL prints it."
    return TableBlocked(table, f"a value does not fit its column exactly: {error}", remedy)

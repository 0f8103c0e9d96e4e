"""Distributed transactions (XA): the log has their rows at XA PREPARE, and they count from XA COMMIT on.

Nothing of them is stored. After a restart the stream starts before the oldest one that was open, skips what was
delivered, and so reads their rows again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from lakefeed.capture.builder import Spill
from lakefeed.capture.log import Rows
from lakefeed.capture.mysql.history import Gtid
from lakefeed.change.table import TableId, TableSchema

MEMORY_BYTES = 16 << 20
"""Of one transaction; there may be many."""
Xid = tuple[int, bytes, bytes]
"""Format id, global transaction id, branch qualifier."""


@dataclass(slots=True)
class Prepared:
    """One prepared transaction, in memory while it is small. A stream that starts after ``before`` reads all of it.
    ``left_out`` are tables that were not captured when it changed them. ``end`` is the end of its XA COMMIT or XA
    ROLLBACK."""

    before: Gtid
    width: int = 0
    left_out: set[TableId] = field(default_factory=set)
    end: Gtid | None = None
    _schemas: list[TableSchema] = field(default_factory=list)
    _parts: Spill = field(default_factory=lambda: Spill(memory_bytes=MEMORY_BYTES))

    def add(self, rows: Rows) -> None:
        arrays = [*rows.columns, pa.array(rows.operations), pa.array(rows.order)]
        names = [str(index) for index in range(len(arrays))]
        self._parts.append(pa.RecordBatch.from_arrays(arrays, names=names, metadata=rows.replaced))
        self._schemas.append(rows.schema)

    def rows(self, transaction: int, base: int) -> Iterator[Rows]:
        """Its rows as part of the piece with its XA COMMIT. ``base`` is the width of the piece before them."""
        for schema, part in zip(self._schemas, self._parts, strict=True):
            *columns, operations, order = part.columns
            indices = np.full(len(part), transaction, np.int32)
            found = Rows(schema, columns, operations.to_numpy(), order.to_numpy() + base, indices)
            yield replace(found, replaced=part.schema.metadata)


class PreparedTransactions:
    """The prepared transactions of a pipeline. Belongs to the stream's thread, and outlives streams."""

    def __init__(self) -> None:
        self.open: dict[Xid, Prepared] = {}
        self._ended: list[Prepared] = []
        self._begin: Gtid | None = None

    def start(self, begin: Gtid | None) -> None:
        """A stream starts. If it starts early, at ``begin``, it reads the open transactions again; they are not known
        until it has ``caught_up``."""
        self.open, self._ended, self._begin = {}, [], begin

    def caught_up(self) -> None:
        self._begin = None

    def end(self, xid: Xid, end: Gtid) -> None:
        if (found := self.open.pop(xid, None)) is not None:
            found.end = end
            self._ended.append(found)

    def oldest(self, position: Gtid) -> Gtid:
        """Where a stream must start to go on after ``position``: before the transactions that were open there."""
        self._ended = [one for one in self._ended if one.end is None or not one.end <= position]
        begins = [one.before for one in (*self.open.values(), *self._ended)]
        return min([position, *begins, *([] if self._begin is None else [self._begin])])

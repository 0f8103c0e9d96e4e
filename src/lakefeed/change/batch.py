"""ChangeBatch: changes of one table as one Arrow record batch.

Layout: the table's own columns in schema order, then the metadata columns below. Rows are in source order.
- A delete carries the key; its other columns are NULL and mean nothing.
- A truncate carries nothing; all columns of the table are NULL.
- A changed key arrives as two rows: a delete of the old key and an insert of the new one.
- In a table without a key a row is identified by all of its values: a delete carries the whole row, with no column
  absent, and an update arrives as a delete of the old row and an insert of the new one, never as an UPDATE. A source
  that cannot send the old row must not capture such a table; if it does, the lake stops the table.
- A column that the source did not send (unchanged TOAST) is listed in ``_lakefeed_absent``. Its value means nothing
  and must never be read as NULL. An insert that lists one is the second row of a changed key: the column keeps the
  value it had under the old key, whose delete is the row before it in the same table, with the preceding seq.
- A before image is a row of its own, with the operation BEFORE and its own seq: the whole row as it was, directly
  before the UPDATE or DELETE that ended it, with the same key and in the same transaction. It is not a change: code
  that applies or counts changes skips it. Only a source that can send before images and was asked to does so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import pyarrow as pa

from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import DecodeError


class Operation(IntEnum):
    """What happened to a row; the values of the column ``OP``."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3
    TRUNCATE = 4
    READ = 5
    """A row that a snapshot read; applied like an insert."""
    BEFORE = 6
    """A row as it was before the UPDATE or DELETE that follows it in its table; not a change itself."""


OP = "_lakefeed_op"
SEQ = "_lakefeed_seq"
POSITION = "_lakefeed_position"
TIME = "_lakefeed_time"
TXN = "_lakefeed_txn"
ABSENT = "_lakefeed_absent"

FOUND = "_lakefeed_found"
"""What a full comparison found out about a key: DELETED or CHANGED. The lake writes this column, polling reads it."""
DELETED, CHANGED = "deleted", "changed"

_REPLACED = b"lakefeed.replaced"

_TEXT = pa.dictionary(pa.int32(), pa.string())

METADATA = pa.schema(
    [
        pa.field(OP, pa.int8(), nullable=False),
        # Total order. In a change set: the row's index over all tables, from 0. The journal makes it global.
        pa.field(SEQ, pa.int64(), nullable=False),
        pa.field(POSITION, _TEXT),  # encoded commit position
        pa.field(TIME, pa.timestamp("us", tz="UTC")),  # commit time by the source's clock
        pa.field(TXN, _TEXT),  # the source's transaction id
        pa.field(ABSENT, pa.list_(pa.string())),  # None: every column was sent
    ]
)


def change_schema(schema: TableSchema) -> pa.Schema:
    """The Arrow schema of a ChangeBatch. All of the table's columns are nullable in it: deletes carry only the key."""
    own = [pa.field(column.name, column.type) for column in schema.columns]
    return pa.schema([*own, *METADATA])


def replaced_metadata(counts: Mapping[str, int]) -> dict[bytes, bytes]:
    """Schema metadata that records, by column, how many values ``out_of_range`` replaced by NULL or clamped."""
    return {_REPLACED: json.dumps(dict(counts)).encode()}


def replaced_values(schema: pa.Schema) -> Counter[str]:
    """The counts that ``replaced_metadata`` recorded."""
    return Counter(json.loads((schema.metadata or {}).get(_REPLACED, b"{}")))


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Changes of one table under one version of its schema."""

    schema: TableSchema
    data: pa.RecordBatch

    def __post_init__(self) -> None:
        expected = change_schema(self.schema)
        if not self.data.schema.equals(expected):
            raise DecodeError(f"a batch for {self.table} has the columns {self.data.schema}, expected {expected}")

    @property
    def table(self) -> TableId:
        return self.schema.table

    @property
    def rows(self) -> int:
        return int(self.data.num_rows)

    @property
    def bytes(self) -> int:
        return int(self.data.nbytes)

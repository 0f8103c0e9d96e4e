"""ChangeBatch: changes of one table as one Arrow record batch.

Layout: the table's own columns in schema order, then Lakefeed's metadata columns below. Rows are in source order.
- A delete carries the key; its other columns are NULL and mean nothing.
- A truncate carries nothing; all columns of the table are NULL.
- A change of the key arrives as two rows: delete of the old key, insert of the new one.
- In a table without a key a row's identity is all of its values: a delete carries the whole row, every column sent, and
  an update arrives as two rows, delete of the old one and insert of the new one. An UPDATE never appears there. A
  source that cannot tell the old row must not capture such a table, or the lake stops it.
- A column that the source did not send (unchanged TOAST) is listed in ``_lakefeed_absent`` and its value means
  nothing. It is never to be read as NULL. An insert that lists one is the second row of a changed key: the value is the
  one that the old key had, and the delete of that key is the table's row before it, with the seq before its own.
- A before image is a row of its own, with the operation BEFORE and a seq of its own: the row as it was, whole, directly
  before the UPDATE or DELETE that ended it, with the same key, in the same transaction. It changes nothing and is no
  change: whoever applies or counts changes passes it over. Only a source that can give it and was asked to does so.
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
    """What happened to a row: the values of the column ``OP``."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3
    TRUNCATE = 4
    READ = 5
    """A row as a snapshot read it: applied like an insert."""
    BEFORE = 6
    """A row as it was before the UPDATE or DELETE that comes next in its table: not a change itself."""


OP = "_lakefeed_op"
SEQ = "_lakefeed_seq"
POSITION = "_lakefeed_position"
TIME = "_lakefeed_time"
TXN = "_lakefeed_txn"
ABSENT = "_lakefeed_absent"

FOUND = "_lakefeed_found"
"""What a full comparison found of a key: DELETED or CHANGED. The lake writes it, polling reads it."""
DELETED, CHANGED = "deleted", "changed"

_REPLACED = b"lakefeed.replaced"

_TEXT = pa.dictionary(pa.int32(), pa.string())

METADATA = pa.schema(
    [
        pa.field(OP, pa.int8(), nullable=False),
        # Total order. Inside a change set: the index in it, from 0, over all tables. The journal makes it global.
        pa.field(SEQ, pa.int64(), nullable=False),
        pa.field(POSITION, _TEXT),  # encoded commit position
        pa.field(TIME, pa.timestamp("us", tz="UTC")),  # commit time by the source's clock
        pa.field(TXN, _TEXT),  # the source's transaction id
        pa.field(ABSENT, pa.list_(pa.string())),  # None: every column was sent
    ]
)


def change_schema(schema: TableSchema) -> pa.Schema:
    """The Arrow schema of a ChangeBatch. Every own column is nullable there: deletes carry only the key."""
    own = [pa.field(column.name, column.type) for column in schema.columns]
    return pa.schema([*own, *METADATA])


def replaced_metadata(counts: Mapping[str, int]) -> dict[bytes, bytes]:
    """What the schema of a batch says of values that ``out_of_range`` made NULL or clamped: how many, by column."""
    return {_REPLACED: json.dumps(dict(counts)).encode()}


def replaced_values(schema: pa.Schema) -> Counter[str]:
    """What ``replaced_metadata`` has written."""
    return Counter(json.loads((schema.metadata or {}).get(_REPLACED, b"{}")))


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Changes of one table under one schema version."""

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

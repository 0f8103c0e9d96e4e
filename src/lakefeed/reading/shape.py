"""The columns of a read: the table's own at one schema version, then those that describe the change.

The metadata columns have the journal's names; the operation is a text here, and each row has its change set.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lakefeed.change.batch import ABSENT, OP, POSITION, SEQ, TIME, TXN
from lakefeed.change.table import TableSchema

CHANGE_SET = "_lakefeed_change_set"

_TYPES: dict[str, pa.DataType] = {
    OP: pa.string(),
    CHANGE_SET: pa.int64(),
    SEQ: pa.int64(),
    POSITION: pa.string(),
    TIME: pa.timestamp("us", tz="UTC"),
    TXN: pa.string(),
    ABSENT: pa.list_(pa.string()),
}
METADATA = pa.schema(_TYPES)


def arrow_shape(target: TableSchema) -> pa.Schema:
    """As in the batches. All nullable: a delete carries only the key."""
    own = [pa.field(column.name, readable_type(column.type)) for column in target.columns]
    return pa.schema([*own, *METADATA])


def spark_shape(target: TableSchema) -> StructType:
    """The same for Spark."""
    return from_arrow_schema(arrow_shape(target), prefer_timestamp_ntz=True)


def readable_type(kind: pa.DataType) -> pa.DataType:
    """The type in a read: times of day are texts (``13:45:00.000000``), for lack of a suitable Spark type."""
    if pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(readable_type(kind.value_type))
    return kind

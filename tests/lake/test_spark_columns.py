"""Columns as a reader of files takes them: no name of a column, or of a field inside one, is taken for a type."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from lakefeed.lake.spark.type import spark_columns


def test_columns_are_told_in_one_text_whatever_their_names() -> None:
    columns: dict[str, Any] = {
        "timestamp": pa.timestamp("us"),
        "a, b": pa.timestamp("us", tz="UTC"),
        "list`s": pa.list_(pa.timestamp("us", tz="UTC")),
        "price": pa.decimal128(5, 2),
    }
    assert spark_columns(pa.schema(columns)) == (
        "`timestamp` timestamp_ntz, `a, b` timestamp_ltz, `list``s` array<timestamp_ltz>, `price` decimal(5,2)"
    )


def test_an_owners_column_with_fields_keeps_their_names() -> None:
    fields = pa.struct([("timestamp", pa.timestamp("us", tz="UTC")), ("first name", pa.string())])
    found = spark_columns(pa.schema([("id", pa.int64()), ("whole", fields)]))
    assert isinstance(found, StructType)
    assert found["whole"].dataType.simpleString() == "struct<timestamp:timestamp,first name:string>"

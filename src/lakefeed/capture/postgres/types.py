"""The type rule: which Arrow type a PostgreSQL column gets. The table for people is in docs/postgres.md.

One rule for stream and snapshot, over one representation: the text that PostgreSQL itself prints for the value, under
the session settings of ``database.SESSION``. A type that is not in the table below is text, exactly as printed.

What Arrow and Spark cannot hold exactly in the column's type (``infinity``, BC, years above 9999, NaN in a numeric with
precision) stops that table with a remedy: name the column in ``text_columns``, and it is kept as printed.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

NUMERIC = 1700
_WIDEST_DECIMAL = 38
_HEADER = 4  # typmods of variable-length types count a header that no longer exists

_PLAIN: dict[int, pa.DataType] = {
    16: pa.bool_(),
    17: pa.binary(),  # bytea
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    26: pa.int64(),  # oid: 32 bits without a sign
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True, slots=True)
class SourceType:
    """A column's type as the catalog has it: domains are looked through to the type that they restrict."""

    oid: int
    modifier: int = -1
    name: str = ""


def arrow_type(source: SourceType) -> pa.DataType:
    """The column's Arrow type."""
    if source.oid == NUMERIC:
        return _numeric(source.modifier)
    return _PLAIN.get(source.oid, pa.string())


def _numeric(modifier: int) -> pa.DataType:
    """A decimal if the declaration bounds it to 38 digits, else text: there is no number type that holds it all."""
    if modifier < _HEADER:
        return pa.string()
    precision = (modifier - _HEADER) >> 16 & 0xFFFF
    scale = ((modifier - _HEADER & 0x7FF) ^ 1024) - 1024  # eleven bits with a sign, since PostgreSQL 15
    if scale < 0:  # numeric(3,-2) holds up to 99900
        precision, scale = precision - scale, 0
    precision = max(precision, scale)  # numeric(2,4) holds up to 0.0099
    return pa.decimal128(precision, scale) if precision <= _WIDEST_DECIMAL else pa.string()

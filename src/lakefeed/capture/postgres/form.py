"""The form in which a copy carries each column: PostgreSQL's binary one where that is read faster, else printed.

Decided by the type that the server itself states for the column at that moment. If that no longer gives the column's
Arrow type (it was changed since the copy was planned), the value is printed and read as the stream's would be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from lakefeed.capture.postgres import binary
from lakefeed.capture.postgres.decimals import WIDEST, decimals
from lakefeed.capture.postgres.names import quoted
from lakefeed.capture.postgres.slices import Slices
from lakefeed.capture.postgres.text import to_arrow
from lakefeed.capture.postgres.types import NUMERIC, SourceType, arrow_type

_READERS: dict[int, Callable[[Slices], Any]] = {
    16: binary.booleans,
    17: binary.octets,
    19: binary.texts,  # name
    20: binary.big_integers,
    21: binary.small_integers,
    23: binary.integers,
    25: binary.texts,
    26: binary.oids,
    114: binary.texts,  # json
    700: binary.reals,
    701: binary.doubles,
    1042: binary.texts,  # char(n)
    1043: binary.texts,  # varchar
    1082: binary.dates,
    1114: binary.timestamps,
    1184: binary.zoned_timestamps,
    2950: binary.uuids,
    3802: binary.jsonb,
}
_TEXTS = (19, 25, 114, 1042, 1043, 2950, 3802)
"""Their binary form tells what is printed, so that they may also be columns that are kept as printed."""


@dataclass(frozen=True, slots=True)
class Form:
    """``sql`` is what to select, ``read`` makes Arrow of it: UnfitError for a value that the column cannot hold."""

    sql: str
    read: Callable[[Slices], Any]


def form_of(name: str, kind: pa.DataType, stated: SourceType) -> Form:
    """``kind`` is the column's Arrow type, ``stated`` the type that the server says it has."""
    column = quoted(name)
    if arrow_type(stated) == kind:
        if stated.oid == NUMERIC and isinstance(kind, pa.Decimal128Type) and kind.precision <= WIDEST:
            return Form(column, partial(decimals, kind=kind))
        reader = _READERS.get(stated.oid)
        if reader is not None and (stated.oid in _TEXTS or kind != pa.string()):
            return Form(column, reader)
    # By the type's output function, which a cast to text is not for all types; only a NULL itself is NULL.
    return Form(
        f"CASE WHEN {column} IS DISTINCT FROM NULL THEN format('%s', {column}) END", partial(_printed, kind=kind)
    )


def _printed(values: Slices, kind: pa.DataType) -> Any:
    return to_arrow(values.binary(), kind)

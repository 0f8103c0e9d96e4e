"""Lake tables by readers that are not Lakefeed's (deltalake, pyiceberg), compared with what the database prints."""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyiceberg.table import StaticTable
from tests.storm.database import Row

Parse = Callable[[str], Any]
_ELEMENT = re.compile(r'("((?:[^"\\]|\\.)*)"|[^,"]+)', re.DOTALL)
"""Of an array as PostgreSQL prints it."""


def read(lake_format: str, path: Path, columns: Sequence[str] | None = None) -> pa.Table | None:
    """The rows of a lake table, or None where there is no table."""
    wanted = list(columns) if columns is not None else None
    if lake_format == "delta":
        try:
            return DeltaTable(str(path)).to_pyarrow_table(columns=wanted)
        except TableNotFoundError:
            return None
    found = sorted((path / "metadata").glob("v*.metadata.json"), key=lambda file: int(file.name[1:].split(".")[0]))
    if not found:
        return None
    scan = StaticTable.from_metadata(str(found[-1])).scan(selected_fields=tuple(wanted) if wanted else ("*",))
    return scan.to_arrow()


def differences(rows: Sequence[Row], columns: Sequence[str], table: pa.Table) -> str | None:
    """What is not equal, in one line; None if everything is. Order of rows and columns does not count."""
    if sorted(columns) != sorted(table.column_names):
        lacks, more = sorted(set(columns) - set(table.column_names)), sorted(set(table.column_names) - set(columns))
        return f"columns differ: the lake lacks {lacks} and has {more} that the source has not"
    parses = [_parse(table.schema.field(name).type) for name in columns]
    try:
        source = Counter(
            tuple(None if value is None else parse(value.decode()) for parse, value in zip(parses, row, strict=True))
            for row in rows
        )
    except (ValueError, ArithmeticError) as error:
        return f"a value of the source does not fit the lake's type: {error}"
    lake_columns = [[_canonical(value) for value in table[name].to_pylist()] for name in columns]
    lake = Counter(zip(*lake_columns, strict=True)) if lake_columns else Counter()
    missing, extra = source - lake, lake - source
    if not missing and not extra:
        return None
    example = next(iter(missing or extra))
    return (
        f"{missing.total()} of {len(rows)} rows of the source are not in the lake, {extra.total()} of {table.num_rows} "
        f"rows of the lake are not in the source; such as {dict(zip(columns, example, strict=True))}"[:1500]
        + (f", in the lake {dict(zip(columns, next(iter(extra)), strict=True))}"[:1500] if missing and extra else "")
    )


def _parse(kind: pa.DataType) -> Parse:
    """How the printed text becomes the value that ``_canonical`` makes of the lake's. Text stays as it is printed."""
    if pa.types.is_list(kind):
        element = _parse(kind.value_type)
        return lambda text: tuple(
            None if whole == "NULL" else element(re.sub(r"\\(.)", r"\1", quoted) if whole[0] == '"' else whole)
            for whole, quoted in _ELEMENT.findall(text[1:-1])
        )
    if pa.types.is_boolean(kind):
        return lambda text: text in ("t", "1")
    if pa.types.is_integer(kind):
        return int
    if pa.types.is_float32(kind):
        return lambda text: _canonical(struct.unpack("f", struct.pack("f", float(text)))[0])
    if pa.types.is_floating(kind):
        return lambda text: _canonical(float(text))
    if pa.types.is_decimal(kind):
        return lambda text: _canonical(Decimal(text))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda text: bytes.fromhex(text.removeprefix("\\x"))
    if pa.types.is_date(kind):
        return date.fromisoformat
    if pa.types.is_timestamp(kind):
        return datetime.fromisoformat
    return str


def _canonical(value: Any) -> Any:
    """Values that compare by what they are: NaN equals NaN, -0.0 does not equal 0.0, times are in UTC."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value)
    if isinstance(value, list):
        return tuple(map(_canonical, value))
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return value

"""Proof that a lake table equals its source table, row by row, by readers that the pipeline does not use.

The lake is read with the deltalake package (no Spark, no JVM), the source with plain SQL. Both become Arrow columns of
the lake's types, sorted by every column, and are compared exactly: no tolerance, no hash, no sample.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakefeed.change.table import TableId
from lakefeed.lake.mode import Mirror
from lakefeed.lake.reader import read_table
from lakefeed.lake.shape import Shape

_EXAMPLES = 3
_MIRROR = Shape(Mirror())
_ROWID = re.compile("_+rowid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Rows on both sides and the first differences, as sentences; none of them: equal."""

    table: TableId
    source_rows: int
    lake_rows: int
    differences: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return not self.differences


Rows = tuple[list[str], dict[str, tuple[Any, ...]], int]
"""The source's own column names; the values of the lake's columns that it has; the number of rows."""


def compare_rows(
    table: TableId, lake_table: Path, read: Callable[[pa.Table], Rows], shape: Shape = _MIRROR
) -> Comparison:
    """Compare a lake table with what ``read``, which is given the lake's rows, finds in the source.

    ``shape`` is the lake table's: of a history table the current versions are compared. A table that has only changes
    is not compared.
    """
    stored = read_table(lake_table)
    if stored is None:
        return Comparison(table=table, source_rows=0, lake_rows=0, differences=(f"there is no table at {lake_table}",))
    lake = shape.source_rows(stored)
    if lake is None:
        return Comparison(table=table, source_rows=0, lake_rows=stored.num_rows)
    names, columns, rows = read(lake)
    differences = tuple(_differences(names, columns, lake))
    return Comparison(table=table, source_rows=rows, lake_rows=lake.num_rows, differences=differences)


def compare_sqlite_table(database: Path, table: TableId, lake_table: Path, shape: Shape = _MIRROR) -> Comparison:
    """Compare one table. Nothing may be writing to either side meanwhile."""
    return compare_rows(table, lake_table, lambda lake: _read_sqlite(database, table, lake.column_names), shape)


def _read_sqlite(database: Path, table: TableId, lake_names: list[str]) -> Rows:
    source = f"{_quoted(table.schema)}.{_quoted(table.name)}"
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as connection:
        # Text that is not UTF-8 must not stop the comparison: it comes as bytes, which have a text form.
        connection.text_factory = _text
        own = [column[0] for column in connection.execute(f"SELECT * FROM {source} LIMIT 0").description]  # noqa: S608
        if lake_names[:1] not in ([], own[:1]) and _ROWID.fullmatch(lake_names[0]):
            own.insert(0, lake_names[0])  # a table without a key: the lake has the rowid as its first column
        names = [name for name in lake_names if name in own]
        listed = ", ".join("rowid" if _ROWID.fullmatch(name) else _quoted(name) for name in names)
        rows = connection.execute(f"SELECT {listed} FROM {source}").fetchall()  # noqa: S608  # quoted names
    columns = zip(*rows, strict=True) if rows else iter([()] * len(names))
    return own, dict(zip(names, columns, strict=True)), len(rows)


def _differences(names: list[str], columns: dict[str, tuple[Any, ...]], lake: pa.Table) -> Iterator[str]:
    missing = [name for name in names if name not in lake.column_names]
    extra = [name for name in lake.column_names if name not in names]
    if missing or extra:
        yield from (f"column {name} is not in the lake" for name in missing)
        yield from (f"column {name} is not in the source" for name in extra)
        return
    arrays = []
    for field in lake.schema:
        try:
            arrays.append(_exact_array(columns[field.name], field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            yield f"column {field.name} holds values that the lake's {field.type} cannot: {error}"
            return
    source = pa.Table.from_arrays(arrays, schema=lake.schema)
    if not _comparable(source).equals(_comparable(lake)):
        yield from _row_differences(source, lake)


def _exact_array(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array[Any]:
    """No conversion but the documented ones: a text column holds the text form of whatever SQLite has, and a float
    column an integer that has a double of its own. 1.0 is not the integer 1."""
    if kind == pa.string():
        return pa.array([_text_form(value) for value in values], type=kind)
    array = pa.array(values, type=kind)
    wanted = {pa.int64(): (int,), pa.float64(): (float, int), pa.binary(): (bytes,)}.get(kind, (object,))
    wrong = next((value for value in values if value is not None and not isinstance(value, wanted)), None)
    if wrong is not None:
        raise pa.ArrowTypeError(f"{wrong!r} is a {type(wrong).__name__}")
    return array


def _text_form(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return f"X'{value.hex().upper()}'" if isinstance(value, bytes) else repr(value)


def _comparable(table: pa.Table) -> pa.Table:
    """Sorted by every column; floating point as text, because NaN is not equal to itself."""
    for place, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pa.string()))
    return table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()


def _row_differences(source: pa.Table, lake: pa.Table) -> Iterator[str]:
    """The slow way, only taken when there is something to show."""
    left, right = Counter(_rows(source)), Counter(_rows(lake))
    only_source, only_lake = left - right, right - left
    yield f"{only_source.total():,} rows are only in the source, {only_lake.total():,} only in the lake"
    yield from (f"only in the source: {row}" for row in islice(only_source, _EXAMPLES))
    yield from (f"only in the lake: {row}" for row in islice(only_lake, _EXAMPLES))


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

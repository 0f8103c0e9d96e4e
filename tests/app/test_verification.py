"""The comparison that demo and crash tests rely on must find every kind of difference."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.compare import compare_sqlite_table

from lakefeed.change.table import TableId
from lakefeed.lake.mode import Append
from lakefeed.verify.compare import Comparison

ITEMS = TableId("main", "items")


def columns_of(**types: pa.DataType) -> pa.Schema:
    return pa.schema(list(types.items()))


COLUMNS = columns_of(id=pa.int64(), name=pa.string(), price=pa.float64(), picture=pa.binary())
ROWS: list[tuple[Any, ...]] = [
    (1, "O'Brien", 0.1, b"\x00\xff"),
    (2, None, None, None),
    (2**62 + 1, "žluťoučký", 1e308, b""),
]


def source(directory: Path, rows: Sequence[tuple[Any, ...]]) -> Path:
    database = directory / "shop.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, price REAL, picture BLOB)")
        connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows)
    return database


def lake(directory: Path, rows: Sequence[tuple[Any, ...]], columns: pa.Schema = COLUMNS) -> Path:
    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    arrays = [pa.array(column, field.type) for column, field in zip(values, columns, strict=True)]
    path = directory / "lake" / "main" / "items"
    write_deltalake(str(path), pa.Table.from_arrays(arrays, schema=columns))
    return path


def compared(directory: Path, source_rows: Sequence[tuple[Any, ...]], lake_rows: list[tuple[Any, ...]]) -> Comparison:
    return compare_sqlite_table(source(directory, source_rows), ITEMS, lake(directory, lake_rows))


def test_equal_tables_are_equal_in_any_order_of_rows(tmp_path: Path) -> None:
    result = compared(tmp_path, ROWS, ROWS[::-1])
    assert result.equal
    assert (result.source_rows, result.lake_rows) == (3, 3)


def test_two_empty_tables_are_equal(tmp_path: Path) -> None:
    assert compared(tmp_path, [], []).equal


@pytest.mark.parametrize(
    "changed",
    [
        ROWS[:2],
        [*ROWS, (7, "x", 1.0, b"")],
        [*ROWS, ROWS[0]],
        [(1, "O'Brien", 0.1 + 2**-55, b"\x00\xff"), *ROWS[1:]],
        [(1, "O'Brien", 0.1, b"\x00"), *ROWS[1:]],
        [ROWS[0], (2, "", None, None), ROWS[2]],
        [ROWS[0], ROWS[1], (2**62, "žluťoučký", 1e308, b"")],
    ],
    ids=["lost row", "extra row", "row twice", "last bit of a float", "blob", "NULL and empty", "beyond 2^53"],
)
def test_a_difference_is_found_and_shown(tmp_path: Path, changed: list[tuple[Any, ...]]) -> None:
    result = compared(tmp_path, ROWS, changed)
    assert not result.equal
    assert "only in the source" in result.differences[0]
    assert len(result.differences) > 1


def test_columns_that_one_side_lacks_are_named(tmp_path: Path) -> None:
    columns = columns_of(id=pa.int64(), name=pa.string(), cost=pa.float64(), picture=pa.binary())
    result = compare_sqlite_table(source(tmp_path, ROWS), ITEMS, lake(tmp_path, ROWS, columns))
    assert result.differences == ("column price is not in the lake", "column cost is not in the source")


def test_a_value_of_another_type_is_a_difference_not_a_conversion(tmp_path: Path) -> None:
    columns = columns_of(id=pa.int64(), name=pa.string(), price=pa.int64(), picture=pa.binary())
    result = compare_sqlite_table(
        source(tmp_path, [(1, "a", 1.0, b"")]), ITEMS, lake(tmp_path, [(1, "a", 1, b"")], columns)
    )
    assert "1.0 is a float" in result.differences[0]


def test_a_text_column_holds_the_text_form_of_other_values(tmp_path: Path) -> None:
    columns = columns_of(id=pa.int64(), name=pa.string(), price=pa.string(), picture=pa.string())
    database = source(tmp_path, [(1, b"\xff", "cheap", 1.5), (2, "a", 0.1, b"\x0a"), (3, "b", None, 7)])
    rows = [(1, "X'FF'", "cheap", "1.5"), (2, "a", "0.1", "X'0A'"), (3, "b", None, "7")]
    assert compare_sqlite_table(database, ITEMS, lake(tmp_path, rows, columns)).differences == ()


def test_the_rowid_of_a_table_without_a_key_is_compared_too(tmp_path: Path) -> None:
    columns = columns_of(_rowid=pa.int64(), name=pa.string())
    database = tmp_path / "shop.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE items (name TEXT)")
        connection.execute("INSERT INTO items (rowid, name) VALUES (7, 'a'), (9, 'a')")
    path = lake(tmp_path, [(7, "a"), (9, "a")], columns)
    assert compare_sqlite_table(database, ITEMS, path).differences == ()
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE items SET rowid = 8 WHERE rowid = 9")
    assert not compare_sqlite_table(database, ITEMS, path).equal


def test_what_cannot_be_compared_is_a_difference_and_not_left_out(tmp_path: Path) -> None:
    database = source(tmp_path, ROWS)
    nothing = compare_sqlite_table(database, ITEMS, lake(tmp_path, [(1,)], columns_of(other=pa.int64())))
    assert "there is no column that both have" in nothing.differences
    changes = compare_sqlite_table(database, ITEMS, tmp_path / "lake" / "main" / "items", Append())
    assert not changes.equal


def test_a_lake_table_that_is_not_there_is_a_difference(tmp_path: Path) -> None:
    result = compare_sqlite_table(source(tmp_path, ROWS), ITEMS, tmp_path / "nowhere")
    assert result.differences == (f"there is no table at {tmp_path / 'nowhere'}",)
